/* SPDX-License-Identifier: MIT */

/* Quantised checkpoints on a device that packs weights: which ones it keeps packed, that they are what widening them
 * gives, and what memory they take. */

#include "tests/model/claims.h"
#include "tests/model/packing.h"

#include <errno.h>

#include "daemon/model/draft.h"
#include "tests/model/writing.h"

/* The weights of a model, by name. */
static const struct {
	const char *name;
	size_t offset; /* in struct model_layer */
} members[] = {
#define MEMBER(name) {#name, offsetof(struct model_layer, name)}
	MEMBER(input_norm), MEMBER(post_norm), MEMBER(hidden_norm), MEMBER(qkv), MEMBER(qkv_bias),
	MEMBER(q_norm), MEMBER(k_norm), MEMBER(o), MEMBER(o_bias), MEMBER(gate_up), MEMBER(gate_up_bias),
	MEMBER(down), MEMBER(down_bias), MEMBER(q_a), MEMBER(q_a_bias), MEMBER(q_a_norm), MEMBER(q),
	MEMBER(kv_a), MEMBER(kv_a_bias), MEMBER(kv_a_norm), MEMBER(kv_b), MEMBER(router),
	MEMBER(router_bias), MEMBER(expert_gate_up), MEMBER(expert_down)
#undef MEMBER
};

#define WEIGHTS_MAX 64
struct pair {
	const char *name;
	const struct weight *packed, *wide;
};

static const struct weight *member_of(const struct model *model, uint32_t layer, size_t offset)
{
	return (const struct weight *)((const char *)&model->layers[layer] + offset);
}

static uint32_t pairs_of(const struct packing *p, struct pair *ret)
{
	uint32_t n = 0;

	assert_true(p->config.n_layers * ARRAY_SIZE(members) + 4 <= WEIGHTS_MAX);
	for (uint32_t layer = 0; layer < p->config.n_layers; layer++)
		for (size_t i = 0; i < ARRAY_SIZE(members); i++)
			ret[n++] = (struct pair){members[i].name, member_of(p->packed, layer, members[i].offset),
				member_of(p->wide, layer, members[i].offset)};
	ret[n++] = (struct pair){"embedding", &p->packed->embedding, &p->wide->embedding};
	ret[n++] = (struct pair){"final_norm", &p->packed->final_norm, &p->wide->final_norm};
	ret[n++] = (struct pair){"head", &p->packed->head, &p->wide->head};
	ret[n++] = (struct pair){"fc", &p->packed->fc, &p->wide->fc};
	return n;
}

/* ---- the shipped checkpoints ---- */

