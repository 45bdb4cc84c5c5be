/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_ops_fixture.h"

enum {
	MAX_ROWS = 7,
	MAX_TOKENS = 40,
	MAX_SLOTS = 9,
	MAX_PAGES = 6,
	PAGE_TOKENS = 4,
	VOCAB = 100,
	N_PAGES = 64,
	CAPACITY = MAX_PAGES * PAGE_TOKENS,
	EMBEDDING_BYTES = 12,
};

/* Never read: of a row's embeddings only the addresses matter. */
static const uint8_t given[2 * MAX_TOKENS * EMBEDDING_BYTES];

/* Masks' words. */
static const uint64_t words[] = {1, 3, 5, 11, 0, UINT64_MAX, 7, 1u << 9, 0xf0f0, 2, 1, 4};

/* The persistent inputs, each in a poisoned buffer between canaries; and the slots' block tables as
 * they have to be. */
struct inputs {
	struct step_inputs in;
	uint32_t pages[MAX_SLOTS][MAX_PAGES];
};

static void inputs_init(struct inputs *i)
{
	i->in = (struct step_inputs){
		.max_rows = MAX_ROWS,
		.max_tokens = MAX_TOKENS,
		.max_slots = MAX_SLOTS,
		.max_pages = MAX_PAGES,
		.page_tokens = PAGE_TOKENS,
		.vocab_size = VOCAB,
		.embedding_bytes = EMBEDDING_BYTES,
		.input_ids = buffer_new(MAX_TOKENS * 4).data,
		.embedding_from = buffer_new(MAX_TOKENS * sizeof(void *)).data,
		.positions = buffer_new(MAX_TOKENS * 4).data,
		.slot_mapping = buffer_new(MAX_TOKENS * 4).data,
		.query_start = buffer_new((MAX_ROWS + 1) * 4).data,
		.seq_lens = buffer_new(MAX_ROWS * 4).data,
		.block_table = buffer_new(MAX_ROWS * MAX_PAGES * 4).data,
		.row_slot = buffer_new(MAX_ROWS * 4).data,
		.row_flags = buffer_new(MAX_ROWS * 4).data,
		.logit_index = buffer_new(MAX_ROWS * 4).data,
		.slot_last_token = buffer_new(MAX_SLOTS * 4).data,
		.slot_sampling = buffer_new(MAX_SLOTS * sizeof(struct slot_sampling)).data,
		.slot_block_table = buffer_new(MAX_SLOTS * MAX_PAGES * 4).data,
		.slot_mask = buffer_new(MAX_SLOTS * sizeof(struct slot_mask)).data,
		.mask_words = buffer_new(MAX_TOKENS * sizeof(uint64_t)).data,
	};
	for (int32_t s = 0; s < MAX_SLOTS; s++)
		i->in.slot_last_token[s] = 50 + s;
}

static void prepare(struct inputs *i, const struct step_record *record)
{
	struct op_prepare a = {.record = record, .inputs = i->in, .n_pages = N_PAGES};

	RUN(prepare, &a);
}

/* Slot s gets the pages s * 7 + 1, s * 7 + 2, ... */
static void init_all_slots(struct inputs *i)
{
	struct slot_init inits[MAX_SLOTS] = {0};
	uint32_t pages[MAX_SLOTS * MAX_PAGES];
	struct step_record record = {.n_inits = MAX_SLOTS, .inits = inits, .pages = pages};

	for (uint32_t s = 0; s < MAX_SLOTS; s++) {
		inits[s] = (struct slot_init){
			.slot = (int32_t)s,
			.n_pages = MAX_PAGES,
			.page_offset = s * MAX_PAGES,
			.sampling = {.seed = s},
		};
		for (uint32_t p = 0; p < MAX_PAGES; p++)
			pages[s * MAX_PAGES + p] = i->pages[s][p] = s * 7 + 1 + p;
	}
	prepare(i, &record);
}

