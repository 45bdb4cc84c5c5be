/* SPDX-License-Identifier: MIT */
/* The draft's inputs and its loop; whole steps are in test_cpu_ops_speculate_step.c. */
#include "tests/kernels/draft_fixture.h"

/* ---- begin ---- */

static void test_the_draft_reads_each_tokens_successor(void **state)
{
	struct rig rig;

	rng = 20;
	for (uint32_t held = 0; held <= K; held++) {
		const int32_t *ids;

		setup(&rig, &greedy);
		random_logits(&rig);
		begin_big(&rig, held);
		ids = rig.draft.input_ids;
		/* The drafts that held, then the token behind them; then what was rejected. */
		assert_int_equal(rig.draft.last_index[0], held);
		for (uint32_t t = 0; t <= held; t++)
			assert_int_equal(ids[t], 10 + t);
		for (uint32_t t = held + 1; t < 3; t++)
			assert_int_equal(ids[t], rig.in.input_ids[t + 1]);
		assert_int_equal(ids[3], 10 + held);
		for (uint32_t t = 4; t < 8; t++) /* the chunk, and the id behind it */
			assert_int_equal(ids[t], t + 1);
		assert_int_equal(ids[8], 19);
		assert_int_equal(rig.draft.last_index[1], 8);
		for (uint32_t t = 9; t < 14; t++)
			assert_int_equal(ids[t], t + 1);
		assert_int_equal(ids[14], sampled_of(&rig, 2)[0]);
		assert_int_equal(rig.draft.last_index[2], 14);
		assert_int_equal(ids[15], sampled_of(&rig, 3)[0]);
		assert_int_equal(rig.draft.last_index[3], 15);
		assert_int_equal(rig.draft.last_index[4], 0); /* an empty row's */
		assert_int_equal(ids[19], 20);
		assert_int_equal(ids[20], 0); /* unknown */
		assert_int_equal(rig.draft.last_index[5], 20);
		assert_int_equal(*rig.draft.step, 0);
		rig_deinit(&rig);
	}
}

static void test_a_row_to_verify_that_is_not_sampled_drafts_nothing_and_keeps_no_drafts(void **state)
{
	struct step_row rows[] = {DECODE(2), VERIFY(3)};
	struct rig rig;

	rng = 32;
	setup(&rig, &greedy);
	random_logits(&rig);
	for (uint32_t i = 0; i < K; i++)
		drafts_of(&rig, 3)[i] = 4;
	rows[1].flags = ROW_VERIFY;
	rows[1].next_id = 6;
	run_target(&rig, rows, 2, 2);
	assert_int_equal(drafts_of(&rig, 3)[0], 4);
	rig_begin(&rig, 2);
	assert_int_equal(rig.draft.last_index[1], 1);
	assert_int_equal(rig.draft.input_ids[1], 6);
	for (uint32_t i = 0; i < K; i++) {
		rig_advance(&rig, 2);
		assert_int_equal(drafts_of(&rig, 3)[i], -1);
	}
	assert_int_equal(rig.in.slot_length[3], 3);
	rig_deinit(&rig);
}

static void test_rows_without_drafts_leave_the_drafts_cache_alone(void **state)
{
	struct rig rig;

	rng = 21;
	setup(&rig, &greedy);
	random_logits(&rig);
	rig.in.slot_n_drafts[5] = 0;
	rig.in.slot_n_drafts[1] = -1;
	rig.in.slot_n_drafts[2] = 1;
	begin_big(&rig, 1);
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		for (uint32_t t = big_first[r]; t < big_first[r + 1]; t++)
			assert_int_equal(rig.draft.slot_mapping[t],
				r == 1 || r == 2 || r == 4 ? -1 : rig.in.slot_mapping[t]);
	rig_deinit(&rig);
}

static void test_an_id_behind_a_row_is_clamped_into_the_vocabulary(void **state)
{
	static const int32_t behind[] = {VOCAB, INT32_MAX, INT32_MIN};
	static const int32_t clamped[] = {VOCAB - 1, VOCAB - 1, 0};

	for (uint32_t i = 0; i < COUNT_OF(behind); i++) {
		struct step_row rows[] = {CHUNK(1, 2, 0, behind[i])};
		struct rig rig;

		setup(&rig, &greedy);
		run_target(&rig, rows, 1, 1);
		rig_begin(&rig, 1);
		assert_int_equal(rig.draft.input_ids[1], clamped[i]);
		rig_deinit(&rig);
	}
}

/* ---- advance ---- */