#define WIDENED "widened to %s at load"
static const struct expected {
	const char *name;
	const char *packed; /* the weights that are, and their form */
	const char *says;
	bool is_ordered; /* some rows and columns have another order than the file's (test_packed_order.c) */
} expectations[] = {
	{"fp8-blocks-128", "qkv:rows o:rows gate_up:rows down:groups ",
		"fp8 in blocks of 128 x 128, kept packed"},
	/* kv_b has the size, too; the experts' down has 32 columns, the shared ones' 64 */
	{"fp8-blocks-deepseek-128", "o:rows gate_up:rows q_a:rows q:rows kv_a:rows expert_gate_up:groups ",
		"fp8 in blocks of 128 x 128, 14 of 20 matrices kept packed, others " WIDENED},
	/* kv_b has 24 columns; experts' units have factors, whatever the file's are for */
	{"fp8-blocks-experts-128", "o:rows gate_up:rows down:rows q:rows kv_a:rows expert_gate_up:groups "
		"expert_down:groups ",
		"fp8 in blocks of 128 x 128, 15 of 16 matrices kept packed, others " WIDENED},
	/* o has 64 columns */
	{"fp8-blocks-qwen3-moe-128", "qkv:rows expert_gate_up:groups expert_down:groups ",
		"fp8 in blocks of 128 x 128, 12 of 13 matrices kept packed, others " WIDENED},
	{"fp8-tensor-128", "qkv:rows o:rows gate_up:rows down:rows ", "fp8 with a factor a tensor, kept packed"},
	{"compressed-channel-128", "qkv:rows o:rows gate_up:rows down:rows head:rows ",
		"fp8 with a factor a row, kept packed"},
	{"compressed-int4-128", "qkv:u4 o:u4 gate_up:u4 down:u4 ", "int4 in groups of 128, kept packed"},
	{"compressed-int4-channel-128", "qkv:u4 o:u4 gate_up:u4 down:u4 ", "int4 with a factor a row, kept packed"},
	{"gptq-128", "qkv:u4 o:u4 gate_up:u4 down:u4 ", "int4 (gptq) in groups of 128, kept packed"},
	/* matrices of 128 columns have one group, whatever the order; down has two */
	{"gptq-order-128", "qkv:u4 o:u4 gate_up:u4 down:u4 ", "int4 (gptq) in groups of 128, kept packed", true},
	{"gptq-order-256", "qkv:u4 o:u4 gate_up:u4 down:u4 ", "int4 (gptq) in groups of 128, kept packed", true},
	{"gptq-order-gemma2-32", "qkv:u4_32 gate_up:u4_32 down:u4_32 ",
		"int4 (gptq) in groups of 32, 6 of 7 matrices kept packed, others " WIDENED, true},
	{"compressed-mixed-128", "qkv:rows o:rows gate_up:u4 down:u4 ",
		"fp8 with a factor a row and int4 in groups of 128, kept packed"},
	{"modelopt-128", "qkv:rows o:rows gate_up:rows down:rows ", "fp8 with a factor a tensor, kept packed"},
	{"compressed-int4-32", "qkv:u4_32 o:u4_32 gate_up:u4_32 down:u4_32 ", "int4 in groups of 32, kept packed"},
	{"awq-64", "qkv:u4_32 o:u4_32 gate_up:u4_32 down:u4_32 ", "int4 (awq) in groups of 64, kept packed"},
	{"awq-128", "qkv:u4 o:u4 gate_up:u4 down:u4 ", "int4 (awq) in groups of 128, kept packed"},
	/* columns or groups in no multiples of 128 */
	{"fp8-blocks", "", "fp8 in blocks of 128 x 128, " WIDENED},
	{"compressed-int4", "", "int4 in groups of 16, " WIDENED},
	{"gptq-order", "", "int4 (gptq) in groups of 16, " WIDENED},
};

static int packed_setup(void **state)
{
	const struct expected *expected = *state;
	struct packing *p = malloc(sizeof(*p));
	char below[128], directory[512];

	if (!p)
		return -1;
	snprintf(below, sizeof(below), "tests/data/checkpoints/%s", expected->name);
	source_path(below, directory);
	*p = packing_load(directory, model_config_load);
	*state = p;
	return 0;
}

static int packed_teardown(void **state)
{
	packing_unload(*state);
	free(*state);
	return 0;
}

static const struct expected *expected_of(const struct packing *p)
{
	for (size_t i = 0; i < ARRAY_SIZE(expectations); i++)
		if (!strcmp(strrchr(p->directory, '/') + 1, expectations[i].name))
			return &expectations[i];
	fail_msg("%s is not expected", p->directory);
	return NULL;
}

static void assert_same_weights(const struct packing *p)
{
	struct pair pairs[WEIGHTS_MAX];
	const uint32_t n = pairs_of(p, pairs);

	for (uint32_t i = 0; i < n; i++)
		assert_same_weight(p, pairs[i].packed, pairs[i].wide, pairs[i].name);
}

static void test_packed_weights_are_those_widened(void **state)
{
	if (!expected_of(*state)->is_ordered)
		assert_same_weights(*state);
}

static void assert_packed(const struct packing *p, const char *want)
{
	struct pair pairs[WEIGHTS_MAX];
	const uint32_t n = pairs_of(p, pairs);
	char have[512] = "";

	for (uint32_t i = 0; i < n; i++) {
		const struct weight *w = pairs[i].packed;

		assert_false(packed_is(pairs[i].wide->dtype));
		if (packed_is(w->dtype))
			snprintf(have + strlen(have), sizeof(have) - strlen(have), "%s:%s ", pairs[i].name,
				w->dtype == DTYPE_U4      ? "u4"
				: w->dtype == DTYPE_U4_32 ? "u4_32"
				: w->factors         ? "rows"
						     : "groups");
	}
	assert_string_equal(have, want);
}

