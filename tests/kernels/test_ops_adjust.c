/* SPDX-License-Identifier: MIT */
/*
 * The adjustment of logits against its definition in double precision, and the counts behind it, on the
 * device of MIMEO_DEVICE. Logits, bias, masks and counts are random.
 */
#include <float.h>

#include "tests/kernels/adjustment.h"
#include "tests/kernels/speculate_fixture.h"

enum { ROWS = 3, VOCAB = 1003, K = 3, SLOT = 4, SLOTS = 6, LENGTH = 9 };

static const struct slot_sampling greedy = {.top_p = 1};

/* What a slot was told, and the same by the book. */
struct told {
	struct slot_adjust adjust;
	struct token_bias biases[SLOT_BIAS_MAX];
	float bias[VOCAB];
	bool banned[VOCAB];
	uint32_t allowed[VOCAB / 32 + 1];
	int32_t tokens[64];
	uint32_t n_tokens, n_prompt;
	bool in_prompt[VOCAB];
	uint32_t outputs[VOCAB];
};

static void set_up(struct rig *rig, uint32_t k)
{
	const struct step_inputs sizes = {
		.max_rows = ROWS,
		.max_tokens = ROWS * (1 + K),
		.max_slots = SLOTS,
		.max_pages = 1,
		.page_tokens = 64,
		.vocab_size = VOCAB,
		.max_drafts = k,
	};

	rig_init(rig, &sizes, 2 * SLOTS);
	rig_init_slots(rig, 1, k, &greedy);
	for (int32_t r = 0; r < ROWS; r++) {
		rig->in.row_slot[r] = SLOT - r;
		rig->in.row_flags[r] = ROW_SAMPLE;
		rig->in.seq_lens[r] = LENGTH;
		rig->in.query_start[r] = r * (int32_t)(1 + k);
	}
	rig->in.query_start[ROWS] = ROWS * (int32_t)(1 + k);
	for (size_t i = 0; i < (size_t)ROWS * (1 + k) * VOCAB; i++)
		rig->logits[i] = 8 * random_float(&rng);
}

/* ---- what a slot is told ---- */

static void tell_bias(struct told *t)
{
	for (uint32_t i = 0; i < 200; i++)
		t->bias[random_below(&rng, VOCAB)] = 20 * random_float(&rng);
	for (int32_t id = 0; id < VOCAB; id++)
		if (t->bias[id] != 0)
			t->biases[t->adjust.n_bias++] = (struct token_bias){id, t->bias[id]};
}

static void tell_mask(struct told *t)
{
	t->adjust.masked = 1;
	for (uint32_t id = 0; id < VOCAB; id++) {
		t->banned[id] = random_below(&rng, 3) == 0;
		t->allowed[id / 32] |= (uint32_t)!t->banned[id] << id % 32;
	}
}

/* Some tokens several times. */
static void tell_tokens(struct told *t)
{
	t->n_tokens = COUNT_OF(t->tokens);
	t->n_prompt = 40;
	for (uint32_t i = 0; i < t->n_tokens; i++) {
		t->tokens[i] = (int32_t)(random_below(&rng, 40) * 25);
		if (i < t->n_prompt)
			t->in_prompt[t->tokens[i]] = true;
		else
			t->outputs[t->tokens[i]]++;
	}
}

static void update(struct rig *rig, const struct told *t)
{
	rig_update(rig, &(struct slot_update){.slot = SLOT,
		.flags = UPDATE_CLEAR | UPDATE_SET,
		.adjust = t->adjust,
		.bias = t->biases,
		.allowed = t->allowed,
		.tokens = t->tokens,
		.n_tokens = t->n_tokens,
		.n_prompt = t->n_prompt});
}

static struct book_state book_of(const struct told *t, uint32_t position)
{
	return (struct book_state){&t->adjust, t->bias, t->banned, t->in_prompt, t->outputs, position};
}

static float *copy_of(const float *logits)
{
	float *copy = scratch(VOCAB * sizeof(float));

	memcpy(copy, logits, VOCAB * sizeof(float));
	return copy;
}

static void check_adjusted(const float *have, const float *raw, const struct book_state *book)
{
	float *want = scratch(VOCAB * sizeof(float));

	for (uint32_t id = 0; id < VOCAB; id++)
		want[id] = (float)book_adjusted(book, raw[id], id);
	assert_floats_close(have, want, VOCAB, 3e-7, 3e-6);
}

