/* SPDX-License-Identifier: MIT */

/* The configuration of a model from a GGUF file's metadata. Keys that begin with the architecture's name are its. */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"
#include "daemon/model/file.h"
#include "daemon/model/gguf_model.h"
#include "daemon/model/gguf_vocabulary.h"
#include "daemon/model/hf_config.h"
#include "ipc/cleanup.h"

#define THETA_DEFAULT 10000.0
#define BETA_FAST_DEFAULT 32.0
#define BETA_SLOW_DEFAULT 1.0
#define FACTOR_MAX 1e6

static const struct architecture {
	const char *name, *prefix;
	const char *theirs; /* Hugging Face's name */
	enum model_family family;
} architectures[] = {
	{"llama", "llama.", "LlamaForCausalLM", MODEL_LLAMA},
	{"qwen2", "qwen2.", "Qwen2ForCausalLM", MODEL_QWEN2},
	{"qwen3", "qwen3.", "Qwen3ForCausalLM", MODEL_QWEN3},
};

static const struct architecture *gguf_config_find(const struct field_object *root)
{
	const char *name = field_string(root, "general.architecture", NULL);

	for (size_t i = 0; name && i < sizeof(architectures) / sizeof(architectures[0]); i++) {
		if (!strcmp(name, architectures[i].name))
			return &architectures[i];
	}
	if (name)
		field_fail(root, -ENOTSUP,
			"general.architecture \"%.64s\" is not one of llama, qwen2, qwen3", name);
	else
		field_fail(root, -EINVAL, "general.architecture is missing");
	return NULL;
}

/* The fields of an architecture without its prefix. NULL: no memory. */
static json_t *gguf_config_own(const json_t *fields, const char *prefix)
{
	CLEANUP(cleanup_json) json_t *own = json_object();
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)(uintptr_t)fields, key, value) {
		if (!strncmp(key, prefix, strlen(prefix)) &&
			json_object_set(own, key + strlen(prefix), value))
			return NULL;
	}
	return STEAL(own);
}

/* Refuse what would change the arithmetic. */
static void gguf_config_refuse_variants(const struct field_object *own)
{
	static const char *const unsupported[] = {"attention.scale", "attention.clamp_kqv",
		"attention.max_alibi_bias", "attn_logit_softcapping", "final_logit_softcapping",
		"logit_scale", "embedding_scale", "residual_scale", "use_parallel_residual",
		"tensor_data_layout", "attention.sliding_window_pattern", "rope.freq_base_swa",
		"rope.scale_linear", "rope.scaling.yarn_ext_factor",
		"rope.scaling.yarn_attn_factor", "rope.scaling.yarn_log_multiplier",
		"rope.dimension_sections"};
	uint32_t experts = field_u32(own, "expert_count", 0, UINT32_MAX, 0);

	if (experts)
		field_fail(own, -ENOTSUP, "expert_count %u: experts are not supported", experts);
	if (!field_bool(own, "attention.causal", true))
		field_fail(own, -ENOTSUP, "attention.causal false is not supported");
	for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
		CLEANUP(cleanup_free) char *value = NULL;

		if (field_state(own, unsupported[i]) != FIELD_THERE)
			continue;
		value = json_dumps(json_object_get(own->json, unsupported[i]), JSON_ENCODE_ANY);
		field_fail(own, -ENOTSUP, "%s %.64s is not supported", unsupported[i],
			value ? value : "");
	}
}

/* ---- sizes ---- */