static void test_weights_that_only_products_take_are_packed(void **state)
{
	assert_packed(*state, expected_of(*state)->packed);
}

static uint64_t aligned(uint64_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

static uint64_t unit_bytes_of(const struct weight *w)
{
	if (w->dtype == DTYPE_E4M3)
		return w->factors ? 1024 : 1056;
	return w->dtype == DTYPE_U4 ? 544 : 640;
}

static void test_memory_is_that_of_units_and_factors(void **state)
{
	const struct packing *p = *state;
	struct pair pairs[WEIGHTS_MAX];
	const uint32_t n = pairs_of(p, pairs);
	uint64_t less = 0, more = 0, measured;
	struct model_error error = {""};
	struct device_info info;

	for (uint32_t i = 0; i < n; i++) {
		const struct weight *w = pairs[i].packed;
		const uint64_t units = w->rows / 8 * (w->cols / 128);

		if (!packed_is(w->dtype))
			continue;
		less += aligned((uint64_t)w->rows * w->cols * dtype_bytes(pairs[i].wide->dtype));
		more += aligned(units * unit_bytes_of(w));
		more += w->factors ? aligned(w->rows * 4) : 0;
	}
	for (uint32_t layer = 0; layer < p->config.n_layers; layer++) {
		const struct model_layer *l = &p->packed->layers[layer];

		more += ((l->input_order != NULL) + (l->post_order != NULL)) * aligned(p->config.hidden_size * 4);
	}
	assert_int_equal(p->packed->weights_bytes, p->wide->weights_bytes - less + more);
	packing.packs = true;
	MUST(p->device->ops->info(p->device, &info));
	MUST(model_measure(p->directory, &p->config, 64, &info, &measured, &error));
	assert_int_equal(p->packed->bytes, measured);
}

static void test_model_says_what_is_packed(void **state)
{
	const struct packing *p = *state;
	char want[192];

	snprintf(want, sizeof(want), expected_of(p)->says,
		p->packed->activation_dtype == DTYPE_F32 ? "f32" : "bf16");
	assert_string_equal(p->packed->quantised, want);
	assert_non_null(strstr(p->wide->quantised, ", widened to "));
}

/* ---- large tensors ---- */

/* A chunk of 4 MiB would end within 8 rows. */
enum { HIDDEN = 384, INNER = 16008, GROUPS = HIDDEN / 128 };

#define MLP "model.layers.0.mlp."

/* A model of one layer but for gate and up, which are more than a chunk each. */
static struct writing begin_tall(void)
{
	struct writing w = writing_begin_layer(32u << 20, HIDDEN);

	writing_add_zeros(&w, MLP "down_proj.weight", HIDDEN, INNER);
	return w;
}

static void fill(uint8_t *bytes, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		bytes[i] = (uint8_t)(seed >> 33) & 0xf7; /* of e4m3 no NaN */
	}
}

static void write_tall(const struct scratch *scratch, struct writing *w, const char *quantisation)
{
	char text[768];

	snprintf(text, sizeof(text),
		"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":%d,\"intermediate_size\":%d,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":6,"
		"\"tie_word_embeddings\":true,\"quantization_config\":{%s,"
		"\"modules_to_not_convert\":[\"self_attn\",\"down_proj\"]}}",
		HIDDEN, INNER, quantisation);
	scratch_text(scratch, "config.json", text);
	writing_write(scratch, w);
}

static void assert_gate_up(const struct scratch *scratch, enum dtype dtype)
{
	struct packing p = packing_load(scratch->directory, model_config_load);
	const struct weight *gate_up = &p.packed->layers[0].gate_up;

	assert_int_equal(gate_up->dtype, dtype);
	assert_int_equal(gate_up->rows, 2 * INNER);
	assert_same_weight(&p, gate_up, &p.wide->layers[0].gate_up, "gate_up");
	packing_unload(&p);
}