static uint32_t rotary_position(const struct step_row *row, uint32_t j)
{
	uint32_t position = row->start + j, depth = 0;

	if (!(row->flags & ROW_TREE) || position < row->tree || !row->words || !row->words[j])
		return position;
	for (uint64_t word = row->words[j]; word; word >>= 1)
		depth += word & 1;
	position = row->tree + depth - 1;
	return position < CAPACITY ? position : CAPACITY - 1;
}

/* What is behind the record's rows, and behind its t tokens. */
static void check_tails(
	const struct step_inputs *in, const struct step_record *record, uint32_t t)
{
	for (uint32_t r = record->n_rows; r <= MAX_ROWS; r++)
		assert_int_equal(in->query_start[r], t);
	for (uint32_t r = record->n_rows; r < MAX_ROWS; r++) {
		assert_int_equal(in->seq_lens[r], 0);
		assert_int_equal(in->row_slot[r], -1);
		assert_int_equal(in->row_flags[r], 0);
		assert_int_equal(in->logit_index[r], 0);
	}
	for (uint32_t p = record->n_rows * MAX_PAGES; p < record->padded_rows * MAX_PAGES; p++)
		assert_int_equal(in->block_table[p], 0);
	for (; t < MAX_TOKENS; t++) {
		assert_int_equal(in->input_ids[t], 0);
		assert_null(in->embedding_from[t]);
		assert_int_equal(in->positions[t], 0);
		assert_int_equal(in->slot_mapping[t], -1);
		assert_true(in->mask_words[t] == 0);
	}
}

/* What the contract says of a consistent record, one value at a time. `ids` is the record's. */
static void check_step(const struct inputs *i, const struct step_record *record)
{
	const struct step_inputs *in = &i->in;
	uint32_t t = 0;

	for (uint32_t r = 0; r < record->n_rows; r++) {
		const struct step_row *row = &record->rows[r];
		bool empty = row->slot < 0;
		uint32_t length = empty ? 0 : row->start + row->n_tokens;

		assert_int_equal(in->query_start[r], t);
		assert_int_equal(in->seq_lens[r], length);
		assert_int_equal(in->row_slot[r], empty ? -1 : row->slot);
		assert_int_equal(in->row_flags[r], empty ? 0 : row->flags);
		assert_int_equal(in->logit_index[r], row->n_tokens ? t + row->n_tokens - 1 : 0);
		for (uint32_t p = 0; p < MAX_PAGES; p++)
			if (empty || p * PAGE_TOKENS < length)
				assert_int_equal(in->block_table[r * MAX_PAGES + p],
					empty ? 0 : i->pages[row->slot][p]);
		for (uint32_t j = 0; j < row->n_tokens; j++, t++) {
			uint32_t position = row->start + j;
			uint32_t page = empty ? 0 : i->pages[row->slot][position / PAGE_TOKENS];
			bool from_slot = row->flags & ROW_FROM_SLOT;
			bool has_id = empty || from_slot || !row->embeddings || j < row->n_ids;

			assert_int_equal(in->positions[t], empty ? 0 : rotary_position(row, j));
			assert_true(in->mask_words[t] ==
				    (!empty && row->words ? row->words[j] : 0));
			assert_ptr_equal(in->embedding_from[t],
				has_id ? NULL
				       : (const uint8_t *)row->embeddings +
						 (j - row->n_ids) * EMBEDDING_BYTES);
			assert_int_equal(in->input_ids[t], empty       ? 0
							   : from_slot ? 50 + row->slot
								       : record->ids[t]);
			assert_int_equal(in->slot_mapping[t],
				empty ? -1
				      : (int32_t)(page * PAGE_TOKENS + position % PAGE_TOKENS));
		}
	}
	check_tails(in, record, t);
	assert_memory_equal(in->slot_block_table, i->pages, sizeof(i->pages));
}

