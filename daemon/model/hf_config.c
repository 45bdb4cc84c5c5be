/* SPDX-License-Identifier: MIT */

/*
 * If a field is absent, the default is that of the family's configuration class in transformers, because that
 * wrote the file without the field; null means "derive it" if the class defines it so. Sizes of the model
 * itself have no sensible default and are required.
 */

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/hf_config.h"
#include "daemon/model/hf_quantisation.h"

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
	{"Phi3ForCausalLM", MODEL_PHI3, 0, 0, 4096, 1, 32000, 0},
	{"Qwen3MoeForCausalLM", MODEL_QWEN3_MOE, 4, 0, 32768, -1, -1, 4096},
	{"Gemma2ForCausalLM", MODEL_GEMMA2, 4, 256, 8192, 2, 1, 4096},
	{"Gemma3ForCausalLM", MODEL_GEMMA3, 4, 256, 131072, 2, 1, 4096},
	{"DeepseekV2ForCausalLM", MODEL_DEEPSEEK_V2, 0, 0, 2048, 1, 2, 0},
	{"DeepseekV3ForCausalLM", MODEL_DEEPSEEK_V3, 0, 0, 4096, 0, 1, 0},
	{"LlamaForCausalLMEagle", MODEL_EAGLE, 0, 0, 2048, 1, 2, 0},
	{"LlamaForCausalLMEagle3", MODEL_EAGLE3, 0, 0, 2048, 1, 2, 0},
};

/* What a DeepSeek V3 is as a draft model: its MTP head. The name is not a file's: listings tell it from its model by it. */
static const struct family mtp_family = {"DeepseekV3ForCausalLMMTP", MODEL_MTP, 0, 0, 4096, 0, 1, 0};

static bool hf_config_is_deepseek(const struct family *family)
{
	return family->family == MODEL_DEEPSEEK_V2 || family->family == MODEL_DEEPSEEK_V3 ||
		family->family == MODEL_MTP;
}

static bool hf_config_is_gemma(const struct family *family)
{
	return family->family == MODEL_GEMMA2 || family->family == MODEL_GEMMA3;
}

static bool hf_config_is_draft(const struct family *family)
{
	return family->family == MODEL_EAGLE || family->family == MODEL_EAGLE3;
}

/* In the other families a window is all layers'. */
static bool hf_config_obeys_layer_types(const struct family *family)
{
	return family->family == MODEL_QWEN2 || family->family == MODEL_QWEN3 || hf_config_is_gemma(family);
}

/* NULL: not one that is read here. */
static const struct family *hf_config_find_family(const struct field_object *root, bool draft)
{
	const json_t *list = json_object_get(root->json, "architectures");
	const char *name = json_string_value(json_array_get(list, 0));

	if (!json_is_array(list) || json_array_size(list) != 1 || !name) {
		field_fail(root, -EINVAL, "architectures is not a list of one name");
		return NULL;
	}
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		if (strcmp(name, families[i].architecture))
			continue;
		if (draft && families[i].family == MODEL_DEEPSEEK_V3)
			return &mtp_family;
		if (hf_config_is_draft(&families[i]) == draft)
			return &families[i];
		field_fail(root, -EINVAL, "architectures \"%s\" is %s", name,
			draft ? "not a draft model, which is LlamaForCausalLMEagle, "
				"LlamaForCausalLMEagle3 or the MTP head of DeepseekV3ForCausalLM"
			      : "a draft model: it is not served by itself, but beside its target");
		return NULL;
	}
	field_fail(root, -ENOTSUP, "architectures \"%.64s\" is not one of %s", name,
		draft ? "LlamaForCausalLMEagle, LlamaForCausalLMEagle3, DeepseekV3ForCausalLM"
		      : "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
			"Phi3ForCausalLM, Qwen3MoeForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM, "
			"DeepseekV2ForCausalLM, DeepseekV3ForCausalLM");
	return NULL;
}

/* Refuse what would change the arithmetic. */
static void hf_config_refuse_variants(const struct field_object *root, const struct family *family)
{
	static const char *const unsupported[] = {"compression_config", "per_layer_config"};
	const char *act;

	for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
		if (field_state(root, unsupported[i]) == FIELD_THERE)
			field_fail(root, -ENOTSUP, "%s is not supported", unsupported[i]);
	}
	if (hf_config_is_gemma(family))
		return;
	act = field_string(root, "hidden_act", "silu");
	if (strcmp(act, "silu") && strcmp(act, "swish"))
		field_fail(root, -ENOTSUP, "hidden_act \"%.64s\" is not silu", act);
}