static void test_packed_rows_of_many_chunks_arrive_whole(void **state)
{
	static const char *const parts[] = {"gate_proj", "up_proj"};
	struct writing w = begin_tall();
	char name[96];

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		const size_t n_blocks = (INNER + 127) / 128;
		float *factors;

		snprintf(name, sizeof(name), MLP "%s.weight", parts[i]);
		fill(writing_add(&w, name, "F8_E4M3", INNER, HIDDEN, (size_t)INNER * HIDDEN),
			(size_t)INNER * HIDDEN, i);
		snprintf(name, sizeof(name), MLP "%s.weight_scale_inv", parts[i]);
		factors = writing_add(&w, name, "F32", n_blocks, GROUPS, n_blocks * GROUPS * sizeof(*factors));
		for (size_t j = 0; j < n_blocks * GROUPS; j++)
			factors[j] = 0.1f * (float)(1 + i + j);
	}
	write_tall(*state, &w, "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]");
	assert_gate_up(*state, DTYPE_E4M3);
}

static void test_packed_transposed_data_of_many_chunks_arrives_whole(void **state)
{
	static const char *const parts[] = {"gate_proj", "up_proj"};
	struct writing w = begin_tall();
	char name[96];

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		uint16_t *factors;

		snprintf(name, sizeof(name), MLP "%s.qweight", parts[i]);
		fill(writing_add(&w, name, "I32", HIDDEN, INNER / 8, (size_t)HIDDEN * INNER / 2),
			(size_t)HIDDEN * INNER / 2, i);
		snprintf(name, sizeof(name), MLP "%s.qzeros", parts[i]);
		fill(writing_add(&w, name, "I32", GROUPS, INNER / 8, (size_t)GROUPS * INNER / 2),
			(size_t)GROUPS * INNER / 2, 7 + i);
		snprintf(name, sizeof(name), MLP "%s.scales", parts[i]);
		factors = writing_add(&w, name, "F16", GROUPS, INNER, GROUPS * INNER * sizeof(*factors));
		for (size_t j = 0; j < GROUPS * INNER; j++)
			factors[j] = (uint16_t)(0x1001 + 3 * j % 0x3000);
	}
	write_tall(*state, &w,
		"\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true,\"version\":\"gemm\"");
	assert_gate_up(*state, DTYPE_U4);
}

/* Modules of both lists are excluded. */
static void test_weight_of_which_a_part_is_not_quantised_is_widened(void **state)
{
	const struct scratch *scratch = *state;
	struct writing w = begin_tall();
	const size_t n = (size_t)INNER * HIDDEN;

	fill(writing_add(&w, MLP "gate_proj.weight", "F8_E4M3", INNER, HIDDEN, n), n, 1);
	*(float *)writing_add(&w, MLP "gate_proj.weight_scale", "F32", 1, 0, 4) = 0.1f;
	writing_add_zeros(&w, MLP "up_proj.weight", INNER, HIDDEN);
	write_tall(scratch, &w, "\"quant_method\":\"fp8\",\"ignored_layers\":[\"up_proj\"]");
	assert_gate_up(scratch, test_on_cuda() ? DTYPE_BF16 : DTYPE_F32);
}