/* Where a row stands whose slot has drafted i times and goes on, or does not. */
static void check_decode(const struct rig *rig, uint32_t r, int32_t slot, uint32_t i, bool on)
{
	const struct draft_inputs *d = &rig->draft;
	int32_t position = rig->in.slot_length[slot] + (int32_t)i - 1;

	assert_int_equal(d->hidden_index[r], i == 1 ? d->last_index[r] : (int32_t)r);
	assert_int_equal(d->decode_ids[r], on ? drafts_of(rig, slot)[i - 1] : 0);
	assert_int_equal(d->positions[r], on ? position : 0);
	assert_int_equal(d->seq_lens[r], on ? position + 1 : 0);
	assert_int_equal(d->decode_slot_mapping[r],
		on ? cache_slot_of(rig, slot, (uint64_t)position) : -1);
}

static void test_drafts_follow_one_another_for_rows_that_want_them(void **state)
{
	struct rig rig;

	rng = 24;
	setup(&rig, &greedy);
	random_logits(&rig);
	rig.in.slot_n_drafts[5] = 2;
	rig.in.slot_n_drafts[2] = 0;
	begin_big(&rig, 2);
	for (uint32_t i = 0; i < K; i++) {
		for (uint32_t r = 0; r < MAX_ROWS; r++)
			rig.draft_logits[r * VOCAB + 2 * i + r] = 5;
		rig_advance(&rig, MAX_ROWS);
		for (uint32_t r = 0; r < MAX_ROWS; r++)
			rig.draft_logits[r * VOCAB + 2 * i + r] = 0;
		assert_int_equal(drafts_of(&rig, 3)[i], 2 * i);
		assert_int_equal(drafts_of(&rig, 5)[i], i < 2 ? 2 * (int32_t)i + 2 : -1);
		assert_int_equal(drafts_of(&rig, 1)[i], -1); /* was not sampled */
		assert_int_equal(drafts_of(&rig, 2)[i], -1); /* wants none */
		check_decode(&rig, 0, 3, i + 1, i + 1 < K);
		check_decode(&rig, 1, 1, i + 1, false);
		check_decode(&rig, 2, 5, i + 1, i == 0);
		check_decode(&rig, 3, 2, i + 1, false);
		check_decode(&rig, 5, 7, i + 1, false);
		assert_int_equal(rig.draft.seq_lens[4], 0);
		assert_int_equal(*rig.draft.step, i + 1);
	}
	assert_int_equal(rig.in.slot_length[3], 3 + 1 + 2);
	rig_deinit(&rig);
}

static void test_a_draft_is_drawn_as_a_sample_of_its_own_purpose_and_its_logits_are_kept(void **state)
{
	static const struct step_row rows[] = {VERIFY(3), DECODE(1)};
	double q[VOCAB];

	rng = 25;
	for (uint64_t seed = 0; seed < 300; seed++) {
		struct rig rig;

		setup(&rig, &warm);
		for (int32_t s = 0; s < MAX_SLOTS; s++)
			rig.in.slot_sampling[s].seed = seed;
		random_logits(&rig);
		run_target(&rig, rows, 2, 2);
		rig_begin(&rig, 2);
		for (uint32_t i = 0; i < K; i++) {
			random_logits(&rig);
			rig_advance(&rig, 2);
			for (uint32_t r = 0; r < 2; r++) {
				int32_t slot = rows[r].slot;
				const float *logits = rig.draft_logits + r * VOCAB;

				assert_memory_equal(draft_logits_of(&rig, slot, i), logits,
					VOCAB * sizeof(float));
				filtered_distribution(logits, VOCAB, &warm, q);
				assert_int_equal(drafts_of(&rig, slot)[i],
					weighted_draw(q, VOCAB, seed,
						(uint32_t)rig.in.slot_length[slot] + 1 + i,
						SAMPLE_DRAFT));
			}
		}
		rig_deinit(&rig);
	}
}

