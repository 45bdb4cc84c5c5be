/* SPDX-License-Identifier: MIT */

/* Experts of quantised checkpoints on a device that packs weights, in each format: a layer's are one weight, packed as
 * a whole or not at all. */

#include "tests/model/packing.h"

#include "tests/model/writing.h"

enum { HIDDEN = 256, INNER = 128, EXPERTS = 3, HEADS = 2, NOPE = 16, ROPE = 8, V = 16, RANK = 24 };

struct format {
	const char *quantisation; /* of config.json */
	void (*add)(struct writing *w, const char *module, uint32_t rows, uint32_t cols); /* a matrix */
	enum dtype dtype; /* packed */
};

static void fill(uint8_t *bytes, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		bytes[i] = (uint8_t)(seed >> 33) & 0xf7; /* of e4m3 no NaN */
	}
}

static void *add(struct writing *w, const char *module, const char *part, const char *dtype, uint32_t rows,
	uint32_t cols, size_t bytes)
{
	char name[128];

	snprintf(name, sizeof(name), "%s.%s", module, part);
	return writing_add(w, name, dtype, rows, cols, bytes);
}

/* Data that differs from module to module. */
static void add_data(struct writing *w, const char *module, const char *part, const char *dtype, uint32_t rows,
	uint32_t cols, size_t bytes)
{
	fill(add(w, module, part, dtype, rows, cols, bytes), bytes, w->bytes);
}

/* Positive numbers of 16 bits, in f16 from 2^-10 on, in bf16 from 2^-95 on: all different. */
static void add_halves(struct writing *w, const char *module, const char *part, const char *dtype, uint32_t rows,
	uint32_t cols)
{
	const size_t n = (size_t)rows * cols, first = w->bytes;
	uint16_t *at = add(w, module, part, dtype, rows, cols, n * sizeof(*at));

	for (size_t i = 0; i < n; i++)
		at[i] = (uint16_t)(0x1401 + (first + 7 * i) % 0x2000);
}

/* ---- the formats ---- */

static void add_blocks(struct writing *w, const char *module, uint32_t rows, uint32_t cols)
{
	const uint32_t n = (rows + 127) / 128, n_groups = (cols + 127) / 128;
	const float first = (float)w->bytes;
	float *factors;

	add_data(w, module, "weight", "F8_E4M3", rows, cols, (size_t)rows * cols);
	factors = add(w, module, "weight_scale_inv", "F32", n, n_groups, n * n_groups * sizeof(*factors));
	for (uint32_t i = 0; i < n * n_groups; i++)
		factors[i] = 1e-6f * (first + (float)i);
}

static void add_channels(struct writing *w, const char *module, uint32_t rows, uint32_t cols)
{
	add_data(w, module, "weight", "F8_E4M3", rows, cols, (size_t)rows * cols);
	add_halves(w, module, "weight_scale", "BF16", rows, 1);
}

static void add_integers(struct writing *w, const char *module, uint32_t rows, uint32_t cols)
{
	int64_t *shape;

	add_data(w, module, "weight_packed", "I32", rows, cols / 8, (size_t)rows * cols / 2);
	add_halves(w, module, "weight_scale", "BF16", rows, (cols + 127) / 128);
	shape = add(w, module, "weight_shape", "I64", 2, 0, 2 * sizeof(*shape));
	shape[0] = rows;
	shape[1] = cols;
}

static void add_transposed(struct writing *w, const char *module, uint32_t rows, uint32_t cols, bool is_awq)
{
	const size_t bytes = (size_t)rows * cols / 2;
	const uint32_t n_groups = (cols + 127) / 128;

	add_data(w, module, "qweight", "I32", is_awq ? cols : cols / 8, is_awq ? rows / 8 : rows, bytes);
	add_data(w, module, "qzeros", "I32", n_groups, rows / 8, (size_t)n_groups * rows / 2);
	add_halves(w, module, "scales", "F16", n_groups, rows);
}