static void gguf_config_parse_head_dim(const struct field_object *own, struct model_config *config)
{
	uint32_t derived = config->hidden_size / config->n_heads;
	uint32_t dim = field_u32(own, "attention.key_length", 2, MODEL_HEAD_DIM_MAX, derived);
	uint32_t value = field_u32(own, "attention.value_length", 0, UINT32_MAX, dim);
	uint32_t rotated = field_u32(own, "rope.dimension_count", 0, UINT32_MAX, dim);

	config->head_dim = dim;
	if (field_state(own, "attention.key_length") != FIELD_THERE &&
		config->hidden_size % config->n_heads)
		field_fail(own, -EINVAL,
			"embedding_length %u is not a multiple of attention.head_count %u, and "
			"attention.key_length is not given",
			config->hidden_size, config->n_heads);
	if (dim < 2 || dim > MODEL_HEAD_DIM_MAX || dim % 2)
		field_fail(own, -EINVAL,
			"attention.key_length %u is not an even number between 2 and %u", dim,
			MODEL_HEAD_DIM_MAX);
	if (value != dim)
		field_fail(own, -ENOTSUP,
			"attention.value_length %u is not attention.key_length %u", value, dim);
	if (rotated != dim)
		field_fail(own, -ENOTSUP,
			"rope.dimension_count %u is not attention.key_length %u: rope on a part of a "
			"head is not supported",
			rotated, dim);
}

static void gguf_config_parse_sizes(const struct field_object *own, struct model_config *config)
{
	config->hidden_size = field_u32_needed(own, "embedding_length", 1, HF_WIDTH_MAX);
	config->intermediate_size = field_u32_needed(own, "feed_forward_length", 1, HF_WIDTH_MAX);
	config->n_layers = field_u32_needed(own, "block_count", 1, MODEL_LAYERS_MAX);
	config->n_heads = field_u32_needed(own, "attention.head_count", 1, HF_HEADS_MAX);
	config->n_kv_heads =
		field_u32(own, "attention.head_count_kv", 1, HF_HEADS_MAX, config->n_heads);
	if (config->n_heads % config->n_kv_heads)
		field_fail(own, -EINVAL,
			"attention.head_count %u is not a multiple of attention.head_count_kv %u",
			config->n_heads, config->n_kv_heads);
	gguf_config_parse_head_dim(own, config);
	config->max_seq_len = field_u32_needed(own, "context_length", 1, HF_LENGTH_MAX);
	config->rms_norm_eps =
		(float)field_real_needed(own, "attention.layer_norm_rms_epsilon", 0, 1);
}

/* ---- rope ---- */

static enum rope_type gguf_config_parse_scaling(const struct field_object *own)
{
	bool has_factor = field_state(own, "rope.scaling.factor") == FIELD_THERE;
	const char *name =
		field_string(own, "rope.scaling.type", has_factor ? "linear" : "none");

	if (!strcmp(name, "none"))
		return ROPE_DEFAULT;
	if (!strcmp(name, "linear"))
		return ROPE_LINEAR;
	if (!strcmp(name, "yarn"))
		return ROPE_YARN;
	field_fail(own, -ENOTSUP, "rope.scaling.type \"%.64s\" is not one of none, linear, yarn",
		name);
	return ROPE_DEFAULT;
}

static void gguf_config_parse_yarn(const struct field_object *own, struct model_config *config)
{
	struct model_rope *rope = &config->rope;

	rope->original_max_position_embeddings =
		field_real(own, "rope.scaling.original_context_length", 1, 1e9, config->max_seq_len);
	rope->beta_fast = field_real(
		own, "rope.scaling.yarn_beta_fast", 1e-6, FACTOR_MAX, BETA_FAST_DEFAULT);
	rope->beta_slow = field_real(
		own, "rope.scaling.yarn_beta_slow", 1e-6, FACTOR_MAX, BETA_SLOW_DEFAULT);
	rope->truncate = true;
}

static void gguf_config_parse_rope(const struct field_object *own, struct model_config *config)
{
	struct model_rope *rope = &config->rope;
	double magnitude = field_real(own, "rope.scaling.attn_factor", -FACTOR_MAX, FACTOR_MAX, 1);

	if (magnitude != 1)
		field_fail(own, -ENOTSUP, "rope.scaling.attn_factor %g is not 1", magnitude);
	rope->factor = 1;
	rope->attention_factor = rope->mscale = rope->mscale_all_dim = -1;
	rope->theta = field_real(own, "rope.freq_base", 1.0001, 1e15, THETA_DEFAULT);
	rope->type = gguf_config_parse_scaling(own);
	if (rope->type != ROPE_DEFAULT)
		rope->factor = field_real_needed(own, "rope.scaling.factor", 1e-6, FACTOR_MAX);
	if (rope->type == ROPE_YARN)
		gguf_config_parse_yarn(own, config);
}

