/* SPDX-License-Identifier: MIT */
/* Attention under block masks in graphs, and in caches of more elements than 31 bits count. */
#include "tests/attention/flex_group.h"

/* ---- graphs ---- */

/* Warmed up and captured with nothing to do. */
static struct graph_exec *capture(struct fixture *f)
{
	struct graph *graph;

	fixture_place(f, NULL, 0, FIXTURE_ROWS, FIXTURE_TOKENS);
	graph = fixture_record(f, 1);
	assert_string_equal(f->device->ops->graph_node_name(graph, 0), "flex_attention");
	assert_null(f->device->ops->graph_node_name(graph, 1));
	return fixture_instantiate(f, graph);
}

static void replay(struct fixture *f, struct graph_exec *exec)
{
	assert_int_equal(fixture_build(f, ATTENTION_REPLAY), 0);
	fixture_replay(f, exec);
}

/* Decodes beside chunks, each under a mask of its own. */
static void test_replay_of_mixed_batches_and_masks_equals_eager(void **state)
{
	static uint64_t words[FIXTURE_ROWS][LENGTH];
	uint64_t dice = 21;
	struct graph_exec *exec;
	struct fixture f;

	fixture_init(&f, NULL, "flex", FLEX_ORDINARY);
	exec = capture(&f);
	for (int round = 0; round < 20; round++) {
		struct row rows[FIXTURE_ROWS];
		uint32_t n_rows = flex_draw_rows(&dice, 16, rows, words);

		if (round == 10)
			n_rows = 0;
		fixture_check_replay(&f, exec, rows, n_rows, FIXTURE_ROWS, FIXTURE_TOKENS, false);
	}
	f.device->ops->graph_exec_free(exec);
	fixture_deinit(&f);
}

/* The small batch finds nothing of the big one's plan, although both have the same padding. */
static void test_small_batch_after_a_big_one_has_a_plan_of_its_own(void **state)
{
	struct row big[FIXTURE_ROWS], small = { .seed = 40, .n_query = 1, .seq_len = 3 };
	struct graph_exec *exec;
	struct fixture f;

	for (uint32_t r = 0; r < FIXTURE_ROWS; r++)
		big[r] = (struct row){ .seed = r, .n_query = 50, .seq_len = LENGTH };
	fixture_init(&f, NULL, "flex", FLEX_ORDINARY);
	exec = capture(&f);
	for (int turn = 0; turn < 2; turn++) {
		fixture_place(&f, turn ? &small : big, turn ? 1 : FIXTURE_ROWS, FIXTURE_ROWS,
			FIXTURE_TOKENS);
		replay(&f, exec);
		fixture_verify(&f);
	}
	f.device->ops->graph_exec_free(exec);
	fixture_deinit(&f);
}

static void test_graph_with_its_own_plan_sees_the_lengths_of_its_time(void **state)
{
	static const struct row longer = { .seed = 5, .n_query = 1, .seq_len = 280 };
	struct fixture f;

	fixture_init(&f, NULL, "flex", FLEX_ORDINARY);
	fixture_check_recorded_plan(&f, &longer);
	fixture_deinit(&f);
}

/* ---- a cache beyond 2^31 elements ---- */

static void verify_far(const struct shape *shape)
{
	const struct row rows[] = {
		{ .seed = 9, .n_query = 20, .seq_len = 140,
			.mask = { .kind = MASK_WINDOW, .window = 50, .end = 20 } },
		{ .seed = 10, .n_query = 1, .seq_len = 299 },
	};
	struct fixture f;

	fixture_init(&f, flex_device, "flex", shape);
	fixture_go_far(&f);
	fixture_check(&f, rows, 2, 0, 0);
	fixture_deinit(&f);
}

static void test_cache_past_2_31_elements_is_addressed_in_64_bits(void **state)
{
	struct shape shape = { .n_heads = 2, .n_kv_heads = 2, .head_dim = 64,
		.page_tokens = 16, .max_seq_len = LENGTH };

	verify_far(&shape);
	/* the same bytes a page, of which a cuda device has no fast kernel */
	shape.head_dim = 32;
	shape.n_heads = shape.n_kv_heads = 4;
	verify_far(&shape);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replay_of_mixed_batches_and_masks_equals_eager),
		cmocka_unit_test(test_small_batch_after_a_big_one_has_a_plan_of_its_own),
		cmocka_unit_test(test_graph_with_its_own_plan_sees_the_lengths_of_its_time),
		cmocka_unit_test(test_cache_past_2_31_elements_is_addressed_in_64_bits),
	};

	return cmocka_run_group_tests_name(
		"block masks in graphs", tests, flex_device_open, flex_device_free);
}
