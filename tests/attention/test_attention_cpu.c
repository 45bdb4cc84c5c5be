/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/world.h"

static const char *const backends[] = { "naive", "paged", "flex" };

#define N_BACKENDS (sizeof(backends) / sizeof(*backends))

static const struct shape ordinary = {
	.n_heads = 6, .n_kv_heads = 2, .head_dim = 24, .page_tokens = 4, .max_seq_len = 150,
};
static const struct shape windowed = {
	.n_heads = 4, .n_kv_heads = 4, .head_dim = 32, .page_tokens = 16, .window = 37,
	.max_seq_len = 150,
};

/* ---- right numbers ---- */

static struct shape draw_shape(struct world *dice)
{
	static const uint32_t dims[] = { 8, 10, 24, 42, 64, 80, 96, 128 };
	static const uint32_t page_tokens[] = { 1, 4, 16 };
	struct shape shape = { .n_heads = 1 + world_draw(dice, 8), .max_seq_len = 130 };

	do {
		shape.n_kv_heads = 1 + world_draw(dice, shape.n_heads);
	} while (shape.n_heads % shape.n_kv_heads != 0);
	shape.head_dim = dims[world_draw(dice, 8)];
	shape.page_tokens = page_tokens[world_draw(dice, 3)];
	shape.window = world_draw(dice, 2) ? 1 + world_draw(dice, 60) : 0;
	return shape;
}

/* A length at the edge of a page or of a softmax tile, or anywhere. */
static uint32_t draw_length(struct world *dice, const struct shape *shape)
{
	uint32_t edge = (1 + world_draw(dice, 4)) * (world_draw(dice, 2) ? 32 : shape->page_tokens);

	switch (world_draw(dice, 3)) {
	case 0:
		return edge + world_draw(dice, 2);
	case 1:
		return edge - world_draw(dice, 2);
	default:
		return 1 + world_draw(dice, shape->max_seq_len);
	}
}

/* 0 ... 5 rows, one in four empty, decodes and chunks. */
static uint32_t draw_rows(struct world *dice, const struct shape *shape, struct row *rows)
{
	uint32_t n_rows = world_draw(dice, 6);

	for (uint32_t r = 0; r < n_rows; r++) {
		uint32_t seq_len = world_draw(dice, 4) ? draw_length(dice, shape) : 0;
		uint32_t most = seq_len && seq_len < 20 ? seq_len : 20;

		rows[r] = (struct row){
			.seed = world_draw(dice, 1000),
			.seq_len = seq_len,
			.n_query = world_draw(dice, 2) ? 1 : world_draw(dice, most + 1),
		};
	}
	return n_rows;
}

static void agree_with_dense(const char *backend)
{
	struct world dice = { .random = 7 };

	for (int round = 0; round < 60; round++) {
		struct shape shape = draw_shape(&dice);
		struct world w;

		world_init(&w, backend, &shape);
		for (int batch = 0; batch < 2; batch++) {
			struct row rows[WORLD_ROWS];
			uint32_t n_rows = draw_rows(&dice, &shape, rows), n_tokens = 0;

			for (uint32_t r = 0; r < n_rows; r++)
				n_tokens += rows[r].n_query;
			world_place(&w, rows, n_rows, n_rows + world_draw(&dice, 3),
				n_tokens + world_draw(&dice, 9));
			world_run(&w);
			world_verify(&w);
		}
		world_deinit(&w);
	}
}

static void test_naive_agrees_with_dense_reference(void **state)
{
	(void)state;
	agree_with_dense("naive");
}

static void test_paged_agrees_with_dense_reference(void **state)
{
	(void)state;
	agree_with_dense("paged");
}

static void test_flex_agrees_with_dense_reference(void **state)
{
	(void)state;
	agree_with_dense("flex");
}

