/* SPDX-License-Identifier: MIT */

/*
 * Frequencies are computed in double, but rounded to float, as is their product with the position:
 * models were trained, and references computed, with angles of that precision. At position 4000 a
 * float angle is off by up to 1e-4, which an exact table would not share.
 */

#include <math.h>

#include "daemon/model/model_config.h"

#define TWO_PI 6.283185307179586476925

static uint32_t rope_table_dim(const struct model_config *config)
{
	return config->rotary_dim ? config->rotary_dim : config->head_dim;
}

static double rope_table_base(const struct model_config *config, uint32_t pair)
{
	return pow(config->rope.theta, -2.0 * pair / rope_table_dim(config));
}

/* Long waves are stretched by the factor, short ones kept, those between blended. */
static double rope_table_llama3(const struct model_config *config, uint32_t pair)
{
	double frequency = rope_table_base(config, pair);
	double waves = config->rope.original_max_position_embeddings * frequency / TWO_PI;
	double low = config->rope.low_freq_factor, high = config->rope.high_freq_factor;
	double smooth = (waves - low) / (high - low);

	if (waves > high)
		return frequency;
	if (waves < low)
		return frequency / config->rope.factor;
	return (1 - smooth) * frequency / config->rope.factor + smooth * frequency;
}

/* The pair, as a real number, whose wave turns `rotations` times within the original length. */
static double rope_table_yarn_pair(const struct model_config *config, double rotations)
{
	double turns = config->rope.original_max_position_embeddings / (rotations * TWO_PI);

	return rope_table_dim(config) * log(turns) / (2 * log(config->rope.theta));
}

static double rope_table_yarn(const struct model_config *config, uint32_t pair)
{
	double frequency = rope_table_base(config, pair);
	double low = rope_table_yarn_pair(config, config->rope.beta_fast);
	double high = rope_table_yarn_pair(config, config->rope.beta_slow);
	double ramp;

	if (config->rope.truncate) {
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0);
	high = fmin(high, rope_table_dim(config) - 1.0);
	if (low == high)
		high += 0.001;
	ramp = fmin(fmax((pair - low) / (high - low), 0), 1);
	return frequency / config->rope.factor * ramp + frequency * (1 - ramp);
}

double model_yarn_magnitude(double factor, double mscale)
{
	return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static double rope_table_scale(const struct model_config *config)
{
	const struct model_rope *rope = &config->rope;

	if (rope->type != ROPE_YARN && rope->type != ROPE_LONGROPE)
		return 1.0;
	if (rope->attention_factor >= 0)
		return rope->attention_factor;
	/* arXiv:2402.13753, as Phi-3 has it */
	if (rope->type == ROPE_LONGROPE)
		return rope->factor <= 1 ? 1.0
					 : sqrt(1 + log(rope->factor) / log(rope->original_max_position_embeddings));
	if (config->rope.mscale > 0 && config->rope.mscale_all_dim > 0)
		return model_yarn_magnitude(config->rope.factor, config->rope.mscale) /
			model_yarn_magnitude(config->rope.factor, config->rope.mscale_all_dim);
	return model_yarn_magnitude(config->rope.factor, 1);
}

bool model_rope_is_long(const struct model_config *config, uint32_t max_positions)
{
	return config->rope.type == ROPE_LONGROPE && max_positions > config->rope.original_max_position_embeddings;
}

static double rope_table_frequency(const struct model_config *config, bool is_long, uint32_t pair)
{
	switch (config->rope.type) {
	case ROPE_DEFAULT:
		break;
	case ROPE_LINEAR:
		return rope_table_base(config, pair) / config->rope.factor;
	case ROPE_LLAMA3:
		return rope_table_llama3(config, pair);
	case ROPE_YARN:
		return rope_table_yarn(config, pair);
	case ROPE_FACTORS:
	case ROPE_LONGROPE:
		return rope_table_base(config, pair) /
			(double)(is_long ? config->rope.long_factors : config->rope.factors)[pair];
	}
	return rope_table_base(config, pair);
}

static void rope_table_fill(const struct model_config *config, uint32_t max_positions, float *ret)
{
	float frequencies[MODEL_HEAD_DIM_MAX / 2];
	uint32_t half = config->head_dim / 2, n_rotated = rope_table_dim(config) / 2;
	double scale = rope_table_scale(config);
	bool is_long = model_rope_is_long(config, max_positions);

	for (uint32_t pair = 0; pair < n_rotated; pair++)
		frequencies[pair] = (float)rope_table_frequency(config, is_long, pair);
	for (uint32_t position = 0; position < max_positions; position++) {
		float *row = ret + (uint64_t)position * config->head_dim;

		for (uint32_t pair = 0; pair < half; pair++) {
			float angle = pair < n_rotated ? (float)position * frequencies[pair] : 0;

			row[pair] = pair < n_rotated ? (float)(cos(angle) * scale) : 1;
			row[half + pair] = (float)(sin(angle) * scale);
		}
	}
}

void model_rope_fill(const struct model_config *config, uint32_t max_positions, float *ret)
{
	struct model_config local;

	rope_table_fill(config, max_positions, ret);
	if (model_n_rope_tables(config) == 1)
		return;
	local = *config;
	local.rope = (struct model_rope){.type = ROPE_DEFAULT, .theta = config->local_theta};
	rope_table_fill(&local, max_positions, ret + (size_t)max_positions * config->head_dim);
}