static void test_nan_in_a_weight_to_be_packed_is_refused(void **state)
{
	const struct scratch *scratch = *state;
	struct device *device = packing_open();
	struct writing w = begin_tall();
	struct model_error error = {""};
	struct model_config config;
	struct model *model = NULL;
	uint8_t *codes = writing_add(&w, MLP "gate_proj.weight", "F8_E4M3", INNER, HIDDEN, (size_t)INNER * HIDDEN);

	memset(codes, 0, (size_t)INNER * HIDDEN);
	codes[15999 * HIDDEN + 5] = 0xff;
	*(float *)writing_add(&w, MLP "gate_proj.weight_scale", "F32", 1, 0, 4) = 1;
	memset(writing_add(&w, MLP "up_proj.weight", "F8_E4M3", INNER, HIDDEN, (size_t)INNER * HIDDEN), 0,
		(size_t)INNER * HIDDEN);
	*(float *)writing_add(&w, MLP "up_proj.weight_scale", "F32", 1, 0, 4) = 1;
	write_tall(scratch, &w, "\"quant_method\":\"fp8\"");
	MUST(model_config_load(scratch->directory, &config, &error));
	packing.packs = true;
	assert_int_equal(
		model_load(device, scratch->directory, &config, 8, NULL, NULL, &model, &error), -EINVAL);
	assert_contains(error.text, "tensor \"" MLP "gate_proj.weight\": element [15999, 5] is NaN");
	model_config_deinit(&config);
	device->ops->free(device);
}

/* ---- draft models ---- */

/* fc and the head are beside the layer. */
static void test_weights_of_a_draft_model_are_packed(void **state)
{
	static const struct {
		const char *name;
		uint32_t rows, cols;
	} matrices[] = {{"fc", 128, 384}, {"midlayer.self_attn.q_proj", 128, 256},
		{"midlayer.self_attn.k_proj", 128, 256}, {"midlayer.self_attn.v_proj", 128, 256},
		{"midlayer.self_attn.o_proj", 128, 128}, {"midlayer.mlp.gate_proj", 256, 128},
		{"midlayer.mlp.up_proj", 256, 128}, {"midlayer.mlp.down_proj", 128, 256}, {"lm_head", 64, 128}};
	static const char *const norms[] = {"norm.weight", "midlayer.input_layernorm.weight",
		"midlayer.hidden_norm.weight", "midlayer.post_attention_layernorm.weight"};
	const struct scratch *scratch = *state;
	struct writing w = writing_begin(1 << 20);
	struct packing p;
	char name[96];

	for (size_t i = 0; i < ARRAY_SIZE(norms); i++)
		writing_add_zeros(&w, norms[i], 128, 0);
	for (size_t i = 0; i < ARRAY_SIZE(matrices); i++) {
		const size_t n = matrices[i].rows * matrices[i].cols;

		snprintf(name, sizeof(name), "%s.weight", matrices[i].name);
		fill(writing_add(&w, name, "F8_E4M3", matrices[i].rows, matrices[i].cols, n), n, i);
		snprintf(name, sizeof(name), "%s.weight_scale", matrices[i].name);
		*(float *)writing_add(&w, name, "F32", 1, 0, 4) = 0.1f * (float)(i + 1);
	}
	writing_write(scratch, &w);
	scratch_text(scratch, "config.json",
		"{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"hidden_size\":128,\"intermediate_size\":256,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":64,\"draft_vocab_size\":64,"
		"\"quantization_config\":{\"quant_method\":\"fp8\"}}");
	p = packing_load(scratch->directory, draft_config_load);
	assert_packed(&p, "qkv:rows o:rows gate_up:rows down:rows head:rows fc:rows ");
	assert_same_weights(&p);
	packing_unload(&p);
}

/* ---- all of them ---- */

static const struct claim claims[] = {
	CLAIM(test_packed_weights_are_those_widened),
	CLAIM(test_weights_that_only_products_take_are_packed),
	CLAIM(test_memory_is_that_of_units_and_factors),
	CLAIM(test_model_says_what_is_packed),
};

int main(void)
{
	static const struct claims all = {claims, ARRAY_SIZE(claims), expectations, ARRAY_SIZE(expectations),
		sizeof(expectations[0]), packed_setup, packed_teardown};
	const struct CMUnitTest others[] = {
		scratch_test(test_packed_rows_of_many_chunks_arrive_whole),
		scratch_test(test_packed_transposed_data_of_many_chunks_arrives_whole),
		scratch_test(test_weight_of_which_a_part_is_not_quantised_is_widened),
		scratch_test(test_nan_in_a_weight_to_be_packed_is_refused),
		scratch_test(test_weights_of_a_draft_model_are_packed),
	};

	return claims_run("packed_load", &all, others, ARRAY_SIZE(others));
}
