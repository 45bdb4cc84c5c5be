/* SPDX-License-Identifier: MIT */

/*
 * Rope settings come in two spellings: `rope_theta` and `rope_scaling` at the top level (older), or
 * all of it in `rope_parameters` (newer). Where both are there, transformers lets `rope_scaling`
 * win and takes what it lacks from the top level; so do we.
 */

#include <errno.h>
#include <string.h>

#include "daemon/model/hf_config.h"

#define THETA_DEFAULT 10000.0
#define GEMMA3_THETA_DEFAULT 1000000.0
#define BETA_FAST_DEFAULT 32.0
#define BETA_SLOW_DEFAULT 1.0
#define FACTOR_MAX 1e6
#define PHI3_ORIGINAL_LENGTH 4096.0

static struct field_object hf_rope_find_settings(const struct field_object *root)
{
	struct field_object older = field_member(root, "rope_scaling", "rope_scaling."), newer;

	if (older.json && json_object_size(older.json) > 0)
		return older;
	newer = field_member(root, "rope_parameters", "rope_parameters.");
	return newer.json ? newer : older;
}

static void hf_rope_refuse_nested(const struct field_object *settings)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)settings->json, key, value) {
		if (json_is_object(value))
			field_fail(settings, -EINVAL,
				"%s is an object: rope settings per layer type are not supported",
				key);
	}
}

/* The rotated part of a head: rotary_dim, which stays 0 if it is all of it. */
static void hf_rope_parse_partial(
	const struct field_object *root, const struct field_object *settings, struct model_config *config)
{
	const char *key = "partial_rotary_factor";
	const struct field_object *from = field_state(settings, key) == FIELD_THERE ? settings : root;
	double partial = field_real(from, key, 0, 1, 1.0);
	uint32_t dim = (uint32_t)(config->head_dim * partial);

	if (dim < 2 || dim % 2)
		field_fail(from, -ENOTSUP,
			"%s %g rotates %u of head_dim %u elements, which is not an even number from 2 on", key, partial,
			dim, config->head_dim);
	config->rotary_dim = dim < config->head_dim ? dim : 0;
}

static void hf_rope_refuse_partial(const struct field_object *object)
{
	double partial = field_real(object, "partial_rotary_factor", -1e9, 1e9, 1.0);

	if (partial != 1.0)
		field_fail(object, -ENOTSUP,
			"partial_rotary_factor %g is not supported, only 1 is", partial);
}

static enum rope_type hf_rope_parse_type(const struct field_object *settings)
{
	static const char *const names[] = {
		[ROPE_DEFAULT] = "default",
		[ROPE_LINEAR] = "linear",
		[ROPE_LLAMA3] = "llama3",
		[ROPE_YARN] = "yarn",
	};
	const char *key = field_state(settings, "rope_type") == FIELD_THERE ? "rope_type" : "type";
	const char *name = field_string(settings, key, "default");

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(name, names[i]))
			return (enum rope_type)i;
	}
	field_fail(settings, -ENOTSUP, "%s \"%.64s\" is not one of default, linear, llama3, yarn",
		key, name);
	return ROPE_DEFAULT;
}

static double hf_rope_parse_original_length(
	const struct field_object *root, const struct field_object *settings, double absent)
{
	const char *key = "original_max_position_embeddings";
	const struct field_object *from =
		field_state(root, key) == FIELD_THERE ? root : settings;

	return field_real(from, key, 1, 1e9, absent);
}

static void hf_rope_parse_llama3(const struct field_object *settings, struct model_config *config)
{
	struct model_rope *rope = &config->rope;

	rope->factor = field_real_needed(settings, "factor", 1e-6, FACTOR_MAX);
	rope->low_freq_factor = field_real_needed(settings, "low_freq_factor", 1e-6, FACTOR_MAX);
	rope->high_freq_factor = field_real_needed(settings, "high_freq_factor", 1e-6, FACTOR_MAX);
	if (rope->high_freq_factor <= rope->low_freq_factor)
		field_fail(settings, -EINVAL,
			"high_freq_factor %g is not greater than low_freq_factor %g",
			rope->high_freq_factor, rope->low_freq_factor);
}

static void hf_rope_parse_yarn(const struct field_object *settings, struct model_config *config)
{
	struct model_rope *rope = &config->rope;

	/* a null factor means the ratio of the two lengths */
	if (field_state(settings, "factor") == FIELD_NULL)
		rope->factor = config->max_seq_len / rope->original_max_position_embeddings;
	else
		rope->factor = field_real_needed(settings, "factor", 1e-6, FACTOR_MAX);
	rope->beta_fast = field_real(settings, "beta_fast", 0, FACTOR_MAX, 0);
	rope->beta_slow = field_real(settings, "beta_slow", 0, FACTOR_MAX, 0);
	rope->attention_factor = field_real(settings, "attention_factor", 0, FACTOR_MAX, -1);
	rope->mscale = field_real(settings, "mscale", 0, FACTOR_MAX, -1);
	rope->truncate =
		field_bool(settings, "truncate", field_state(settings, "truncate") != FIELD_NULL);
	/* zero means the default, as absence does */
	if (rope->beta_fast == 0)
		rope->beta_fast = BETA_FAST_DEFAULT;
	if (rope->beta_slow == 0)
		rope->beta_slow = BETA_SLOW_DEFAULT;
}

