/* SPDX-License-Identifier: MIT */

/*
 * Where a field is absent the default is that of the family's configuration class in transformers,
 * since that is what wrote the file and left the field out; where a class takes null for "derive
 * it", so do we. Sizes of the model itself have no sensible default and must be there.
 */

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/hf_config.h"

#define LAYERS_MAX 1000u
#define VOCAB_MAX (1u << 24)
#define LENGTH_MAX (1u << 28)

struct family {
	const char *architecture;
	enum model_family family;
	uint32_t n_kv_heads; /* where the field is absent; 0: as many as heads */
	uint32_t head_dim;   /* likewise; 0: hidden size by heads */
	uint32_t max_seq_len;
	int32_t bos, eos;        /* -1: none */
	uint32_t sliding_window; /* 0: none */
};

static const struct family families[] = {
	{"LlamaForCausalLM", MODEL_LLAMA, 0, 0, 2048, 1, 2, 0},
	{"MistralForCausalLM", MODEL_MISTRAL, 8, 0, 4096 * 32, 1, 2, 4096},
	{"Qwen2ForCausalLM", MODEL_QWEN2, 32, 0, 32768, -1, -1, 4096},
	{"Qwen3ForCausalLM", MODEL_QWEN3, 32, 128, 32768, -1, -1, 4096},
	{"DeepseekV2ForCausalLM", MODEL_DEEPSEEK_V2, 0, 0, 2048, 1, 2, 0},
	{"DeepseekV3ForCausalLM", MODEL_DEEPSEEK_V3, 0, 0, 4096, 0, 1, 0},
	{"LlamaForCausalLMEagle", MODEL_EAGLE, 0, 0, 2048, 1, 2, 0},
	{"LlamaForCausalLMEagle3", MODEL_EAGLE3, 0, 0, 2048, 1, 2, 0},
};

static bool is_deepseek(const struct family *family)
{
	return family->family == MODEL_DEEPSEEK_V2 || family->family == MODEL_DEEPSEEK_V3;
}

static bool is_draft(const struct family *family)
{
	return family->family == MODEL_EAGLE || family->family == MODEL_EAGLE3;
}

static int refuse_family(const struct field_object *root, const char *name, bool known, bool draft)
{
	if (known)
		return model_fail(root->error, -EINVAL, "%s: architectures \"%s\" is a %s",
			root->file, name,
			draft ? "model's, not a draft's; a draft's is LlamaForCausalLMEagle or "
				"LlamaForCausalLMEagle3"
			      : "draft's: it is not served by itself, but beside its target");
	return model_fail(root->error, -ENOTSUP, "%s: architectures \"%.64s\" is not one of %s",
		root->file, name,
		draft ? "LlamaForCausalLMEagle, LlamaForCausalLMEagle3"
		      : "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
			"Qwen3ForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM");
}

static int find_family(
	const struct field_object *root, bool draft, const struct family **ret)
{
	const json_t *list = json_object_get(root->json, "architectures");
	const char *name = json_string_value(json_array_get(list, 0));

	if (!json_is_array(list) || json_array_size(list) != 1 || !name)
		return model_fail(root->error, -EINVAL,
			"%s: architectures is not a list of one name", root->file);
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		if (strcmp(name, families[i].architecture))
			continue;
		if (is_draft(&families[i]) != draft)
			return refuse_family(root, name, true, draft);
		*ret = &families[i];
		return 0;
	}
	return refuse_family(root, name, false, draft);
}

/* What would change the arithmetic in ways that are refused here. */
static int check_plain(const struct field_object *root)
{
	static const char *const foreign[] = {
		"quantization_config", "compression_config", "per_layer_config"};
	const char *act;
	int rc;

	for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
		if (field_state(root, foreign[i]) == FIELD_THERE)
			return model_fail(root->error, -ENOTSUP, "%s: %s is not supported",
				root->file, foreign[i]);
	}
	rc = field_string(root, "hidden_act", "silu", &act);
	if (rc)
		return rc;
	if (strcmp(act, "silu") && strcmp(act, "swish"))
		return model_fail(root->error, -ENOTSUP, "%s: hidden_act \"%.64s\" is not silu",
			root->file, act);
	return 0;
}