/* The record of `rows`, with ids 0, 1, ...; padded as given. */
static struct step_record record_of(
	const struct step_row *rows, uint32_t n_rows, uint32_t padded_rows)
{
	static int32_t ids[MAX_TOKENS];
	struct step_record record = {
		.n_rows = n_rows,
		.padded_rows = padded_rows,
		.rows = rows,
		.ids = ids,
	};

	for (int32_t t = 0; t < MAX_TOKENS; t++)
		ids[t] = t;
	for (uint32_t r = 0; r < n_rows; r++)
		record.n_tokens += rows[r].n_tokens;
	record.padded_tokens = record.n_tokens;
	return record;
}

/* Embeddings: of some tokens, of none that a row has, of an empty row, of a slot's token, of
 * all. */
static const struct step_row big_rows[MAX_ROWS] = {
	{3, ROW_SAMPLE, 9, 0, given, 4},
	{0, 0, 6, 5, given + EMBEDDING_BYTES, 6},
	{8, ROW_SAMPLE, 1, 20},
	{-1, 0, 2, 9, given},
	{5, ROW_SAMPLE | ROW_FROM_SLOT, 1, 23, given},
	{2, 0, 20, 3, given + 7},
	{1, ROW_SAMPLE | ROW_TREE, 1, 0, given + 64, 0, 0, words + 3},
};
static const struct step_row decode_rows[] = {
	{4, ROW_SAMPLE | ROW_FROM_SLOT, 1, 7},
	{2, ROW_SAMPLE | ROW_FROM_SLOT, 1, 8},
	{7, ROW_SAMPLE | ROW_FROM_SLOT, 1, 0},
};

static void test_prepare_expands_a_step_that_fills_the_inputs(void **state)
{
	struct step_record record = record_of(big_rows, MAX_ROWS, MAX_ROWS);
	struct inputs inputs;

	assert_int_equal(record.n_tokens, MAX_TOKENS);
	inputs_init(&inputs);
	init_all_slots(&inputs);
	prepare(&inputs, &record);
	check_step(&inputs, &record);
}

static void test_prepare_small_step_leaves_nothing_of_a_big_one(void **state)
{
	static const struct {
		uint32_t n_rows, padded_rows;
	} small[] = {{0, 0}, {0, 4}, {1, 1}, {1, 2}, {2, 4}, {3, 3}, {3, 7}};

	for (size_t i = 0; i < COUNT_OF(small); i++) {
		struct step_record record = record_of(big_rows, MAX_ROWS, MAX_ROWS);
		struct inputs inputs;

		inputs_init(&inputs);
		init_all_slots(&inputs);
		prepare(&inputs, &record);
		record = record_of(decode_rows, small[i].n_rows, small[i].padded_rows);
		prepare(&inputs, &record);
		check_step(&inputs, &record);
	}
}

/* Entries of the row's slot, within the block table or beyond; the row is its slot's only one. */
static void change_pages(struct inputs *i, struct step_row *row, const uint32_t *pages)
{
	row->page_first = random_below(&rng, MAX_PAGES + 2);
	row->n_pages = random_below(&rng, 9) ? random_below(&rng, 4) : UINT32_MAX;
	row->page_offset = random_below(&rng, N_PAGES - MAX_PAGES);
	for (uint32_t k = 0; k < row->n_pages && row->page_first + k < MAX_PAGES; k++)
		i->pages[row->slot][row->page_first + k] = pages[row->page_offset + k];
}

static bool is_only_row(const struct step_record *record, uint32_t r)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < record->n_rows; i++)
		n += record->rows[i].slot == record->rows[r].slot;
	return record->rows[r].slot >= 0 && n == 1;
}

