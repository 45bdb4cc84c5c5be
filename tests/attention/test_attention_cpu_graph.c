/* SPDX-License-Identifier: MIT */
/* Attention of the cpu device in graphs: what may be captured, and what a replay does. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/world.h"

static const char *const backends[] = { "naive", "paged", "flex" };

static const struct shape ordinary = {
	.n_heads = 6, .n_kv_heads = 2, .head_dim = 24, .page_tokens = 4, .max_seq_len = 150,
};

static struct graph_exec *capture_decode(struct world *w, uint32_t n_rows, uint32_t n_query)
{
	const struct device_ops *ops = w->device->ops;
	struct row rows[WORLD_ROWS];
	struct graph *graph = NULL;
	struct graph_exec *exec = NULL;

	for (uint32_t r = 0; r < n_rows; r++)
		rows[r] = (struct row){ .seed = r, .n_query = n_query, .seq_len = n_query };
	world_place(w, rows, n_rows, 0, 0);
	assert_int_equal(world_build(w, ATTENTION_WARM_UP), 0);
	assert_int_equal(world_enqueue(w, 1), 0);
	world_sync(w);
	assert_int_equal(ops->lock(w->device), 0);
	assert_int_equal(world_build(w, ATTENTION_CAPTURE), 0);
	assert_int_equal(ops->capture_begin(w->stream), 0);
	assert_int_equal(world_enqueue(w, 1), 0);
	assert_int_equal(ops->capture_end(w->stream, &graph), 0);
	assert_string_equal(ops->graph_node_name(graph, 0), "paged_attention");
	assert_null(ops->graph_node_name(graph, 1));
	assert_int_equal(ops->graph_instantiate(w->device, graph, &exec), 0);
	ops->graph_free(graph);
	return exec;
}

static void test_replay_at_other_lengths_equals_eager(void **state)
{
	static const struct row rows[] = {
		{ .seed = 11, .n_query = 2, .seq_len = 97 },
		{ .seed = 12, .n_query = 2, .seq_len = 2 },
		{ .seed = 13, .n_query = 2, .seq_len = 65 },
	};
	float *replayed = calloc(WORLD_TOKENS * 256, sizeof(float));
	struct graph_exec *exec;
	struct world w;

	(void)state;
	world_init(&w, "paged", &ordinary);
	exec = capture_decode(&w, 4, 2);
	for (uint32_t n_rows = 0; n_rows <= 3; n_rows++) {
		world_place(&w, rows, n_rows, 4, 8);
		world_poison_out(&w);
		assert_int_equal(w.device->ops->graph_launch(exec, w.stream), 0);
		world_sync(&w);
		world_verify(&w);
		memcpy(replayed, w.out, 8 * w.width * sizeof(float));
		world_run(&w);
		assert_memory_equal(w.out, replayed, 8 * w.width * sizeof(float));
	}
	w.device->ops->graph_exec_free(exec);
	world_deinit(&w);
	free(replayed);
}

/* F32: queries inside of fused rows, whatever lies between them. */
static void test_replay_reads_strided_queries(void **state)
{
	static const struct row rows[] = {
		{ .seed = 21, .n_query = 2, .seq_len = 33 },
		{ .seed = 22, .n_query = 2, .seq_len = 150 },
		{ .seed = 23, .n_query = 2, .seq_len = 8 },
	};
	static const uint32_t between[] = { 0, 13, 96 }; /* what world.c has room for */

	(void)state;
	for (size_t i = 0; i < sizeof(between) / sizeof(between[0]); i++) {
		struct graph_exec *exec;
		struct world w;

		world_init(&w, "paged", &ordinary);
		assert_true(w.width + between[i] <= w.q_stride);
		w.q_stride = w.width + between[i];
		exec = capture_decode(&w, 4, 2);
		for (uint32_t n_rows = 1; n_rows <= 3; n_rows++) {
			world_place(&w, rows, n_rows, 4, 8);
			world_poison_out(&w);
			assert_int_equal(w.device->ops->graph_launch(exec, w.stream), 0);
			world_sync(&w);
			world_verify(&w);
		}
		w.device->ops->graph_exec_free(exec);
		world_deinit(&w);
	}
}

static int run_captured(struct world *w)
{
	const struct device_ops *ops = w->device->ops;
	struct graph *graph = NULL;
	int rc;

	assert_int_equal(world_build(w, ATTENTION_CAPTURE), 0);
	assert_int_equal(ops->capture_begin(w->stream), 0);
	rc = world_enqueue(w, 1);
	assert_int_equal(ops->capture_end(w->stream, &graph), 0);
	ops->graph_free(graph);
	return rc;
}

static void test_naive_refuses_a_capturing_stream(void **state)
{
	struct row row = { .seed = 1, .n_query = 1, .seq_len = 9 };
	struct world w;

	(void)state;
	world_init(&w, "naive", &ordinary);
	world_place(&w, &row, 1, 0, 0);
	world_run(&w);
	assert_int_equal(run_captured(&w), -ENOTSUP);
	world_deinit(&w);
}

static void test_paged_refuses_to_capture_more_than_its_level(void **state)
{
	static const struct row mixed[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 9 },
		{ .seed = 2, .n_query = 3, .seq_len = 9 },
	};
	static const struct row longest = { .seed = 1, .n_query = 16, .seq_len = 30 };
	static const struct row too_long = { .seed = 1, .n_query = 17, .seq_len = 30 };
	struct world w;

	(void)state;
	world_init(&w, "paged", &ordinary);
	world_place(&w, mixed, 2, 0, 0);
	world_run(&w);
	assert_int_equal(run_captured(&w), -ENOTSUP);
	world_place(&w, &longest, 1, 0, 0);
	assert_int_equal(run_captured(&w), 0);
	world_place(&w, &too_long, 1, 0, 0);
	assert_int_equal(run_captured(&w), -ENOTSUP);
	world_deinit(&w);
}

static void test_warm_up_of_any_batch_loads_what_later_ones_need(void **state)
{
	struct row row = { .seed = 1, .n_query = 40, .seq_len = 130 };
	struct world w;

	(void)state;
	for (size_t b = 0; b < sizeof(backends) / sizeof(*backends); b++) {
		world_init(&w, backends[b], &ordinary);
		world_place(&w, NULL, 0, 1, 1);
		world_run(&w);
		assert_int_equal(w.device->ops->lock(w.device), 0);
		world_place(&w, &row, 1, 0, 0);
		world_run(&w);
		world_verify(&w);
		world_deinit(&w);
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
