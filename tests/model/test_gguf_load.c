/* SPDX-License-Identifier: MIT */

/* Weights of a GGUF file in a device's memory. */
#include "tests/model/gguf_file.h"

#include <errno.h>
#include <math.h>

#include "daemon/model/gguf_blocks.h"
#include "daemon/model/gguf_model.h"
#include "kernels/convert.h"
#include "tests/model/rounded.h"

#define F32 0u
#define Q8_0 8u
#define WIDTH 2048u   /* a matrix of WIDTH x WIDTH in Q8_0 is longer than a chunk of a bulk read */
#define HEAD 64u
#define LONGEST 64u

/* A model of one layer, whose query matrix is long, in rows of `architecture`. Byte i of the data is a
 * hash of i, but scales are one sixteenth. */
struct made {
	struct gguf_file file;
	struct gguf_bytes data;
	uint64_t q_at;
	char path[256];
};

static void add(struct made *made, const char *name, uint32_t rows, uint32_t cols, uint32_t type)
{
	size_t n = type == F32 ? rows * sizeof(float) : (size_t)rows * cols / 32 * 34;
	size_t at = made->data.n;

	put_tensor(&made->file, name, rows, cols, type, at);
	made->data.data = realloc(made->data.data, at + n + 31);
	assert_non_null(made->data.data);
	memset(made->data.data + at, 0, n + 31);
	for (size_t i = at; type == Q8_0 && i < at + n; i++)
		made->data.data[i] = (i - at) % 34 == 0 ? 0
			: (i - at) % 34 == 1    ? 0x2c
						: (uint8_t)(i * 2654435761u >> 13);
	made->data.n = (at + n + 31) / 32 * 32;
}

static void made_begin(struct made *made, const char *architecture)
{
	char key[64];

	*made = (struct made){.file = GGUF_FILE_INIT};
	put_text(&made->file, "general.architecture", architecture);
#define SIZE(name, value)                                                  \
	snprintf(key, sizeof(key), "%s." name, architecture);              \
	put_u32(&made->file, key, value)
	SIZE("context_length", LONGEST);
	SIZE("embedding_length", WIDTH);
	SIZE("feed_forward_length", 32);
	SIZE("block_count", 1);
	SIZE("attention.head_count", WIDTH / HEAD);
	SIZE("attention.head_count_kv", 1);
	snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", architecture);
	put_f32(&made->file, key, 1e-5f);
}

