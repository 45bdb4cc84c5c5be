/* SPDX-License-Identifier: MIT */

/* Heads that are rounded to fp8 while a model is loaded, on a device that packs weights and on one that does not. */

#include "tests/model/claims.h"
#include "tests/model/rounded.h"

#include <errno.h>

#include "daemon/model/draft.h"
#include "tests/model/writing.h"

#define EMBEDDING "model.embed_tokens.weight"
#define HEAD "lm_head.weight"

/* ---- the shipped checkpoints ---- */

static const struct expected {
	const char *below, *tensor; /* the head's in the file */
	bool packs;
	const char *says; /* of the packing device; %s: its dtype */
} expectations[] = {
	{"tests/data/checkpoints/llama-f16", HEAD, false, "head fp8, widened to %s at load"},
	{"tests/data/checkpoints/llama-f32", HEAD, false, "head fp8, widened to %s at load"},
	{"tests/data/checkpoints/llama-tied", EMBEDDING, false, "head fp8, widened to %s at load"},
	{"examples/models/tinycalc", HEAD, false, "head fp8, widened to %s at load"}, /* bf16, 160 columns */
	{"tests/data/checkpoints/fp8-blocks-128", EMBEDDING, true,
		"fp8 in blocks of 128 x 128, kept packed; head fp8, kept packed"},
	{"tests/data/checkpoints/fp8-blocks-deepseek-128", HEAD, true,
		"fp8 in blocks of 128 x 128, 14 of 20 matrices kept packed, others widened to %s at load; "
		"head fp8, kept packed"},
	{"tests/data/checkpoints/compressed-int4", HEAD, false,
		"int4 in groups of 16, widened to %s at load; head fp8, widened to %s at load"},
};

static int head_setup(void **state)
{
	const struct expected *expected = *state;
	struct packing *p = malloc(sizeof(*p));
	char directory[512];

	if (!p)
		return -1;
	source_path(expected->below, directory);
	*p = packing_load(directory, rounded_config_load);
	*state = p;
	return 0;
}

static int head_teardown(void **state)
{
	packing_unload(*state);
	free(*state);
	return 0;
}

static const struct expected *expected_of(const struct packing *p)
{
	for (size_t i = 0; i < ARRAY_SIZE(expectations); i++)
		if (strstr(p->directory, expectations[i].below))
			return &expectations[i];
	fail_msg("%s is not expected", p->directory);
	return NULL;
}

/* A tensor of the file as float32, from malloc. */
static float *elements_of(const struct packing *p, const char *name)
{
	struct loaded l = {.device = p->device};
	uint64_t bytes;
	enum dtype dtype;
	uint8_t *raw;
	float *ret;

	snprintf(l.directory, sizeof(l.directory), "%s", p->directory);
	raw = tensor_bytes(&l, name, &bytes, &dtype);
	ret = malloc(bytes / dtype_bytes(dtype) * sizeof(*ret));
	assert_non_null(ret);
	weight_to_f32(ret, &(struct weight){.data = raw, .dtype = dtype}, 0, bytes / dtype_bytes(dtype));
	free(raw);
	return ret;
}

static void assert_heads(const struct packing *p, const char *tensor)
{
	float *elements = elements_of(p, tensor);

	for (uint32_t i = 0; i < 2; i++) {
		struct weight head = packing_fetch(p, i ? p->packed->head : p->wide->head);

		assert_rounded(&head, elements);
		packing_drop(&head);
	}
	free(elements);
}

static void test_head_is_what_the_formula_says(void **state)
{
	const struct packing *p = *state;

	assert_heads(p, expected_of(p)->tensor);
}

static void test_head_is_packed_where_its_shape_allows(void **state)
{
	const struct packing *p = *state;

	assert_int_equal(p->wide->head.dtype, p->wide->activation_dtype);
	assert_null(p->wide->head.factors);
	assert_int_equal(p->packed->head.dtype, expected_of(p)->packs ? DTYPE_E4M3 : p->packed->activation_dtype);
	assert_true(!p->packed->head.factors == !expected_of(p)->packs);
}

static struct packing load_as_it_is(const struct packing *p)
{
	return packing_load(p->directory, model_config_load);
}