/* Row 0 is adjusted as told, and the others keep every bit. */
static void check_told(const struct told *t)
{
	const struct book_state book = book_of(t, LENGTH);
	float *raw[ROWS];
	struct rig rig;

	set_up(&rig, 0);
	update(&rig, t);
	rig.in.row_flags[0] |= ROW_ADJUST;
	for (uint32_t r = 0; r < ROWS; r++)
		raw[r] = copy_of(logits_of(&rig, r, 0));
	rig_adjust(&rig, ROWS);
	check_adjusted(logits_of(&rig, 0, 0), raw[0], &book);
	for (uint32_t r = 1; r < ROWS; r++)
		assert_floats_equal(logits_of(&rig, r, 0), raw[r], VOCAB);
	rig_deinit(&rig);
}

static void test_each_penalty_follows_its_definition(void **state)
{
	static const float penalties[][3] = {
		{1.3f, 0, 0}, {0.7f, 0, 0}, {1, 0.9f, 0}, {1, -0.6f, 0}, {1, 0, 0.5f}, {1, 0, -1.5f}};

	rng = 1;
	for (size_t i = 0; i < COUNT_OF(penalties); i++) {
		struct told *t = scratch(sizeof(*t));

		t->adjust = (struct slot_adjust){penalties[i][0], penalties[i][1], penalties[i][2]};
		tell_tokens(t);
		check_told(t);
	}
}

static void test_a_bias_is_added_to_its_tokens_alone(void **state)
{
	struct told *t = scratch(sizeof(*t));

	rng = 2;
	t->adjust = no_adjustment;
	tell_bias(t);
	assert_in_range(t->adjust.n_bias, 100, 200);
	check_told(t);
}

static void test_a_bias_of_minus_infinity_bans(void **state)
{
	struct told *t = scratch(sizeof(*t));

	rng = 3;
	t->adjust = (struct slot_adjust){.repetition = 1, .n_bias = 2};
	t->biases[0] = (struct token_bias){0, -INFINITY};
	t->biases[1] = (struct token_bias){VOCAB - 1, -INFINITY};
	t->banned[0] = t->banned[VOCAB - 1] = true;
	check_told(t);
}

static void test_a_list_of_the_longest_length_is_applied_to_its_end(void **state)
{
	enum { N = VOCAB < SLOT_BIAS_MAX ? VOCAB : SLOT_BIAS_MAX };
	struct told *t = scratch(sizeof(*t));

	rng = 4;
	t->adjust = (struct slot_adjust){.repetition = 1, .n_bias = N};
	for (int32_t i = 0; i < N; i++) {
		t->bias[i] = 3 + (float)i / 8;
		t->biases[i] = (struct token_bias){i, t->bias[i]};
	}
	check_told(t);
}

static void test_a_mask_leaves_the_allowed_tokens_alone(void **state)
{
	struct told *t = scratch(sizeof(*t));

	rng = 5;
	t->adjust = no_adjustment;
	tell_mask(t);
	check_told(t);
}

static void test_all_together_are_applied_in_their_order(void **state)
{
	rng = 6;
	for (int i = 0; i < 4; i++) {
		struct told *t = scratch(sizeof(*t));

		t->adjust = (struct slot_adjust){.repetition = 1.2f, .presence = 0.4f, .frequency = 0.3f,
			.min_position = LENGTH + 1, .n_ends = 2, .ends = {7, 77}};
		tell_bias(t);
		tell_mask(t);
		tell_tokens(t);
		check_told(t);
	}
}

static void test_ends_are_banned_before_the_position_alone(void **state)
{
	rng = 7;
	for (uint32_t min = LENGTH - 1; min <= LENGTH + 1; min++) {
		struct told *t = scratch(sizeof(*t));

		t->adjust = (struct slot_adjust){.repetition = 1, .min_position = min,
			.n_ends = SLOT_ENDS_MAX};
		for (int32_t i = 0; i < (int32_t)SLOT_ENDS_MAX; i++)
			t->adjust.ends[i] = i * 60;
		check_told(t);
	}
}

static void test_logits_that_are_not_finite_stay_as_they_are(void **state)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	struct told *t = scratch(sizeof(*t));
	struct rig rig;

	rng = 8;
	t->adjust = (struct slot_adjust){.repetition = 2, .presence = 1, .masked = 1, .n_bias = 1};
	t->biases[0] = (struct token_bias){3, 5};
	t->tokens[0] = 4;
	t->n_tokens = 1;
	set_up(&rig, 0);
	update(&rig, t); /* all but these are banned, too */
	rig.in.row_flags[0] |= ROW_ADJUST;
	for (size_t i = 0; i < COUNT_OF(bad); i++) {
		float *logits = logits_of(&rig, 0, 0);

		for (uint32_t id = 0; id < VOCAB; id++)
			logits[id] = 1;
		logits[3] = logits[4] = logits[5] = bad[i];
		rig_adjust(&rig, 1);
		for (uint32_t id = 3; id < 6; id++)
			assert_memory_equal(&logits[id], &bad[i], sizeof(float));
		assert_true(logits[6] == -INFINITY);
	}
	rig_deinit(&rig);
}