/* Llama 3's scaling comes as a tensor: what each pair's wave is stretched by. */
static int gguf_config_load_factors(
	const struct gguf *gguf, struct model_config *config, struct model_error *error)
{
	static const char name[] = "rope_freqs.weight";
	const struct safetensors_tensor *tensor = gguf_find_tensor(gguf, name);
	struct model_rope *rope = &config->rope;
	uint32_t n = config->head_dim / 2;

	if (!tensor)
		return 0;
	if (strcmp(tensor->dtype_name, "F32") || tensor->n_dims != 1 || tensor->shape[0] != n)
		return model_fail(error, -EINVAL,
			"%s: tensor \"%s\" is not a vector of %u elements of type F32", gguf->path,
			name, n);
	if (rope->type != ROPE_DEFAULT)
		return model_fail(error, -ENOTSUP,
			"%s: tensor \"%s\" together with rope.scaling.type is not supported",
			gguf->path, name);
	assert(n <= sizeof(rope->factors) / sizeof(rope->factors[0]));
	int rc = file_read(gguf->fd, gguf->path, tensor->offset, rope->factors,
		n * sizeof(rope->factors[0]), error);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		if (!(rope->factors[i] > 0) || !isfinite(rope->factors[i]))
			return model_fail(error, -EINVAL,
				"%s: tensor \"%s\": element %u is %g, not a positive number",
				gguf->path, name, i, (double)rope->factors[i]);
	}
	rope->type = ROPE_FACTORS;
	return 0;
}

/* ---- what the tensors tell ---- */

/* Has any layer a tensor of that name? Then all need it. */
static bool gguf_config_has(const struct gguf *gguf, const struct model_config *config, const char *part)
{
	char name[64];

	for (uint32_t layer = 0; layer < config->n_layers; layer++) {
		snprintf(name, sizeof(name), "blk.%u.%s", layer, part);
		if (gguf_find_tensor(gguf, name))
			return true;
	}
	return false;
}

static void gguf_config_examine_tensors(
	const struct gguf *gguf, const struct field_object *own, struct model_config *config)
{
	const struct safetensors_tensor *embedding = gguf_find_tensor(gguf, "token_embd.weight");
	uint64_t rows = embedding && embedding->n_dims == 2 ? embedding->shape[0] : 0;

	if (!rows || rows > HF_VOCAB_MAX) {
		field_fail(&(struct field_object){.prefix = "", .file = own->file}, -EINVAL,
			"tensor \"token_embd.weight\" is missing or does not have 1 to %u rows",
			HF_VOCAB_MAX);
		return;
	}
	config->vocab_size = (uint32_t)rows;
	if (field_u32(own, "vocab_size", 1, HF_VOCAB_MAX, config->vocab_size) != rows)
		field_fail(own, -EINVAL,
			"vocab_size is not the number of rows of tensor \"token_embd.weight\", %" PRIu64,
			rows);
	config->tie_word_embeddings = !gguf_find_tensor(gguf, "output.weight");
	config->qkv_bias = config->family == MODEL_QWEN2 || gguf_config_has(gguf, config, "attn_q.bias") ||
		gguf_config_has(gguf, config, "attn_k.bias") || gguf_config_has(gguf, config, "attn_v.bias");
	config->o_bias = gguf_config_has(gguf, config, "attn_output.bias");
	config->mlp_bias = gguf_config_has(gguf, config, "ffn_gate.bias") ||
		gguf_config_has(gguf, config, "ffn_up.bias") || gguf_config_has(gguf, config, "ffn_down.bias");
	config->qk_norm = config->family == MODEL_QWEN3;
}