static void hf_config_parse_head_dim(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	uint32_t derived = config->hidden_size / config->n_heads;
	uint32_t absent = derived;

	if (family->head_dim && field_state(root, "head_dim") == FIELD_ABSENT)
		absent = family->head_dim;
	config->head_dim = field_u32(root, "head_dim", 2, MODEL_HEAD_DIM_MAX, absent);
	if (field_state(root, "head_dim") != FIELD_THERE && absent == derived &&
		config->hidden_size % config->n_heads)
		field_fail(root, -EINVAL,
			"hidden_size %u is not a multiple of num_attention_heads %u, and head_dim "
			"is not given",
			config->hidden_size, config->n_heads);
	if (config->head_dim < 2 || config->head_dim > MODEL_HEAD_DIM_MAX || config->head_dim % 2)
		field_fail(root, -EINVAL, "head_dim %u is not an even number between 2 and %u",
			config->head_dim, MODEL_HEAD_DIM_MAX);
}

static void hf_config_parse_kv_heads(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	bool is_absent = field_state(root, "num_key_value_heads") == FIELD_ABSENT;

	config->n_kv_heads = field_u32(root, "num_key_value_heads", 1, HF_HEADS_MAX,
		family->n_kv_heads && is_absent ? family->n_kv_heads : config->n_heads);
	if (config->n_heads % config->n_kv_heads)
		field_fail(root, -EINVAL,
			"num_attention_heads %u is not a multiple of num_key_value_heads %u%s",
			config->n_heads, config->n_kv_heads, is_absent ? ", its default" : "");
}

static void hf_config_parse_sizes(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	config->hidden_size = field_u32_needed(root, "hidden_size", 1, HF_WIDTH_MAX);
	config->intermediate_size = field_u32_needed(root, "intermediate_size", 1, HF_WIDTH_MAX);
	config->n_layers = field_u32_needed(root, "num_hidden_layers", 1, MODEL_LAYERS_MAX);
	config->n_heads = field_u32_needed(root, "num_attention_heads", 1, HF_HEADS_MAX);
	config->vocab_size = field_u32_needed(root, "vocab_size", 1, HF_VOCAB_MAX);
	if (config->family == MODEL_MTP)
		hf_mtp_parse(root, config);
	if (hf_config_is_deepseek(family)) {
		hf_deepseek_parse(root, config);
	} else {
		hf_config_parse_head_dim(root, family, config);
		hf_config_parse_kv_heads(root, family, config);
	}
	if (config->family == MODEL_QWEN3_MOE)
		hf_qwen3_moe_parse(root, config);
	if (config->family == MODEL_GEMMA2)
		hf_gemma2_parse(root, config);
	if (config->family == MODEL_GEMMA3)
		hf_gemma3_parse(root, config);
	config->max_seq_len = field_u32(
		root, "max_position_embeddings", 1, HF_LENGTH_MAX, family->max_seq_len);
	config->rms_norm_eps =
		(float)field_real(root, "rms_norm_eps", 0, 1, family->family == MODEL_PHI3 ? 1e-5 : 1e-6);
	config->tie_word_embeddings = field_bool(root, "tie_word_embeddings", hf_config_is_gemma(family));
}

static void hf_config_parse_biases(const struct field_object *root, struct model_config *config)
{
	bool attention = false;

	if (config->family != MODEL_MISTRAL && config->family != MODEL_QWEN2 && config->family != MODEL_PHI3)
		attention = field_bool(root, "attention_bias", false);
	if (config->family == MODEL_LLAMA || config->family == MODEL_DEEPSEEK_V2 ||
		config->family == MODEL_EAGLE || config->family == MODEL_EAGLE3)
		config->mlp_bias = field_bool(root, "mlp_bias", false);
	/* transformers adds the last bias of an MLP of width 0 */
	if (config->mlp_bias && config->experts.n && !config->experts.n_shared)
		field_fail(root, -ENOTSUP, "mlp_bias is not supported without n_shared_experts");
	config->qkv_bias = attention || config->family == MODEL_QWEN2;
	config->o_bias = attention;
	config->qk_norm = config->family == MODEL_QWEN3 || config->family == MODEL_QWEN3_MOE ||
		config->family == MODEL_GEMMA3;
}