static void test_a_result_beyond_float32_is_its_largest_number(void **state)
{
	struct told *t = scratch(sizeof(*t));
	struct rig rig;

	t->adjust = (struct slot_adjust){.repetition = 0.01f};
	t->tokens[1] = 1;
	t->n_tokens = t->n_prompt = 2;
	set_up(&rig, 0);
	update(&rig, t);
	rig.in.row_flags[0] |= ROW_ADJUST;
	logits_of(&rig, 0, 0)[0] = 3e38f;
	logits_of(&rig, 0, 0)[1] = -1e-38f;
	rig_adjust(&rig, 1);
	assert_true(logits_of(&rig, 0, 0)[0] == FLT_MAX);
	assert_close(logits_of(&rig, 0, 0)[1], -1e-40f, 1e-42);
	rig_deinit(&rig);
}

/* ---- rows to verify ---- */

static void verify_rows(struct rig *rig, const int32_t drafts[K])
{
	rig->in.row_flags[0] |= ROW_VERIFY | ROW_ADJUST;
	rig->in.slot_length[SLOT] = LENGTH;
	memcpy(drafts_of(rig, SLOT), drafts, K * sizeof(drafts[0]));
}

static void test_a_verified_token_sees_the_drafts_before_it(void **state)
{
	static const int32_t all[][K] = {{50, 51, 52}, {50, 50, 50}, {75, 25, 75}, {0, 1, VOCAB - 1}};

	rng = 9;
	for (size_t c = 0; c < COUNT_OF(all); c++) {
		struct told *t = scratch(sizeof(*t));
		float *raw[1 + K];
		struct rig rig;

		t->adjust = (struct slot_adjust){.repetition = 1.5f, .presence = 0.5f, .frequency = 0.25f,
			.min_position = LENGTH + 3, .n_ends = 1, .ends = {9}};
		tell_bias(t);
		tell_mask(t);
		tell_tokens(t);
		set_up(&rig, K);
		update(&rig, t);
		verify_rows(&rig, all[c]);
		for (uint32_t i = 0; i <= K; i++)
			raw[i] = copy_of(logits_of(&rig, 0, i));
		rig_adjust(&rig, ROWS);
		for (uint32_t i = 0; i <= K; i++) {
			const struct book_state book = book_of(t, LENGTH + 1 + i);

			check_adjusted(logits_of(&rig, 0, i), raw[i], &book);
			if (i < K)
				t->outputs[all[c][i]]++;
		}
		rig_deinit(&rig);
	}
}

static void test_logits_of_no_token_of_a_row_to_verify_are_left_alone(void **state)
{
	static const int32_t drafts[K] = {5, -1, 6};
	struct told *t = scratch(sizeof(*t));
	float *raw[1 + K];
	struct rig rig;

	rng = 10;
	t->adjust = (struct slot_adjust){.repetition = 1, .masked = 1};
	set_up(&rig, K);
	update(&rig, t);
	verify_rows(&rig, drafts);
	rig.in.row_flags[1] |= ROW_ADJUST;
	rig.in.row_slot[1] = -1;
	for (uint32_t i = 0; i <= K; i++)
		raw[i] = copy_of(logits_of(&rig, 0, i));
	rig_adjust(&rig, ROWS);
	for (uint32_t id = 0; id < VOCAB; id++) {
		assert_true(logits_of(&rig, 0, 0)[id] == -INFINITY);
		assert_true(logits_of(&rig, 0, 1)[id] == -INFINITY);
		assert_true(isfinite(logits_of(&rig, 1, 0)[id]));
	}
	assert_floats_equal(logits_of(&rig, 0, 3), raw[3], VOCAB);
	rig_deinit(&rig);
}

/* ---- counts ---- */

static uint16_t count_at(const struct rig *rig, int32_t slot, int32_t token)
{
	return counts_of(rig, slot)[token];
}

