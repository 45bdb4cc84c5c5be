/* SPDX-License-Identifier: MIT */
/* Steps of rows to verify, and what prepare makes of them; verify is in test_cpu_ops_verify.c. */
#include "tests/kernels/speculate_fixture.h"

enum {
	MAX_ROWS = 6,
	MAX_TOKENS = 40,
	MAX_SLOTS = 8,
	MAX_PAGES = 6,
	PAGE_TOKENS = 4,
	VOCAB = 100,
	K = 3,
	N_PAGES = 64,
	CAPACITY = MAX_PAGES * PAGE_TOKENS,
};

static const struct step_inputs sizes = {
	.max_rows = MAX_ROWS,
	.max_tokens = MAX_TOKENS,
	.max_slots = MAX_SLOTS,
	.max_pages = MAX_PAGES,
	.page_tokens = PAGE_TOKENS,
	.vocab_size = VOCAB,
	.max_drafts = K,
};

static const struct slot_sampling greedy = {.top_p = 1};

/* Slot s holds 2 s + 1 tokens, its last one is 50 + s and its drafts are 10 s, 10 s + 1, ... */
static void set_slots(struct rig *rig)
{
	rig_init_slots(rig, MAX_PAGES, K, &greedy);
	for (int32_t s = 0; s < MAX_SLOTS; s++) {
		rig->in.slot_length[s] = 2 * s + 1;
		rig->in.slot_last_token[s] = 50 + s;
		for (int32_t i = 0; i < K; i++)
			drafts_of(rig, s)[i] = 10 * s + i;
	}
}

static void setup(struct rig *rig)
{
	rig_init(rig, &sizes, N_PAGES);
	set_slots(rig);
}

/* What a slot has ahead of a step. */
struct before {
	int32_t length[MAX_SLOTS], drafts[MAX_SLOTS][K], last_token[MAX_SLOTS];
};

static struct before before_step(const struct rig *rig)
{
	struct before before;

	memcpy(before.length, rig->in.slot_length, sizeof(before.length));
	memcpy(before.drafts, rig->in.slot_drafts, sizeof(before.drafts));
	memcpy(before.last_token, rig->in.slot_last_token, sizeof(before.last_token));
	return before;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Token j of a row, which is batch token t. */
static void check_token(const struct rig *rig, const struct before *before,
	const struct step_record *record, const struct step_row *row, uint32_t j, uint32_t t)
{
	const struct step_inputs *in = &rig->in;
	bool verify = row->flags & ROW_VERIFY, of_slot = verify || (row->flags & ROW_FROM_SLOT);
	int32_t s = row->slot, id = record->ids[t];
	uint32_t position;

	if (s < 0) {
		assert_int_equal(in->input_ids[t], 0);
		assert_int_equal(in->slot_mapping[t], -1);
		return;
	}
	position = (of_slot ? (uint32_t)before->length[s] : row->start) + j;
	if (of_slot && j == 0)
		id = before->last_token[s];
	else if (verify)
		id = before->drafts[s][j - 1] < 0 ? 0 : before->drafts[s][j - 1];
	assert_int_equal(in->input_ids[t], id);
	assert_null(in->embedding_from[t]);
	assert_int_equal(in->positions[t], least(position, CAPACITY - 1));
	assert_int_equal(in->slot_mapping[t], cache_slot_of(rig, s, position));
}

static void check_row(const struct rig *rig, const struct before *before,
	const struct step_record *record, uint32_t r, uint32_t t)
{
	const struct step_inputs *in = &rig->in;
	const struct step_row *row = &record->rows[r];
	bool verify = row->flags & ROW_VERIFY, of_slot = verify || (row->flags & ROW_FROM_SLOT);
	bool empty = row->slot < 0;
	int32_t s = empty ? 0 : row->slot;
	uint32_t n = row->n_tokens;
	uint32_t end = least((of_slot ? (uint32_t)before->length[s] : row->start) + n, CAPACITY);

	assert_int_equal(in->query_start[r], t);
	assert_int_equal(in->row_slot[r], empty ? -1 : s);
	assert_int_equal(in->row_flags[r], empty ? 0 : row->flags);
	assert_int_equal(in->next_ids[r], empty ? -1 : row->next_id);
	assert_int_equal(in->seq_lens[r], empty ? 0 : end);
	for (uint32_t i = 0; i <= K; i++) {
		int32_t index = in->logit_index[r * (1 + K) + i];

		if (verify)
			assert_int_equal(index, i < n ? t + i : 0);
		else
			assert_int_equal(index, n && i == 0 ? t + n - 1 : 0);
	}
	for (uint32_t p = 0; p < MAX_PAGES; p++)
		if (empty || p * PAGE_TOKENS < end + K)
			assert_int_equal(in->block_table[r * MAX_PAGES + p],
				empty ? 0 : in->slot_block_table[s * MAX_PAGES + (int32_t)p]);
	for (uint32_t j = 0; j < n; j++)
		check_token(rig, before, record, row, j, t + j);
	if (empty)
		return;
	assert_int_equal(in->slot_length[s], verify ? before->length[s] : (int32_t)end);
	for (uint32_t i = 0; i < K; i++)
		assert_int_equal(drafts_of(rig, s)[i], verify ? before->drafts[s][i] : -1);
}

/* All that the contract says of a step, its tails and the slots that it does not name. */
static void check_step(
	const struct rig *rig, const struct before *before, const struct step_record *record)
{
	const struct step_inputs *in = &rig->in;
	bool named[MAX_SLOTS] = {false};
	uint32_t t = 0;

	for (uint32_t r = 0; r < record->n_rows; r++) {
		check_row(rig, before, record, r, t);
		t += record->rows[r].n_tokens;
		if (record->rows[r].slot >= 0)
			named[record->rows[r].slot] = true;
	}
	for (uint32_t r = record->n_rows; r < MAX_ROWS; r++) {
		assert_int_equal(in->query_start[r], t);
		assert_int_equal(in->seq_lens[r], 0);
		assert_int_equal(in->row_slot[r], -1);
		assert_int_equal(in->next_ids[r], -1);
		for (uint32_t i = 0; i <= K; i++)
			assert_int_equal(in->logit_index[r * (1 + K) + i], 0);
	}
	for (uint32_t i = t; i < MAX_TOKENS; i++) {
		assert_int_equal(in->input_ids[i], 0);
		assert_int_equal(in->positions[i], 0);
		assert_int_equal(in->slot_mapping[i], -1);
	}
	for (int32_t s = 0; s < MAX_SLOTS; s++) {
		assert_int_equal(in->slot_last_token[s], before->last_token[s]);
		if (named[s])
			continue;
		assert_int_equal(in->slot_length[s], before->length[s]);
		assert_memory_equal(drafts_of(rig, s), before->drafts[s], K * sizeof(int32_t));
	}
}

static void run_and_check(
	struct rig *rig, const struct step_row *rows, uint32_t n_rows, uint32_t padded_rows)
{
	const struct before before = before_step(rig);
	struct step_record record;
	int32_t ids[MAX_TOKENS];