static void test_prepare_random_steps_in_a_row(void **state)
{
	struct inputs inputs;
	uint32_t pages[N_PAGES];

	rng = 40;
	for (uint32_t p = 0; p < N_PAGES; p++)
		pages[p] = random_below(&rng, N_PAGES);
	inputs_init(&inputs);
	init_all_slots(&inputs);
	for (int step = 0; step < 500; step++) {
		struct step_row rows[MAX_ROWS] = {0};
		uint32_t n_rows = random_below(&rng, MAX_ROWS + 1), left = MAX_TOKENS;
		struct step_record record;

		for (uint32_t r = 0; r < n_rows; r++) {
			uint32_t n = random_below(&rng, left < 12 ? left + 1 : 12);

			left -= n;
			rows[r] = (struct step_row){
				.slot = (int32_t)random_below(&rng, MAX_SLOTS + 2) - 2,
				.flags = random_below(&rng, 2) * ROW_SAMPLE +
					 (n == 1) * ROW_FROM_SLOT,
				.n_tokens = n,
				.start = random_below(&rng, CAPACITY - n + 1),
				.embeddings = random_below(&rng, 2) ? given + random_below(&rng, 99)
								    : NULL,
				.n_ids = random_below(&rng, 4),
				.tree = random_below(&rng, CAPACITY),
				.words = random_below(&rng, 2) ? words : NULL,
			};
			if (random_below(&rng, 2))
				rows[r].flags |= ROW_TREE;
		}
		record =
			record_of(rows, n_rows, n_rows + random_below(&rng, MAX_ROWS - n_rows + 1));
		record.pages = pages;
		for (uint32_t r = 0; r < n_rows; r++)
			if (is_only_row(&record, r) && random_below(&rng, 2))
				change_pages(&inputs, &rows[r], pages);
		prepare(&inputs, &record);
		check_step(&inputs, &record);
	}
}

static void test_prepare_takes_a_row_from_slot_without_ids(void **state)
{
	struct step_record record = record_of(decode_rows, 3, 3);
	struct inputs inputs;

	record.ids = NULL;
	inputs_init(&inputs);
	init_all_slots(&inputs);
	prepare(&inputs, &record);
	assert_int_equal(inputs.in.input_ids[0], 54);
	assert_int_equal(inputs.in.input_ids[1], 52);
	assert_int_equal(inputs.in.input_ids[2], 57);
}

static void test_prepare_applies_inits_before_the_rows_that_use_them(void **state)
{
	static const uint32_t pages[] = {99, 11, 12, 13, 14};
	struct slot_init init = {
		.slot = 6,
		.n_pages = 3,
		.page_offset = 1,
		.sampling = {.temperature = 0.5f, .top_p = 0.9f, .top_k = 7, .seed = 123},
		.mask = {MASK_PREFIX, 3, 4, 5},
	};
	struct step_row row = {.slot = 6, .n_tokens = 9};
	struct step_record record = record_of(&row, 1, 1);
	struct inputs inputs;

	record.n_inits = 1;
	record.inits = &init;
	record.pages = pages;
	inputs_init(&inputs);
	init_all_slots(&inputs);
	prepare(&inputs, &record);
	assert_int_equal(inputs.in.slot_mapping[0], 11 * PAGE_TOKENS);
	assert_int_equal(inputs.in.slot_mapping[8], 13 * PAGE_TOKENS);
	assert_int_equal(inputs.in.block_table[2], 13);
	assert_memory_equal(&inputs.in.slot_sampling[6], &init.sampling, sizeof(init.sampling));
	assert_memory_equal(&inputs.in.slot_mask[6], &init.mask, sizeof(init.mask));
	assert_int_equal(inputs.in.slot_mask[7].kind, MASK_CAUSAL);
	for (uint32_t p = 3; p < MAX_PAGES; p++)
		assert_int_equal(inputs.in.slot_block_table[6 * MAX_PAGES + p], 0);
	/* Its neighbours keep theirs, and no init touches a last token. */
	assert_int_equal(inputs.in.slot_block_table[7 * MAX_PAGES], 50);
	assert_int_equal(inputs.in.slot_block_table[6 * MAX_PAGES - 1], 41);
	assert_int_equal(inputs.in.slot_last_token[6], 56);
}

