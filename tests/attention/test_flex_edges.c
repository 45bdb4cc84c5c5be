/* SPDX-License-Identifier: MIT */
/* Attention under block masks where lengths and scores are at their edges. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "attention/flex/flex.h"
#include "tests/attention/flex_group.h"

#define EDGE_LENGTH 150u

static const struct shape ordinary = {
	.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .page_tokens = 4, .max_seq_len = EDGE_LENGTH,
};

/* The backend anew, with the configuration as it is now. */
static void remake(struct world *w)
{
	w->backend->metadata_free(w->metadata);
	w->backend->manager_free(w->manager);
	assert_int_equal(
		w->backend->manager_new(w->device, &w->config, &w->at_device, &w->manager), 0);
	assert_int_equal(w->backend->metadata_new(w->manager, &w->metadata), 0);
}

/* Its last keys lie in the last block of keys, which is not a whole one. */
static void test_sequence_as_long_as_its_pages_is_seen_to_its_end(void **state)
{
	struct row row = { .seed = 3, .n_query = 20 };
	struct world w;

	(void)state;
	world_init_on(&w, flex_device, "flex", &ordinary);
	row.seq_len = w.config.max_seq_len = w.config.max_pages * w.config.page_tokens;
	assert_true(row.seq_len % flex_inputs_in(&w).n_keys > 0);
	remake(&w);
	world_place(&w, &row, 1, 0, 0);
	world_run(&w);
	world_verify(&w);
	world_deinit(&w);
}

/* A row that says more tokens than its sequence has: the first ones have no position, and see nothing. */
static void test_tokens_ahead_of_their_sequence_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 5, .seq_len = 2 },
		{ .seed = 2, .n_query = 40, .seq_len = 33 },
	};
	struct world w;

	(void)state;
	world_init_on(&w, flex_device, "flex", &ordinary);
	world_place(&w, rows, 2, 4, 60);
	world_run(&w);
	for (uint32_t r = 0; r < 2; r++) {
		uint32_t n_ahead = rows[r].n_query - rows[r].seq_len;

		for (uint32_t e = 0; e < n_ahead * w.width; e++)
			assert_true(world_out(&w, r, 0)[e] == 0.0f);
		for (uint32_t e = 0; e < rows[r].seq_len * w.width; e++)
			assert_true(isfinite(world_out(&w, r, n_ahead)[e]) &&
				world_out(&w, r, n_ahead)[e] != 0.0f);
	}
	world_deinit(&w);
}

/* Beyond what exp of a float can be, in both directions: what counts is how far scores are apart. */
static void test_scores_beyond_the_range_of_exp_give_what_the_formula_gives(void **state)
{
	static const char *const backends[] = { "naive", "paged", "flex" };
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 4, .seq_len = EDGE_LENGTH },
		{ .seed = 2, .n_query = 9, .seq_len = 9 },
	};
	struct world w;

	(void)state;
	for (size_t b = test_on_cuda() ? 1 : 0; b < 3; b++) {
		world_init_on(&w, flex_device, backends[b], &ordinary);
		w.config.scale *= 400;
		remake(&w);
		world_place(&w, rows, 2, 0, 0);
		world_run(&w);
		world_verify(&w);
		world_deinit(&w);
	}
}

static void test_runs_without_a_build_and_of_other_shapes_are_refused(void **state)
{
	const struct row row = { .seed = 1, .n_query = 2, .seq_len = 5 };
	struct world w;

	(void)state;
	world_init_on(&w, flex_device, "flex", &ordinary);
	world_place(&w, &row, 1, 0, 0);
	assert_int_equal(world_enqueue(&w, 1), -EINVAL); /* nothing built */
	assert_int_equal(world_build(&w, ATTENTION_EAGER), 0);
	assert_int_equal(world_enqueue(&w, w.config.n_layers), -EINVAL);
	w.batch.n_tokens++; /* what the lengths do not add up to */
	assert_int_equal(world_build(&w, ATTENTION_EAGER), -EINVAL);
	assert_int_equal(world_enqueue(&w, 1), -EINVAL); /* the build before is gone, too */
	world_deinit(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sequence_as_long_as_its_pages_is_seen_to_its_end),
		cmocka_unit_test(test_tokens_ahead_of_their_sequence_give_zero),
		cmocka_unit_test(
			test_scores_beyond_the_range_of_exp_give_what_the_formula_gives),
		cmocka_unit_test(test_runs_without_a_build_and_of_other_shapes_are_refused),
	};
	static const struct test_cpu_only only[] = {
		{ NULL, NULL },
	};

	return TEST_RUN_GROUP("block masks at their edges", tests, only, flex_device_open,
		flex_device_free);
}
