/* SPDX-License-Identifier: MIT */
#include "examples/make-checkpoint/model.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "examples/make-checkpoint/files.h"

#define TENSORS_A_LAYER 16u /* and three an expert */
#define TENSORS_BESIDE 7u   /* embedding, norm, head, four of an MTP head; or fc, norm, head, d2t, t2d */
#define NAME_SHOWN 79       /* of a name in errors */

static const struct {
	const char *name, *architecture, *type;
} families[N_FAMILIES] = {
	{"llama", "LlamaForCausalLM", "llama"},
	{"mistral", "MistralForCausalLM", "mistral"},
	{"qwen2", "Qwen2ForCausalLM", "qwen2"},
	{"qwen3", "Qwen3ForCausalLM", "qwen3"},
	{"phi3", "Phi3ForCausalLM", "phi3"},
	{"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe"},
	{"gemma2", "Gemma2ForCausalLM", "gemma2"},
	{"gemma3", "Gemma3ForCausalLM", "gemma3_text"},
	{"deepseek_v2", "DeepseekV2ForCausalLM", "deepseek_v2"},
	{"deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3"},
	{"eagle", "LlamaForCausalLMEagle", "llama"},
	{"eagle3", "LlamaForCausalLMEagle3", "llama"},
};

/* From RANK on. */
#define TINY_DEEPSEEK 32, 24, 16, 8, 16, 8, 2, 1, 48, 2, 1, 1
#define LITE 512, 0, 128, 64, 128, 64, 6, 2, 1408, 1, 1, 1