/* ---- sliding windows ---- */

/* The family's window, 0 if none, and the first layer that slides if layer_types is absent. */
static uint32_t hf_config_parse_window(
	const struct field_object *root, const struct family *family, uint32_t *ret_first)
{
	bool dense = family->family == MODEL_QWEN2 || family->family == MODEL_QWEN3;
	bool asks = dense || family->family == MODEL_QWEN3_MOE;
	bool use = family->family == MODEL_MISTRAL || family->family == MODEL_PHI3 || hf_config_is_gemma(family);

	*ret_first = 0;
	if (dense)
		*ret_first = field_u32(root, "max_window_layers", 0, INT32_MAX, 28);
	if (asks)
		use = field_bool(root, "use_sliding_window", false);
	if (!use)
		return 0;
	return field_u32(root, "sliding_window", 1, INT32_MAX,
		field_state(root, "sliding_window") == FIELD_ABSENT ? family->sliding_window : 0);
}

/* Does the layer slide, where layer_types is absent? */
static bool hf_config_slides(
	const struct field_object *root, const struct family *family, uint32_t layer, uint32_t first)
{
	if (family->family == MODEL_GEMMA3)
		return hf_gemma3_layer_slides(root, layer);
	return layer >= first && (family->family != MODEL_GEMMA2 || layer % 2 == 0);
}

/* Does the layer slide, by layer_types? In a family that does not obey the list it must not contradict the
 * window that all layers share. */
static bool hf_config_parse_layer_type(const struct field_object *root, const struct family *family,
	const json_t *types, uint32_t layer, uint32_t window)
{
	const char *type = json_string_value(json_array_get(types, layer));
	bool slides = type && !strcmp(type, "sliding_attention");

	if (!slides && (!type || strcmp(type, "full_attention")))
		field_fail(root, -ENOTSUP,
			"layer_types[%u] \"%.64s\" is neither full_attention nor sliding_attention",
			layer, type ? type : "(not a string)");
	if (slides && !window)
		field_fail(root, -EINVAL,
			"layer_types[%u] is sliding_attention, but there is no sliding_window",
			layer);
	if (!slides && window && !hf_config_obeys_layer_types(family))
		field_fail(root, -ENOTSUP,
			"layer_types[%u] is full_attention, but sliding_window %u applies to all "
			"layers of %s",
			layer, window, family->architecture);
	return slides;
}

static void hf_config_parse_windows(const struct field_object *root, const struct family *family,
	struct model_config *config)
{
	const json_t *types = json_object_get(root->json, "layer_types");
	/* the list is of the layers before an MTP head */
	bool named = types && !json_is_null(types) && config->family != MODEL_MTP;
	uint32_t first, window = hf_config_parse_window(root, family, &first);

	if (named && (!json_is_array(types) || json_array_size(types) != config->n_layers)) {
		field_fail(root, -EINVAL,
			"layer_types is not a list of num_hidden_layers = %u names",
			config->n_layers);
		return;
	}
	for (uint32_t layer = 0; layer < config->n_layers; layer++) {
		bool slides = named ? hf_config_parse_layer_type(
					      root, family, types, layer, window)
				    : hf_config_slides(root, family, layer, first);

		config->windows[layer] = slides ? window : 0;
	}
}

/* ---- ids and sampling ---- */

static void hf_config_add_eos(
	const struct field_object *object, const json_t *id, struct model_config *config)
{
	json_int_t value = json_integer_value(id);

	if (!json_is_integer(id)) {
		field_fail(object, -EINVAL,
			"eos_token_id is neither an integer nor a list of integers");
		return;
	}
	/* an id outside of the vocabulary is never sampled */
	if (value < 0 || value >= (json_int_t)config->vocab_size)
		return;
	for (uint32_t i = 0; i < config->n_eos; i++) {
		if (config->eos[i] == value)
			return;
	}
	if (config->n_eos == MODEL_EOS_MAX) {
		field_fail(
			object, -EINVAL, "eos_token_id lists more than %d ids", MODEL_EOS_MAX);
		return;
	}
	config->eos[config->n_eos++] = (int32_t)value;
}

