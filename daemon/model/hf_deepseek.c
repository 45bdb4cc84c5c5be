/* SPDX-License-Identifier: MIT */

/*
 * What DeepSeek's two families add to config.json: latent attention and experts. Defaults are those
 * of transformers' configuration classes, as in hf_config.c, and so is what is made of a field. Fields
 * that only the models' own code reads (moe_layer_freq, scoring_func) are obeyed where they are there;
 * where the two disagree the load says so (parse_v2_normalise). num_key_value_heads is not read:
 * kv_b makes keys for every head, and there are files that say otherwise without meaning it.
 */

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/hf_config.h"

/* What a class leaves out of the file. */
struct defaults {
	const char *topk_methods[2], *scoring_funcs[2]; /* the default first */
	uint32_t n_experts, n_active, n_shared, expert_size, first_layer;
	uint32_t n_groups, n_groups_active; /* 0: no groups */
	double scale;
	bool normalise;
};

static const struct defaults v2_defaults = {
	.topk_methods = {"greedy", "group_limited_greedy"},
	.scoring_funcs = {"softmax"},
	.n_experts = 64,
	.n_shared = 2,
	.expert_size = 1407,
	.scale = 1,
};
static const struct defaults v3_defaults = {
	.topk_methods = {"noaux_tc"},
	.scoring_funcs = {"sigmoid"},
	.n_experts = 256,
	.n_active = 8,
	.n_shared = 1,
	.expert_size = 2048,
	.first_layer = 3,
	.n_groups = 8,
	.n_groups_active = 4,
	.scale = 2.5,
	.normalise = true,
};

/* A field whose absence is the default, and whose null is 0: there is none of it. */
static int parse_count(const struct field_object *root, const char *key, uint32_t max,
	uint32_t absent, uint32_t *ret)
{
	return field_u32(root, key, 0, max, field_state(root, key) == FIELD_NULL ? 0 : absent, ret);
}

/* Likewise, null being false. */
static int parse_flag(const struct field_object *root, const char *key, bool absent, bool *ret)
{
	return field_bool(root, key, absent && field_state(root, key) != FIELD_NULL, ret);
}

/* Sizes that the file leaves out, so that who hears of a wrong shape hears of them. */
static void note_default(const struct field_object *root, const char *key, uint32_t value,
	struct model_config *config)
{
	enum field_state state = field_state(root, key);
	size_t used = strlen(config->assumed);

	/* null, where it is not the default, says that there is none of it */
	if (state == FIELD_ABSENT || (state == FIELD_NULL && value))
		snprintf(config->assumed + used, sizeof(config->assumed) - used, "%s%s %u",
			used ? ", " : "", key, value);
}

/* ---- latent attention ---- */

/* Some models of the V2 family have plain attention, and zeros for the sizes of latents. */
static int check_latent(const struct field_object *root)
{
	bool latent;
	int rc = field_bool(root, "use_mla", true, &latent);

	if (rc || latent)
		return rc;
	return model_fail(root->error, -ENOTSUP,
		"%s: use_mla false is not supported: only latent attention is", root->file);
}

static int parse_latent(const struct field_object *root, struct model_config *config)
{
	struct attention_latent *latent = &config->latent;
	int rc = check_latent(root);

	if (!rc)
		rc = parse_count(root, "q_lora_rank", HF_WIDTH_MAX, 1536, &config->q_rank);
	if (!rc)
		rc = field_u32(root, "kv_lora_rank", 1, HF_WIDTH_MAX, 512, &latent->rank);
	if (!rc)
		rc = field_u32(root, "qk_nope_head_dim", 1, MODEL_HEAD_DIM_MAX, 128, &latent->nope);
	if (!rc)
		rc = field_u32(root, "qk_rope_head_dim", 2, MODEL_HEAD_DIM_MAX, 64, &latent->rope);
	if (!rc)
		rc = field_u32(root, "v_head_dim", 1, MODEL_HEAD_DIM_MAX, 128, &latent->v);
	if (!rc && latent->rope % 2)
		rc = model_fail(root->error, -EINVAL,
			"%s: qk_rope_head_dim %u is not an even number", root->file, latent->rope);
	config->rope_interleaved = true;
	if (!rc && config->family == MODEL_DEEPSEEK_V3)
		rc = parse_flag(root, "rope_interleave", true, &config->rope_interleaved);
	config->n_kv_heads = 1;
	config->head_dim = latent->rope;
	note_default(root, "q_lora_rank", config->q_rank, config);
	note_default(root, "kv_lora_rank", latent->rank, config);
	note_default(root, "qk_nope_head_dim", latent->nope, config);
	note_default(root, "qk_rope_head_dim", latent->rope, config);
	note_default(root, "v_head_dim", latent->v, config);
	return rc;
}

/* ---- experts ---- */

/* One of at most two names, the first being the default. */
static int parse_name(const struct field_object *root, const char *key,
	const char *const names[2], const char **ret)
{
	int rc = field_string(root, key, names[0], ret);

	if (rc || !strcmp(*ret, names[0]) || (names[1] && !strcmp(*ret, names[1])))
		return rc;
	return model_fail(root->error, -ENOTSUP, "%s: %s \"%.64s\" is not %s%s%s", root->file, key,
		*ret, names[0], names[1] ? " or " : "", names[1] ? names[1] : "");
}

/* How experts are chosen: each family knows its own ways. */
static int parse_method(const struct field_object *root, const struct defaults *defaults,
	struct model_config *config, bool *ret_grouped)
{
	bool is_v2 = config->family == MODEL_DEEPSEEK_V2;
	const char *method, *scores;
	int rc = parse_name(root, "topk_method", defaults->topk_methods, &method);