static void test_an_update_counts_prompt_and_output_apart(void **state)
{
	static const int32_t tokens[] = {3, 3, 8, 1002, 3, 8, 8, 9};
	struct slot_update u = {.slot = SLOT, .flags = UPDATE_CLEAR, .tokens = tokens, .n_tokens = 8, .n_prompt = 4};
	struct rig rig;

	set_up(&rig, 0);
	memset(counts_of(&rig, SLOT - 1), 0x11, COUNTS_STRIDE(VOCAB) * 2);
	rig_update(&rig, &u);
	assert_int_equal(count_at(&rig, SLOT, 3), COUNT_PROMPT | 1);
	assert_int_equal(count_at(&rig, SLOT, 8), COUNT_PROMPT | 2);
	assert_int_equal(count_at(&rig, SLOT, 9), 1);
	assert_int_equal(count_at(&rig, SLOT, 1002), COUNT_PROMPT);
	for (int32_t id = 10; id < 1002; id++)
		assert_int_equal(count_at(&rig, SLOT, id), 0);
	u.flags = 0; /* the next part of them */
	u.n_tokens = 3;
	u.n_prompt = 0;
	rig_update(&rig, &u);
	assert_int_equal(count_at(&rig, SLOT, 3), COUNT_PROMPT | 3);
	assert_int_equal(count_at(&rig, SLOT, 8), COUNT_PROMPT | 3);
	assert_int_equal(count_at(&rig, SLOT - 1, 3), 0x1111);
	rig_deinit(&rig);
}

static void test_counts_stop_at_their_largest(void **state)
{
	enum { N = COUNT_MAX + 3000 };
	int32_t *tokens = scratch(N * sizeof(*tokens));
	struct rig rig;

	for (int i = 0; i < N; i++)
		tokens[i] = 6;
	tokens[0] = 7;
	set_up(&rig, 0);
	rig_update(&rig, &(struct slot_update){
		.slot = SLOT, .flags = UPDATE_CLEAR, .tokens = tokens, .n_tokens = N});
	assert_int_equal(count_at(&rig, SLOT, 6), COUNT_MAX);
	assert_int_equal(count_at(&rig, SLOT, 7), 1);
	rig_update(&rig, &(struct slot_update){.slot = SLOT, .tokens = tokens + 1, .n_tokens = 1, .n_prompt = 1});
	assert_int_equal(count_at(&rig, SLOT, 6), COUNT_PROMPT | COUNT_MAX);
	rig_deinit(&rig);
}

static void test_an_update_of_no_slot_writes_nothing(void **state)
{
	static const int32_t slots[] = {-1, SLOTS, INT32_MAX};
	struct rig rig;
	uint8_t *saved;

	set_up(&rig, 0);
	saved = rig_save(&rig);
	for (size_t i = 0; i < COUNT_OF(slots); i++)
		rig_update(&rig, &(struct slot_update){.slot = slots[i], .flags = UPDATE_CLEAR | UPDATE_SET,
			.adjust = no_adjustment, .tokens = slots, .n_tokens = 1});
	for (size_t i = 0, at = 0; i < rig.n_buffers; at += rig.buffers[i++].bytes)
		assert_memory_equal(rig.buffers[i].data, saved + at, rig.buffers[i].bytes);
	free(saved);
	rig_deinit(&rig);
}

static void clear_counts(struct rig *rig, int32_t slot)
{
	rig_update(rig, &(struct slot_update){
		.slot = slot, .flags = UPDATE_CLEAR | UPDATE_SET, .adjust = no_adjustment});
}

static void test_sampled_tokens_are_counted_where_the_row_says_so(void **state)
{
	struct rig rig;

	rng = 11;
	set_up(&rig, 0);
	for (int32_t r = 0; r < ROWS; r++)
		clear_counts(&rig, SLOT - r);
	rig.in.row_flags[0] |= ROW_COUNT;
	rig.in.row_flags[2] |= ROW_COUNT;
	logits_of(&rig, 2, 0)[0] = NAN; /* no token */
	for (uint32_t n = 1; n <= 3; n++) {
		struct op_sample a = {rig.logits, ROWS, VOCAB, SAMPLE_TARGET, rig.in, rig.sampled};

		RUN(sample, &a);
		assert_int_equal(count_at(&rig, SLOT, rig.sampled[0]), n);
	}
	for (int32_t id = 0; id < VOCAB; id++) {
		assert_int_equal(count_at(&rig, SLOT, id), id == rig.sampled[0] ? 3 : 0);
		assert_int_equal(count_at(&rig, SLOT - 1, id), 0);
		assert_int_equal(count_at(&rig, SLOT - 2, id), 0);
	}
	rig_deinit(&rig);
}