static void test_window_is_the_layers_own(void **state)
{
	struct world w;
	struct row row = { .seed = 3, .n_query = 1, .seq_len = 90 };
	float *all;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &windowed);
		all = calloc(w.width, sizeof(float));
		world_place(&w, &row, 1, 0, 0);
		assert_int_equal(world_build(&w, ATTENTION_EAGER), 0);
		assert_int_equal(world_enqueue(&w, 0), 0);
		world_sync(&w);
		memcpy(all, world_out(&w, 0, 0), w.width * sizeof(float));
		world_run(&w);
		world_verify(&w);
		assert_memory_not_equal(all, world_out(&w, 0, 0), w.width * sizeof(float));
		w.windows[1] = 0; /* the reference's; the manager has its own copy */
		memcpy((float *)world_out(&w, 0, 0), all, w.width * sizeof(float));
		world_verify(&w);
		free(all);
		world_deinit(&w);
	}
}

static void test_window_of_one_sees_only_itself(void **state)
{
	struct shape shape = { .n_heads = 2, .n_kv_heads = 2, .head_dim = 16, .page_tokens = 4,
		.window = 1, .max_seq_len = 64 };
	struct row row = { .seed = 5, .n_query = 3, .seq_len = 34 };
	struct world w;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &shape);
		world_place(&w, &row, 1, 0, 0);
		world_run(&w);
		world_verify(&w);
		world_deinit(&w);
	}
}

/* ---- empty rows and padding ---- */

static void test_empty_rows_and_padding_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 2, .seq_len = 0 },
		{ .seed = 2, .n_query = 3, .seq_len = 10 },
		{ .seed = 3, .n_query = 0, .seq_len = 7 },
		{ .seed = 4, .n_query = 1, .seq_len = 0 },
	};
	struct world w;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &ordinary);
		world_place(&w, rows, 4, 8, 16);
		world_run(&w);
		world_verify(&w);
		world_deinit(&w);
	}
}

static void test_idle_batch_writes_zero_padding(void **state)
{
	struct world w;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &ordinary);
		world_place(&w, NULL, 0, 4, 4);
		world_run(&w);
		world_verify(&w);
		world_deinit(&w);
	}
}

/* As a row of a lying length would have: fewer tokens in all than in its query. */
static void test_tokens_before_the_sequence_give_zero(void **state)
{
	struct row row = { .seed = 9, .n_query = 2, .seq_len = 2 };
	struct world w;
	float *expected;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &ordinary);
		expected = calloc(w.width, sizeof(float));
		world_place(&w, &row, 1, 0, 0);
		w.inputs.seq_lens[0] = 1;
		w.seq_lens[0] = 1;
		world_run(&w);
		assert_memory_equal(world_out(&w, 0, 0), expected, w.width * sizeof(float));
		assert_memory_not_equal(
			world_out(&w, 0, 1), expected, w.width * sizeof(float));
		free(expected);
		world_deinit(&w);
	}
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	static const int32_t nowhere[] = { -1, INT32_MIN, INT32_MAX, 100000 };
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 4 };
	struct world w;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &ordinary);
		for (size_t i = 0; i < 4; i++) {
			world_place(&w, &row, 1, 0, 0);
			memset(w.kv, 0, sizeof(float) * 2 * 4 * 2 * 24);
			w.inputs.block_table[0] = nowhere[i];
			world_run(&w);
			for (uint32_t e = 0; e < w.width; e++)
				assert_true(w.out[e] == 0.0f);
		}
		world_deinit(&w);
	}
}

static void test_lengths_past_the_table_stay_inside_it(void **state)
{
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 4 };
	struct world w;

	(void)state;
	world_init(&w, "paged", &ordinary);
	world_place(&w, &row, 1, 0, 0);
	for (uint32_t i = 0; i < WORLD_ROWS * w.config.max_pages; i++)
		w.inputs.block_table[i] = w.inputs.block_table[0];
	w.inputs.seq_lens[0] = INT32_MAX;
	w.inputs.query_start[1] = INT32_MAX;
	world_run(&w);
	/* every key is one of the cached four: a number for the token, nothing past it */
	assert_false(isnan(w.out[0]));
	assert_true(isnan(w.out[w.width]));
	world_deinit(&w);
}