static void add_gptq(struct writing *w, const char *module, uint32_t rows, uint32_t cols)
{
	add_transposed(w, module, rows, cols, false);
}

static void add_awq(struct writing *w, const char *module, uint32_t rows, uint32_t cols)
{
	add_transposed(w, module, rows, cols, true);
}

#define COMPRESSED(format, weights, inputs)                                                        \
	"\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\","                       \
	"\"quantization_status\":\"compressed\",\"ignore\":[\"lm_head\"],"                           \
	"\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"input_activations\":" inputs   \
	",\"output_activations\":null,\"weights\":{\"symmetric\":true,\"dynamic\":false," weights "}}}"

#define PLAIN_ONE "model.layers.0.mlp.experts.1.up_proj"
#define BLOCKS "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]"

static const struct format blocks = {BLOCKS, add_blocks, DTYPE_E4M3};
static const struct format blocks_but_one = {
	BLOCKS ",\"modules_to_not_convert\":[\"" PLAIN_ONE "\"]", add_blocks, DTYPE_E4M3};
static const struct format channels = {
	COMPRESSED("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"",
		"{\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"strategy\":\"token\",\"dynamic\":true}"),
	add_channels, DTYPE_E4M3};
static const struct format integers = {
	COMPRESSED("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128", "null"),
	add_integers, DTYPE_U4};
static const struct format gptq = {"\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"desc_act\":false,"
	"\"sym\":false,\"checkpoint_format\":\"gptq\"", add_gptq, DTYPE_U4};
static const struct format awq = {"\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true,"
	"\"version\":\"gemm\"", add_awq, DTYPE_U4};

/* ---- a model of one layer ---- */

struct experts {
	const struct format *format;
	uint32_t hidden, inner;
};

static void add_matrix(struct writing *w, const struct experts *e, const char *module, uint32_t rows, uint32_t cols)
{
	char name[128];

	snprintf(name, sizeof(name), "%s.weight", module);
	if (e->format == &blocks_but_one && !strcmp(module, PLAIN_ONE))
		writing_add_zeros(w, name, rows, cols);
	else
		e->format->add(w, module, rows, cols);
}

static void add_rest(struct writing *w, const struct experts *e)
{
	const struct {
		const char *name;
		uint32_t rows, cols;
	} plain[] = {{"embed_tokens", 8, e->hidden}, {"norm", e->hidden, 0}, {"layers.0.input_layernorm", e->hidden, 0},
		{"layers.0.post_attention_layernorm", e->hidden, 0}, {"layers.0.self_attn.kv_a_layernorm", RANK, 0},
		{"layers.0.mlp.gate", EXPERTS, e->hidden}};
	char name[96];

	for (size_t i = 0; i < ARRAY_SIZE(plain); i++) {
		snprintf(name, sizeof(name), "model.%s.weight", plain[i].name);
		writing_add_zeros(w, name, plain[i].rows, plain[i].cols);
	}
	add_matrix(w, e, "model.layers.0.self_attn.q_proj", HEADS * (NOPE + ROPE), e->hidden);
	add_matrix(w, e, "model.layers.0.self_attn.kv_a_proj_with_mqa", RANK + ROPE, e->hidden);
	add_matrix(w, e, "model.layers.0.self_attn.kv_b_proj", HEADS * (NOPE + V), RANK);
	add_matrix(w, e, "model.layers.0.self_attn.o_proj", e->hidden, HEADS * V);
}

static void add_expert(struct writing *w, const struct experts *e, uint32_t index)
{
	static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
	char module[96];

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		snprintf(module, sizeof(module), "model.layers.0.mlp.experts.%u.%s", index, parts[i]);
		add_matrix(w, e, module, i == 2 ? e->hidden : e->inner, i == 2 ? e->inner : e->hidden);
	}
}

static struct packing load_experts(const struct scratch *scratch, const struct experts *e)
{
	struct writing w = writing_begin(4u << 20);
	char text[2048];

