/* SPDX-License-Identifier: MIT */
#include "examples/make-checkpoint/model.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "examples/make-checkpoint/files.h"

#define TENSORS_A_LAYER 16u /* and three an expert */
#define NAME_SHOWN 79 /* of a name in errors */

static const struct {
	const char *name, *architecture, *type;
} families[N_FAMILIES] = {
	{"llama", "LlamaForCausalLM", "llama"},
	{"mistral", "MistralForCausalLM", "mistral"},
	{"qwen2", "Qwen2ForCausalLM", "qwen2"},
	{"qwen3", "Qwen3ForCausalLM", "qwen3"},
	{"deepseek_v2", "DeepseekV2ForCausalLM", "deepseek_v2"},
	{"deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3"},
};

/* From RANK on. */
#define TINY_DEEPSEEK 32, 24, 16, 8, 16, 8, 2, 1, 48, 2, 1, 1
#define LITE 512, 0, 128, 64, 128, 64, 6, 2, 1408, 1, 1, 1

static const struct shape shapes[] = {
	{"tiny", LLAMA, {64, 2, 4, 2, 16, 160, 256, 2048, 1, 0, TINY_DEEPSEEK}, 10000, 0},
	/* Llama-3.2-1B, Llama-3.1-8B */
	{"1B", LLAMA, {2048, 16, 32, 8, 64, 8192, 128256, 131072, 1, 0, LITE}, 500000, 32},
	{"8B", LLAMA, {4096, 32, 32, 8, 128, 14336, 128256, 131072, 0, 0, LITE}, 500000, 8},
	/* DeepSeek-V2-Lite, without what stretches its rope */
	{"V2-Lite", DEEPSEEK_V2, {2048, 27, 16, 16, 128, 10944, 102400, 32768, 0, 0, LITE}, 10000,
		0},
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
	return fail("there is no family \"%.*s\": llama, mistral, qwen2, qwen3, "
		    "deepseek_v2, deepseek_v3",
		NAME_SHOWN, name);
}

int model_take_shape(struct model *model, const char *name)
{
	for (size_t i = 0; i < N_SHAPES; i++) {
		if (strcmp(shapes[i].name, name) == 0) {
			model->shape = shapes[i];
			return 0;
		}
	}
	return fail("there is no shape \"%.*s\": tiny, 1B, 8B, V2-Lite", NAME_SHOWN, name);
}

bool model_is_deepseek(const struct model *model)
{
	return model->family == DEEPSEEK_V2 || model->family == DEEPSEEK_V3;
}

static int check_deepseek(const struct model *model)
{
	const uint32_t *n = model->shape.n;

	if (n[ROPE] % 2 != 0)
		return fail("--rope %u is odd", n[ROPE]);
	if (n[DENSE] > n[LAYERS])
		return fail("--dense %u is more than --layers %u", n[DENSE], n[LAYERS]);
	if (n[EXPERTS] % n[GROUPS] != 0)
		return fail("--experts %u is not a multiple of --groups %u", n[EXPERTS], n[GROUPS]);
	if (n[GROUPS_ACTIVE] > n[GROUPS])
		return fail("--groups-active %u is more than --groups %u", n[GROUPS_ACTIVE],
			n[GROUPS]);
	if (n[ACTIVE] > n[EXPERTS] / n[GROUPS] * n[GROUPS_ACTIVE])
		return fail("--active %u is more than the experts of --groups-active %u groups",
			n[ACTIVE], n[GROUPS_ACTIVE]);
	if (model->family == DEEPSEEK_V3 && n[EXPERTS] / n[GROUPS] < 2)
		return fail("--groups %u leaves groups of one expert, and deepseek_v3 looks at two",
			n[GROUPS]);
	return 0;
}

