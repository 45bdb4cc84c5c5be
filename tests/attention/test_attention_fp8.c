/* SPDX-License-Identifier: MIT */

/* Backends with an fp8 cache, except latent attention. The reference attends to keys and values rounded to e4m3. */

#include "tests/attention/fixture.h"

static struct device *shared; /* of the group */

static const char *const backends[] = { "paged", "flex", "naive" };

static size_t n_backends(void)
{
	return test_on_cuda() ? 2 : COUNT(backends);
}

static const struct shape ordinary = { .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .page_tokens = 16,
	.max_seq_len = 400, .fp8 = true };
static const struct shape windowed = { .n_heads = 4, .n_kv_heads = 4, .head_dim = 128, .page_tokens = 64,
	.window = 77, .max_seq_len = 400, .fp8 = true };
static const struct shape odd = { .n_heads = 6, .n_kv_heads = 2, .head_dim = 24, .page_tokens = 4,
	.max_seq_len = 150, .fp8 = true };

/* ---- right numbers ---- */

static struct shape draw_shape(uint64_t *dice)
{
	static const uint32_t dims[] = { 64, 96, 128, 256, 8, 42, 80, 200 }, pages[] = { 16, 32, 64, 128, 1, 24 };
	static const uint32_t groups[] = { 1, 2, 3, 4, 7, 16 };
	const uint32_t n_kv_heads = 1 + random_below(dice, 3);
	struct shape shape = {
		.n_kv_heads = n_kv_heads,
		.n_heads = n_kv_heads * groups[random_below(dice, 6)],
		.head_dim = dims[random_below(dice, random_below(dice, 3) ? 4 : 8)],
		.page_tokens = pages[random_below(dice, random_below(dice, 3) ? 4 : 6)],
		.window = random_below(dice, 2) ? 1 + random_below(dice, 150) : 0,
		.fp8 = true,
	};

	shape.max_seq_len = 40000 / (shape.head_dim + 60);
	return shape;
}

static void test_decodes_agree_with_dense_reference(void **state)
{
	for (size_t b = 0; b < n_backends(); b++) {
		uint64_t dice = 5;

		fixture_check_drawn(shared, backends[b], &dice, 12, draw_shape, 6, 1);
	}
}

static void test_short_queries_agree_with_dense_reference(void **state)
{
	for (size_t b = 0; b < n_backends(); b++) {
		uint64_t dice = 6;

		fixture_check_drawn(shared, backends[b], &dice, 10, draw_shape, 6, 16);
	}
}

static void test_prompts_agree_with_dense_reference(void **state)
{
	for (size_t b = 0; b < n_backends(); b++) {
		uint64_t dice = 7;

		fixture_check_drawn(shared, backends[b], &dice, 10, draw_shape, 5, 200);
	}
}

/* One sequence over many pieces of the line, and several whose edges lie inside of pieces. */
static void test_long_sequences_agree_with_dense_reference(void **state)
{
	static const uint32_t dims[] = { 64, 96, 128, 256 };
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 3000 },
		{ .seed = 2, .n_query = 1, .seq_len = 3 },
		{ .seed = 3, .n_query = 5, .seq_len = 2777 },
		{ .seed = 4, .n_query = 1, .seq_len = 2048 },
	};
	struct shape shape = ordinary;

	shape.max_seq_len = 3000;
	for (size_t i = 0; i < COUNT(dims); i++) {
		shape.head_dim = dims[i];
		shape.n_heads = i == 1 ? 5 : 8;
		shape.n_kv_heads = i == 1 ? 5 : 1;
		fixture_check_once(shared, "paged", &shape, rows, 1, 0, 0);
		fixture_check_once(shared, "paged", &shape, rows, 4, 0, 0);
	}
}

static void test_chunks_of_a_prompt_agree_with_dense_reference(void **state)
{
	static const uint32_t chunks[] = { 129, 1, 17, 64, 16, 63, 2, 108 }; /* 400 */
	static const struct shape *const shapes[] = { &ordinary, &windowed };

	for (size_t s = 0; s < COUNT(shapes); s++) {
		struct fixture f;
		uint32_t done = 0;

		fixture_init(&f, shared, "paged", shapes[s]);
		for (size_t i = 0; i < COUNT(chunks); i++) {
			done += chunks[i];
			fixture_check(&f, &(struct row){ .seed = 6, .n_query = chunks[i], .seq_len = done }, 1, 0, 0);
		}
		fixture_deinit(&f);
	}
}

static void test_empty_rows_and_padding_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 2, .seq_len = 0 },
		{ .seed = 2, .n_query = 3, .seq_len = 10 },
		{ .seed = 3, .n_query = 0, .seq_len = 7 },
		{ .seed = 4, .n_query = 40, .seq_len = 50 },
	};
	static const struct shape *const shapes[] = { &ordinary, &windowed, &odd };

	for (size_t i = 0; i < COUNT(shapes) * n_backends(); i++) {
		struct fixture f;

		fixture_init(&f, shared, backends[i / COUNT(shapes)], shapes[i % COUNT(shapes)]);
		fixture_check(&f, rows, 4, 8, 100);
		fixture_check(&f, NULL, 0, 4, 4);
		fixture_deinit(&f);
	}
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	static const struct shape *const shapes[] = { &ordinary, &windowed, &odd };

	for (size_t i = 0; i < 2 * COUNT(shapes) * n_backends(); i++) {
		const struct row row = { .seed = 9, .n_query = i % 2 ? 20 : 1, .seq_len = 20 };
		struct fixture f;

		fixture_init(&f, shared, backends[i / 2 / COUNT(shapes)], shapes[i / 2 % COUNT(shapes)]);
		fixture_check_missing_pages(&f, &row);
		fixture_deinit(&f);
	}
}