static void test_embedding_stays_as_it_is(void **state)
{
	const struct packing *p = *state;
	struct packing plain = load_as_it_is(p);

	assert_ptr_not_equal(p->packed->embedding.data, p->packed->head.data);
	assert_ptr_not_equal(p->wide->embedding.data, p->wide->head.data);
	assert_same_weight(p, &p->packed->embedding, &plain.packed->embedding, "embedding");
	assert_same_weight(p, &p->wide->embedding, &plain.wide->embedding, "embedding");
	packing_unload(&plain);
}

static uint64_t aligned(uint64_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

static uint64_t bytes_of(const struct weight *w)
{
	const uint64_t elements = (uint64_t)w->rows * w->cols;

	return w->dtype == DTYPE_E4M3 ? aligned(elements) + aligned(w->rows * sizeof(float))
				      : aligned(elements * dtype_bytes(w->dtype));
}

static void assert_measured(const struct packing *p, const struct model *rounded, const struct model *plain, bool packs)
{
	struct model_error error = {""};
	struct device_info info;
	uint64_t measured;

	assert_int_equal(rounded->weights_bytes,
		plain->weights_bytes + bytes_of(&rounded->head) -
			(plain->head.data == plain->embedding.data ? 0 : bytes_of(&plain->head)));
	packing.packs = packs;
	MUST(p->device->ops->info(p->device, &info));
	MUST(model_measure(p->directory, &p->config, 64, &info, &measured, &error));
	assert_int_equal(rounded->bytes, measured);
}

static void test_memory_is_that_of_the_rounded_head(void **state)
{
	const struct packing *p = *state;
	struct packing plain = load_as_it_is(p);

	assert_measured(p, p->packed, plain.packed, true);
	assert_measured(p, p->wide, plain.wide, false);
	packing_unload(&plain);
}

static void test_model_says_that_its_head_was_rounded(void **state)
{
	const struct packing *p = *state;
	const char *wide = p->packed->activation_dtype == DTYPE_F32 ? "f32" : "bf16";
	char want[256];

	snprintf(want, sizeof(want), expected_of(p)->says, wide, wide);
	assert_string_equal(p->packed->quantised, want);
	snprintf(want, sizeof(want), "head fp8, widened to %s at load", wide);
	assert_contains(p->wide->quantised, want);
	assert_true(p->packed->head_rounded && p->wide->head_rounded);
	assert_int_equal(p->packed->unused.n, 0);
}

/* ---- a head that the file has quantised ---- */

static void test_head_of_e4m3_stays_as_it_is(void **state)
{
	struct packing p, plain;
	char directory[512];

	source_path("tests/data/checkpoints/compressed-channel-128", directory);
	p = packing_load(directory, rounded_config_load);
	plain = load_as_it_is(&p);
	assert_int_equal(p.packed->head.dtype, DTYPE_E4M3);
	assert_same_weight(&p, &p.packed->head, &plain.wide->head, "head");
	assert_same_weight(&p, &p.wide->head, &plain.wide->head, "head");
	assert_false(p.packed->head_rounded || p.wide->head_rounded);
	assert_string_equal(p.packed->quantised, plain.packed->quantised);
	assert_int_equal(p.packed->bytes, plain.packed->bytes);
	packing_unload(&plain);
	packing_unload(&p);
}

/* ---- written heads ---- */

/* Rows of COLS elements; a chunk of 4 MiB would end within 8 rows. */
enum { COLS = 384, LONG = 16008, SHORT = 24 };

static void add_zeros(struct writing *w, const char *name, uint64_t rows, uint64_t cols)
{
	const size_t bytes = rows * (cols ? cols : 1) * sizeof(uint16_t);

	memset(writing_add(w, name, "BF16", rows, cols, bytes), 0, bytes);
}

/* A model of one layer and `rows` tokens, without embedding and head. */
static struct writing begin_model(const struct scratch *scratch, uint32_t rows, bool is_tied)
{
	static const char *const squares[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
		"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
	static const char *const norms[] = {"model.norm", "model.layers.0.input_layernorm",
		"model.layers.0.post_attention_layernorm"};
	struct writing w = writing_begin(64u << 20);
	char text[512], name[96];

	for (size_t i = 0; i < ARRAY_SIZE(norms); i++) {
		snprintf(name, sizeof(name), "%s.weight", norms[i]);
		add_zeros(&w, name, COLS, 0);
	}
	for (size_t i = 0; i < ARRAY_SIZE(squares); i++) {
		snprintf(name, sizeof(name), "model.layers.0.%s.weight", squares[i]);
		add_zeros(&w, name, COLS, COLS);
	}
	snprintf(text, sizeof(text),
		"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":%d,\"intermediate_size\":%d,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":%u,\"tie_word_embeddings\":%s}",
		COLS, COLS, rows, is_tied ? "true" : "false");
	scratch_text(scratch, "config.json", text);
	return w;
}

/* Finite numbers of all magnitudes; row 8 is all zeros of both signs, row 9 has the smallest numbers, row 10 the
 * largest ones. */
static void fill(uint16_t *bf16, uint32_t rows)
{
	uint64_t seed = rows;

	for (size_t i = 0; i < (size_t)rows * COLS; i++) {
		const size_t row = i / COLS;
		uint32_t exponent;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		exponent = row == 9 ? 0 : row == 10 ? 254 : 100 + (uint32_t)(row % 30) + (uint32_t)(seed >> 60);
		bf16[i] = (uint16_t)((seed >> 33 & 0x807f) | exponent << 7);
		if (row == 8)
			bf16[i] &= 0x8000;
	}
}

static void *add_filled(struct writing *w, const char *name, uint32_t rows)
{
	uint16_t *bf16 = writing_add(w, name, "BF16", rows, COLS, (size_t)rows * COLS * sizeof(*bf16));

	fill(bf16, rows);
	return bf16;
}

static void expect_written(const struct scratch *scratch, const char *tensor, enum dtype dtype)
{
	struct packing p = packing_load(scratch->directory, rounded_config_load);

	assert_int_equal(p.packed->head.dtype, dtype);
	assert_heads(&p, tensor);
	packing_unload(&p);
}

static void test_tied_head_of_many_chunks_arrives_whole(void **state)
{
	struct writing w = begin_model(*state, LONG, true);

	add_filled(&w, EMBEDDING, LONG);
	writing_write(*state, &w);
	expect_written(*state, EMBEDDING, DTYPE_E4M3);
}

/* Tied by the configuration, and the file has the head's name alone. */
static void test_tied_head_under_its_own_name_is_rounded(void **state)
{
	struct writing w = begin_model(*state, SHORT, true);

	add_filled(&w, HEAD, SHORT);
	writing_write(*state, &w);
	expect_written(*state, HEAD, DTYPE_E4M3);
}

static void test_head_of_its_own_of_many_chunks_arrives_whole(void **state)
{
	struct writing w = begin_model(*state, LONG, false);

	add_zeros(&w, EMBEDDING, LONG, COLS);
	add_filled(&w, HEAD, LONG);
	writing_write(*state, &w);
	expect_written(*state, HEAD, DTYPE_E4M3);
}

/* 16001 is not a multiple of 8. */
static void test_head_whose_rows_do_not_fit_units_is_widened(void **state)
{
	struct writing w = begin_model(*state, LONG - 7, true);

	add_filled(&w, EMBEDDING, LONG - 7);
	writing_write(*state, &w);
	expect_written(*state, EMBEDDING, test_on_cuda() ? DTYPE_BF16 : DTYPE_F32);
}

static void expect_refusal(const struct scratch *scratch, size_t element, uint16_t value, const char *sentence)
{
	struct device *device = packing_open();
	struct model_error error = {""};
	struct model_config config;
	struct model *model = NULL;
	struct writing w = begin_model(scratch, LONG, true);
	uint16_t *bf16 = add_filled(&w, EMBEDDING, LONG);

	bf16[element] = value;
	writing_write(scratch, &w);
	MUST(rounded_config_load(scratch->directory, &config, &error));
	for (uint32_t packs = 0; packs < 2; packs++) {
		packing.packs = packs;
		assert_int_equal(
			model_load(device, scratch->directory, &config, 8, NULL, NULL, &model, &error), -EINVAL);
		assert_contains(error.text, sentence);
	}
	model_config_deinit(&config);
	device->ops->free(device);
}

static void test_nan_in_a_head_to_be_rounded_is_refused(void **state)
{
	expect_refusal(*state, 15999 * COLS + 5, 0x7fc0, "tensor \"" EMBEDDING "\": element [15999, 5] is NaN");
}

static void test_infinity_in_a_head_to_be_rounded_is_refused(void **state)
{
	expect_refusal(*state, COLS - 1, 0xff80, "tensor \"" EMBEDDING "\": element [0, 383] is infinite");
}

/* ---- drafts ---- */

/* EAGLE, for a target of 128 columns. */
static void test_draft_has_its_targets_packed_head(void **state)
{
	static const struct {
		const char *name;
		uint32_t rows, cols;
	} all[] = {{"fc", 128, 256}, {"layers.0.self_attn.q_proj", 128, 128}, {"layers.0.self_attn.k_proj", 128, 128},
		{"layers.0.self_attn.v_proj", 128, 128}, {"layers.0.self_attn.o_proj", 128, 128},
		{"layers.0.mlp.gate_proj", 256, 128}, {"layers.0.mlp.up_proj", 256, 128},
		{"layers.0.mlp.down_proj", 128, 256}, {"layers.0.post_attention_layernorm", 128, 0}};
	const struct scratch *scratch = *state;
	struct writing w = writing_begin(1 << 20);
	struct model_error error = {""};
	struct model_config config;
	struct model *draft;
	char text[512];
	struct packing p;

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		snprintf(text, sizeof(text), "%s.weight", all[i].name);
		add_zeros(&w, text, all[i].rows, all[i].cols);
	}
	writing_write(scratch, &w);
	scratch_text(scratch, "config.json",
		"{\"architectures\":[\"LlamaForCausalLMEagle\"],\"hidden_size\":128,\"intermediate_size\":256,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":72}");
	source_path("tests/data/checkpoints/fp8-blocks-128", text);
	p = packing_load(text, rounded_config_load);
	if (draft_config_load(scratch->directory, &config, &error) ||
		draft_load(scratch->directory, &config, p.packed, NULL, NULL, &draft, &error))
		fail_msg("%s", error.text);
	assert_int_equal(draft->head.dtype, DTYPE_E4M3);
	assert_ptr_equal(draft->head.data, p.packed->head.data);
	assert_ptr_equal(draft->head.factors, p.packed->head.factors);
	assert_ptr_equal(draft->embedding.data, p.packed->embedding.data);
	assert_string_equal(draft->quantised, "");
	model_free(draft);
	model_config_deinit(&config);
	packing_unload(&p);
}

/* ---- all of them ---- */

static const struct claim claims[] = {
	CLAIM(test_head_is_what_the_formula_says),
	CLAIM(test_head_is_packed_where_its_shape_allows),
	CLAIM(test_embedding_stays_as_it_is),
	CLAIM(test_memory_is_that_of_the_rounded_head),
	CLAIM(test_model_says_that_its_head_was_rounded),
};

int main(void)
{
	static const struct claims all = {claims, ARRAY_SIZE(claims), expectations, ARRAY_SIZE(expectations),
		sizeof(expectations[0]), head_setup, head_teardown};
	const struct CMUnitTest others[] = {
		cmocka_unit_test(test_head_of_e4m3_stays_as_it_is),
		scratch_test(test_tied_head_of_many_chunks_arrives_whole),
		scratch_test(test_tied_head_under_its_own_name_is_rounded),
		scratch_test(test_head_of_its_own_of_many_chunks_arrives_whole),
		scratch_test(test_head_whose_rows_do_not_fit_units_is_widened),
		scratch_test(test_nan_in_a_head_to_be_rounded_is_refused),
		scratch_test(test_infinity_in_a_head_to_be_rounded_is_refused),
		scratch_test(test_draft_has_its_targets_packed_head),
	};

	return claims_run("head_load", &all, others, ARRAY_SIZE(others));
}