	add_rest(&w, e);
	for (uint32_t i = 0; i < EXPERTS; i++)
		add_expert(&w, e, i);
	snprintf(text, sizeof(text),
		"{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"hidden_size\":%u,\"intermediate_size\":64,"
		"\"moe_intermediate_size\":%u,\"num_hidden_layers\":1,\"num_attention_heads\":%d,"
		"\"num_key_value_heads\":%d,\"vocab_size\":8,\"tie_word_embeddings\":true,\"kv_lora_rank\":%d,"
		"\"q_lora_rank\":null,\"qk_nope_head_dim\":%d,\"qk_rope_head_dim\":%d,\"v_head_dim\":%d,"
		"\"n_routed_experts\":%d,\"num_experts_per_tok\":2,\"n_shared_experts\":null,"
		"\"first_k_dense_replace\":0,\"moe_layer_freq\":1,\"topk_method\":\"greedy\","
		"\"scoring_func\":\"softmax\",\"norm_topk_prob\":false,\"routed_scaling_factor\":1.0,"
		"\"quantization_config\":{%s}}",
		e->hidden, e->inner, HEADS, HEADS, RANK, NOPE, ROPE, V, EXPERTS, e->format->quantisation);
	scratch_text(scratch, "config.json", text);
	writing_write(scratch, &w);
	return packing_load(scratch->directory, model_config_load);
}

static void assert_weight(const struct packing *p, const struct weight *packed, const struct weight *wide,
	enum dtype dtype, const char *name)
{
	assert_int_equal(packed->dtype, dtype);
	assert_null(packed->factors);
	assert_same_weight(p, packed, wide, name);
}

/* What the layer's experts are on the device; and, whatever they are, that they are those that are widened. */
static void check(void **state, const struct experts *e, enum dtype gate_up, enum dtype down)
{
	struct packing p = load_experts(*state, e);
	const struct model_layer *packed = &p.packed->layers[0], *wide = &p.wide->layers[0];

	assert_weight(&p, &packed->expert_gate_up, &wide->expert_gate_up, gate_up, "expert_gate_up");
	assert_weight(&p, &packed->expert_down, &wide->expert_down, down, "expert_down");
	packing_unload(&p);
}

static enum dtype widened(void)
{
	return test_on_cuda() ? DTYPE_BF16 : DTYPE_F32;
}

static void check_format(void **state, const struct format *format)
{
	check(state, &(struct experts){format, HIDDEN, INNER}, format->dtype, format->dtype);
}

static void test_experts_in_fp8_blocks_are_packed(void **state)
{
	check_format(state, &blocks);
}

/* The factors of whole rows become those of units. */
static void test_experts_in_fp8_with_a_factor_a_row_are_packed(void **state)
{
	check_format(state, &channels);
}

static void test_experts_in_compressed_integers_are_packed(void **state)
{
	check_format(state, &integers);
}

static void test_experts_in_gptq_are_packed(void **state)
{
	check_format(state, &gptq);
}

static void test_experts_in_awq_are_packed(void **state)
{
	check_format(state, &awq);
}

static void test_experts_whose_columns_are_no_units_are_widened(void **state)
{
	check(state, &(struct experts){&blocks, HIDDEN, 64}, DTYPE_E4M3, widened());
	check(state, &(struct experts){&blocks, 192, INNER}, widened(), DTYPE_E4M3);
}

static void test_experts_of_which_one_is_not_quantised_are_widened(void **state)
{
	check(state, &(struct experts){&blocks_but_one, HIDDEN, INNER}, widened(), DTYPE_E4M3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_experts_in_fp8_blocks_are_packed),
		scratch_test(test_experts_in_fp8_with_a_factor_a_row_are_packed),
		scratch_test(test_experts_in_compressed_integers_are_packed),
		scratch_test(test_experts_in_gptq_are_packed),
		scratch_test(test_experts_in_awq_are_packed),
		scratch_test(test_experts_whose_columns_are_no_units_are_widened),
		scratch_test(test_experts_of_which_one_is_not_quantised_are_widened),
	};

	return cmocka_run_group_tests_name("packed_experts", tests, NULL, NULL);
}
