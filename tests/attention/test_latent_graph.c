/* SPDX-License-Identifier: MIT */
/* Latent attention under capture and replay, and what its warm-up has to load. */
#include "tests/attention/latent_group.h"

/* A graph of two layers, of n_rows rows of n_query tokens, warmed up with an object of its own. */
static struct graph *capture_decode(struct fixture *f, uint32_t n_rows, uint32_t n_query)
{
	struct row rows[FIXTURE_ROWS];

	for (uint32_t r = 0; r < n_rows; r++)
		rows[r] = (struct row){ .seed = 1 + r, .n_query = n_query, .seq_len = n_query };
	fixture_place(f, rows, n_rows, 0, 0);
	return fixture_record(f, 2);
}

static void test_replay_at_other_lengths_equals_eager(void **state)
{
	static const struct row rows[] = {
		{ .seed = 11, .n_query = 2, .seq_len = 297 },
		{ .seed = 12, .n_query = 2, .seq_len = 2 },
		{ .seed = 13, .n_query = 2, .seq_len = 65 },
	};

	for (size_t b = 0; b < 2 * N_MLA; b++) {
		struct graph_exec *exec;
		struct fixture f;

		fixture_init(&f, NULL, latent_backends[b / 2], latent_shapes[b % 2]);
		exec = fixture_instantiate(&f, capture_decode(&f, 4, 2));
		for (uint32_t n_rows = 0; n_rows <= 3; n_rows++)
			fixture_check_replay(&f, exec, rows, n_rows, 4, 8, true);
		f.device->ops->graph_exec_free(exec);
		fixture_deinit(&f);
	}
}

static void test_lazy_plan_is_recorded_once_for_all_layers_of_a_graph(void **state)
{
	for (size_t b = 0; b < N_MLA; b++) {
		struct graph *graph;
		struct fixture f;

		fixture_init(&f, NULL, latent_backends[b], &latent_ordinary);
		graph = capture_decode(&f, 4, 1);
		assert_int_equal(test_count_nodes(f.device, graph, "mla_plan"), b == 1);
		assert_int_equal(test_count_nodes(f.device, graph, "mla_split"), 2);
		assert_int_equal(test_count_nodes(f.device, graph, "mla_merge"), 2);
		f.device->ops->graph_free(graph);
		fixture_deinit(&f);
	}
}

static void test_no_more_than_the_level_is_captured(void **state)
{
	static const struct row mixed[] = {
		{.seed = 1, .n_query = 1, .seq_len = 9},
		{.seed = 2, .n_query = 3, .seq_len = 9},
	};
	static const struct row longest = { .seed = 1, .n_query = 16, .seq_len = 30 };
	static const struct row too_long = { .seed = 1, .n_query = 17, .seq_len = 30 };
	struct fixture f;

	for (size_t b = 0; b < latent_n_backends(); b++) {
		fixture_init(&f, NULL, latent_backends[b], &latent_ordinary);
		fixture_run_rows(&f, mixed, 2, 0, 0);
		assert_int_equal(fixture_run_captured(&f), -ENOTSUP);
		fixture_place(&f, &longest, 1, 0, 0);
		assert_int_equal(fixture_run_captured(&f), b < N_MLA ? 0 : -ENOTSUP);
		fixture_place(&f, &too_long, 1, 0, 0);
		assert_int_equal(fixture_run_captured(&f), -ENOTSUP);
		fixture_deinit(&f);
	}
}

/* After a warm-up by one batch, padded to so many rows and tokens, and lock, another. */
static void check_after_lock(size_t backend, const struct shape *shape, const struct row *warm,
	uint32_t padded, const struct row *later)
{
	struct fixture f;

	fixture_init(&f, NULL, latent_backends[backend], shape);
	fixture_run_rows(&f, warm, warm != NULL, padded, padded);
	assert_int_equal(f.device->ops->lock(f.device), 0);
	fixture_check(&f, later, 1, 0, 0);
	fixture_deinit(&f);
}

/* Also one without any token: a step may be idle, and the next one may not. */
static void test_warm_up_of_any_batch_loads_what_later_ones_need(void **state)
{
	static const struct row row = { .seed = 1, .n_query = 100, .seq_len = 300 };

	for (size_t b = 0; b < 4 * latent_n_backends(); b++)
		check_after_lock(b / 4, latent_shapes[b % 2], NULL, b / 2 % 2, &row);
}

static void test_warm_up_by_a_prompt_alone_loads_what_decodes_need(void **state)
{
	static const struct row prompt = { .seed = 1, .n_query = 100, .seq_len = 300 };
	static const struct row decode = { .seed = 2, .n_query = 2, .seq_len = 70 };

	for (size_t b = 0; b < N_MLA; b++)
		check_after_lock(b, &latent_ordinary, &prompt, 0, &decode);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replay_at_other_lengths_equals_eager),
		cmocka_unit_test(test_lazy_plan_is_recorded_once_for_all_layers_of_a_graph),
		cmocka_unit_test(test_no_more_than_the_level_is_captured),
		cmocka_unit_test(test_warm_up_of_any_batch_loads_what_later_ones_need),
		cmocka_unit_test(test_warm_up_by_a_prompt_alone_loads_what_decodes_need),
	};

	return cmocka_run_group_tests_name("latent graph", tests, NULL, NULL);
}