/* The object's ids replace those of the config. */
static void hf_config_parse_ids(const struct field_object *object, struct model_config *config)
{
	const json_t *eos = json_object_get(object->json, "eos_token_id");
	const json_t *bos = json_object_get(object->json, "bos_token_id");

	if (eos && !json_is_null(eos)) {
		config->n_eos = 0;
		if (!json_is_array(eos))
			hf_config_add_eos(object, eos, config);
		for (size_t i = 0; i < json_array_size(eos) && !object->file->rc; i++)
			hf_config_add_eos(object, json_array_get(eos, i), config);
	}
	if (!bos || json_is_null(bos))
		return;
	if (!json_is_integer(bos))
		field_fail(object, -EINVAL, "bos_token_id is not an integer");
	config->bos = -1;
	if (json_integer_value(bos) >= 0 && json_integer_value(bos) < config->vocab_size)
		config->bos = (int32_t)json_integer_value(bos);
}

static void hf_config_default_ids(const struct field_object *root, const struct family *family,
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

static void hf_config_parse_sampling(
	const struct field_object *object, struct slot_sampling *ret)
{
	if (!field_bool(object, "do_sample", false))
		return;
	*ret = (struct slot_sampling){
		.temperature = (float)field_real(object, "temperature", 0, FLT_MAX, 1),
		.top_p = (float)field_real(object, "top_p", 0, 1, 1),
		.min_p = (float)field_real(object, "min_p", 0, 1, 0),
		.top_k = field_u32(object, "top_k", 0, INT32_MAX, 50),
	};
}

/* ---- the files ---- */

static int hf_config_parse_root(
	const struct field_object *root, bool draft, struct model_config *config)
{
	const struct family *family = hf_config_find_family(root, draft);

	if (!family)
		return root->file->rc;
	config->family = family->family;
	snprintf(config->architecture, sizeof(config->architecture), "%s", family->architecture);
	config->sampling = (struct slot_sampling){.top_p = 1};
	hf_config_refuse_variants(root, family);
	hf_config_parse_sizes(root, family, config);
	if (draft && config->family != MODEL_MTP)
		hf_eagle_parse(root, config);
	hf_config_parse_biases(root, config);
	hf_rope_parse(root, config);
	hf_quantisation_parse(root, &config->quantisation);
	hf_config_default_ids(root, family, config);
	hf_config_parse_ids(root, config);
	if (root->file->rc)
		return root->file->rc;
	config->windows = calloc(config->n_layers, sizeof(*config->windows));
	if (!config->windows)
		return field_fail(root, -ENOMEM, "no memory for its layers");
	hf_config_parse_windows(root, family, config);
	return root->file->rc;
}

int hf_config_parse(const char *path, const char *text, size_t bytes, bool draft,
	struct model_config *ret, struct model_error *error)
{
	CLEANUP(cleanup_json) json_t *json = NULL;
	struct model_config config = {0};
	struct field_file file = {.path = path, .error = error};
	int rc = field_parse(path, text, bytes, &json, error);

	if (rc)
		return rc;
	rc = hf_config_parse_root(
		&(struct field_object){.json = json, .prefix = "", .file = &file}, draft, &config);
	if (rc) {
		model_config_deinit(&config);
		return rc;
	}
	assert(config.n_heads % config.n_kv_heads == 0 && config.n_eos <= MODEL_EOS_MAX);
	assert(config.head_dim >= 2 && config.head_dim % 2 == 0);
	*ret = config;
	return 0;
}

int hf_generation_parse(const char *path, const char *text, size_t bytes,
	struct model_config *config, struct model_error *error)
{
	CLEANUP(cleanup_json) json_t *json = NULL;
	struct model_config copy = *config;
	struct field_file file = {.path = path, .error = error};
	struct field_object root = {.prefix = "", .file = &file};
	int rc = field_parse(path, text, bytes, &json, error);

	if (rc)
		return rc;
	root.json = json;
	hf_config_parse_ids(&root, &copy);
	hf_config_parse_sampling(&root, &copy.sampling);
	if (file.rc)
		return file.rc;
	*config = copy;
	return 0;
}