static int parse_head_dim(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	uint32_t derived = config->hidden_size / config->n_heads;
	uint32_t absent = derived;
	int rc;

	if (family->head_dim && field_state(root, "head_dim") == FIELD_ABSENT)
		absent = family->head_dim;
	rc = field_u32(root, "head_dim", 2, MODEL_HEAD_DIM_MAX, absent, &config->head_dim);
	if (rc)
		return rc;
	if (field_state(root, "head_dim") != FIELD_THERE && absent == derived &&
		config->hidden_size % config->n_heads)
		return model_fail(root->error, -EINVAL,
			"%s: hidden_size %u is not a multiple of num_attention_heads %u, and "
			"head_dim is not given",
			root->file, config->hidden_size, config->n_heads);
	if (config->head_dim < 2 || config->head_dim > MODEL_HEAD_DIM_MAX || config->head_dim % 2)
		return model_fail(root->error, -EINVAL,
			"%s: head_dim %u is not an even number between 2 and %u", root->file,
			config->head_dim, MODEL_HEAD_DIM_MAX);
	return 0;
}

static int parse_kv_heads(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	uint32_t absent = config->n_heads;
	int rc;

	if (family->n_kv_heads && field_state(root, "num_key_value_heads") == FIELD_ABSENT)
		absent = family->n_kv_heads;
	rc = field_u32(root, "num_key_value_heads", 1, HF_HEADS_MAX, absent, &config->n_kv_heads);
	if (rc)
		return rc;
	if (config->n_heads % config->n_kv_heads)
		return model_fail(root->error, -EINVAL,
			"%s: num_attention_heads %u is not a multiple of num_key_value_heads %u%s",
			root->file, config->n_heads, config->n_kv_heads,
			field_state(root, "num_key_value_heads") == FIELD_ABSENT ? ", its default"
										 : "");
	return 0;
}

static int parse_heads(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	int rc;

	if (is_deepseek(family))
		return hf_deepseek_parse(root, config);
	rc = parse_head_dim(root, family, config);
	return rc ? rc : parse_kv_heads(root, family, config);
}

static int parse_sizes(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	double eps = 0;
	int rc = field_u32_needed(root, "hidden_size", 1, HF_WIDTH_MAX, &config->hidden_size);

	if (!rc)
		rc = field_u32_needed(
			root, "intermediate_size", 1, HF_WIDTH_MAX, &config->intermediate_size);
	if (!rc)
		rc = field_u32_needed(root, "num_hidden_layers", 1, LAYERS_MAX, &config->n_layers);
	if (!rc)
		rc = field_u32_needed(root, "num_attention_heads", 1, HF_HEADS_MAX, &config->n_heads);
	if (!rc)
		rc = field_u32_needed(root, "vocab_size", 1, VOCAB_MAX, &config->vocab_size);
	if (!rc)
		rc = parse_heads(root, family, config);
	if (!rc)
		rc = field_u32(root, "max_position_embeddings", 1, LENGTH_MAX, family->max_seq_len,
			&config->max_seq_len);
	if (!rc)
		rc = field_real(root, "rms_norm_eps", 0, 1, 1e-6, &eps);
	if (!rc)
		rc = field_bool(root, "tie_word_embeddings", false, &config->tie_word_embeddings);
	if (!rc)
		config->rms_norm_eps = (float)eps;
	return rc;
}

static int parse_biases(const struct field_object *root, struct model_config *config)
{
	bool attention = false;
	int rc = 0;

	if (config->family != MODEL_MISTRAL && config->family != MODEL_QWEN2)
		rc = field_bool(root, "attention_bias", false, &attention);
	if (!rc && (config->family == MODEL_LLAMA || config->family == MODEL_DEEPSEEK_V2 ||
			   config->draft.vocab_size))
		rc = field_bool(root, "mlp_bias", false, &config->mlp_bias);
	/* transformers adds the last bias of an MLP of width 0 */
	if (!rc && config->mlp_bias && config->experts.n && !config->experts.n_shared)
		rc = model_fail(root->error, -ENOTSUP,
			"%s: mlp_bias is not supported without n_shared_experts", root->file);
	config->qkv_bias = attention || config->family == MODEL_QWEN2;
	config->o_bias = attention;
	config->qk_norm = config->family == MODEL_QWEN3;
	return rc;
}

/* ---- sliding windows ---- */