/* A vocabulary of a third: draft id i is token 3 i + 1, but the last two are out of range. */
static void test_draft_ids_become_the_targets_and_what_has_none_is_never_drafted(void **state)
{
	enum { DRAFT_VOCAB = 9 };
	static const int32_t d2t[DRAFT_VOCAB] = {1, 3, 5, 7, 9, 11, 13, 100, -9};
	static const struct step_row rows[] = {VERIFY(3), DECODE(1)};
	/* Row 1 is greedy: of a token, of two that the target has not, of none. */
	static const uint32_t greatest[] = {5, 7, 8, 0};
	struct buffer ids = pinned_copy(d2t, sizeof(d2t)), of_draft;
	struct op_draft_advance a;
	float *logits;
	struct rig rig;

	rng = 26;
	of_draft = buffer_new(2 * DRAFT_VOCAB * sizeof(float));
	logits = of_draft.data;
	for (int round = 0; round < 200; round++) {
		setup(&rig, &warm);
		rig.in.slot_sampling[1] = greedy;
		for (int32_t s = 0; s < MAX_SLOTS; s++)
			rig.in.slot_sampling[s].seed = (uint64_t)round;
		random_logits(&rig);
		for (uint32_t i = 0; i < 2 * DRAFT_VOCAB; i++)
			logits[i] = random_float(&rng) + (i % DRAFT_VOCAB >= 7 ? 1 : 0);
		logits[DRAFT_VOCAB + greatest[round % 4]] = 9;
		for (uint32_t i = 0; round % 4 == 3 && i < DRAFT_VOCAB; i++)
			logits[DRAFT_VOCAB + i] = NAN;
		run_target(&rig, rows, 2, 2);
		rig_begin(&rig, 2);
		a = advance_args(&rig, 2);
		a.logits = logits;
		a.d2t = ids.data;
		a.draft_vocab = DRAFT_VOCAB;
		RUN(draft_advance, &a);
		for (int32_t id = 0; id < VOCAB; id++) {
			float own = draft_logits_of(&rig, 3, 0)[id];

			if (id % 3 == 1 && id / 3 < 7)
				assert_true(own == logits[id / 3]);
			else
				assert_true(isinf(own) && own < 0);
		}
		assert_int_equal(drafts_of(&rig, 3)[0] % 3, 1);
		assert_true(isnan(draft_logits_of(&rig, 4, 1)[107 - 4 * VOCAB])); /* as it was */
		assert_int_equal(drafts_of(&rig, 1)[0], round % 4 ? -1 : 16);
		assert_int_equal(rig.draft.decode_ids[0], drafts_of(&rig, 3)[0]);
		rig_deinit(&rig);
	}
}

static void test_drafts_end_at_the_slots_pages(void **state)
{
	static const struct step_row rows[] = {DECODE(0), DECODE(1), DECODE(2), DECODE(3)};
	/* Behind the step one more: the next token's own place. Slot 3 has all pages. */
	static const int32_t lengths[] = {5, 6, 4, CAPACITY - 3};
	static const uint32_t n_drafts[] = {1, 0, 2, 1};
	struct rig rig;

	rng = 27;
	setup(&rig, &warm);
	random_logits(&rig);
	for (int32_t s = 0; s < 4; s++) {
		rig.in.slot_length[s] = lengths[s];
		for (int32_t p = 2; s < 3 && p < MAX_PAGES; p++)
			rig.in.slot_block_table[s * MAX_PAGES + p] = 0;
	}
	run_target(&rig, rows, 4, 4);
	rig_begin(&rig, 4);
	for (uint32_t i = 0; i < K; i++) {
		rig_advance(&rig, 4);
		for (int32_t s = 0; s < 4; s++) {
			assert_true((drafts_of(&rig, s)[i] >= 0) == (i < n_drafts[s]));
			check_decode(&rig, (uint32_t)s, s, i + 1, i < n_drafts[s]);
		}
	}
	rig_deinit(&rig);
}

