/* SPDX-License-Identifier: MIT */

/*
 * Rope settings come in two spellings: `rope_theta` and `rope_scaling` at the top level (older), or
 * all of it in `rope_parameters` (newer). Where both are there, transformers lets `rope_scaling`
 * win and takes what it lacks from the top level; so do we.
 */

#include <errno.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/hf_config.h"

#define THETA_DEFAULT 10000.0
#define BETA_FAST_DEFAULT 32.0
#define BETA_SLOW_DEFAULT 1.0
#define FACTOR_MAX 1e6

static int find_settings(const struct field_object *root, struct field_object *ret)
{
	struct field_object newer;
	int rc = field_member(root, "rope_scaling", "rope_scaling.", ret);

	if (rc || (ret->json && json_object_size(ret->json) > 0))
		return rc;
	rc = field_member(root, "rope_parameters", "rope_parameters.", &newer);
	if (!rc && newer.json)
		*ret = newer;
	return rc;
}

static int check_flat(const struct field_object *settings)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)settings->json, key, value) {
		if (json_is_object(value))
			return model_fail(settings->error, -EINVAL,
				"%s: %s%s is an object: rope settings per layer type are not "
				"supported",
				settings->file, settings->prefix, key);
	}
	return 0;
}

static int check_whole(const struct field_object *object)
{
	double partial;
	int rc = field_real(object, "partial_rotary_factor", -1e9, 1e9, 1.0, &partial);

	if (rc || partial == 1.0)
		return rc;
	return model_fail(object->error, -ENOTSUP,
		"%s: %spartial_rotary_factor %g is not supported, only 1 is", object->file,
		object->prefix, partial);
}

static int parse_type(const struct field_object *settings, enum rope_type *ret)
{
	static const char *const names[] = {
		[ROPE_DEFAULT] = "default",
		[ROPE_LINEAR] = "linear",
		[ROPE_LLAMA3] = "llama3",
		[ROPE_YARN] = "yarn",
	};
	const char *key = field_state(settings, "rope_type") == FIELD_THERE ? "rope_type" : "type";
	const char *name;
	int rc = field_string(settings, key, "default", &name);

	if (rc)
		return rc;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(name, names[i])) {
			*ret = (enum rope_type)i;
			return 0;
		}
	}
	return model_fail(settings->error, -ENOTSUP,
		"%s: %s%s \"%.64s\" is not one of default, linear, llama3, yarn", settings->file,
		settings->prefix, key, name);
}

static int parse_original_length(const struct field_object *root,
	const struct field_object *settings, struct model_config *config)
{
	const char *key = "original_max_position_embeddings";
	const struct field_object *from =
		field_state(root, key) == FIELD_THERE ? root : settings;

	return field_real(from, key, 1, 1e9, config->max_seq_len,
		&config->rope.original_max_position_embeddings);
}

static int parse_llama3(const struct field_object *settings, struct model_config *config)
{
	int rc = field_real_needed(settings, "factor", 1e-6, FACTOR_MAX, &config->rope.factor);

	if (!rc)
		rc = field_real_needed(settings, "low_freq_factor", 1e-6, FACTOR_MAX,
			&config->rope.low_freq_factor);
	if (!rc)
		rc = field_real_needed(settings, "high_freq_factor", 1e-6, FACTOR_MAX,
			&config->rope.high_freq_factor);
	if (!rc && config->rope.high_freq_factor <= config->rope.low_freq_factor)
		rc = model_fail(settings->error, -EINVAL,
			"%s: %shigh_freq_factor %g is not greater than low_freq_factor %g",
			settings->file, settings->prefix, config->rope.high_freq_factor,
			config->rope.low_freq_factor);
	return rc;
}

static int parse_yarn(const struct field_object *settings, struct model_config *config)
{
	/* a null factor means the ratio of the two lengths */
	double ratio = config->max_seq_len / config->rope.original_max_position_embeddings;
	int rc = 0;

	if (field_state(settings, "factor") == FIELD_NULL)
		config->rope.factor = ratio;
	else
		rc = field_real_needed(settings, "factor", 1e-6, FACTOR_MAX, &config->rope.factor);
	if (!rc)
		rc = field_real(settings, "beta_fast", 0, FACTOR_MAX, 0, &config->rope.beta_fast);
	if (!rc)
		rc = field_real(settings, "beta_slow", 0, FACTOR_MAX, 0, &config->rope.beta_slow);
	if (!rc)
		rc = field_real(settings, "attention_factor", 0, FACTOR_MAX, -1,
			&config->rope.attention_factor);
	if (!rc)
		rc = field_real(settings, "mscale", 0, FACTOR_MAX, -1, &config->rope.mscale);
	if (!rc)
		rc = field_bool(settings, "truncate", field_state(settings, "truncate") != FIELD_NULL,
			&config->rope.truncate);
	/* zero means the default, as absence does */
	if (!rc && config->rope.beta_fast == 0)
		config->rope.beta_fast = BETA_FAST_DEFAULT;
	if (!rc && config->rope.beta_slow == 0)
		config->rope.beta_slow = BETA_SLOW_DEFAULT;
	return rc;
}

int hf_rope_parse(const struct field_object *root, struct model_config *config)
{
	struct field_object settings;
	double theta;
	int rc;

	config->rope.factor = 1;
	config->rope.attention_factor = config->rope.mscale = config->rope.mscale_all_dim = -1;
	rc = find_settings(root, &settings);
	if (!rc)
		rc = check_flat(&settings);
	if (!rc)
		rc = check_whole(root);
	if (!rc)
		rc = check_whole(&settings);
	if (!rc)
		rc = field_real(root, "rope_theta", 1.0001, 1e15, THETA_DEFAULT, &theta);
	if (!rc)
		rc = field_real(&settings, "rope_theta", 1.0001, 1e15, theta, &config->rope.theta);
	if (!rc)
		rc = parse_type(&settings, &config->rope.type);
	/* latent attention looks at it whatever stretches the positions */
	if (!rc && config->rope.type != ROPE_DEFAULT)
		rc = field_real(&settings, "mscale_all_dim", 0, FACTOR_MAX, -1,
			&config->rope.mscale_all_dim);
	if (rc)
		return rc;

	switch (config->rope.type) {
	case ROPE_DEFAULT:
		return 0;
	case ROPE_LINEAR:
		return field_real_needed(
			&settings, "factor", 1e-6, FACTOR_MAX, &config->rope.factor);
	case ROPE_LLAMA3:
		rc = parse_original_length(root, &settings, config);
		return rc ? rc : parse_llama3(&settings, config);
	case ROPE_YARN:
		rc = parse_original_length(root, &settings, config);
		return rc ? rc : parse_yarn(&settings, config);
	}
	return 0;
}
