/* SPDX-License-Identifier: MIT */
/* Latent attention under capture and replay, and what its warm-up has to load. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/latent.h"
#include "tests/device.h"

/* A graph of two layers, of n_rows rows of n_query tokens, warmed up with an object of its own. */
static struct graph *capture_decode(struct latent_world *w, uint32_t n_rows, uint32_t n_query)
{
	const struct device_ops *ops = w->device->ops;
	struct latent_row rows[LATENT_ROWS];
	struct graph *graph = NULL;

	for (uint32_t r = 0; r < n_rows; r++)
		rows[r] = (struct latent_row){ .seed = 1 + r, .n_query = n_query, .seq_len = n_query };
	latent_place(w, rows, n_rows, 0, 0);
	assert_int_equal(latent_build(w, ATTENTION_WARM_UP), 0);
	assert_int_equal(latent_enqueue(w), 0);
	assert_int_equal(ops->stream_sync(w->stream), 0);
	assert_int_equal(ops->lock(w->device), 0);
	w->backend->metadata_free(w->metadata);
	assert_int_equal(w->backend->metadata_new(w->manager, &w->metadata), 0);
	assert_int_equal(latent_build(w, ATTENTION_CAPTURE), 0);
	assert_int_equal(ops->capture_begin(w->stream), 0);
	assert_int_equal(latent_enqueue(w), 0);
	assert_int_equal(latent_enqueue(w), 0);
	assert_int_equal(ops->capture_end(w->stream, &graph), 0);
	return graph;
}

static void test_replay_at_other_lengths_equals_eager(void **state)
{
	static const struct latent_row rows[] = {
		{ .seed = 11, .n_query = 2, .seq_len = 297 },
		{ .seed = 12, .n_query = 2, .seq_len = 2 },
		{ .seed = 13, .n_query = 2, .seq_len = 65 },
	};
	float *replayed = calloc(LATENT_TOKENS * 32, sizeof(float));
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < 2 * N_MLA; b++) {
		struct graph_exec *exec = NULL;
		struct graph *graph;

		latent_init(&w, latent_backends[b / 2], latent_shapes[b % 2]);
		graph = capture_decode(&w, 4, 2);
		assert_int_equal(w.device->ops->graph_instantiate(w.device, graph, &exec), 0);
		w.device->ops->graph_free(graph);
		for (uint32_t n_rows = 0; n_rows <= 3; n_rows++) {
			latent_place(&w, rows, n_rows, 4, 8);
			latent_poison_out(&w);
			assert_int_equal(w.device->ops->graph_launch(exec, w.stream), 0);
			latent_fetch(&w);
			latent_verify(&w);
			memcpy(replayed, w.out, 8 * w.out_width * sizeof(float));
			latent_run(&w);
			assert_memory_equal(w.out, replayed, 8 * w.out_width * sizeof(float));
		}
		w.device->ops->graph_exec_free(exec);
		latent_deinit(&w);
	}
	free(replayed);
}

static uint32_t nodes_called(struct latent_world *w, struct graph *graph, const char *name)
{
	const char *node;
	uint32_t n = 0;

	for (uint32_t i = 0; (node = w->device->ops->graph_node_name(graph, i)); i++)
		n += strcmp(node, name) == 0;
	return n;
}

static void test_lazy_plan_is_recorded_once_for_all_layers_of_a_graph(void **state)
{
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < N_MLA; b++) {
		struct graph *graph;

		latent_init(&w, latent_backends[b], &latent_ordinary);
		graph = capture_decode(&w, 4, 1);
		assert_int_equal(nodes_called(&w, graph, "mla_plan"), b == 1);
		assert_int_equal(nodes_called(&w, graph, "mla_split"), 2);
		assert_int_equal(nodes_called(&w, graph, "mla_merge"), 2);
		w.device->ops->graph_free(graph);
		latent_deinit(&w);
	}
}

static int run_captured(struct latent_world *w)
{
	const struct device_ops *ops = w->device->ops;
	struct graph *graph = NULL;
	int rc;

	assert_int_equal(latent_build(w, ATTENTION_CAPTURE), 0);
	assert_int_equal(ops->capture_begin(w->stream), 0);
	rc = latent_enqueue(w);
	assert_int_equal(ops->capture_end(w->stream, &graph), 0);
	ops->graph_free(graph);
	return rc;
}

static void test_no_more_than_the_level_is_captured(void **state)
{
	static const struct latent_row mixed[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 9 }, { .seed = 2, .n_query = 3, .seq_len = 9 },
	};
	static const struct latent_row longest = { .seed = 1, .n_query = 16, .seq_len = 30 };
	static const struct latent_row too_long = { .seed = 1, .n_query = 17, .seq_len = 30 };
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < latent_n_backends(); b++) {
		latent_init(&w, latent_backends[b], &latent_ordinary);
		latent_place(&w, mixed, 2, 0, 0);
		latent_run(&w);
		assert_int_equal(run_captured(&w), -ENOTSUP);
		latent_place(&w, &longest, 1, 0, 0);
		assert_int_equal(run_captured(&w), b < N_MLA ? 0 : -ENOTSUP);
		latent_place(&w, &too_long, 1, 0, 0);
		assert_int_equal(run_captured(&w), -ENOTSUP);
		latent_deinit(&w);
	}
}

static void test_warm_up_of_any_batch_loads_what_later_ones_need(void **state)
{
	struct latent_row row = { .seed = 1, .n_query = 100, .seq_len = 300 };
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < 2 * latent_n_backends(); b++) {
		latent_init(&w, latent_backends[b / 2], latent_shapes[b % 2]);
		latent_place(&w, NULL, 0, 1, 1);
		latent_run(&w);
		assert_int_equal(w.device->ops->lock(w.device), 0);
		latent_place(&w, &row, 1, 0, 0);
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
}

static void test_warm_up_by_a_prompt_alone_loads_what_decodes_need(void **state)
{
	static const struct latent_row prompt = { .seed = 1, .n_query = 100, .seq_len = 300 };
	static const struct latent_row decode = { .seed = 2, .n_query = 2, .seq_len = 70 };
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < N_MLA; b++) {
		latent_init(&w, latent_backends[b], &latent_ordinary);
		latent_place(&w, &prompt, 1, 0, 0);
		latent_run(&w);
		assert_int_equal(w.device->ops->lock(w.device), 0);
		latent_place(&w, &decode, 1, 0, 0);
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
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