/* The family's window, 0 if none, and the first layer that slides if layer_types is absent. */
static int parse_window(const struct field_object *root, const struct family *family,
	uint32_t *ret_window, uint32_t *ret_first)
{
	uint32_t absent = field_state(root, "sliding_window") == FIELD_ABSENT ?
		family->sliding_window : 0;
	uint32_t first = 0, window = 0;
	bool use = family->family != MODEL_LLAMA && !is_deepseek(family) && !is_draft(family);
	int rc = 0;

	if (family->family == MODEL_QWEN2 || family->family == MODEL_QWEN3) {
		rc = field_bool(root, "use_sliding_window", false, &use);
		if (!rc)
			rc = field_u32(root, "max_window_layers", 0, INT32_MAX, 28, &first);
	}
	if (!rc && use)
		rc = field_u32(root, "sliding_window", 1, INT32_MAX, absent, &window);
	if (rc)
		return rc;
	*ret_window = window;
	*ret_first = first;
	return 0;
}

/* Does the layer slide, by layer_types? Only Qwen's models obey the list; with the others it must
 * not contradict the window that all layers share. */
static int layer_type(const struct field_object *root, const struct family *family,
	const json_t *types, uint32_t layer, uint32_t window, bool *ret_slides)
{
	const char *type = json_string_value(json_array_get(types, layer));
	bool slides = type && !strcmp(type, "sliding_attention");
	bool free_choice = family->family == MODEL_QWEN2 || family->family == MODEL_QWEN3;

	if (!slides && (!type || strcmp(type, "full_attention")))
		return model_fail(root->error, -ENOTSUP,
			"%s: layer_types[%u] \"%.64s\" is neither full_attention nor "
			"sliding_attention",
			root->file, layer, type ? type : "(not a string)");
	if (slides && !window)
		return model_fail(root->error, -EINVAL,
			"%s: layer_types[%u] is sliding_attention, but there is no sliding_window",
			root->file, layer);
	if (!slides && window && !free_choice)
		return model_fail(root->error, -ENOTSUP,
			"%s: layer_types[%u] is full_attention, but sliding_window %u holds for "
			"all layers of %s",
			root->file, layer, window, family->architecture);
	*ret_slides = slides;
	return 0;
}

static int parse_windows(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	const json_t *types = json_object_get(root->json, "layer_types");
	bool named = types && !json_is_null(types);
	uint32_t window, first;
	int rc = parse_window(root, family, &window, &first);

	if (rc)
		return rc;
	if (named && (!json_is_array(types) || json_array_size(types) != config->n_layers))
		return model_fail(root->error, -EINVAL,
			"%s: layer_types is not a list of num_hidden_layers = %u names", root->file,
			config->n_layers);
	for (uint32_t layer = 0; layer < config->n_layers; layer++) {
		bool slides = layer >= first;

		if (named)
			rc = layer_type(root, family, types, layer, window, &slides);
		if (rc)
			return rc;
		config->windows[layer] = slides ? window : 0;
	}
	return 0;
}

/* ---- ids and sampling ---- */

static int add_eos(const struct field_object *object, const json_t *id, struct model_config *config)
{
	json_int_t value = json_integer_value(id);

	if (!json_is_integer(id))
		return model_fail(object->error, -EINVAL,
			"%s: eos_token_id is neither an integer nor a list of integers",
			object->file);
	/* an id outside of the vocabulary never comes */
	if (value < 0 || value >= (json_int_t)config->vocab_size)
		return 0;
	for (uint32_t i = 0; i < config->n_eos; i++) {
		if (config->eos[i] == value)
			return 0;
	}
	if (config->n_eos == MODEL_EOS_MAX)
		return model_fail(object->error, -EINVAL, "%s: eos_token_id lists more than %d ids",
			object->file, MODEL_EOS_MAX);
	config->eos[config->n_eos++] = (int32_t)value;
	return 0;
}

/* Lays what the object says over what the config has. */
static int parse_ids(const struct field_object *object, struct model_config *config)
{
	const json_t *eos = json_object_get(object->json, "eos_token_id");
	const json_t *bos = json_object_get(object->json, "bos_token_id");
	int rc = 0;

	if (eos && !json_is_null(eos)) {
		config->n_eos = 0;
		if (!json_is_array(eos))
			rc = add_eos(object, eos, config);
		for (size_t i = 0; !rc && i < json_array_size(eos); i++)
			rc = add_eos(object, json_array_get(eos, i), config);
		if (rc)
			return rc;
	}
	if (!bos || json_is_null(bos))
		return 0;
	if (!json_is_integer(bos))
		return model_fail(object->error, -EINVAL, "%s: bos_token_id is not an integer",
			object->file);
	config->bos = -1;
	if (json_integer_value(bos) >= 0 && json_integer_value(bos) < config->vocab_size)
		config->bos = (int32_t)json_integer_value(bos);
	return 0;
}