	for (int32_t t = 0; t < MAX_TOKENS; t++)
		ids[t] = 99 - t;
	record = record_of(rows, n_rows, padded_rows, ids);
	rig_prepare(rig, rows, n_rows, padded_rows, ids);
	check_step(rig, &before, &record);
}

/* ---- prepare ---- */

#define VERIFY(s, ...)                                                                             \
	{                                                                                          \
		.slot = (s), .flags = ROW_VERIFY | ROW_SAMPLE, .n_tokens = 1 + K, .start = 17,     \
		.next_id = -1, __VA_ARGS__                                                         \
	}

static const struct step_row big_rows[MAX_ROWS] = {
	VERIFY(3),
	{.slot = 5, .flags = ROW_SAMPLE, .n_tokens = 7, .start = 8, .next_id = -1},
	{.slot = 1, .flags = ROW_FROM_SLOT | ROW_SAMPLE, .n_tokens = 1, .start = 9, .next_id = -1},
	VERIFY(7),
	{.slot = -1, .n_tokens = 2, .next_id = 77},
	{.slot = 0, .n_tokens = 16, .start = 2, .next_id = 34},
};

static void test_rows_to_verify_begin_where_their_slots_say_beside_rows_that_do_not(void **state)
{
	struct rig rig;

	setup(&rig);
	run_and_check(&rig, big_rows, MAX_ROWS, MAX_ROWS);
	assert_int_equal(rig.in.input_ids[0], 53);
	assert_int_equal(rig.in.input_ids[3], 32);
	assert_int_equal(rig.in.positions[3], 7 + 3);
	assert_int_equal(rig.in.seq_lens[0], 7 + 1 + K);
	assert_int_equal(rig.in.slot_length[1], 3 + 1);
	assert_int_equal(rig.in.slot_length[5], 8 + 7);
	rig_deinit(&rig);
}

static void test_a_small_step_leaves_nothing_of_a_big_one_to_verify(void **state)
{
	static const struct step_row small[] = {VERIFY(2)};
	struct rig rig;

	for (uint32_t padded = 0; padded < 4; padded++) {
		setup(&rig);
		run_and_check(&rig, big_rows, MAX_ROWS, MAX_ROWS);
		run_and_check(&rig, small, padded ? 1 : 0, padded);
		rig_deinit(&rig);
	}
}

static void test_logits_of_last_tokens_alone_are_one_a_row_behind_a_step_that_verifies(void **state)
{
	static const struct step_row rows[] = {
		{.slot = 5, .flags = ROW_SAMPLE, .n_tokens = 7, .start = 8, .next_id = -1},
		{.slot = -1, .n_tokens = 2, .next_id = 77},
		{.slot = 1, .flags = ROW_FROM_SLOT | ROW_SAMPLE, .n_tokens = 1, .next_id = -1},
	};
	static const int32_t want[] = {6, 8, 9}, ids[MAX_TOKENS] = {0};
	struct step_record record = record_of(rows, 3, 4, ids);
	struct rig rig;

	setup(&rig);
	run_and_check(&rig, big_rows, MAX_ROWS, MAX_ROWS);
	record.last_only = true;
	rig_run_record(&rig, &record);
	for (uint32_t i = 0; i < MAX_ROWS * (1 + K); i++)
		assert_int_equal(rig.in.logit_index[i], i < 3 ? want[i] : 0);
	rig_deinit(&rig);
}

/* Slots of two pages: slot 3 holds 7 tokens, slot 5 11, slot 2 5. A second step has no changes, and
 * finds those of the first. */
static void test_new_pages_take_the_tokens_of_rows_that_begin_where_their_slots_say(void **state)
{
	static const uint32_t pages[] = {60, 61, 55, 57, 58};
	static const int32_t want[3][4] = {{19, 20, 55, 0}, {31, 57, 58, 0}, {13, 14, 0}};
	static const int32_t places[] = {83, 220, 221, 222, 235, 57, 58, 59, -1};
	struct step_row rows[] = {VERIFY(3, .page_first = 2, .n_pages = 1, .page_offset = 2),
		{.slot = 5, .flags = ROW_FROM_SLOT, .n_tokens = 1, .next_id = -1, .page_first = 1,
			.n_pages = 2, .page_offset = 3},
		VERIFY(2)};
	struct step_record record = record_of(rows, 3, 3, NULL);
	struct rig rig;

	setup(&rig);
	rig_init_slots(&rig, 2, K, &greedy);
	record.pages = pages;
	for (int step = 0; step < 2; step++) {
		rig.in.slot_length[5] = 11;
		rig_run_record(&rig, &record);
		for (int32_t r = 0; r < 3; r++) {
			const int32_t *table = rig.in.block_table + r * MAX_PAGES;
			const int32_t *slot = rig.in.slot_block_table + rows[r].slot * MAX_PAGES;
			const size_t n = r == 2 ? 3 : 4;

			assert_memory_equal(table, want[r], n * sizeof(table[0]));
			assert_memory_equal(slot, want[r], n * sizeof(slot[0]));
		}
		assert_memory_equal(rig.in.slot_mapping, places, sizeof(places));
		rows[0].n_pages = rows[1].n_pages = 0;
	}
	rig_deinit(&rig);
}

static void test_a_row_to_verify_needs_no_ids_and_no_embeddings(void **state)
{
	static const uint8_t given[64];
	static const struct step_row rows[] = {VERIFY(4, .embeddings = given)};
	struct rig rig;

	setup(&rig);
	rig_prepare(&rig, rows, 1, 1, NULL);
	for (uint32_t t = 0; t < 1 + K; t++)
		assert_null(rig.in.embedding_from[t]);
	assert_int_equal(rig.in.input_ids[1], 40);
	rig_deinit(&rig);
}

static void test_missing_and_foreign_drafts_are_ids_in_range(void **state)
{
	static const struct step_row rows[] = {VERIFY(4)};
	struct rig rig;

	setup(&rig);
	drafts_of(&rig, 4)[0] = -1;
	drafts_of(&rig, 4)[1] = VOCAB;
	drafts_of(&rig, 4)[2] = INT32_MIN;
	rig_prepare(&rig, rows, 1, 1, NULL);
	assert_int_equal(rig.in.input_ids[1], 0);
	assert_int_equal(rig.in.input_ids[2], VOCAB - 1);
	assert_int_equal(rig.in.input_ids[3], 0);
	assert_int_equal(drafts_of(&rig, 4)[1], VOCAB);
	rig_deinit(&rig);
}

static void test_an_init_sets_how_many_drafts_and_leaves_none(void **state)
{
	static const uint32_t pages[] = {9};
	const struct slot_init inits[] = {
		{.slot = 2, .n_pages = 1, .n_drafts = 2},
		{.slot = 6, .n_pages = 1, .n_drafts = UINT32_MAX},
		{.slot = -1, .n_drafts = 1},
		{.slot = MAX_SLOTS, .n_drafts = 1},
	};
	const struct step_record record = {
		.n_inits = COUNT_OF(inits), .inits = inits, .pages = pages};
	struct rig rig;

	setup(&rig);
	for (int32_t s = 0; s < MAX_SLOTS; s++)
		rig.in.slot_n_drafts[s] = 1;
	rig_run_record(&rig, &record);
	for (int32_t s = 0; s < MAX_SLOTS; s++) {
		assert_int_equal(rig.in.slot_n_drafts[s], s == 2 ? 2 : s == 6 ? K : 1);
		assert_int_equal(rig.in.slot_length[s], 2 * s + 1);
		for (int32_t i = 0; i < K; i++)
			assert_int_equal(
				drafts_of(&rig, s)[i], s == 2 || s == 6 ? -1 : 10 * s + i);
	}
	rig_deinit(&rig);
}

static void test_rows_past_their_pages_are_clamped_and_write_nowhere(void **state)
{
	static const struct step_row rows[] = {VERIFY(0), VERIFY(1), VERIFY(2),
		{.slot = 3, .flags = ROW_FROM_SLOT, .n_tokens = 1}};
	static const int32_t lengths[] = {6, 8, CAPACITY - 2, INT32_MAX};
	struct rig rig;

	rig_init(&rig, &sizes, N_PAGES);
	set_slots(&rig);
	for (int32_t s = 0; s < 4; s++)
		rig.in.slot_length[s] = lengths[s];
	/* Slots 0 and 1 have two pages, the others all that there can be. */
	for (int32_t p = 2; p < MAX_PAGES; p++)
		rig.in.slot_block_table[p] = rig.in.slot_block_table[MAX_PAGES + p] = 0;
	run_and_check(&rig, rows, 4, 4);
	for (uint32_t i = 0; i <= K; i++) {
		assert_true((rig.in.slot_mapping[i] >= 0) == (i < 2));
		assert_int_equal(rig.in.slot_mapping[4 + i], -1);
		assert_int_equal(rig.in.positions[4 + i], 8 + i);
		assert_true((rig.in.slot_mapping[8 + i] >= 0) == (i < 2));
	}
	assert_int_equal(rig.in.positions[11], CAPACITY - 1);
	assert_int_equal(rig.in.slot_mapping[12], -1);
	assert_int_equal(rig.in.slot_length[3], CAPACITY);
	rig_deinit(&rig);
}

static void test_a_length_never_written_is_no_place_before_the_first(void **state)
{
	static const struct step_row rows[] = {VERIFY(2)};
	struct rig rig;

	setup(&rig);
	rig.in.slot_length[2] = -1;
	rig_prepare(&rig, rows, 1, 1, NULL);
	assert_int_equal(rig.in.positions[0], 0);
	assert_int_equal(rig.in.seq_lens[0], 1 + K);
	rig_deinit(&rig);
}

static void test_a_row_to_verify_has_at_most_its_drafts_and_what_the_step_has_left(void **state)
{
	struct step_row rows[] = {VERIFY(2), VERIFY(3), VERIFY(4)};
	struct rig rig;

	setup(&rig);
	rows[0].n_tokens = 2;
	run_and_check(&rig, rows, 3, 3);
	rows[0].n_tokens = UINT32_MAX;
	rows[1].n_tokens = 100;
	struct step_record record = record_of(rows, 3, 3, NULL);
	record.n_tokens = 10;
	rig_run_record(&rig, &record);
	assert_int_equal(rig.in.query_start[1], 4);
	assert_int_equal(rig.in.query_start[2], 8);
	assert_int_equal(rig.in.query_start[3], 10);
	assert_int_equal(rig.in.logit_index[2 * (1 + K) + 1], 9);
	assert_int_equal(rig.in.logit_index[2 * (1 + K) + 2], 0);
	rig_deinit(&rig);
}

static struct step_row random_row(uint32_t *left)
{
	struct step_row row = {.slot = -1, .next_id = (int32_t)random_below(&rng, VOCAB + 1) - 1};