static void expect_pages(const int32_t *table, const int32_t *want, uint32_t n)
{
	for (uint32_t p = 0; p < n; p++)
		assert_int_equal(table[p], want[p]);
}

/* Also those that only later steps need. */
static void test_prepare_new_pages_of_a_row_are_its_slots_from_then_on(void **state)
{
	static const uint32_t pages[] = {9, 60, 61, 62, 9};
	static const int32_t want[] = {29, 30, 60, 61, 62, 34};
	struct step_row row = {.slot = 4, .n_tokens = 6, .start = 7};
	struct step_record record;
	struct inputs inputs;

	inputs_init(&inputs);
	init_all_slots(&inputs);
	row.page_first = 2;
	row.n_pages = 3;
	row.page_offset = 1;
	for (uint32_t p = 0; p < 3; p++)
		inputs.pages[4][2 + p] = 60 + p;
	record = record_of(&row, 1, 1);
	record.pages = pages;
	prepare(&inputs, &record);
	check_step(&inputs, &record);
	expect_pages(inputs.in.block_table, want, 4);
	assert_int_equal(inputs.in.slot_mapping[0], 30 * PAGE_TOKENS + 3);
	assert_int_equal(inputs.in.slot_mapping[1], 60 * PAGE_TOKENS);
	assert_int_equal(inputs.in.slot_mapping[5], 61 * PAGE_TOKENS);
	row = (struct step_row){.slot = 4, .flags = ROW_FROM_SLOT, .n_tokens = 1, .start = 23};
	record = record_of(&row, 1, 1);
	prepare(&inputs, &record);
	check_step(&inputs, &record);
	expect_pages(inputs.in.block_table, want, MAX_PAGES);
}

static void test_prepare_a_replaced_page_takes_the_rows_tokens(void **state)
{
	static const uint32_t pages[] = {63};
	static const int32_t want[] = {29, 63, 31};
	struct step_row row = {.slot = 4, .flags = ROW_FROM_SLOT, .n_tokens = 1, .start = 6,
		.page_first = 1, .n_pages = 1};
	struct step_record record = record_of(&row, 1, 1);
	struct inputs inputs;

	inputs_init(&inputs);
	init_all_slots(&inputs);
	inputs.pages[4][1] = 63;
	record.pages = pages;
	prepare(&inputs, &record);
	check_step(&inputs, &record);
	assert_int_equal(inputs.in.slot_mapping[0], 63 * PAGE_TOKENS + 2);
	row = (struct step_row){.slot = 4, .n_tokens = 5, .start = 5};
	record = record_of(&row, 1, 1);
	prepare(&inputs, &record);
	check_step(&inputs, &record);
	expect_pages(inputs.in.block_table, want, 3);
	assert_int_equal(inputs.in.slot_mapping[0], 63 * PAGE_TOKENS + 1);
}

static void test_prepare_cuts_pages_of_a_row_at_the_end_of_the_table(void **state)
{
	static const uint32_t pages[] = {5, N_PAGES, UINT32_MAX};
	struct step_row rows[] = {
		{.slot = 1, .n_tokens = 1, .page_first = MAX_PAGES - 2, .n_pages = UINT32_MAX},
		{.slot = 2, .n_tokens = 1, .page_first = MAX_PAGES, .n_pages = 3},
		{.slot = 3, .n_tokens = 1, .page_first = UINT32_MAX, .n_pages = 3},
		{.slot = MAX_SLOTS - 1, .n_tokens = 1, .page_first = MAX_PAGES - 3, .n_pages = 4},
	};
	struct step_record record = record_of(rows, 4, 4);
	struct inputs inputs;

	inputs_init(&inputs);
	init_all_slots(&inputs);
	inputs.pages[1][MAX_PAGES - 2] = inputs.pages[MAX_SLOTS - 1][MAX_PAGES - 3] = 5;
	inputs.pages[1][MAX_PAGES - 1] = inputs.pages[MAX_SLOTS - 1][MAX_PAGES - 2] = 0;
	inputs.pages[MAX_SLOTS - 1][MAX_PAGES - 1] = 0;
	record.pages = pages;
	prepare(&inputs, &record);
	check_step(&inputs, &record);
}

