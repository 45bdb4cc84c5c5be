/* SPDX-License-Identifier: MIT */

/*
 * The fields that DeepSeek's two families add to config.json: latent attention and experts. Defaults and
 * meanings are those of transformers' configuration classes, as in hf_config.c. Fields that only the
 * models' own code reads (moe_layer_freq, scoring_func) are obeyed where they are present.
 * num_key_value_heads is not read: kv_b makes keys for every head, and some files carry other
 * numbers.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/hf_config.h"

/* Values of fields that the file leaves out. */
struct deepseek_defaults {
	const char *topk_methods[2], *scoring_funcs[2]; /* the default first */
	uint32_t n_experts, n_active, n_shared, expert_size, first_layer;
	uint32_t n_groups, n_groups_active; /* 0: no groups */
	double scale;
	bool normalise;
};

static const struct deepseek_defaults v2_defaults = {
	.topk_methods = {"greedy", "group_limited_greedy"},
	.scoring_funcs = {"softmax"},
	.n_experts = 64,
	.n_shared = 2,
	.expert_size = 1407,
	.scale = 1,
};
static const struct deepseek_defaults v3_defaults = {
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

/* A count: absent it is the default, null it is 0. */
static uint32_t hf_deepseek_count(
	const struct field_object *root, const char *key, uint32_t max, uint32_t absent)
{
	return field_u32(root, key, 0, max, field_state(root, key) == FIELD_NULL ? 0 : absent);
}

/* Likewise, null being false. */
static bool hf_deepseek_flag(const struct field_object *root, const char *key, bool absent)
{
	return field_bool(root, key, absent && field_state(root, key) != FIELD_NULL);
}

/* Keep the names of sizes that the file leaves out, for the error about a wrong tensor shape. */
static void hf_deepseek_note_default(const struct field_object *root, const char *key,
	uint32_t value, struct model_config *config)
{
	enum field_state state = field_state(root, key);
	size_t used = strlen(config->assumed);

	/* a null whose value is 0 was given: there is none of it */
	if (state == FIELD_ABSENT || (state == FIELD_NULL && value))
		snprintf(config->assumed + used, sizeof(config->assumed) - used, "%s%s %u",
			used ? ", " : "", key, value);
}

/* ---- latent attention ---- */

static void hf_deepseek_parse_latent(const struct field_object *root, struct model_config *config)
{
	struct attention_latent *latent = &config->latent;

	/* Some models of the V2 family have plain attention, and zeros for the sizes of latents. */
	if (!field_bool(root, "use_mla", true))
		field_fail(root, -ENOTSUP,
			"use_mla false is not supported: only latent attention is");
	config->q_rank = hf_deepseek_count(root, "q_lora_rank", HF_WIDTH_MAX, 1536);
	latent->rank = field_u32(root, "kv_lora_rank", 1, HF_WIDTH_MAX, 512);
	latent->nope = field_u32(root, "qk_nope_head_dim", 1, MODEL_HEAD_DIM_MAX, 128);
	latent->rope = field_u32(root, "qk_rope_head_dim", 2, MODEL_HEAD_DIM_MAX, 64);
	latent->v = field_u32(root, "v_head_dim", 1, MODEL_HEAD_DIM_MAX, 128);
	if (latent->rope % 2)
		field_fail(root, -EINVAL, "qk_rope_head_dim %u is not an even number",
			latent->rope);
	config->rope_interleaved = config->family == MODEL_DEEPSEEK_V2 ||
		hf_deepseek_flag(root, "rope_interleave", true);
	config->n_kv_heads = 1;
	config->head_dim = latent->rope;
	hf_deepseek_note_default(root, "q_lora_rank", config->q_rank, config);
	hf_deepseek_note_default(root, "kv_lora_rank", latent->rank, config);
	hf_deepseek_note_default(root, "qk_nope_head_dim", latent->nope, config);
	hf_deepseek_note_default(root, "qk_rope_head_dim", latent->rope, config);
	hf_deepseek_note_default(root, "v_head_dim", latent->v, config);
}

/* ---- experts ---- */

/* One of at most two names, the first being the default. */
static const char *hf_deepseek_parse_name(
	const struct field_object *root, const char *key, const char *const names[2])
{
	const char *name = field_string(root, key, names[0]);

	if (strcmp(name, names[0]) && !(names[1] && !strcmp(name, names[1])))
		field_fail(root, -ENOTSUP, "%s \"%.64s\" is not %s%s%s", key, name, names[0],
			names[1] ? " or " : "", names[1] ? names[1] : "");
	return name;
}

/* How experts are chosen, by family. Returns whether groups count. */
static bool hf_deepseek_parse_method(const struct field_object *root,
	const struct deepseek_defaults *defaults, struct model_config *config)
{
	bool is_v2 = config->family == MODEL_DEEPSEEK_V2;
	const char *method = hf_deepseek_parse_name(root, "topk_method", defaults->topk_methods);

	hf_deepseek_parse_name(root, "scoring_func", defaults->scoring_funcs);
	config->experts.score = is_v2 ? MOE_SOFTMAX : MOE_SIGMOID;
	config->experts.group_top_two = config->experts.choice_bias = !is_v2;
	return strcmp(method, "greedy") != 0;
}

/* Without groups all experts are one. */
static void hf_deepseek_parse_groups(const struct field_object *root,
	const struct deepseek_defaults *defaults, bool grouped, struct model_experts *e)
{
	uint32_t n = grouped ? hf_deepseek_count(root, "n_group", MODEL_EXPERTS_MAX,
				       defaults->n_groups)
			     : 0;

	e->n_groups = n ? n : 1;
	e->n_groups_active = n ? field_u32(root, "topk_group", 1, n, defaults->n_groups_active) : 1;
	if (!e->n_groups_active)
		field_fail(root, -EINVAL, "topk_group is missing");
	if (e->n_groups_active > e->n_groups)
		field_fail(root, -EINVAL, "topk_group %u, its default, is more than n_group %u",
			e->n_groups_active, e->n_groups);
	if (e->n % e->n_groups)
		field_fail(root, -EINVAL, "n_routed_experts %u is not a multiple of n_group %u",
			e->n, e->n_groups);
	if (e->group_top_two && e->n / e->n_groups < 2)
		field_fail(root, -EINVAL,
			"n_group %u leaves one expert in a group, and a group's score needs two",
			e->n_groups);
	if (e->n_active > e->n / e->n_groups * e->n_groups_active)
		field_fail(root, -EINVAL,
			"num_experts_per_tok %u is more than the experts of topk_group %u groups",
			e->n_active, e->n_groups_active);
}

static void hf_deepseek_parse_expert_sizes(const struct field_object *root,
	const struct deepseek_defaults *defaults, struct model_experts *e)
{
	e->n_shared =
		hf_deepseek_count(root, "n_shared_experts", MODEL_EXPERTS_MAX, defaults->n_shared);
	e->intermediate_size = field_u32(
		root, "moe_intermediate_size", 1, HF_WIDTH_MAX / 64, defaults->expert_size);
	e->n_active = defaults->n_active
		? field_u32(root, "num_experts_per_tok", 1, e->n, defaults->n_active)
		: field_u32_needed(root, "num_experts_per_tok", 1, e->n);
}

/* The layers that have experts, from the first one on, by moe_layer_freq. */
static void hf_deepseek_parse_layers(const struct field_object *root, uint32_t first,
	const struct model_config *config, struct model_experts *e)
{
	uint32_t step = field_u32(root, "moe_layer_freq", 1, INT32_MAX, 1);

	for (uint32_t i = 0; i < config->n_layers; i++) {
		uint32_t layer = config->first_layer + i;

		e->layers[i] = layer >= first && layer % step == 0;
	}
}

static void hf_deepseek_parse_experts(const struct field_object *root, struct model_config *config)
{
	bool is_v2 = config->family == MODEL_DEEPSEEK_V2;
	const struct deepseek_defaults *defaults = is_v2 ? &v2_defaults : &v3_defaults;
	struct model_experts *e = &config->experts;
	uint32_t first = 0;
	bool grouped;

	e->n = hf_deepseek_count(root, "n_routed_experts", MODEL_EXPERTS_MAX, defaults->n_experts);
	if (e->n)
		first = field_u32(root, "first_k_dense_replace", 0, INT32_MAX, defaults->first_layer);
	/* A model whose layers are all dense has no experts, and no other field counts. */
	if (!e->n || first >= config->first_layer + config->n_layers) {
		*e = (struct model_experts){0};
		return;
	}
	hf_deepseek_parse_layers(root, first, config, e);
	hf_deepseek_parse_expert_sizes(root, defaults, e);
	hf_deepseek_note_default(root, "n_routed_experts", e->n, config);
	hf_deepseek_note_default(root, "n_shared_experts", e->n_shared, config);
	hf_deepseek_note_default(root, "moe_intermediate_size", e->intermediate_size, config);
	grouped = hf_deepseek_parse_method(root, defaults, config);
	hf_deepseek_parse_groups(root, defaults, grouped, e);
	e->scale = (float)field_real(
		root, "routed_scaling_factor", -1e6, 1e6, defaults->scale);
	/* For V2, the authors' code divides the weights of the chosen experts by their sum and does not scale
	 * them; transformers' class, which this follows, ignores the field and scales. None of the authors'
	 * models sets it; loading one that does logs a warning. */
	if (is_v2)
		e->normalise_ignored = hf_deepseek_flag(root, "norm_topk_prob", false);
	else
		e->normalise = hf_deepseek_flag(root, "norm_topk_prob", defaults->normalise);
}

/* Several heads would take turns in the passes of a step. */
void hf_mtp_parse(const struct field_object *root, struct model_config *config)
{
	uint32_t n = field_u32(root, "num_nextn_predict_layers", 0, MODEL_LAYERS_MAX, 0);

	if (n != 1)
		field_fail(root, -ENOTSUP, "num_nextn_predict_layers %u: a draft model is one MTP head%s", n,
			n ? "" : ", and this model has none");
	config->first_layer = config->n_layers;
	config->n_layers = 1;
	config->draft.vocab_size = config->vocab_size;
}

void hf_deepseek_parse(const struct field_object *root, struct model_config *config)
{
	hf_deepseek_parse_latent(root, config);
	hf_deepseek_parse_experts(root, config);
}