static void test_decodes_find_their_pages_in_the_block_table_of_the_step(void **state)
{
	static const struct step_row rows[] = {VERIFY(0), DECODE(1)};
	struct rig rig;

	rng = 28;
	for (int32_t length = 0; length < CAPACITY - 2 * K - 2; length++) {
		setup(&rig, &greedy);
		random_logits(&rig);
		rig.in.slot_length[0] = rig.in.slot_length[1] = length;
		for (uint32_t i = 0; i <= K; i++)
			logits_of(&rig, 0, i)[5] = 9;
		rig_prepare(&rig, rows, 0, 0, NULL);
		for (uint32_t i = 0; i < K; i++)
			drafts_of(&rig, 0)[i] = 5;
		run_target(&rig, rows, 2, 2);
		assert_int_equal(rig.in.slot_length[0], length + 1 + K);
		rig_begin(&rig, 2);
		for (uint32_t i = 0; i + 1 < K; i++) {
			rig_advance(&rig, 2);
			for (uint32_t r = 0; r < 2; r++) {
				const int32_t *pages = rig.in.block_table + r * MAX_PAGES;
				int32_t p = rig.draft.positions[r];

				for (int32_t page = 0; page <= p / PAGE_TOKENS; page++)
					assert_int_equal(pages[page],
						rig.in.slot_block_table[r * MAX_PAGES +
									(uint32_t)page]);
				assert_int_equal(rig.draft.decode_slot_mapping[r],
					pages[p / PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS);
			}
		}
		rig_deinit(&rig);
	}
}

static void test_logits_that_are_not_finite_draft_nothing_from_there_on(void **state)
{
	static const struct step_row rows[] = {DECODE(0), DECODE(1)};
	struct rig rig;

	rng = 29;
	setup(&rig, &warm);
	rig.in.slot_sampling[1] = greedy;
	random_logits(&rig);
	run_target(&rig, rows, 2, 2);
	rig_begin(&rig, 2);
	rig_advance(&rig, 2);
	for (uint32_t i = 0; i < 2 * VOCAB; i++)
		rig.draft_logits[i] = i % 2 ? NAN : INFINITY;
	rig_advance(&rig, 2);
	random_logits(&rig);
	rig_advance(&rig, 2);
	for (int32_t s = 0; s < 2; s++) {
		assert_in_range(drafts_of(&rig, s)[0], 0, VOCAB - 1);
		assert_int_equal(drafts_of(&rig, s)[1], -1);
		assert_int_equal(drafts_of(&rig, s)[2], -1);
		check_decode(&rig, (uint32_t)s, s, K, false);
	}
	rig_deinit(&rig);
}

static void test_more_turns_than_drafts_change_none(void **state)
{
	static const struct step_row rows[] = {DECODE(0), VERIFY(4)};
	int32_t drafts[MAX_SLOTS * K];
	struct rig rig;

	rng = 30;
	setup(&rig, &greedy);
	random_logits(&rig);
	run_target(&rig, rows, 2, 2);
	rig_begin(&rig, 2);
	for (uint32_t i = 0; i < K; i++)
		rig_advance(&rig, 2);
	drafts_of(&rig, 1)[0] = drafts_of(&rig, 5)[0] = 3; /* a neighbour's */
	memcpy(drafts, rig.in.slot_drafts, sizeof(drafts));
	random_logits(&rig);
	for (int i = 0; i < 3; i++)
		rig_advance(&rig, 2);
	assert_memory_equal(drafts, rig.in.slot_drafts, sizeof(drafts));
	assert_int_equal(*rig.draft.step, K);
	assert_int_equal(rig.draft.seq_lens[0], 0);
	rig_deinit(&rig);
}

/* ---- what cannot be ---- */

static void test_draft_ops_refuse_shapes_that_cannot_be(void **state)
{
	struct op_draft_advance advance[10];
	struct op_draft_begin begin[8];
	struct rig rig;

	setup(&rig, &greedy);
	for (size_t i = 0; i < COUNT_OF(begin); i++)
		begin[i] = begin_args(&rig, 1);
	begin[0].n_rows = MAX_ROWS + 1;
	begin[1].n_tokens = MAX_TOKENS + 1;
	begin[2].sampled = NULL;
	begin[3].inputs.next_ids = NULL;
	begin[4].inputs.max_drafts = 0;
	begin[5].inputs.slot_n_drafts = NULL;
	begin[6].draft.last_index = NULL;
	begin[7].draft.step = NULL;
	for (size_t i = 0; i < COUNT_OF(begin); i++)
		assert_refused(draft_begin, &begin[i]);
	for (size_t i = 0; i < COUNT_OF(advance); i++)
		advance[i] = advance_args(&rig, 1);
	advance[0].n_rows = MAX_ROWS + 1;
	advance[1].logits = NULL;
	advance[2].draft_vocab = 0;
	advance[3].inputs.slot_block_table = NULL;
	advance[4].inputs.slot_draft_logits = NULL;
	advance[5].draft.decode_ids = NULL;
	advance[6].draft.query_start = NULL;
	advance[7].draft.hidden_index = NULL;
	advance[8].draft.last_index = NULL;
	advance[9].inputs.max_drafts = 0;
	for (size_t i = 0; i < COUNT_OF(advance); i++)
		assert_refused(draft_advance, &advance[i]);
	rig_deinit(&rig);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_the_draft_reads_each_tokens_successor),
	cmocka_unit_test(
		test_a_row_to_verify_that_is_not_sampled_drafts_nothing_and_keeps_no_drafts),
	cmocka_unit_test(test_rows_without_drafts_leave_the_drafts_cache_alone),
	cmocka_unit_test(test_an_id_behind_a_row_is_clamped_into_the_vocabulary),
	cmocka_unit_test(test_drafts_follow_one_another_for_rows_that_want_them),
	cmocka_unit_test(
		test_a_draft_is_drawn_as_a_sample_of_its_own_purpose_and_its_logits_are_kept),
	cmocka_unit_test(test_draft_ids_become_the_targets_and_what_has_none_is_never_drafted),
	cmocka_unit_test(test_drafts_end_at_the_slots_pages),
	cmocka_unit_test(test_decodes_find_their_pages_in_the_block_table_of_the_step),
	cmocka_unit_test(test_logits_that_are_not_finite_draft_nothing_from_there_on),
	cmocka_unit_test(test_more_turns_than_drafts_change_none),
	cmocka_unit_test(test_draft_ops_refuse_shapes_that_cannot_be),
};

OPS_TEST_MAIN("cpu ops: draft", tests)