static void test_prepare_empty_rows_have_no_pages(void **state)
{
	struct step_row rows[] = {{.slot = -1, .n_tokens = 1, .n_pages = UINT32_MAX},
		{.slot = MAX_SLOTS, .n_pages = 2}, {.slot = INT32_MAX, .n_pages = 1},
		{.slot = INT32_MIN, .n_pages = 1}};
	struct step_record record = record_of(rows, 4, 4);
	struct inputs inputs;

	inputs_init(&inputs);
	init_all_slots(&inputs);
	prepare(&inputs, &record);
	assert_memory_equal(inputs.in.slot_block_table, inputs.pages, sizeof(inputs.pages));
	for (uint32_t p = 0; p < 4 * MAX_PAGES; p++)
		assert_int_equal(inputs.in.block_table[p], 0);
}

/* As for a model whose attention has no masks. */
static void test_prepare_without_masks_needs_no_place_for_them(void **state)
{
	struct step_record record = record_of(big_rows, MAX_ROWS, MAX_ROWS);
	struct inputs inputs;

	inputs_init(&inputs);
	init_all_slots(&inputs);
	memset(inputs.in.mask_words, 7, MAX_TOKENS * sizeof(uint64_t));
	struct step_inputs without = inputs.in;
	without.slot_mask = NULL;
	without.mask_words = NULL;
	struct op_prepare a = {.record = &record, .inputs = without, .n_pages = N_PAGES};
	RUN(prepare, &a);
	for (uint32_t t = 0; t < MAX_TOKENS; t++)
		assert_true(inputs.in.mask_words[t] == 0x0707070707070707u);
	memset(inputs.in.mask_words, 0, MAX_TOKENS * sizeof(uint64_t));
	inputs.in.mask_words[MAX_TOKENS - 1] = words[3];
	check_step(&inputs, &record);
}

static void test_prepare_clamps_ids_into_the_vocabulary(void **state)
{
	static const int32_t ids[] = {-1, VOCAB, INT32_MAX, INT32_MIN, VOCAB - 1};
	static const int32_t clamped[] = {0, VOCAB - 1, VOCAB - 1, 0, VOCAB - 1};
	static const struct step_row rows[] = {{0, 0, 5, 0}, {1, ROW_FROM_SLOT, 1, 3}};
	struct step_record record = record_of(rows, 2, 2);
	struct inputs inputs;

	record.ids = ids;
	inputs_init(&inputs);
	init_all_slots(&inputs);
	inputs.in.slot_last_token[1] = -5;
	prepare(&inputs, &record);
	for (size_t t = 0; t < COUNT_OF(ids); t++)
		assert_int_equal(inputs.in.input_ids[t], clamped[t]);
	assert_int_equal(inputs.in.input_ids[5], 0);
}

static void test_prepare_maps_missing_pages_to_the_null_page(void **state)
{
	static const uint32_t pages[] = {5, N_PAGES, UINT32_MAX};
	struct slot_init init = {.slot = 2, .n_pages = 3};
	struct step_row row = {.slot = 2, .n_tokens = 10};
	struct step_record record = record_of(&row, 1, 1);
	struct inputs inputs;

	record.n_inits = 1;
	record.inits = &init;
	record.pages = pages;
	inputs_init(&inputs);
	prepare(&inputs, &record);
	assert_int_equal(inputs.in.block_table[0], 5);
	assert_int_equal(inputs.in.block_table[1], 0);
	assert_int_equal(inputs.in.block_table[2], 0);
	assert_int_equal(inputs.in.slot_mapping[3], 5 * PAGE_TOKENS + 3);
	assert_int_equal(inputs.in.slot_mapping[4], 0);
}