/* ---- longrope ---- */

/* A factor a rotated pair. */
static void hf_rope_parse_factors(const struct field_object *settings, const char *key, uint32_t n, float *ret)
{
	const json_t *list = json_object_get(settings->json, key);

	if (!json_is_array(list) || json_array_size(list) != n) {
		field_fail(settings, -EINVAL,
			"%s is not a list of %u numbers, one a pair of a head's rotated elements", key, n);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		const json_t *item = json_array_get(list, i);
		double factor = json_number_value(item);

		if (!json_is_number(item))
			field_fail(settings, -EINVAL, "%s[%u] is not a number", key, i);
		else if (!(factor >= 1e-6 && factor <= FACTOR_MAX))
			field_fail(settings, -EINVAL, "%s[%u] %g is not between 1e-06 and %g", key, i, factor,
				FACTOR_MAX);
		ret[i] = (float)factor;
	}
}

static void hf_rope_parse_longrope(const struct field_object *root, const struct field_object *settings,
	struct model_config *config)
{
	static const char *const unsupported[] = {"short_mscale", "long_mscale"};
	struct model_rope *rope = &config->rope;
	uint32_t n = (config->rotary_dim ? config->rotary_dim : config->head_dim) / 2;

	for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
		if (field_state(settings, unsupported[i]) == FIELD_THERE)
			field_fail(settings, -ENOTSUP, "%s is not supported", unsupported[i]);
	}
	rope->original_max_position_embeddings =
		hf_rope_parse_original_length(root, settings, PHI3_ORIGINAL_LENGTH);
	if (rope->original_max_position_embeddings < 2)
		field_fail(root, -EINVAL, "original_max_position_embeddings %g is less than 2",
			rope->original_max_position_embeddings);
	rope->factor = field_real(settings, "factor", 1e-6, FACTOR_MAX,
		config->max_seq_len / rope->original_max_position_embeddings);
	rope->attention_factor = field_real(settings, "attention_factor", 0, FACTOR_MAX, -1);
	hf_rope_parse_factors(settings, "short_factor", n, rope->factors);
	hf_rope_parse_factors(settings, "long_factor", n, rope->long_factors);
}

/* Phi-3 rotates a part of a head, and knows longrope alone, by two older names as well. */
static void hf_rope_parse_phi3(const struct field_object *root, const struct field_object *settings,
	struct model_config *config)
{
	static const char *const names[] = {"longrope", "su", "yarn"};
	const char *key = field_state(settings, "rope_type") == FIELD_THERE ? "rope_type" : "type";
	const char *name = field_string(settings, key, "default");

	/* tables have room for the pairs of a valid head */
	if (root->file->rc)
		return;
	hf_rope_parse_partial(root, settings, config);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(name, names[i]))
			config->rope.type = ROPE_LONGROPE;
	}
	if (config->rope.type == ROPE_LONGROPE)
		hf_rope_parse_longrope(root, settings, config);
	else if (strcmp(name, "default"))
		field_fail(settings, -ENOTSUP, "%s \"%.64s\" is not one of default, longrope, su, yarn", key, name);
}

/* ---- all of it ---- */

/* Of families that rotate whole heads; theta is set. */
static void hf_rope_parse_scaled(
	const struct field_object *root, const struct field_object *settings, struct model_config *config)
{
	struct model_rope *rope = &config->rope;

	hf_rope_refuse_partial(root);
	hf_rope_refuse_partial(settings);
	rope->type = hf_rope_parse_type(settings);
	/* latent attention reads it whatever stretches the positions */
	if (rope->type != ROPE_DEFAULT)
		rope->mscale_all_dim = field_real(settings, "mscale_all_dim", 0, FACTOR_MAX, -1);
	if (rope->type == ROPE_LLAMA3 || rope->type == ROPE_YARN)
		rope->original_max_position_embeddings =
			hf_rope_parse_original_length(root, settings, config->max_seq_len);
	if (rope->type == ROPE_LINEAR)
		rope->factor = field_real_needed(settings, "factor", 1e-6, FACTOR_MAX);
	else if (rope->type == ROPE_LLAMA3)
		hf_rope_parse_llama3(settings, config);
	else if (rope->type == ROPE_YARN)
		hf_rope_parse_yarn(settings, config);
}

static double hf_rope_parse_theta(const struct field_object *settings, double absent)
{
	return field_real(settings, "rope_theta", 1.0001, 1e15, absent);
}

void hf_rope_parse(const struct field_object *root, struct model_config *config)
{
	const bool is_local = config->family == MODEL_GEMMA3;
	struct field_object newer = {.prefix = "", .file = root->file};
	const struct field_object settings =
		is_local ? hf_gemma3_rope(root, &newer, config) : hf_rope_find_settings(root);
	struct model_rope *rope = &config->rope;

	rope->factor = 1;
	rope->attention_factor = rope->mscale = rope->mscale_all_dim = -1;
	hf_rope_refuse_nested(&settings);
	rope->theta = hf_rope_parse_theta(root, is_local ? GEMMA3_THETA_DEFAULT : THETA_DEFAULT);
	rope->theta = hf_rope_parse_theta(&settings, hf_rope_parse_theta(&newer, rope->theta));
	if (config->family == MODEL_PHI3)
		hf_rope_parse_phi3(root, &settings, config);
	else
		hf_rope_parse_scaled(root, &settings, config);
}
