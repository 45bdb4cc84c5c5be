/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_ops_fixture.h"

enum {
	MAX_ROWS = 4,
	MAX_TOKENS = 24,
	MAX_SLOTS = 5,
	MAX_PAGES = 8,
	PAGE_TOKENS = 4,
	N_SETS = 3,
	WINDOW = 6,
	N_PAGES = 200,
};

/* Rows of slots 3, none and 1: 2 tokens behind 17, one token, 5 tokens from the beginning. */
static struct step_inputs inputs(void)
{
	static const int32_t query_start[] = {0, 2, 3, 8, 8}, seq_lens[] = {19, 0, 5, 0}, row_slot[] = {3, -1, 1, -1};
	struct step_inputs in = {
		.max_rows = MAX_ROWS,
		.max_tokens = MAX_TOKENS,
		.max_slots = MAX_SLOTS,
		.max_pages = MAX_PAGES,
		.page_tokens = PAGE_TOKENS,
		.n_sets = N_SETS,
		.slot_mapping = buffer_new(N_SETS * MAX_TOKENS * 4).data,
		.query_start = buffer_new(sizeof(query_start)).data,
		.seq_lens = buffer_new(sizeof(seq_lens)).data,
		.row_slot = buffer_new(sizeof(row_slot)).data,
		.block_table = buffer_new(N_SETS * MAX_ROWS * MAX_PAGES * 4).data,
		.slot_block_table = buffer_new(N_SETS * MAX_SLOTS * MAX_PAGES * 4).data,
	};

	memcpy(in.query_start, query_start, sizeof(query_start));
	memcpy(in.seq_lens, seq_lens, sizeof(seq_lens));
	memcpy(in.row_slot, row_slot, sizeof(row_slot));
	/* what prepare writes: places of the first set, the row without a slot and the tail without one */
	for (int t = 0; t < MAX_TOKENS; t++)
		in.slot_mapping[t] = t < 8 && t != 2 ? t : -1;
	return in;
}

static int32_t *slot_pages(const struct step_inputs *in, int set, int slot)
{
	return in->slot_block_table + (set * MAX_SLOTS + slot) * MAX_PAGES;
}

static int32_t *row_pages(const struct step_inputs *in, int set, int row)
{
	return in->block_table + (set * MAX_ROWS + row) * MAX_PAGES;
}

/* Pages of each set: 10, 11 ... of slot 3, 30 ... of slot 1, 100 more in the last set. */
static void run(struct step_inputs *in, uint32_t n_full_sets)
{
	static const uint32_t pages[] = {10, 11, 12, 13, 14, 110, 111, 112, 113, 114, 30, 31, 130, 131};
	static const struct set_change changes[] = {
		{3, 1, 0, 5, 0}, {3, 2, 0, 5, 5}, {1, 1, 0, 2, 10}, {1, 2, 0, 2, 12}};
	const struct op_set_tables a = {
		.inputs = *in, .changes = changes, .pages = pages, .n_changes = 4, .n_rows = MAX_ROWS,
		.n_pages = N_PAGES, .n_full_sets = n_full_sets, .window = WINDOW,
	};

	RUN(set_tables, &a);
}

static void test_tables_of_each_set_have_its_own_pages(void **state)
{
	struct step_inputs in = inputs();

	run(&in, 2);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(row_pages(&in, 1, 0)[i], 10 + i);
		assert_int_equal(row_pages(&in, 2, 0)[i], i < 3 ? 0 : 110 + i); /* token 17 sees 12 ... 17 */
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(row_pages(&in, 1, 2)[i], 30 + i);
		assert_int_equal(row_pages(&in, 2, 2)[i], 130 + i);
	}
	assert_int_equal(row_pages(&in, 0, 0)[0], -1); /* prepare's: poisoned here */
	for (int i = 0; i < MAX_PAGES; i++)
		assert_true(row_pages(&in, 1, 1)[i] == 0 && row_pages(&in, 2, 3)[i] == 0);
}

static void test_tokens_are_placed_in_the_pages_of_each_set(void **state)
{
	struct step_inputs in = inputs();

	run(&in, 1);
	for (int set = 1; set < N_SETS; set++) {
		const int32_t *mapping = in.slot_mapping + set * MAX_TOKENS;
		const int32_t more = set == 1 ? 0 : 100 * PAGE_TOKENS;

		assert_int_equal(mapping[0], 14 * PAGE_TOKENS + 1 + more);
		assert_int_equal(mapping[1], 14 * PAGE_TOKENS + 2 + more);
		assert_int_equal(mapping[2], -1);
		assert_int_equal(mapping[3], 30 * PAGE_TOKENS + more);
		assert_int_equal(mapping[7], 31 * PAGE_TOKENS + more);
		for (int t = 8; t < MAX_TOKENS; t++)
			assert_int_equal(mapping[t], -1);
	}
}

/* A page that has left the window may hold another sequence's tokens. */
static void test_first_set_with_a_window_loses_its_pages_too(void **state)
{
	struct step_inputs in = inputs();

	for (int i = 0; i < 5; i++)
		slot_pages(&in, 0, 3)[i] = 50 + i;
	run(&in, 0);
	for (int i = 0; i < 5; i++)
		assert_int_equal(row_pages(&in, 0, 0)[i], i < 3 ? 0 : 50 + i);
	assert_int_equal(in.slot_mapping[0], 54 * PAGE_TOKENS + 1);
	assert_int_equal(in.slot_mapping[2], -1);
}

static void test_changes_out_of_range_write_nothing_else(void **state)
{
	static const uint32_t pages[] = {7, N_PAGES, 9};
	static const struct set_change changes[] = {{4, 1, 6, 3, 0}, {-1, 1, 0, 1, 0}, {2, N_SETS, 0, 1, 0}};
	struct step_inputs in = inputs();
	const struct op_set_tables a = {
		.inputs = in, .changes = changes, .pages = pages, .n_changes = 3, .n_rows = 0,
		.n_pages = N_PAGES, .n_full_sets = 1, .window = WINDOW,
	};

	RUN(set_tables, &a);
	assert_int_equal(slot_pages(&in, 1, 4)[6], 7);
	assert_int_equal(slot_pages(&in, 1, 4)[7], 0);
	assert_int_equal(slot_pages(&in, 2, 0)[0], -1); /* poisoned */
	assert_int_equal(slot_pages(&in, 1, 2)[0], -1);
}

static void test_sets_without_their_arrays_are_refused(void **state)
{
	struct op_set_tables a = {.inputs = inputs(), .n_pages = N_PAGES, .n_full_sets = 1, .window = WINDOW};

	a.window = 0;
	assert_refused(set_tables, &a);
	a.window = WINDOW;
	a.n_full_sets = N_SETS + 1;
	assert_refused(set_tables, &a);
	a.n_full_sets = 1;
	a.inputs.max_drafts = 1;
	assert_refused(set_tables, &a);
	a.inputs.max_drafts = 0;
	a.inputs.slot_block_table = NULL;
	assert_refused(set_tables, &a);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_tables_of_each_set_have_its_own_pages),
	cmocka_unit_test(test_tokens_are_placed_in_the_pages_of_each_set),
	cmocka_unit_test(test_first_set_with_a_window_loses_its_pages_too),
	cmocka_unit_test(test_changes_out_of_range_write_nothing_else),
	cmocka_unit_test(test_sets_without_their_arrays_are_refused),
};

OPS_TEST_MAIN("cpu ops: sets", tests)