static void test_prepare_stays_inside_the_inputs_whatever_the_record_says(void **state)
{
	static const struct step_row rows[MAX_ROWS + 2] = {
		{1, 0, 3, CAPACITY - 1},
		{2, 0, 2, UINT32_MAX},
		{MAX_SLOTS, 0, 1, 0},
		{INT32_MAX, 0, 1, 0},
		{3, 0, UINT32_MAX, 0, given, UINT32_MAX},
		{4, 0, 1, 0},
		{5, 0, 1, 0},
		{6, 0, 1, 0},
	};
	struct slot_init inits[] = {{.slot = -1}, {.slot = MAX_SLOTS}};
	struct step_record record = record_of(rows, 0, UINT32_MAX);
	struct inputs inputs;

	record.n_rows = COUNT_OF(rows);
	record.n_tokens = MAX_TOKENS;
	record.n_inits = COUNT_OF(inits);
	record.inits = inits;
	inputs_init(&inputs);
	init_all_slots(&inputs);
	prepare(&inputs, &record);
	for (uint32_t t = 0; t < MAX_TOKENS; t++) {
		assert_in_range(inputs.in.positions[t], 0, CAPACITY - 1);
		assert_null(inputs.in.embedding_from[t]);
		assert_true(inputs.in.slot_mapping[t] >= -1 &&
			    inputs.in.slot_mapping[t] < N_PAGES * PAGE_TOKENS);
	}
	assert_int_equal(inputs.in.slot_mapping[1], -1);
	assert_int_equal(inputs.in.seq_lens[0], CAPACITY);
	assert_int_equal(inputs.in.seq_lens[1], CAPACITY);
	assert_int_equal(inputs.in.row_slot[2], -1);
	assert_int_equal(inputs.in.row_slot[3], -1);
	assert_int_equal(inputs.in.query_start[MAX_ROWS], MAX_TOKENS);
}

static void test_prepare_refuses_inputs_that_lack_a_buffer(void **state)
{
	struct step_record record = {0};
	struct inputs inputs;
	struct op_prepare bad[8];

	inputs_init(&inputs);
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		bad[i] = (struct op_prepare){&record, inputs.in, N_PAGES};
	bad[0].record = NULL;
	bad[1].n_pages = 0;
	bad[2].inputs.slot_block_table = NULL;
	bad[3].inputs.page_tokens = 0;
	bad[4].inputs.embedding_from = NULL;
	bad[5].inputs.embedding_bytes = 0;
	bad[6].inputs.slot_mask = NULL;
	bad[7].inputs.mask_words = NULL;
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		assert_refused(prepare, &bad[i]);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_prepare_expands_a_step_that_fills_the_inputs),
	cmocka_unit_test(test_prepare_small_step_leaves_nothing_of_a_big_one),
	cmocka_unit_test(test_prepare_random_steps_in_a_row),
	cmocka_unit_test(test_prepare_takes_a_row_from_slot_without_ids),
	cmocka_unit_test(test_prepare_applies_inits_before_the_rows_that_use_them),
	cmocka_unit_test(test_prepare_new_pages_of_a_row_are_its_slots_from_then_on),
	cmocka_unit_test(test_prepare_a_replaced_page_takes_the_rows_tokens),
	cmocka_unit_test(test_prepare_cuts_pages_of_a_row_at_the_end_of_the_table),
	cmocka_unit_test(test_prepare_empty_rows_have_no_pages),
	cmocka_unit_test(test_prepare_without_masks_needs_no_place_for_them),
	cmocka_unit_test(test_prepare_clamps_ids_into_the_vocabulary),
	cmocka_unit_test(test_prepare_maps_missing_pages_to_the_null_page),
	cmocka_unit_test(test_prepare_stays_inside_the_inputs_whatever_the_record_says),
	cmocka_unit_test(test_prepare_refuses_inputs_that_lack_a_buffer),
};

OPS_TEST_MAIN("cpu ops: prepare", tests)