static const struct shape shapes[] = {
	{"tiny", LLAMA, {64, 2, 4, 2, 16, 160, 256, 2048, 1, 0, 0, TINY_DEEPSEEK}, 10000, 0},
	/* Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B */
	{"1B", LLAMA, {2048, 16, 32, 8, 64, 8192, 128256, 131072, 1, 0, 0, LITE}, 500000, 32},
	{"3B", LLAMA, {3072, 28, 24, 8, 128, 8192, 128256, 131072, 1, 0, 0, LITE}, 500000, 32},
	{"8B", LLAMA, {4096, 32, 32, 8, 128, 14336, 128256, 131072, 0, 0, 0, LITE}, 500000, 8},
	/* DeepSeek-V2-Lite, without what stretches its rope */
	{"V2-Lite", DEEPSEEK_V2, {2048, 27, 16, 16, 128, 10944, 102400, 32768, 0, 0, 0, LITE},
		10000, 0},
	{"Qwen2.5-0.5B", QWEN2, {896, 24, 14, 2, 64, 4864, 151936, 32768, 1, 0, 0, LITE}, 1000000, 0},
	{"Qwen2.5-1.5B", QWEN2, {1536, 28, 12, 2, 128, 8960, 151936, 32768, 1, 0, 0, LITE}, 1000000,
		0},
	/* Mistral-7B v0.3, which has no window */
	{"Mistral-7B", MISTRAL, {4096, 32, 32, 8, 128, 14336, 32768, 32768, 0, 0, 0, LITE}, 1000000,
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
	return fail("there is no family \"%.*s\": llama, mistral, qwen2, qwen3, phi3, "
		    "qwen3_moe, gemma2, gemma3, deepseek_v2, deepseek_v3, eagle, eagle3",
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
	return fail("there is no shape \"%.*s\": tiny, 1B, 3B, 8B, V2-Lite, Qwen2.5-0.5B, "
		    "Qwen2.5-1.5B, Mistral-7B",
		NAME_SHOWN, name);
}

bool model_is_deepseek(const struct model *model)
{
	return model->family == DEEPSEEK_V2 || model->family == DEEPSEEK_V3;
}

static bool model_number_is_of_experts(enum number number)
{
	return number == EXPERTS || number == ACTIVE || number == EXPERT_INNER || number == DENSE;
}

bool model_may_have(const struct model *model, enum number number)
{
	return number < RANK || model_is_deepseek(model) ||
	       (model->family == QWEN3_MOE && model_number_is_of_experts(number));
}

const char *model_families_with(enum number number)
{
	return model_number_is_of_experts(number) ? "qwen3_moe, deepseek_v2 and deepseek_v3"
						  : "deepseek_v2 and deepseek_v3";
}

static bool model_has_experts(const struct model *model)
{
	return model_may_have(model, EXPERTS);
}

/* As published checkpoints of the family do. */
static bool model_has_mtp(const struct model *model)
{
	return model->family == DEEPSEEK_V3;
}

static bool model_is_draft(const struct model *model)
{
	return model->family == EAGLE || model->family == EAGLE3;
}

static bool model_is_gemma(const struct model *model)
{
	return model->family == GEMMA2 || model->family == GEMMA3;
}

static bool model_has_window(const struct model *model)
{
	return model->family == MISTRAL || model->family == PHI3 || model_is_gemma(model);
}

static int model_check_experts(const struct model *model)
{
	const uint32_t *n = model->shape.n;

	if (n[DENSE] > n[LAYERS])
		return fail("--dense %u is more than --layers %u", n[DENSE], n[LAYERS]);
	if (n[EXPERTS] % n[GROUPS] != 0)
		return fail("--experts %u is not a multiple of --groups %u", n[EXPERTS], n[GROUPS]);
	if (n[GROUPS_ACTIVE] > n[GROUPS])
		return fail("--groups-active %u is more than --groups %u", n[GROUPS_ACTIVE],
			n[GROUPS]);
	if (n[ACTIVE] > n[EXPERTS])
		return fail("--active %u is more than --experts %u", n[ACTIVE], n[EXPERTS]);
	if (n[ACTIVE] > n[EXPERTS] / n[GROUPS] * n[GROUPS_ACTIVE])
		return fail("--active %u is more than the experts of --groups-active %u groups",
			n[ACTIVE], n[GROUPS_ACTIVE]);
	if (model->family == DEEPSEEK_V3 && n[EXPERTS] / n[GROUPS] < 2)
		return fail("--groups %u leaves one expert in a group, and deepseek_v3 looks at two",
			n[GROUPS]);
	return 0;
}

int model_check(struct model *model)
{
	uint32_t *n = model->shape.n;

	if (n[WINDOW] && !model_has_window(model))
		return fail("--window is for --family mistral, phi3, gemma2 and gemma3");
	if (model->family == PHI3 && (uint64_t)n[HEADS] * n[HEAD_DIM] != n[HIDDEN])
		return fail("--hidden %u is not --heads %u times --head-dim %u, as it is for --family phi3", n[HIDDEN],
			n[HEADS], n[HEAD_DIM]);
	if (n[DRAFT_VOCAB] && model->family != EAGLE3)
		return fail("--draft-vocab is for --family eagle3");
	if (n[DRAFT_VOCAB] > n[VOCAB])
		return fail("--draft-vocab %u is more than --vocab %u", n[DRAFT_VOCAB], n[VOCAB]);
	if ((model->family != LLAMA && !model_is_draft(model)) || n[MAX_LENGTH] <= 8192)
		model->shape.rope_factor = 0;
	if (model->family == QWEN3_MOE) {
		n[GROUPS] = n[GROUPS_ACTIVE] = 1;
		n[SHARED] = 0;
	}
	if (model_has_experts(model) && model_check_experts(model) < 0)
		return -1;
	if (model_is_deepseek(model))
		return n[ROPE] % 2 == 0 ? 0 : fail("--rope %u is odd", n[ROPE]);
	if (n[HEADS] % n[KV_HEADS] != 0)
		return fail("--heads %u is not a multiple of --kv-heads %u", n[HEADS], n[KV_HEADS]);
	if (n[HEAD_DIM] % 2 != 0)
		return fail("--head-dim %u is odd", n[HEAD_DIM]);
	if (model_is_draft(model)) {
		model->target_layers = n[LAYERS];
		n[LAYERS] = 1;
		n[TIED] = 0;
		n[DRAFT_VOCAB] = n[DRAFT_VOCAB] ? n[DRAFT_VOCAB] : n[VOCAB];
	}
	return 0;
}

/* ---- tensors ---- */

enum kind { MATRIX, NORM, BIAS };

static size_t model_max_tensors(const struct model *model)
{
	const uint32_t *n = model->shape.n;
	size_t experts = model_has_experts(model) ? (size_t)3 * n[EXPERTS] : 0;

	return ((size_t)n[LAYERS] + model_has_mtp(model)) * (TENSORS_A_LAYER + experts) + TENSORS_BESIDE;
}

static struct tensor *model_next_tensor(struct model *model)
{
	assert(model->n_tensors < model_max_tensors(model));
	return &model->tensors[model->n_tensors++];
}

static void __attribute__((format(printf, 6, 7))) model_add(struct model *model, enum kind kind,
	double shrink, uint64_t rows, uint64_t cols, const char *format, ...)
{
	struct tensor *tensor = model_next_tensor(model);
	va_list arguments;

	*tensor =
		(struct tensor){.rows = rows, .cols = cols, .deviation = 0.1};
	tensor->mean = kind == NORM && !model_is_gemma(model); /* which adds 1 */
	if (kind == MATRIX)
		tensor->deviation = shrink / sqrt((double)cols);
	va_start(arguments, format);
	vsnprintf(tensor->name, sizeof(tensor->name), format, arguments);
	va_end(arguments);
	model->bytes += tensor_bytes(tensor);
}

static void model_add_ids(struct model *model, enum contents contents, uint64_t n, const char *name)
{
	struct tensor *tensor = model_next_tensor(model);

	*tensor = (struct tensor){.cols = n, .contents = contents};
	snprintf(tensor->name, sizeof(tensor->name), "%s", name);
	model->bytes += tensor_bytes(tensor);
}

/* Matrices that write the residual shrink with the number of layers. */
static double model_shrink(const struct model *model)
{
	return 1 / sqrt(2.0 * model->shape.n[LAYERS]);
}

/* `layer`: its name. EAGLE-3 has q, k and v of two inputs. */
static void model_add_attention(struct model *model, const char *layer)
{
	const uint32_t *n = model->shape.n;
	uint64_t hidden = n[HIDDEN], in = model->family == EAGLE3 ? 2 * hidden : hidden;
	uint64_t q = (uint64_t)n[HEADS] * n[HEAD_DIM], kv = (uint64_t)n[KV_HEADS] * n[HEAD_DIM];

	if (model->family == PHI3) {
		model_add(model, MATRIX, 1, q + 2 * kv, in, "%s.self_attn.qkv_proj.weight", layer);
	} else {
		model_add(model, MATRIX, 1, q, in, "%s.self_attn.q_proj.weight", layer);
		model_add(model, MATRIX, 1, kv, in, "%s.self_attn.k_proj.weight", layer);
		model_add(model, MATRIX, 1, kv, in, "%s.self_attn.v_proj.weight", layer);
	}
	if (model->family == QWEN2) {
		model_add(model, BIAS, 1, 0, q, "%s.self_attn.q_proj.bias", layer);
		model_add(model, BIAS, 1, 0, kv, "%s.self_attn.k_proj.bias", layer);
		model_add(model, BIAS, 1, 0, kv, "%s.self_attn.v_proj.bias", layer);
	}
	if (model->family == QWEN3 || model->family == QWEN3_MOE || model->family == GEMMA3) {
		model_add(model, NORM, 1, 0, n[HEAD_DIM], "%s.self_attn.q_norm.weight", layer);
		model_add(model, NORM, 1, 0, n[HEAD_DIM], "%s.self_attn.k_norm.weight", layer);
	}
	model_add(model, MATRIX, model_shrink(model), hidden, q, "%s.self_attn.o_proj.weight", layer);
}

static void model_add_latent_attention(struct model *model, const char *layer)
{
	const uint32_t *n = model->shape.n;
	uint64_t hidden = n[HIDDEN], q = (uint64_t)n[HEADS] * (n[NOPE] + n[ROPE]);

	if (n[Q_RANK]) {
		model_add(model, MATRIX, 1, n[Q_RANK], hidden, "%s.self_attn.q_a_proj.weight", layer);
		model_add(model, NORM, 1, 0, n[Q_RANK], "%s.self_attn.q_a_layernorm.weight", layer);
		model_add(model, MATRIX, 1, q, n[Q_RANK], "%s.self_attn.q_b_proj.weight", layer);
	} else {
		model_add(model, MATRIX, 1, q, hidden, "%s.self_attn.q_proj.weight", layer);
	}
	model_add(model, MATRIX, 1, n[RANK] + n[ROPE], hidden, "%s.self_attn.kv_a_proj_with_mqa.weight",
		layer);
	model_add(model, NORM, 1, 0, n[RANK], "%s.self_attn.kv_a_layernorm.weight", layer);
	model_add(model, MATRIX, 1, (uint64_t)n[HEADS] * (n[NOPE] + n[VALUE]), n[RANK],
		"%s.self_attn.kv_b_proj.weight", layer);
	model_add(model, MATRIX, model_shrink(model), hidden, (uint64_t)n[HEADS] * n[VALUE],
		"%s.self_attn.o_proj.weight", layer);
}

/* `mlp`: its name, the layer's in front. */
static void model_add_mlp(struct model *model, const char *mlp, uint64_t inner)
{
	uint64_t hidden = model->shape.n[HIDDEN];

	if (model->family == PHI3) {
		model_add(model, MATRIX, 1, 2 * inner, hidden, "%s.gate_up_proj.weight", mlp);
	} else {
		model_add(model, MATRIX, 1, inner, hidden, "%s.gate_proj.weight", mlp);
		model_add(model, MATRIX, 1, inner, hidden, "%s.up_proj.weight", mlp);
	}
	model_add(model, MATRIX, model_shrink(model), hidden, inner, "%s.down_proj.weight", mlp);
}

static void model_add_experts(struct model *model, const char *layer)
{
	const uint32_t *n = model->shape.n;
	char name[64];

	model_add(model, MATRIX, 1, n[EXPERTS], n[HIDDEN], "%s.mlp.gate.weight", layer);
	if (model->family == DEEPSEEK_V3)
		model_add(model, BIAS, 1, 0, n[EXPERTS], "%s.mlp.gate.e_score_correction_bias", layer);
	for (uint32_t e = 0; e < n[EXPERTS]; e++) {
		snprintf(name, sizeof(name), "%s.mlp.experts.%u", layer, e);
		model_add_mlp(model, name, n[EXPERT_INNER]);
	}
	snprintf(name, sizeof(name), "%s.mlp.shared_experts", layer);
	if (n[SHARED])
		model_add_mlp(model, name, (uint64_t)n[SHARED] * n[EXPERT_INNER]);
}

/* EAGLE has no first norm, EAGLE-3 one more. */
static void model_add_layer(struct model *model, const char *layer, bool has_experts)
{
	const uint32_t *n = model->shape.n;
	char mlp[64];

	if (model->family != EAGLE)
		model_add(model, NORM, 1, 0, n[HIDDEN], "%s.input_layernorm.weight", layer);
	if (model->family == EAGLE3)
		model_add(model, NORM, 1, 0, n[HIDDEN], "%s.hidden_norm.weight", layer);
	if (model_is_deepseek(model))
		model_add_latent_attention(model, layer);
	else
		model_add_attention(model, layer);
	model_add(model, NORM, 1, 0, n[HIDDEN], "%s.post_attention_layernorm.weight", layer);
	if (model_is_gemma(model)) {
		model_add(model, NORM, 1, 0, n[HIDDEN], "%s.pre_feedforward_layernorm.weight", layer);
		model_add(model, NORM, 1, 0, n[HIDDEN], "%s.post_feedforward_layernorm.weight", layer);
	}
	snprintf(mlp, sizeof(mlp), "%s.mlp", layer);
	if (has_experts)
		model_add_experts(model, layer);
	else
		model_add_mlp(model, mlp, n[INNER]);
}

/* d2t first and t2d last, whose elements are not of two bytes: all others stay aligned. */
static void model_list_draft(struct model *model)
{
	const uint32_t *n = model->shape.n;
	bool is_eagle3 = model->family == EAGLE3;

	if (is_eagle3)
		model_add_ids(model, D2T, n[DRAFT_VOCAB], "d2t");
	model_add(model, MATRIX, 1, n[HIDDEN], (is_eagle3 ? 3 : 2) * (uint64_t)n[HIDDEN], "fc.weight");
	model_add_layer(model, is_eagle3 ? "midlayer" : "layers.0", false);
	if (!is_eagle3)
		return;
	model_add(model, NORM, 1, 0, n[HIDDEN], "norm.weight");
	model_add(model, MATRIX, 1, n[DRAFT_VOCAB], n[HIDDEN], "lm_head.weight");
	model_add_ids(model, T2D, n[VOCAB], "t2d");
}

/* The layer behind the last. Files of DeepSeek repeat the embedding and the head in it, which nobody needs. */
static void model_list_mtp(struct model *model)
{
	const uint32_t *n = model->shape.n;
	char layer[32];

	snprintf(layer, sizeof(layer), "model.layers.%u", n[LAYERS]);
	model_add(model, NORM, 1, 0, n[HIDDEN], "%s.enorm.weight", layer);
	model_add(model, NORM, 1, 0, n[HIDDEN], "%s.hnorm.weight", layer);
	model_add(model, MATRIX, 1, n[HIDDEN], 2 * (uint64_t)n[HIDDEN], "%s.eh_proj.weight", layer);
	model_add_layer(model, layer, true);
	model_add(model, NORM, 1, 0, n[HIDDEN], "%s.shared_head.norm.weight", layer);
}

static void model_list_target(struct model *model)
{
	const uint32_t *n = model->shape.n;
	char layer[32];

	model_add(model, MATRIX, 1, n[VOCAB], n[HIDDEN], "model.embed_tokens.weight");
	for (uint32_t i = 0; i < n[LAYERS]; i++) {
		snprintf(layer, sizeof(layer), "model.layers.%u", i);
		model_add_layer(model, layer, model_has_experts(model) && i >= n[DENSE]);
	}
	model_add(model, NORM, 1, 0, n[HIDDEN], "model.norm.weight");
	if (!n[TIED])
		model_add(model, MATRIX, 1, n[VOCAB], n[HIDDEN], "lm_head.weight");
	if (model_has_mtp(model))
		model_list_mtp(model);
}

int model_list(struct model *model)
{
	model->tensors = calloc(model_max_tensors(model), sizeof(*model->tensors));
	if (!model->tensors)
		return fail("%s", strerror(ENOMEM));
	if (model_is_draft(model))
		model_list_draft(model);
	else
		model_list_target(model);
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

static void model_print_rope(const struct shape *shape, FILE *file)
{
	fprintf(file, "  \"rope_theta\": %.1f,\n", shape->rope_theta);
	if (shape->rope_factor > 0)
		fprintf(file,
			"  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %.1f, "
			"\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
			"\"original_max_position_embeddings\": 8192},\n",
			shape->rope_factor);
}

static void model_print_deepseek(const struct model *model, FILE *file)
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
	if (model_has_mtp(model))
		fprintf(file, "  \"num_nextn_predict_layers\": 1,\n");
	fprintf(file,
		"  \"topk_method\": \"%s\",\n  \"scoring_func\": \"%s\",\n"
		"  \"norm_topk_prob\": %s,\n  \"routed_scaling_factor\": %s,\n"
		"  \"attention_bias\": false,\n",
		method, v3 ? "sigmoid" : "softmax", v3 ? "true" : "false", v3 ? "2.5" : "1.0");
}

static void model_print_qwen3_moe(const struct model *model, FILE *file)
{
	const uint32_t *n = model->shape.n;

	fprintf(file,
		"  \"num_experts\": %u,\n  \"num_experts_per_tok\": %u,\n"
		"  \"moe_intermediate_size\": %u,\n  \"norm_topk_prob\": true,\n"
		"  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [",
		n[EXPERTS], n[ACTIVE], n[EXPERT_INNER]);
	for (uint32_t i = 0; i < n[DENSE]; i++)
		fprintf(file, "%s%u", i ? ", " : "", i);
	fprintf(file, "],\n");
}

/* Gemma 3: each sixth layer has no window; without one no layer has. */
static void model_print_gemma(const struct model *model, FILE *file)
{
	const uint32_t *n = model->shape.n;

	fprintf(file, "  \"hidden_activation\": \"gelu_pytorch_tanh\",\n  \"query_pre_attn_scalar\": %u,\n",
		n[HEAD_DIM]);
	if (model->family == GEMMA2)
		fprintf(file, "  \"attn_logit_softcapping\": 50.0,\n  \"final_logit_softcapping\": 30.0,\n");
	else
		fprintf(file, "  \"sliding_window_pattern\": %u,\n  \"rope_local_base_freq\": 10000.0,\n",
			n[WINDOW] ? 6 : 1);
}

void model_print_config(const void *arg, FILE *file)
{
	const struct model *model = arg;
	const uint32_t *n = model->shape.n;
	bool llama3 = n[VOCAB] == 128256, deepseek = model_is_deepseek(model);
	bool qwen = model->family == QWEN2 || model->family == QWEN3 || model->family == QWEN3_MOE;

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
		model_print_deepseek(model, file);
	if (model->family == QWEN3_MOE)
		model_print_qwen3_moe(model, file);
	if (model_is_gemma(model))
		model_print_gemma(model, file);
	if (n[WINDOW])
		fprintf(file, "  \"sliding_window\": %u,\n", n[WINDOW]);
	else if (model_has_window(model) || qwen)
		fprintf(file, "  \"sliding_window\": null,\n");
	if (model->family == EAGLE3)
		fprintf(file, "  \"draft_vocab_size\": %u,\n", n[DRAFT_VOCAB]);
	if (qwen)
		fprintf(file, "  \"use_sliding_window\": false,\n");
	model_print_rope(&model->shape, file);
	fprintf(file,
		"  \"rms_norm_eps\": 1e-05,\n  \"hidden_act\": \"silu\",\n"
		"  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": %u,\n"
		"  \"eos_token_id\": %u,\n  \"torch_dtype\": \"bfloat16\"\n}\n",
		n[TIED] ? "true" : "false", llama3 ? 128000 : 1, llama3 ? 128001 : 2);
}
