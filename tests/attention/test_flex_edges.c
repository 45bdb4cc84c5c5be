/* SPDX-License-Identifier: MIT */
/* Attention under block masks where lengths and scores are at their edges. */
#include <errno.h>

#include "attention/flex/flex.h"
#include "tests/attention/flex_group.h"

#define EDGE_LENGTH 150u

static const struct shape ordinary = {
	.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .page_tokens = 4, .max_seq_len = EDGE_LENGTH,
};

/* Its last keys lie in the last block of keys, which is not a whole one. */
static void test_sequence_as_long_as_its_pages_is_seen_to_its_end(void **state)
{
	struct row row = { .seed = 3, .n_query = 20 };
	struct fixture f;

	fixture_init(&f, flex_device, "flex", &ordinary);
	row.seq_len = f.config.max_seq_len = f.config.max_pages * f.config.page_tokens;
	assert_true(row.seq_len % flex_inputs_in(&f).n_keys > 0);
	fixture_remake(&f);
	fixture_check(&f, &row, 1, 0, 0);
	fixture_deinit(&f);
}

/* A row that says more tokens than its sequence has: the first ones have no position, and see
 * nothing. */
static void test_tokens_ahead_of_their_sequence_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 5, .seq_len = 2 },
		{ .seed = 2, .n_query = 40, .seq_len = 33 },
	};
	struct fixture f;

	fixture_init(&f, flex_device, "flex", &ordinary);
	fixture_run_rows(&f, rows, 2, 4, 60);
	for (uint32_t r = 0; r < 2; r++) {
		uint32_t n_ahead = rows[r].n_query - rows[r].seq_len;

		for (uint32_t e = 0; e < n_ahead * f.width; e++)
			assert_true(fixture_out(&f, r, 0)[e] == 0.0f);
		for (uint32_t e = 0; e < rows[r].seq_len * f.width; e++)
			assert_true(isfinite(fixture_out(&f, r, n_ahead)[e]) &&
				fixture_out(&f, r, n_ahead)[e] != 0.0f);
	}
	fixture_deinit(&f);
}

/* Scores past the range of a float's exp, both ways: only their differences count. */
static void test_scores_beyond_the_range_of_exp_give_what_the_formula_gives(void **state)
{
	static const char *const backends[] = { "naive", "paged", "flex" };
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 4, .seq_len = EDGE_LENGTH },
		{ .seed = 2, .n_query = 9, .seq_len = 9 },
	};
	struct fixture f;

	for (size_t b = test_on_cuda() ? 1 : 0; b < 3; b++) {
		fixture_init(&f, flex_device, backends[b], &ordinary);
		f.config.scale *= 400;
		fixture_remake(&f);
		fixture_check(&f, rows, 2, 0, 0);
		fixture_deinit(&f);
	}
}

static void test_runs_without_a_build_and_of_other_shapes_are_refused(void **state)
{
	const struct row row = { .seed = 1, .n_query = 2, .seq_len = 5 };
	struct fixture f;

	fixture_init(&f, flex_device, "flex", &ordinary);
	fixture_place(&f, &row, 1, 0, 0);
	assert_int_equal(fixture_enqueue(&f, 1), -EINVAL); /* nothing built */
	assert_int_equal(fixture_build(&f, ATTENTION_EAGER), 0);
	assert_int_equal(fixture_enqueue(&f, f.config.n_layers), -EINVAL);
	f.batch.n_tokens++; /* what the lengths do not add up to */
	assert_int_equal(fixture_build(&f, ATTENTION_EAGER), -EINVAL);
	assert_int_equal(fixture_enqueue(&f, 1), -EINVAL); /* the build before is gone, too */
	fixture_deinit(&f);
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

	return cmocka_run_group_tests_name(
		"block masks at their edges", tests, flex_device_open, flex_device_free);
}