int model_check(struct model *model)
{
	const uint32_t *n = model->shape.n;

	if (model_is_deepseek(model)) {
		model->shape.rope_factor = 0;
		return n[WINDOW] ? fail("--window is for --family mistral") : check_deepseek(model);
	}

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

/* What writes the residual is as small as there are many that do. */
static double shrink_of(const struct model *model)
{
	return 1 / sqrt(2.0 * model->shape.n[LAYERS]);
}

static void add_attention(struct model *model, uint32_t i)
{
	const uint32_t *n = model->shape.n;
	uint64_t hidden = n[HIDDEN];
	uint64_t q = (uint64_t)n[HEADS] * n[HEAD_DIM], kv = (uint64_t)n[KV_HEADS] * n[HEAD_DIM];

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
	add(model, MATRIX, shrink_of(model), hidden, q, "model.layers.%u.self_attn.o_proj.weight",
		i);
}

static void add_latent_attention(struct model *model, uint32_t i)
{
	const uint32_t *n = model->shape.n;
	uint64_t hidden = n[HIDDEN], q = (uint64_t)n[HEADS] * (n[NOPE] + n[ROPE]);

	if (n[Q_RANK]) {
		add(model, MATRIX, 1, n[Q_RANK], hidden,
			"model.layers.%u.self_attn.q_a_proj.weight", i);
		add(model, NORM, 1, 0, n[Q_RANK], "model.layers.%u.self_attn.q_a_layernorm.weight",
			i);
		add(model, MATRIX, 1, q, n[Q_RANK], "model.layers.%u.self_attn.q_b_proj.weight", i);
	} else {
		add(model, MATRIX, 1, q, hidden, "model.layers.%u.self_attn.q_proj.weight", i);
	}
	add(model, MATRIX, 1, n[RANK] + n[ROPE], hidden,
		"model.layers.%u.self_attn.kv_a_proj_with_mqa.weight", i);
	add(model, NORM, 1, 0, n[RANK], "model.layers.%u.self_attn.kv_a_layernorm.weight", i);
	add(model, MATRIX, 1, (uint64_t)n[HEADS] * (n[NOPE] + n[VALUE]), n[RANK],
		"model.layers.%u.self_attn.kv_b_proj.weight", i);
	add(model, MATRIX, shrink_of(model), hidden, (uint64_t)n[HEADS] * n[VALUE],
		"model.layers.%u.self_attn.o_proj.weight", i);
}

/* "mlp", "mlp.shared_experts" or "mlp.experts.%u", which other names go in front of. */
static void add_mlp(struct model *model, uint32_t i, const char *name, uint64_t inner)
{
	uint64_t hidden = model->shape.n[HIDDEN];

	add(model, MATRIX, 1, inner, hidden, "model.layers.%u.%s.gate_proj.weight", i, name);
	add(model, MATRIX, 1, inner, hidden, "model.layers.%u.%s.up_proj.weight", i, name);
	add(model, MATRIX, shrink_of(model), hidden, inner, "model.layers.%u.%s.down_proj.weight",
		i, name);
}

static void add_experts(struct model *model, uint32_t i)
{
	const uint32_t *n = model->shape.n;
	char name[32];

	add(model, MATRIX, 1, n[EXPERTS], n[HIDDEN], "model.layers.%u.mlp.gate.weight", i);
	if (model->family == DEEPSEEK_V3)
		add(model, BIAS, 1, 0, n[EXPERTS],
			"model.layers.%u.mlp.gate.e_score_correction_bias", i);
	for (uint32_t e = 0; e < n[EXPERTS]; e++) {
		snprintf(name, sizeof(name), "mlp.experts.%u", e);
		add_mlp(model, i, name, n[EXPERT_INNER]);
	}
	if (n[SHARED])
		add_mlp(model, i, "mlp.shared_experts", (uint64_t)n[SHARED] * n[EXPERT_INNER]);
}

static void add_layer(struct model *model, uint32_t i)
{
	const uint32_t *n = model->shape.n;

	add(model, NORM, 1, 0, n[HIDDEN], "model.layers.%u.input_layernorm.weight", i);
	if (model_is_deepseek(model))
		add_latent_attention(model, i);
	else
		add_attention(model, i);
	add(model, NORM, 1, 0, n[HIDDEN], "model.layers.%u.post_attention_layernorm.weight", i);
	if (model_is_deepseek(model) && i >= n[DENSE])
		add_experts(model, i);
	else
		add_mlp(model, i, "mlp", n[INNER]);
}

int model_list(struct model *model)
{
	const uint32_t *n = model->shape.n;

	size_t of_layer =
		TENSORS_A_LAYER + (model_is_deepseek(model) ? (size_t)3 * n[EXPERTS] : 0);

	model->tensors = calloc(n[LAYERS] * of_layer + 3, sizeof(*model->tensors));
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

/* In the words of its own configuration class. */
static void print_deepseek(const struct model *model, FILE *file)
{
	const uint32_t *n = model->shape.n;
	bool v3 = model->family == DEEPSEEK_V3;
	const char *method = v3 ? "noaux_tc" : n[GROUPS] > 1 ? "group_limited_greedy" : "greedy";

	if (n[Q_RANK])
		fprintf(file, "  \"q_lora_rank\": %u,\n", n[Q_RANK]);
	else
		fprintf(file, "  \"q_lora_rank\": null,\n");
	fprintf(file,
		"  \"kv_lora_rank\": %u,\n  \"qk_nope_head_dim\": %u,\n"
		"  \"qk_rope_head_dim\": %u,\n  \"v_head_dim\": %u,\n"
		"  \"n_routed_experts\": %u,\n  \"num_experts_per_tok\": %u,\n"
		"  \"n_shared_experts\": %u,\n  \"moe_intermediate_size\": %u,\n"
		"  \"n_group\": %u,\n  \"topk_group\": %u,\n"
		"  \"first_k_dense_replace\": %u,\n  \"moe_layer_freq\": 1,\n",
		n[RANK], n[NOPE], n[ROPE], n[VALUE], n[EXPERTS], n[ACTIVE], n[SHARED],
		n[EXPERT_INNER], n[GROUPS], n[GROUPS_ACTIVE], n[DENSE]);
	fprintf(file,
		"  \"topk_method\": \"%s\",\n  \"scoring_func\": \"%s\",\n"
		"  \"norm_topk_prob\": %s,\n  \"routed_scaling_factor\": %s,\n"
		"  \"attention_bias\": false,\n",
		method, v3 ? "sigmoid" : "softmax", v3 ? "true" : "false", v3 ? "2.5" : "1.0");
}

void model_print_config(const void *arg, FILE *file)
{
	const struct model *model = arg;
	const uint32_t *n = model->shape.n;
	bool llama3 = n[VOCAB] == 128256, deepseek = model_is_deepseek(model);

	fprintf(file, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
		families[model->family].architecture, families[model->family].type);
	fprintf(file,
		"  \"hidden_size\": %u,\n  \"intermediate_size\": %u,\n  \"vocab_size\": %u,\n"
		"  \"num_hidden_layers\": %u,\n  \"num_attention_heads\": %u,\n"
		"  \"num_key_value_heads\": %u,\n  \"head_dim\": %u,\n"
		"  \"max_position_embeddings\": %u,\n",
		n[HIDDEN], n[INNER], n[VOCAB], n[LAYERS], n[HEADS],
		deepseek ? n[HEADS] : n[KV_HEADS], deepseek ? n[ROPE] : n[HEAD_DIM],
		n[MAX_LENGTH]);
	if (deepseek)
		print_deepseek(model, file);
	if (model->family == MISTRAL && n[WINDOW])
		fprintf(file, "  \"sliding_window\": %u,\n", n[WINDOW]);
	else if (model->family != LLAMA && !deepseek)
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