/* llama.cpp ignores a window of the architecture llama, with which Mistral's models were trained. */
static void gguf_config_parse_windows(const struct field_object *own, struct model_config *config)
{
	uint32_t window = field_u32(own, "attention.sliding_window", 0, INT32_MAX, 0);

	if (window && config->family != MODEL_LLAMA)
		field_fail(own, -ENOTSUP, "attention.sliding_window %u is not supported", window);
	if (own->file->rc)
		return;
	config->windows = calloc(config->n_layers, sizeof(*config->windows));
	if (!config->windows)
		field_fail(own, -ENOMEM, "no memory for its layers");
	for (uint32_t i = 0; config->windows && i < config->n_layers; i++)
		config->windows[i] = window;
}

/* ---- end tokens ---- */

/* An id outside of the vocabulary is never sampled. */
static void gguf_config_add_end(struct model_config *config, uint64_t id)
{
	bool is_new = id < config->vocab_size && config->n_eos < MODEL_EOS_MAX;

	for (uint32_t i = 0; i < config->n_eos; i++)
		is_new &= config->eos[i] != (int32_t)id;
	if (is_new)
		config->eos[config->n_eos++] = (int32_t)id;
}

static void gguf_config_parse_ids(
	const struct gguf *gguf, const struct field_object *root, struct model_config *config)
{
	static const char *const ends[] = {"tokenizer.ggml.eos_token_id",
		"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
	const struct gguf_array *texts = gguf_find_array(gguf, "tokenizer.ggml.tokens");
	const uint8_t *at = texts ? texts->data : NULL;
	uint32_t bos = field_u32(root, "tokenizer.ggml.bos_token_id", 0, UINT32_MAX, UINT32_MAX);

	config->bos = bos < config->vocab_size ? (int32_t)bos : -1;
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		gguf_config_add_end(config, field_u32(root, ends[i], 0, UINT32_MAX, UINT32_MAX));
	for (uint64_t id = 0; texts && texts->type == GGUF_STRING && id < texts->n; id++) {
		size_t length;
		const char *text = gguf_next_string(&at, &length);

		if (gguf_is_end(text, length))
			gguf_config_add_end(config, id);
	}
}

/* ---- all of it ---- */

static void gguf_config_parse_fields(const struct gguf *gguf, const struct field_object *root,
	const struct architecture *architecture, struct model_config *config)
{
	CLEANUP(cleanup_json) json_t *json = gguf_config_own(gguf->fields, architecture->prefix);
	const struct field_object own = {
		.json = json, .prefix = architecture->prefix, .file = root->file};

	if (!json) {
		field_fail(root, -ENOMEM, "no memory for its metadata");
		return;
	}
	config->family = architecture->family;
	snprintf(config->architecture, sizeof(config->architecture), "%s", architecture->theirs);
	config->sampling = (struct slot_sampling){.top_p = 1};
	gguf_config_refuse_variants(&own);
	gguf_config_parse_sizes(&own, config);
	gguf_config_parse_rope(&own, config);
	gguf_config_examine_tensors(gguf, &own, config);
	gguf_config_parse_ids(gguf, root, config);
	gguf_config_parse_windows(&own, config);
}

int gguf_config_parse(const struct gguf *gguf, struct model_config *ret, struct model_error *error)
{
	CLEANUP(model_config_deinit) struct model_config config = {0};
	struct field_file file = {.path = gguf->path, .error = error};
	const struct field_object root = {.json = gguf->fields, .prefix = "", .file = &file};
	const struct architecture *architecture = gguf_config_find(&root);

	if (architecture)
		gguf_config_parse_fields(gguf, &root, architecture, &config);
	if (file.rc)
		return file.rc;
	int rc = gguf_config_load_factors(gguf, &config, error);
	if (rc)
		return rc;
	assert(config.n_heads % config.n_kv_heads == 0 && config.n_eos <= MODEL_EOS_MAX);
	assert(config.head_dim >= 2 && config.head_dim % 2 == 0);
	*ret = config;
	config = (struct model_config){0};
	return 0;
}

int gguf_config_load(const char *path, struct model_config *ret, struct model_error *error)
{
	CLEANUP(gguf_deinit) struct gguf gguf = {.fd = -1};
	int rc = gguf_open(path, &gguf, error);

	return rc ? rc : gguf_config_parse(&gguf, ret, error);
}
