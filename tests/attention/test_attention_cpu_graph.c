/* SPDX-License-Identifier: MIT */
/* Attention of the cpu device in graphs: what may be captured, and what a replay does. */
#include "tests/attention/fixture.h"

static const char *const backends[] = { "naive", "paged", "flex" };

static const struct shape ordinary = {
	.n_heads = 6, .n_kv_heads = 2, .head_dim = 24, .page_tokens = 4, .max_seq_len = 150,
};

static const struct row decodes[] = {
	{ .seed = 11, .n_query = 2, .seq_len = 97 },
	{ .seed = 12, .n_query = 2, .seq_len = 2 },
	{ .seed = 13, .n_query = 2, .seq_len = 65 },
};

static void test_replay_at_other_lengths_equals_eager(void **state)
{
	struct graph_exec *exec;
	struct fixture f;

	fixture_init_cpu(&f, "paged", &ordinary);
	exec = fixture_capture_paged(&f, 4, 2);
	for (uint32_t n_rows = 0; n_rows <= 3; n_rows++)
		fixture_check_replay(&f, exec, decodes, n_rows, 4, 8, true);
	f.device->ops->graph_exec_free(exec);
	fixture_deinit(&f);
}

/* F32: queries inside of fused rows, whatever lies between them. */
static void test_replay_reads_strided_queries(void **state)
{
	static const uint32_t between[] = { 0, 13, 96 }; /* what fixture.c allows for */

	for (size_t i = 0; i < COUNT(between); i++) {
		struct graph_exec *exec;
		struct fixture f;

		fixture_init_cpu(&f, "paged", &ordinary);
		assert_true(f.width + between[i] <= f.q_stride);
		f.q_stride = f.width + between[i];
		exec = fixture_capture_paged(&f, 4, 2);
		for (uint32_t n_rows = 1; n_rows <= 3; n_rows++) {
			fixture_place(&f, decodes, n_rows, 4, 8);
			fixture_replay(&f, exec);
			fixture_verify(&f);
		}
		f.device->ops->graph_exec_free(exec);
		fixture_deinit(&f);
	}
}

static void test_naive_refuses_a_capturing_stream(void **state)
{
	struct row row = { .seed = 1, .n_query = 1, .seq_len = 9 };
	struct fixture f;

	fixture_init_cpu(&f, "naive", &ordinary);
	fixture_run_rows(&f, &row, 1, 0, 0);
	assert_int_equal(fixture_run_captured(&f), -ENOTSUP);
	fixture_deinit(&f);
}

static void test_paged_refuses_to_capture_more_than_its_level(void **state)
{
	static const struct row mixed[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 9 },
		{ .seed = 2, .n_query = 3, .seq_len = 9 },
	};
	static const struct row longest = { .seed = 1, .n_query = 16, .seq_len = 30 };
	static const struct row too_long = { .seed = 1, .n_query = 17, .seq_len = 30 };
	struct fixture f;

	fixture_init_cpu(&f, "paged", &ordinary);
	fixture_run_rows(&f, mixed, 2, 0, 0);
	assert_int_equal(fixture_run_captured(&f), -ENOTSUP);
	fixture_place(&f, &longest, 1, 0, 0);
	assert_int_equal(fixture_run_captured(&f), 0);
	fixture_place(&f, &too_long, 1, 0, 0);
	assert_int_equal(fixture_run_captured(&f), -ENOTSUP);
	fixture_deinit(&f);
}

static void test_warm_up_of_any_batch_loads_what_later_ones_need(void **state)
{
	struct row row = { .seed = 1, .n_query = 40, .seq_len = 130 };
	struct fixture f;

	for (size_t b = 0; b < COUNT(backends); b++) {
		fixture_init_cpu(&f, backends[b], &ordinary);
		fixture_run_rows(&f, NULL, 0, 1, 1);
		assert_int_equal(f.device->ops->lock(f.device), 0);
		fixture_check(&f, &row, 1, 0, 0);
		fixture_deinit(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replay_at_other_lengths_equals_eager),
		cmocka_unit_test(test_replay_reads_strided_queries),
		cmocka_unit_test(test_naive_refuses_a_capturing_stream),
		cmocka_unit_test(test_paged_refuses_to_capture_more_than_its_level),
		cmocka_unit_test(test_warm_up_of_any_batch_loads_what_later_ones_need),
	};

	return cmocka_run_group_tests_name("attention on the cpu, in graphs", tests, NULL, NULL);
}