static void test_rows_under_masks_agree_with_dense_reference(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 300, .mask = { .kind = MASK_WINDOW, .window = 40, .end = 5 } },
		{ .seed = 2, .n_query = 90, .seq_len = 130, .mask = { .kind = MASK_PREFIX, .begin = 45, .end = 101 } },
		{ .seed = 3, .n_query = 5, .seq_len = 77, .mask = { .kind = MASK_WINDOW, .window = 3 } },
	};
	static const struct shape *const shapes[] = { &ordinary, &windowed, &odd };

	for (size_t s = 0; s < COUNT(shapes); s++)
		fixture_check_once(shared, "flex", shapes[s], rows + (s == 2), 2, 0, 0);
}

/* On the cpu device: to the last bit, in any batch. */
static void test_rows_do_not_depend_on_the_batch(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 97 },
		{ .seed = 2, .n_query = 40, .seq_len = 66 },
		{ .seed = 3, .n_query = 4, .seq_len = 130 },
	};

	for (size_t b = 0; b < n_backends(); b++) {
		struct fixture f;

		fixture_init(&f, shared, backends[b], &odd);
		fixture_check_alone(&f, rows, 3, 5, 60);
		fixture_deinit(&f);
	}
}

static void test_graph_gives_what_an_eager_run_gives(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 97 },
		{ .seed = 2, .n_query = 1, .seq_len = 1 },
		{ .seed = 3, .n_query = 1, .seq_len = 333 },
	};
	struct fixture f;
	struct graph_exec *exec;

	fixture_init(&f, NULL, "paged", &ordinary); /* it is locked */
	exec = fixture_capture_paged(&f, 4, 1);
	fixture_check_replay(&f, exec, rows, 3, 4, 4, true);
	f.device->ops->graph_exec_free(exec);
	fixture_deinit(&f);
}

static void test_pages_beyond_4_g_elements_are_read(void **state)
{
	struct row rows[2] = { { .seed = 1, .n_query = 1, .seq_len = 100 }, { .seed = 2, .n_query = 30, .seq_len = 60 } };
	struct fixture f;

	fixture_init(&f, shared, "paged", &ordinary);
	fixture_go_far(&f);
	fixture_check(&f, rows, 2, 0, 0);
	fixture_deinit(&f);
}

/* ---- refusals ---- */

static void test_factors_that_are_no_numbers_above_0_are_refused(void **state)
{
	static const float bad[] = { 0, -1, INFINITY, NAN };
	const struct row row = { .seed = 1, .n_query = 1, .seq_len = 5 };

	for (size_t i = 0; i < 2 * COUNT(bad) * n_backends(); i++) {
		struct attention_args args;
		struct fixture f;

		fixture_init(&f, shared, backends[i / 2 / COUNT(bad)], &odd);
		fixture_place(&f, &row, 1, 0, 0);
		assert_int_equal(fixture_build(&f, ATTENTION_EAGER), 0);
		args = (struct attention_args){ .layer = FIXTURE_LAYER, .q = f.q_device, .q_stride = f.q_stride,
			.kv = f.kv_device, .out = f.out_device, .factors = { 1, 1 } };
		*(i % 2 ? &args.factors.key : &args.factors.value) = bad[i / 2 % COUNT(bad)];
		assert_int_equal(f.backend->run(f.metadata, f.stream, &args), -EINVAL);
		fixture_deinit(&f);
	}
}

int main(void)
{
	static const struct test_cpu_only only[] = {
		{ "do_not_depend_on_the_batch", "sums go by the batch's shape" },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decodes_agree_with_dense_reference),
		cmocka_unit_test(test_short_queries_agree_with_dense_reference),
		cmocka_unit_test(test_prompts_agree_with_dense_reference),
		cmocka_unit_test(test_long_sequences_agree_with_dense_reference),
		cmocka_unit_test(test_chunks_of_a_prompt_agree_with_dense_reference),
		cmocka_unit_test(test_empty_rows_and_padding_give_zero),
		cmocka_unit_test(test_page_that_does_not_exist_reads_as_null_page),
		cmocka_unit_test(test_rows_under_masks_agree_with_dense_reference),
		cmocka_unit_test(test_graph_gives_what_an_eager_run_gives),
		cmocka_unit_test(test_pages_beyond_4_g_elements_are_read),
		cmocka_unit_test(test_factors_that_are_no_numbers_above_0_are_refused),
		cmocka_unit_test(test_rows_do_not_depend_on_the_batch),
	};
	int failed;

	shared = test_device_open(0);
	failed = TEST_RUN_GROUP("attention over fp8", tests, only, NULL, NULL);
	shared->ops->free(shared);
	return failed;
}