/* ---- a token's bits are its own ---- */

static void take(const struct world *w, uint32_t row, float *copy)
{
	memcpy(copy, world_out(w, row, 0), w->query_lens[row] * w->width * sizeof(float));
}

static void assert_same_bits(const struct world *w, uint32_t row, const float *copy)
{
	assert_memory_equal(
		world_out(w, row, 0), copy, w->query_lens[row] * w->width * sizeof(float));
}

static void bits_ignore_company(const char *backend, const struct shape *shape)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 5, .seq_len = 71 },
		{ .seed = 2, .n_query = 0, .seq_len = 0 },
		{ .seed = 3, .n_query = 1, .seq_len = 128 },
		{ .seed = 4, .n_query = 17, .seq_len = 17 },
		{ .seed = 5, .n_query = 1, .seq_len = 1 },
	};
	float *alone = calloc(WORLD_TOKENS * 256, sizeof(float));
	struct world w;

	world_init(&w, backend, shape);
	for (uint32_t r = 0; r < 5; r++) {
		world_place(&w, &rows[r], 1, 0, 0);
		world_run(&w);
		take(&w, 0, alone);
		world_place(&w, rows, 5, 8, 40);
		world_run(&w);
		assert_same_bits(&w, r, alone);
	}
	world_deinit(&w);
	free(alone);
}

static void test_bits_do_not_depend_on_the_batch(void **state)
{
	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		bits_ignore_company(backends[b], &ordinary);
		bits_ignore_company(backends[b], &windowed);
	}
}

static void bits_ignore_chunks(const char *backend, const struct shape *shape)
{
	static const uint32_t chunks[] = { 33, 1, 7, 40, 1, 1, 32, 5 }; /* 120 */
	float *whole = calloc(WORLD_TOKENS * 256, sizeof(float));
	uint32_t done = 0;
	struct world w;

	world_init(&w, backend, shape);
	world_place(&w, &(struct row){ .seed = 6, .n_query = 120, .seq_len = 120 }, 1, 0, 0);
	world_run(&w);
	take(&w, 0, whole);
	for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
		done += chunks[i];
		world_place(&w, &(struct row){ .seed = 6, .n_query = chunks[i], .seq_len = done },
			1, 0, 0);
		world_run(&w);
		assert_same_bits(&w, 0, whole + (size_t)(done - chunks[i]) * w.width);
	}
	assert_int_equal(done, 120);
	world_deinit(&w);
	free(whole);
}

static void test_bits_do_not_depend_on_the_chunking(void **state)
{
	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		bits_ignore_chunks(backends[b], &ordinary);
		bits_ignore_chunks(backends[b], &windowed);
	}
}

static void test_bits_do_not_depend_on_the_page_size(void **state)
{
	static const uint32_t sizes[] = { 1, 4, 16, 24, 64 };
	float *first = calloc(WORLD_TOKENS * 256, sizeof(float));
	struct world w;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct shape shape = windowed;

		shape.page_tokens = sizes[i];
		world_init(&w, "paged", &shape);
		world_place(&w, &(struct row){ .seed = 8, .n_query = 9, .seq_len = 111 }, 1, 0, 0);
		world_run(&w);
		if (i == 0)
			take(&w, 0, first);
		else
			assert_same_bits(&w, 0, first);
		world_deinit(&w);
	}
	free(first);
}

/* ---- refusals ---- */

static void test_rebuild_forgets_the_batch_before(void **state)
{
	static const struct row big[] = {
		{ .seed = 1, .n_query = 9, .seq_len = 90 },
		{ .seed = 2, .n_query = 9, .seq_len = 91 },
	};
	static const struct row small = { .seed = 3, .n_query = 1, .seq_len = 5 };
	struct world w;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &ordinary);
		world_place(&w, big, 2, 4, 20);
		world_run(&w);
		world_place(&w, &small, 1, 0, 0);
		world_run(&w);
		world_verify(&w);
		/* a build that fails leaves nothing to run */
		w.batch.n_tokens = 2;
		assert_int_equal(world_build(&w, ATTENTION_EAGER), -EINVAL);
		assert_int_equal(world_enqueue(&w, 1), -EINVAL);
		world_deinit(&w);
	}
}