	if (!rc)
		rc = parse_name(root, "scoring_func", defaults->scoring_funcs, &scores);
	if (rc)
		return rc;
	config->experts.score = is_v2 ? MOE_SOFTMAX : MOE_SIGMOID;
	config->experts.group_top_two = config->experts.choice_bias = !is_v2;
	*ret_grouped = strcmp(method, "greedy") != 0;
	return 0;
}

/* `grouped`: the fields count. Without groups all experts are one. */
static int parse_groups(const struct field_object *root, const struct defaults *defaults,
	bool grouped, struct model_experts *e)
{
	int rc = 0;

	e->n_groups = e->n_groups_active = 0;
	if (grouped)
		rc = parse_count(
			root, "n_group", MODEL_EXPERTS_MAX, defaults->n_groups, &e->n_groups);
	if (!rc && e->n_groups)
		rc = field_u32(root, "topk_group", 1, e->n_groups, defaults->n_groups_active,
			&e->n_groups_active);
	if (rc)
		return rc;
	if (!e->n_groups)
		e->n_groups = e->n_groups_active = 1;
	if (!e->n_groups_active)
		return model_fail(root->error, -EINVAL, "%s: topk_group is missing", root->file);
	if (e->n_groups_active > e->n_groups)
		return model_fail(root->error, -EINVAL,
			"%s: topk_group %u, its default, is more than n_group %u", root->file,
			e->n_groups_active, e->n_groups);
	if (e->n % e->n_groups)
		return model_fail(root->error, -EINVAL,
			"%s: n_routed_experts %u is not a multiple of n_group %u", root->file, e->n,
			e->n_groups);
	if (e->group_top_two && e->n / e->n_groups < 2)
		return model_fail(root->error, -EINVAL,
			"%s: n_group %u leaves groups of one expert, and two make a group's score",
			root->file, e->n_groups);
	if (e->n_active > e->n / e->n_groups * e->n_groups_active)
		return model_fail(root->error, -EINVAL,
			"%s: num_experts_per_tok %u is more than the experts of topk_group %u groups",
			root->file, e->n_active, e->n_groups_active);
	return 0;
}

/* In which layers. A model whose layers are all dense has no experts, and no other field counts. */
static int parse_expert_layers(const struct field_object *root, const struct defaults *defaults,
	const struct model_config *config, struct model_experts *e)
{
	int rc = field_u32(root, "first_k_dense_replace", 0, INT32_MAX, defaults->first_layer,
		&e->first_layer);

	if (!rc && e->first_layer >= config->n_layers)
		*e = (struct model_experts){0};
	if (rc || !e->n)
		return rc;
	return field_u32(root, "moe_layer_freq", 1, INT32_MAX, 1, &e->layer_step);
}

/* How many, and how large. */
static int parse_expert_sizes(const struct field_object *root, const struct defaults *defaults,
	struct model_experts *e)
{
	int rc = parse_count(
		root, "n_shared_experts", MODEL_EXPERTS_MAX, defaults->n_shared, &e->n_shared);

	if (!rc)
		rc = field_u32(root, "moe_intermediate_size", 1, HF_WIDTH_MAX / 64,
			defaults->expert_size, &e->intermediate_size);
	if (!rc && defaults->n_active)
		rc = field_u32(root, "num_experts_per_tok", 1, e->n, defaults->n_active,
			&e->n_active);
	else if (!rc)
		rc = field_u32_needed(root, "num_experts_per_tok", 1, e->n, &e->n_active);
	return rc;
}

/* V2's norm_topk_prob: its authors' code divides the chosen experts' weights by their sum, and does not
 * scale them then; transformers' class of the family, which this follows, leaves the field aside, and
 * scales. No model of the authors' has it true; whoever loads one that has hears which way it goes. */
static int parse_v2_normalise(const struct field_object *root, struct model_experts *e)
{
	return parse_flag(root, "norm_topk_prob", false, &e->normalise_ignored);
}

static int parse_experts(const struct field_object *root, struct model_config *config)
{
	const struct defaults *defaults =
		config->family == MODEL_DEEPSEEK_V2 ? &v2_defaults : &v3_defaults;
	struct model_experts *e = &config->experts;
	double scale = defaults->scale;
	bool grouped = false;
	int rc = parse_count(
		root, "n_routed_experts", MODEL_EXPERTS_MAX, defaults->n_experts, &e->n);

	if (!rc && e->n)
		rc = parse_expert_layers(root, defaults, config, e);
	if (rc || !e->n)
		return rc;
	rc = parse_expert_sizes(root, defaults, e);
	note_default(root, "n_routed_experts", e->n, config);
	note_default(root, "n_shared_experts", e->n_shared, config);
	note_default(root, "moe_intermediate_size", e->intermediate_size, config);
	if (!rc)
		rc = parse_method(root, defaults, config, &grouped);
	if (!rc)
		rc = parse_groups(root, defaults, grouped, e);
	if (!rc)
		rc = field_real(root, "routed_scaling_factor", -1e6, 1e6, scale, &scale);
	if (!rc && config->family == MODEL_DEEPSEEK_V3)
		rc = parse_flag(root, "norm_topk_prob", defaults->normalise, &e->normalise);
	else if (!rc)
		rc = parse_v2_normalise(root, e);
	e->scale = (float)scale;
	return rc;
}

int hf_deepseek_parse(const struct field_object *root, struct model_config *config)
{
	int rc = parse_latent(root, config);

	return rc ? rc : parse_experts(root, config);
}