	switch (random_below(&rng, 3)) {
	case 0:
		row.flags = ROW_VERIFY | ROW_SAMPLE;
		row.n_tokens = least(1 + K, *left);
		break;
	case 1:
		row.flags = ROW_FROM_SLOT | random_below(&rng, 2) * ROW_SAMPLE;
		row.n_tokens = least(1, *left);
		break;
	default:
		row.flags = random_below(&rng, 2) * ROW_SAMPLE;
		row.n_tokens = random_below(&rng, least(*left, 11) + 1);
	}
	row.start = random_below(&rng, CAPACITY - 11);
	*left -= row.n_tokens;
	return row;
}

static void test_random_steps_with_and_without_rows_to_verify(void **state)
{
	struct rig rig;

	rng = 41;
	setup(&rig);
	for (int step = 0; step < 500; step++) {
		struct step_row rows[MAX_ROWS];
		uint32_t n_rows = random_below(&rng, MAX_ROWS + 1), left = MAX_TOKENS;
		int32_t first = (int32_t)random_below(&rng, MAX_SLOTS);

		for (uint32_t r = 0; r < n_rows; r++) {
			rows[r] = random_row(&left);
			if (random_below(&rng, 8))
				rows[r].slot = (first + (int32_t)r) % MAX_SLOTS;
		}
		for (int32_t s = 0; s < MAX_SLOTS; s++)
			for (int32_t i = 0; i < K; i++)
				drafts_of(&rig, s)[i] = (int32_t)random_below(&rng, VOCAB + 1) - 1;
		run_and_check(
			&rig, rows, n_rows, n_rows + random_below(&rng, MAX_ROWS - n_rows + 1));
	}
	rig_deinit(&rig);
}

static void test_without_drafts_there_are_no_rows_to_verify(void **state)
{
	struct step_inputs without = sizes;
	struct step_row rows[] = {VERIFY(2), {.slot = 3, .flags = ROW_FROM_SLOT, .n_tokens = 1}};
	static const int32_t ids[] = {7, 8, 9, 10, 11};
	struct rig rig;

	without.max_drafts = 0;
	rig_init(&rig, &without, N_PAGES);
	rig_init_slots(&rig, MAX_PAGES, 5, &greedy);
	rig.in.slot_last_token[3] = 53;
	rows[1].start = 21;
	rig_prepare(&rig, rows, 2, 2, ids);
	for (uint32_t t = 0; t < 4; t++) {
		assert_int_equal(rig.in.input_ids[t], ids[t]);
		assert_int_equal(rig.in.positions[t], 17 + t);
	}
	assert_int_equal(rig.in.logit_index[0], 3);
	assert_int_equal(rig.in.logit_index[1], 4);
	assert_int_equal(rig.in.input_ids[4], 53);
	assert_int_equal(rig.in.positions[4], 21);
	rig_deinit(&rig);
}

static void test_prepare_refuses_drafts_without_a_place_for_them(void **state)
{
	struct step_record record = {0};
	struct op_prepare bad[5];
	struct rig rig;

	setup(&rig);
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		bad[i] = (struct op_prepare){&record, rig.in, N_PAGES};
	bad[0].inputs.next_ids = NULL;
	bad[1].inputs.slot_length = NULL;
	bad[2].inputs.slot_n_drafts = NULL;
	bad[3].inputs.slot_drafts = NULL;
	bad[4].inputs.max_drafts = MAX_TOKENS;
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		assert_refused(prepare, &bad[i]);
	rig_deinit(&rig);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_rows_to_verify_begin_where_their_slots_say_beside_rows_that_do_not),
	cmocka_unit_test(test_a_small_step_leaves_nothing_of_a_big_one_to_verify),
	cmocka_unit_test(
		test_logits_of_last_tokens_alone_are_one_a_row_behind_a_step_that_verifies),
	cmocka_unit_test(
		test_new_pages_take_the_tokens_of_rows_that_begin_where_their_slots_say),
	cmocka_unit_test(test_a_row_to_verify_needs_no_ids_and_no_embeddings),
	cmocka_unit_test(test_missing_and_foreign_drafts_are_ids_in_range),
	cmocka_unit_test(test_an_init_sets_how_many_drafts_and_leaves_none),
	cmocka_unit_test(test_rows_past_their_pages_are_clamped_and_write_nowhere),
	cmocka_unit_test(test_a_length_never_written_is_no_place_before_the_first),
	cmocka_unit_test(test_a_row_to_verify_has_at_most_its_drafts_and_what_the_step_has_left),
	cmocka_unit_test(test_random_steps_with_and_without_rows_to_verify),
	cmocka_unit_test(test_without_drafts_there_are_no_rows_to_verify),
	cmocka_unit_test(test_prepare_refuses_drafts_without_a_place_for_them),
};

OPS_TEST_MAIN("cpu ops: prepare with drafts", tests)