static void test_contradicting_batches_are_refused(void **state)
{
	struct row row = { .seed = 3, .n_query = 2, .seq_len = 5 };
	struct world w;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &ordinary);
		for (int fault = 0; fault < 7; fault++) {
			world_place(&w, &row, 1, 2, 4);
			w.batch.padded_rows = fault == 0 ? 0 : fault == 1 ? WORLD_ROWS + 1 : 2;
			w.batch.padded_tokens = fault == 2 ? 1 : fault == 3 ? WORLD_TOKENS + 1 : 4;
			w.batch.max_query = fault == 4 ? 1 : 2;
			w.seq_lens[0] = fault == 5 ? ordinary.max_seq_len + 1 : 5;
			w.batch.n_tokens = fault == 6 ? 3 : 2;
			assert_int_equal(world_build(&w, ATTENTION_EAGER), -EINVAL);
		}
		world_place(&w, &row, 1, 2, 4);
		assert_int_equal(world_build(&w, ATTENTION_EAGER), 0);
		world_deinit(&w);
	}
}

static void test_runs_of_layers_that_are_not_there_are_refused(void **state)
{
	struct row row = { .seed = 3, .n_query = 2, .seq_len = 5 };
	struct world w;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &ordinary);
		assert_int_equal(world_enqueue(&w, 1), -EINVAL); /* nothing built */
		world_place(&w, &row, 1, 0, 0);
		assert_int_equal(world_build(&w, ATTENTION_EAGER), 0);
		assert_int_equal(world_enqueue(&w, WORLD_LAYERS), -EINVAL);
		w.q_stride = w.width - 1;
		assert_int_equal(world_enqueue(&w, 1), -EINVAL);
		world_deinit(&w);
	}
}

static int other_info(struct device *device, struct device_info *ret)
{
	(void)device;
	*ret = (struct device_info){ .name = "other", .kind = "other" };
	return 0;
}

static void test_device_without_kernels_is_refused(void **state)
{
	static const struct device_ops ops = { .info = other_info };
	struct device other = { .ops = &ops };
	struct attention_manager *manager = NULL;
	struct world w;

	(void)state;
	for (size_t b = 0; b < N_BACKENDS; b++) {
		world_init(&w, backends[b], &ordinary);
		assert_int_equal(
			w.backend->manager_new(&other, &w.config, &w.inputs, &manager), -ENOTSUP);
		assert_null(manager);
		world_deinit(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_naive_agrees_with_dense_reference),
		cmocka_unit_test(test_paged_agrees_with_dense_reference),
		cmocka_unit_test(test_flex_agrees_with_dense_reference),
		cmocka_unit_test(test_window_is_the_layers_own),
		cmocka_unit_test(test_window_of_one_sees_only_itself),
		cmocka_unit_test(test_empty_rows_and_padding_give_zero),
		cmocka_unit_test(test_idle_batch_writes_zero_padding),
		cmocka_unit_test(test_tokens_before_the_sequence_give_zero),
		cmocka_unit_test(test_page_that_does_not_exist_reads_as_null_page),
		cmocka_unit_test(test_lengths_past_the_table_stay_inside_it),
		cmocka_unit_test(test_bits_do_not_depend_on_the_batch),
		cmocka_unit_test(test_bits_do_not_depend_on_the_chunking),
		cmocka_unit_test(test_bits_do_not_depend_on_the_page_size),
		cmocka_unit_test(test_rebuild_forgets_the_batch_before),
		cmocka_unit_test(test_contradicting_batches_are_refused),
		cmocka_unit_test(test_runs_of_layers_that_are_not_there_are_refused),
		cmocka_unit_test(test_device_without_kernels_is_refused),
	};

	return cmocka_run_group_tests_name("attention on the cpu", tests, NULL, NULL);
}