static void test_verified_tokens_are_counted_up_to_the_last_that_was_taken(void **state)
{
	/* 30 is greedy behind the row's first token, 31 behind 30; then comes 30, and not 99. */
	static const int32_t drafts[K] = {30, 31, 99};
	struct rig rig;

	rng = 12;
	set_up(&rig, K);
	clear_counts(&rig, SLOT);
	verify_rows(&rig, drafts);
	rig.in.row_flags[0] |= ROW_COUNT;
	logits_of(&rig, 0, 0)[30] = logits_of(&rig, 0, 1)[31] = logits_of(&rig, 0, 2)[30] = 50;
	rig_adjust(&rig, ROWS);
	rig_verify(&rig, ROWS);
	assert_int_equal(sampled_of(&rig, 0)[2], 30);
	assert_int_equal(sampled_of(&rig, 0)[3], -1);
	for (int32_t id = 0; id < VOCAB; id++)
		assert_int_equal(count_at(&rig, SLOT, id), id == 30 ? 2 : id == 31 ? 1 : 0);
	rig_deinit(&rig);
}

static void test_a_presence_penalty_keeps_a_verified_row_from_repeating_a_draft(void **state)
{
	static const int32_t drafts[K] = {30, 30, 30};
	struct told *t = scratch(sizeof(*t));
	struct rig rig;

	rng = 13;
	t->adjust = (struct slot_adjust){.repetition = 1, .presence = 2};
	set_up(&rig, K);
	update(&rig, t);
	verify_rows(&rig, drafts);
	rig.in.row_flags[0] |= ROW_COUNT;
	for (uint32_t i = 0; i <= K; i++) {
		logits_of(&rig, 0, i)[30] = 51;
		logits_of(&rig, 0, i)[40] = 50;
	}
	rig_adjust(&rig, ROWS);
	rig_verify(&rig, ROWS);
	assert_int_equal(sampled_of(&rig, 0)[0], 30);
	assert_int_equal(sampled_of(&rig, 0)[1], 40);
	assert_int_equal(sampled_of(&rig, 0)[2], -1);
	rig_deinit(&rig);
}

/* ---- refusals ---- */

static void test_arguments_that_do_not_fit_are_refused(void **state)
{
	struct op_update_slots update_args;
	struct op_adjust a;
	struct rig rig;

	set_up(&rig, K);
	a = (struct op_adjust){rig.logits, ROWS + 1, VOCAB, false, rig.in};
	assert_refused(adjust, &a);
	a = (struct op_adjust){rig.logits, ROWS, VOCAB - 1, false, rig.in};
	assert_refused(adjust, &a);
	a = (struct op_adjust){NULL, ROWS, VOCAB, false, rig.in};
	assert_refused(adjust, &a);
	a = (struct op_adjust){rig.logits, ROWS, VOCAB, false, rig.in};
	a.inputs.slot_allowed = NULL;
	assert_refused(adjust, &a);
	update_args = (struct op_update_slots){NULL, 1, rig.in};
	assert_refused(update_slots, &update_args);
	update_args = (struct op_update_slots){NULL, 0, rig.in};
	RUN(update_slots, &update_args);
	rig_deinit(&rig);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_each_penalty_follows_its_definition),
	cmocka_unit_test(test_a_bias_is_added_to_its_tokens_alone),
	cmocka_unit_test(test_a_bias_of_minus_infinity_bans),
	cmocka_unit_test(test_a_list_of_the_longest_length_is_applied_to_its_end),
	cmocka_unit_test(test_a_mask_leaves_the_allowed_tokens_alone),
	cmocka_unit_test(test_all_together_are_applied_in_their_order),
	cmocka_unit_test(test_ends_are_banned_before_the_position_alone),
	cmocka_unit_test(test_logits_that_are_not_finite_stay_as_they_are),
	cmocka_unit_test(test_a_result_beyond_float32_is_its_largest_number),
	cmocka_unit_test(test_a_verified_token_sees_the_drafts_before_it),
	cmocka_unit_test(test_logits_of_no_token_of_a_row_to_verify_are_left_alone),
	cmocka_unit_test(test_an_update_counts_prompt_and_output_apart),
	cmocka_unit_test(test_counts_stop_at_their_largest),
	cmocka_unit_test(test_an_update_of_no_slot_writes_nothing),
	cmocka_unit_test(test_sampled_tokens_are_counted_where_the_row_says_so),
	cmocka_unit_test(test_verified_tokens_are_counted_up_to_the_last_that_was_taken),
	cmocka_unit_test(test_a_presence_penalty_keeps_a_verified_row_from_repeating_a_draft),
	cmocka_unit_test(test_arguments_that_do_not_fit_are_refused),
};

OPS_TEST_MAIN("ops: adjustment of logits", tests)