static void default_ids(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	config->bos = -1;
	if (field_state(root, "bos_token_id") == FIELD_ABSENT &&
		family->bos < (int32_t)config->vocab_size)
		config->bos = family->bos;
	if (field_state(root, "eos_token_id") == FIELD_ABSENT && family->eos >= 0 &&
		family->eos < (int32_t)config->vocab_size)
		config->eos[config->n_eos++] = family->eos;
}

static int parse_sampling(const struct field_object *object, struct slot_sampling *ret)
{
	double temperature = 1, top_p = 1, min_p = 0;
	uint32_t top_k = 0;
	bool sample;
	int rc = field_bool(object, "do_sample", false, &sample);

	if (rc || !sample)
		return rc;
	rc = field_real(object, "temperature", 0, FLT_MAX, 1, &temperature);
	if (!rc)
		rc = field_u32(object, "top_k", 0, INT32_MAX, 50, &top_k);
	if (!rc)
		rc = field_real(object, "top_p", 0, 1, 1, &top_p);
	if (!rc)
		rc = field_real(object, "min_p", 0, 1, 0, &min_p);
	if (rc)
		return rc;
	*ret = (struct slot_sampling){
		.temperature = (float)temperature,
		.top_p = (float)top_p,
		.min_p = (float)min_p,
		.top_k = top_k,
	};
	return 0;
}

/* ---- the files ---- */

static int parse_root(const struct field_object *root, bool draft, struct model_config *config)
{
	const struct family *family = NULL;
	int rc = find_family(root, draft, &family);

	if (rc)
		return rc;
	config->family = family->family;
	snprintf(config->architecture, sizeof(config->architecture), "%s", family->architecture);
	config->sampling = (struct slot_sampling){.top_p = 1};
	rc = check_plain(root);
	if (!rc)
		rc = parse_sizes(root, family, config);
	if (!rc && draft)
		rc = hf_eagle_parse(root, config);
	if (!rc)
		rc = parse_biases(root, config);
	if (!rc)
		rc = hf_rope_parse(root, config);
	if (rc)
		return rc;
	default_ids(root, family, config);
	rc = parse_ids(root, config);
	if (rc)
		return rc;
	config->windows = calloc(config->n_layers, sizeof(*config->windows));
	if (!config->windows)
		return model_fail(root->error, -ENOMEM, "%s: no memory for its layers", root->file);
	return parse_windows(root, family, config);
}

static int parse_config(const char *file, const char *text, size_t bytes, bool draft,
	struct model_config *ret, struct model_error *error)
{
	struct model_config config = {0};
	json_t *json;
	int rc = field_parse(file, text, bytes, &json, error);

	if (rc)
		return rc;
	rc = parse_root(
		&(struct field_object){.json = json, .file = file, .prefix = "", .error = error},
		draft, &config);
	json_decref(json);
	if (rc)
		model_config_deinit(&config);
	else
		*ret = config;
	return rc;
}

int hf_config_parse(const char *file, const char *text, size_t bytes, struct model_config *ret,
	struct model_error *error)
{
	return parse_config(file, text, bytes, false, ret, error);
}

int hf_draft_parse(const char *file, const char *text, size_t bytes, struct model_config *ret,
	struct model_error *error)
{
	return parse_config(file, text, bytes, true, ret, error);
}

int hf_generation_parse(const char *file, const char *text, size_t bytes,
	struct model_config *config, struct model_error *error)
{
	struct model_config copy = *config;
	struct field_object object;
	json_t *json;
	int rc = field_parse(file, text, bytes, &json, error);

	if (rc)
		return rc;
	object = (struct field_object){.json = json, .file = file, .prefix = "", .error = error};
	rc = parse_ids(&object, &copy);
	if (!rc)
		rc = parse_sampling(&object, &copy.sampling);
	if (!rc)
		*config = copy;
	json_decref(json);
	return rc;
}
