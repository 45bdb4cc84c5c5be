/* SPDX-License-Identifier: MIT */
#include "examples/make-checkpoint/model.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "examples/make-checkpoint/files.h"

#define TENSORS_A_LAYER 14u
#define NAME_SHOWN 79 /* of a name in errors */

static const struct {
	const char *name, *architecture, *type;
} families[N_FAMILIES] = {
	{"llama", "LlamaForCausalLM", "llama"},
	{"mistral", "MistralForCausalLM", "mistral"},
	{"qwen2", "Qwen2ForCausalLM", "qwen2"},
	{"qwen3", "Qwen3ForCausalLM", "qwen3"},
};

static const struct shape shapes[] = {
	{"tiny", {64, 2, 4, 2, 16, 160, 256, 2048, 1, 0}, 10000, 0},
	{"1B", {2048, 16, 32, 8, 64, 8192, 128256, 131072, 1, 0}, 500000, 32},  /* Llama-3.2-1B */
	{"8B", {4096, 32, 32, 8, 128, 14336, 128256, 131072, 0, 0}, 500000, 8}, /* Llama-3.1-8B */
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* ---- by name ---- */

int model_take_family(struct model *model, const char *name)
{
	for (int i = 0; i < N_FAMILIES; i++) {
		if (strcmp(families[i].name, name) == 0) {
			model->family = (enum family)i;
			return 0;
		}
	}
	return fail("there is no family \"%.*s\": llama, mistral, qwen2, qwen3", NAME_SHOWN, name);
}

int model_take_shape(struct model *model, const char *name)
{
	for (size_t i = 0; i < N_SHAPES; i++) {
		if (strcmp(shapes[i].name, name) == 0) {
			model->shape = shapes[i];
			return 0;
		}
	}
	return fail("there is no shape \"%.*s\": tiny, 1B, 8B", NAME_SHOWN, name);
}

int model_check(struct model *model)
{
	const uint32_t *n = model->shape.n;

	if (n[HEADS] % n[KV_HEADS] != 0)
		return fail("--heads %u is not a multiple of --kv-heads %u", n[HEADS], n[KV_HEADS]);
	if (n[HEAD_DIM] % 2 != 0)
		return fail("--head-dim %u is odd", n[HEAD_DIM]);
	if (n[WINDOW] && model->family != MISTRAL)
		return fail("--window is for --family mistral");
	if (model->family != LLAMA || n[MAX_LENGTH] <= 8192)
		model->shape.rope_factor = 0;
	return 0;
}

/* ---- tensors ---- */

enum kind { MATRIX, NORM, BIAS };

static void __attribute__((format(printf, 6, 7))) add(struct model *model, enum kind kind,
	double shrink, uint64_t rows, uint64_t cols, const char *format, ...)
{
	struct tensor *tensor = &model->tensors[model->n_tensors++];
	va_list arguments;

	*tensor =
		(struct tensor){.rows = rows, .cols = cols, .mean = kind == NORM, .deviation = 0.1};
	if (kind == MATRIX)
		tensor->deviation = shrink / sqrt((double)cols);
	va_start(arguments, format);
	vsnprintf(tensor->name, sizeof(tensor->name), format, arguments);
	va_end(arguments);
	model->bytes += 2 * tensor_elements(tensor);
}

static void add_layer(struct model *model, uint32_t i)
{
	const uint32_t *n = model->shape.n;
	uint64_t hidden = n[HIDDEN], inner = n[INNER];
	uint64_t q = (uint64_t)n[HEADS] * n[HEAD_DIM], kv = (uint64_t)n[KV_HEADS] * n[HEAD_DIM];
	double residual = 1 / sqrt(2.0 * n[LAYERS]);

	add(model, NORM, 1, 0, hidden, "model.layers.%u.input_layernorm.weight", i);
	add(model, MATRIX, 1, q, hidden, "model.layers.%u.self_attn.q_proj.weight", i);
	add(model, MATRIX, 1, kv, hidden, "model.layers.%u.self_attn.k_proj.weight", i);
	add(model, MATRIX, 1, kv, hidden, "model.layers.%u.self_attn.v_proj.weight", i);
	if (model->family == QWEN2) {
		add(model, BIAS, 1, 0, q, "model.layers.%u.self_attn.q_proj.bias", i);
		add(model, BIAS, 1, 0, kv, "model.layers.%u.self_attn.k_proj.bias", i);
		add(model, BIAS, 1, 0, kv, "model.layers.%u.self_attn.v_proj.bias", i);
	}
	if (model->family == QWEN3) {
		add(model, NORM, 1, 0, n[HEAD_DIM], "model.layers.%u.self_attn.q_norm.weight", i);
		add(model, NORM, 1, 0, n[HEAD_DIM], "model.layers.%u.self_attn.k_norm.weight", i);
	}
	add(model, MATRIX, residual, hidden, q, "model.layers.%u.self_attn.o_proj.weight", i);
	add(model, NORM, 1, 0, hidden, "model.layers.%u.post_attention_layernorm.weight", i);
	add(model, MATRIX, 1, inner, hidden, "model.layers.%u.mlp.gate_proj.weight", i);
	add(model, MATRIX, 1, inner, hidden, "model.layers.%u.mlp.up_proj.weight", i);
	add(model, MATRIX, residual, hidden, inner, "model.layers.%u.mlp.down_proj.weight", i);
}

int model_list(struct model *model)
{
	const uint32_t *n = model->shape.n;

	model->tensors = calloc(n[LAYERS] * TENSORS_A_LAYER + 3, sizeof(*model->tensors));
	if (!model->tensors)
		return fail("%s", strerror(ENOMEM));
	add(model, MATRIX, 1, n[VOCAB], n[HIDDEN], "model.embed_tokens.weight");
	for (uint32_t i = 0; i < n[LAYERS]; i++)
		add_layer(model, i);
	add(model, NORM, 1, 0, n[HIDDEN], "model.norm.weight");
	if (!n[TIED])
		add(model, MATRIX, 1, n[VOCAB], n[HIDDEN], "lm_head.weight");
	return 0;
}

void model_deinit(struct model *model)
{
	free(model->tensors);
	model->tensors = NULL;
}

/* ---- config.json ---- */

const char *model_architecture(const struct model *model)
{
	return families[model->family].architecture;
}

static void print_rope(const struct shape *shape, FILE *file)
{
	fprintf(file, "  \"rope_theta\": %.1f,\n", shape->rope_theta);
	if (shape->rope_factor > 0)
		fprintf(file,
			"  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %.1f, "
			"\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
			"\"original_max_position_embeddings\": 8192},\n",
			shape->rope_factor);
}

void model_print_config(const void *arg, FILE *file)
{
	const struct model *model = arg;
	const uint32_t *n = model->shape.n;
	bool llama3 = n[VOCAB] == 128256;

	fprintf(file, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
		families[model->family].architecture, families[model->family].type);
	fprintf(file,
		"  \"hidden_size\": %u,\n  \"intermediate_size\": %u,\n  \"vocab_size\": %u,\n"
		"  \"num_hidden_layers\": %u,\n  \"num_attention_heads\": %u,\n"
		"  \"num_key_value_heads\": %u,\n  \"head_dim\": %u,\n"
		"  \"max_position_embeddings\": %u,\n",
		n[HIDDEN], n[INNER], n[VOCAB], n[LAYERS], n[HEADS], n[KV_HEADS], n[HEAD_DIM],
		n[MAX_LENGTH]);
	if (model->family == MISTRAL && n[WINDOW])
		fprintf(file, "  \"sliding_window\": %u,\n", n[WINDOW]);
	else if (model->family != LLAMA)
		fprintf(file, "  \"sliding_window\": null,\n");
	if (model->family == QWEN2 || model->family == QWEN3)
		fprintf(file, "  \"use_sliding_window\": false,\n");
	print_rope(&model->shape, file);
	fprintf(file,
		"  \"rms_norm_eps\": 1e-05,\n  \"hidden_act\": \"silu\",\n"
		"  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": %u,\n"
		"  \"eos_token_id\": %u,\n  \"torch_dtype\": \"bfloat16\"\n}\n",
		n[TIED] ? "true" : "false", llama3 ? 128000 : 1, llama3 ? 128001 : 2);
}