/* Its tensors but for one. */
static void made_add(struct made *made, const char *without)
{
	static const struct {
		const char *name;
		uint32_t rows, cols, type;
	} all[] = {
		{"token_embd.weight", 32, WIDTH, Q8_0},
		{"output_norm.weight", WIDTH, 0, F32},
		{"blk.0.attn_norm.weight", WIDTH, 0, F32},
		{"blk.0.ffn_norm.weight", WIDTH, 0, F32},
		{"blk.0.attn_q.weight", WIDTH, WIDTH, Q8_0},
		{"blk.0.attn_k.weight", HEAD, WIDTH, Q8_0},
		{"blk.0.attn_v.weight", HEAD, WIDTH, Q8_0},
		{"blk.0.attn_output.weight", WIDTH, WIDTH, Q8_0},
		{"blk.0.ffn_gate.weight", 32, WIDTH, Q8_0},
		{"blk.0.ffn_up.weight", 32, WIDTH, Q8_0},
		{"blk.0.ffn_down.weight", WIDTH, 32, Q8_0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		if (!strcmp(all[i].name, "blk.0.attn_q.weight"))
			made->q_at = made->data.n;
		if (strcmp(all[i].name, without))
			add(made, all[i].name, all[i].rows, all[i].cols, all[i].type);
	}
}

static void made_write(struct made *made, const struct scratch *scratch)
{
	struct gguf_bytes all = gguf_file_finish(&made->file);

	put_bytes(&all, made->data.data, made->data.n);
	scratch_write(scratch, "m.gguf", all.data, all.n);
	scratch_path(scratch, "m.gguf", made->path);
	free(all.data);
}

static int made_load(const struct made *made, struct device *device, bool rounds, struct model **ret,
	struct model_error *error)
{
	struct model_config config;
	int rc = model_config_load(made->path, &config, error);

	if (rc)
		return rc;
	config.head_fp8 = rounds;
	rc = model_load(device, made->path, &config, LONGEST, NULL, NULL, ret, error);
	model_config_deinit(&config);
	return rc;
}

/* A weight's bytes, copied from the device. */
static void *fetch(struct device *device, const struct weight *weight, size_t n)
{
	void *raw = malloc(n * dtype_bytes(weight->dtype));

	assert_non_null(raw);
	assert_int_equal(
		device->ops->copy(device, raw, weight->data, n * dtype_bytes(weight->dtype)), 0);
	return raw;
}

/* Element i is that value, in the device's dtype. */
static bool holds(const void *raw, enum dtype dtype, size_t i, float value)
{
	if (dtype == DTYPE_F32)
		return ((const float *)raw)[i] == value;
	return ((const uint16_t *)raw)[i] == f32_to_bf16(value);
}

static void expect_rows(const struct scratch *scratch, const char *architecture, bool rotated)
{
	const size_t n = (size_t)WIDTH * WIDTH;
	struct device *device = test_device_open(0);
	struct model_error error = {""};
	struct model *model;
	struct made made;

	made_begin(&made, architecture);
	if (!strcmp(architecture, "qwen3")) {
		add(&made, "blk.0.attn_q_norm.weight", HEAD, 0, F32);
		add(&made, "blk.0.attn_k_norm.weight", HEAD, 0, F32);
	}
	made_add(&made, "");
	made_write(&made, scratch);
	if (made_load(&made, device, false, &model, &error))
		fail_msg("%s", error.text);
	CLEANUP(cleanup_free) float *want = malloc(n * sizeof(float));
	const struct weight *qkv = &model->layers[0].qkv;
	assert_contains(model->quantised, "Q8_0, widened to ");
	CLEANUP(cleanup_free) void *have = fetch(device, qkv, n);
	assert_non_null(want);
	assert_true(gguf_type_find(Q8_0)->format->to_f32(want, made.data.data + made.q_at, n / 32));
	for (uint32_t row = 0; row < WIDTH; row++) {
		uint32_t i = row % HEAD, half = i / (HEAD / 2), pair = i % (HEAD / 2);
		uint32_t source = rotated ? row - i + 2 * pair + half : row;

		for (uint32_t col = 0; col < WIDTH; col++)
			if (!holds(have, qkv->dtype, (size_t)row * WIDTH + col,
				    want[(size_t)source * WIDTH + col]))
				fail_msg("row %u, column %u", row, col);
	}
	model_free(model);
	device->ops->free(device);
	free(made.data.data);
}

static void test_rows_of_pairs_become_rows_of_halves_for_llama(void **state)
{
	expect_rows(*state, "llama", true);
}

static void test_rows_stay_as_they_are_for_qwen3(void **state)
{
	expect_rows(*state, "qwen3", false);
}

/* ---- a rounded head ---- */

/* tensor: the embedding's, or the head's own. Its blocks are widened to float32 first. */
static void expect_rounded(const struct scratch *scratch, const char *tensor, bool packs)
{
	const uint32_t rows = 32;
	struct packing p = {.device = packing_open()};
	CLEANUP(cleanup_free) float *want = malloc(rows * WIDTH * sizeof(*want));
	struct model_error error = {""};
	struct model *model;
	struct weight head;
	struct made made;
	size_t at;

	packing.packs = packs;
	made_begin(&made, "llama");
	made_add(&made, "");
	at = made.data.n;
	if (strcmp(tensor, "token_embd.weight"))
		add(&made, tensor, rows, WIDTH, Q8_0);
	else
		at = 0;
	made_write(&made, scratch);
	if (made_load(&made, p.device, true, &model, &error))
		fail_msg("%s", error.text);
	assert_non_null(want);
	assert_true(gguf_type_find(Q8_0)->format->to_f32(want, made.data.data + at, rows * WIDTH / 32));
	assert_int_equal(model->head.dtype, packs ? DTYPE_E4M3 : model->activation_dtype);
	head = packing_fetch(&p, model->head);
	assert_rounded(&head, want);
	packing_drop(&head);
	assert_contains(model->quantised, "Q8_0, widened to ");
	assert_contains(model->quantised,
		packs ? " at load; head fp8, kept packed" : " at load; head fp8, widened to ");
	model_free(model);
	p.device->ops->free(p.device);
	free(made.data.data);
}

static void test_tied_head_in_blocks_is_rounded(void **state)
{
	expect_rounded(*state, "token_embd.weight", false);
	expect_rounded(*state, "token_embd.weight", true);
}

static void test_head_of_its_own_in_blocks_is_rounded(void **state)
{
	expect_rounded(*state, "output.weight", false);
	expect_rounded(*state, "output.weight", true);
}

/* ---- refusals ---- */

static void expect_refusal(struct made *made, const struct scratch *scratch, int status, const char *words)
{
	struct device *device = test_device_open(0);
	struct model_error error = {""};
	struct model *model;

	made_write(made, scratch);
	assert_int_equal(made_load(made, device, false, &model, &error), status);
	assert_contains(error.text, made->path);
	assert_contains(error.text, words);
	device->ops->free(device);
	free(made->data.data);
}

static void test_scale_that_is_not_finite_is_refused_with_its_tensor(void **state)
{
	struct made made;

	made_begin(&made, "llama");
	made_add(&made, "");
	made.data.data[made.q_at + 34 * 1000 + 1] = 0x7c;
	expect_refusal(&made, *state, -EINVAL,
		"tensor \"blk.0.attn_q.weight\": the scale of a block is not finite");
}

static void test_missing_tensor_has_the_files_name(void **state)
{
	struct made made;

	made_begin(&made, "llama");
	made_add(&made, "blk.0.ffn_up.weight");
	expect_refusal(&made, *state, -EINVAL, "tensor \"blk.0.ffn_up.weight\" is missing");
}

static void test_vector_in_blocks_is_refused(void **state)
{
	struct made made;

	made_begin(&made, "llama");
	made_add(&made, "output_norm.weight");
	put_tensor(&made.file, "output_norm.weight", WIDTH, 0, Q8_0, made.data.n);
	made.data.data = realloc(made.data.data, made.data.n + WIDTH / 32 * 34);
	memset(made.data.data + made.data.n, 0, WIDTH / 32 * 34);
	made.data.n += WIDTH / 32 * 34;
	expect_refusal(&made, *state, -ENOTSUP,
		"tensor \"output_norm.weight\": dtype Q8_0 is not one of F32, BF16, F16");
}

static void test_type_that_is_not_read_is_refused_with_its_name(void **state)
{
	struct made made;

	made_begin(&made, "llama");
	made_add(&made, "blk.0.ffn_up.weight");
	put_tensor(&made.file, "blk.0.ffn_up.weight", 32, WIDTH, 10, 0);
	/* its data overlaps nothing: 84 bytes of 256 elements */
	made.file.tensors.n -= 8;
	put_uint(&made.file.tensors, made.data.n, 8);
	made.data.data = realloc(made.data.data, made.data.n + 32 * WIDTH);
	memset(made.data.data + made.data.n, 0, 32 * WIDTH);
	made.data.n += 32 * WIDTH;
	expect_refusal(&made, *state, -ENOTSUP,
		"tensor \"blk.0.ffn_up.weight\": dtype Q2_K is not one of F32, F16, BF16, Q4_0, Q4_1");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		scratch_test(test_rows_of_pairs_become_rows_of_halves_for_llama),
		scratch_test(test_rows_stay_as_they_are_for_qwen3),
		scratch_test(test_tied_head_in_blocks_is_rounded),
		scratch_test(test_head_of_its_own_in_blocks_is_rounded),
		scratch_test(test_scale_that_is_not_finite_is_refused_with_its_tensor),
		scratch_test(test_missing_tensor_has_the_files_name),
		scratch_test(test_vector_in_blocks_is_refused),
		scratch_test(test_type_that_is_not_read_is_refused_with_its_name),
	};

	return cmocka_run_group_tests_name("gguf_load", tests, NULL, NULL);
}
