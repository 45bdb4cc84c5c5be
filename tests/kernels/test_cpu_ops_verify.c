/* SPDX-License-Identifier: MIT */
/* What verify does row by row; its distributions are in test_cpu_ops_speculate_law.c. */
#include "tests/kernels/speculate_fixture.h"

#include <sys/mman.h>

enum {
	MAX_ROWS = 6,
	MAX_SLOTS = 8,
	MAX_PAGES = 6,
	PAGE_TOKENS = 4,
	VOCAB = 24,
	K = 4,
	N_PAGES = 64,
	CAPACITY = MAX_PAGES * PAGE_TOKENS,
};

static const struct step_inputs sizes = {
	.max_rows = MAX_ROWS,
	.max_tokens = MAX_ROWS * (1 + K),
	.max_slots = MAX_SLOTS,
	.max_pages = MAX_PAGES,
	.page_tokens = PAGE_TOKENS,
	.vocab_size = VOCAB,
	.max_drafts = K,
};

static const struct slot_sampling greedy = {.top_p = 1};
static const struct slot_sampling warm = {.temperature = 1, .top_p = 1, .seed = 99};

/* Row r verifies slot r + 1, which holds r + 2 tokens and has no drafts; logits are random. */
static void setup(struct rig *rig, const struct slot_sampling *sampling)
{
	struct step_row rows[MAX_ROWS];

	rig_init(rig, &sizes, N_PAGES);
	rig_init_slots(rig, MAX_PAGES, K, sampling);
	for (int32_t r = 0; r < MAX_ROWS; r++) {
		rig->in.slot_length[r + 1] = r + 2;
		rig->in.slot_last_token[r + 1] = r;
		rows[r] = (struct step_row){.slot = r + 1, .flags = ROW_VERIFY | ROW_SAMPLE,
			.n_tokens = 1 + K, .next_id = -1};
	}
	for (size_t i = 0; i < (size_t)MAX_ROWS * (1 + K) * VOCAB; i++)
		rig->logits[i] = 3 * random_float(&rng);
	for (size_t i = 0; i < (size_t)MAX_ROWS * (1 + K); i++)
		rig->sampled[i] = -9;
	rig_prepare(rig, rows, MAX_ROWS, MAX_ROWS, NULL);
}

static void set_draft(struct rig *rig, int32_t slot, uint32_t i, int32_t draft)
{
	drafts_of(rig, slot)[i] = draft;
}

/* Logits of token i of row r with their greatest at `id`. */
static void point_at(struct rig *rig, uint32_t r, uint32_t i, int32_t id)
{
	logits_of(rig, r, i)[id] = 10;
}

static void assert_row(const struct rig *rig, uint32_t r, const int32_t *want)
{
	assert_memory_equal(sampled_of(rig, r), want, (1 + K) * sizeof(int32_t));
}

/* ---- greedy ---- */

static void test_greedy_takes_drafts_while_they_are_the_arg_max(void **state)
{
	struct rig rig;

	rng = 1;
	setup(&rig, &greedy);
	/* Row r: r drafts hold, up to all; row 5's second is wrong, whatever its third is. */
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		for (uint32_t i = 0; i <= K; i++) {
			point_at(&rig, r, i, (int32_t)(10 + i));
			if (i < K)
				set_draft(&rig, (int32_t)r + 1, i, (int32_t)(10 + i + (i >= r)));
		}
	set_draft(&rig, 6, 1, 3);
	rig_verify(&rig, MAX_ROWS);
	assert_row(&rig, 0, (int32_t[]){10, -1, -1, -1, -1});
	assert_row(&rig, 1, (int32_t[]){10, 11, -1, -1, -1});
	assert_row(&rig, 3, (int32_t[]){10, 11, 12, 13, -1});
	assert_row(&rig, 4, (int32_t[]){10, 11, 12, 13, 14});
	assert_row(&rig, 5, (int32_t[]){10, 11, -1, -1, -1});
	for (int32_t r = 0; r < MAX_ROWS; r++) {
		int32_t n = r < 5 ? 1 + r : 2;

		assert_int_equal(rig.in.slot_last_token[r + 1], 9 + n);
		assert_int_equal(rig.in.slot_length[r + 1], r + 2 + n);
	}
	rig_deinit(&rig);
}

static void test_greedy_ties_go_to_the_lowest_id(void **state)
{
	struct rig rig;

	rng = 2;
	setup(&rig, &greedy);
	point_at(&rig, 0, 0, 9);
	point_at(&rig, 0, 0, 5);
	set_draft(&rig, 1, 0, 9);
	rig_verify(&rig, 1);
	assert_row(&rig, 0, (int32_t[]){5, -1, -1, -1, -1});
	rig_deinit(&rig);
}

/* The memory of the drafts' logits cannot be touched. */
static void test_greedy_rows_do_not_touch_draft_logits(void **state)
{
	size_t bytes = (size_t)MAX_SLOTS * K * VOCAB * sizeof(float);
	void *nowhere = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static const struct slot_sampling others[] = {
		{.top_p = 1}, {.temperature = -1, .top_p = 0.5f}, {.temperature = NAN, .top_k = 3}};
	struct rig rig;

	assert_true(nowhere != MAP_FAILED);
	rng = 3;
	setup(&rig, &greedy);
	rig.in.slot_draft_logits = nowhere;
	for (uint32_t r = 0; r < MAX_ROWS; r++) {
		rig.in.slot_sampling[r + 1] = others[r % 3];
		for (uint32_t i = 0; i < K; i++) {
			point_at(&rig, r, i, 8);
			set_draft(&rig, (int32_t)r + 1, i, i < r ? 8 : 2);
		}
		for (uint32_t i = 0; i < VOCAB; i++)
			rig.draft_logits[r * VOCAB + i] = random_float(&rng);
	}
	rig_verify(&rig, MAX_ROWS);
	assert_int_equal(sampled_of(&rig, 3)[2], 8);
	rig_begin(&rig, MAX_ROWS);
	rig_advance(&rig, MAX_ROWS);
	assert_in_range(drafts_of(&rig, 3)[0], 0, VOCAB - 1);
	rig_deinit(&rig);
	munmap(nowhere, bytes);
}

/* ---- sampled ---- */

static const struct slot_sampling mixed[] = {
	{.temperature = 1, .top_p = 1, .seed = 1},
	{.temperature = 0.6f, .top_p = 1, .top_k = 5, .seed = 2},
	{.temperature = 1.5f, .top_p = 0.7f, .seed = 3},
	{.temperature = 1, .top_p = 1, .min_p = 0.2f, .seed = 4},
	{.temperature = 2, .top_p = 0.9f, .top_k = 12, .min_p = 0.1f, .seed = 5},
	{.temperature = 1, .top_p = 0.95f, .top_k = 20, .seed = UINT64_MAX},
};

/* Drafts of q near p, drawn anyhow from what q's filters keep; some rows have fewer, or none. */
static void random_drafts(struct rig *rig, uint32_t r)
{
	int32_t slot = (int32_t)r + 1;
	uint32_t n = random_below(&rng, K + 1) ? K : random_below(&rng, K);
	double q[VOCAB];

	for (uint32_t i = 0; i < K; i++) {
		float *own = draft_logits_of(rig, slot, i);
		int32_t draft;

		for (uint32_t id = 0; id < VOCAB; id++)
			own[id] = random_below(&rng, 12)
					  ? logits_of(rig, r, i)[id] + random_float(&rng)
					  : -INFINITY;
		filtered_distribution(own, VOCAB, &rig->in.slot_sampling[slot], q);
		do
			draft = (int32_t)random_below(&rng, VOCAB);
		while (q[draft] == 0);
		set_draft(rig, slot, i, i < n ? draft : -1);
	}
}

static void test_sampled_rows_are_verified_by_the_book(void **state)
{
	uint32_t n_of[2 + K] = {0};

	rng = 4;
	for (int round = 0; round < 400; round++) {
		int32_t want[MAX_ROWS][1 + K];
		uint32_t n[MAX_ROWS];
		struct rig rig;

		setup(&rig, &warm);
		for (uint32_t r = 0; r < MAX_ROWS; r++) {
			rig.in.slot_sampling[r + 1] = mixed[r];
			rig.in.slot_sampling[r + 1].seed += (uint64_t)round * 100;
			random_drafts(&rig, r);
			n[r] = book_verify(&rig, r, (int32_t)r + 1, r + 3,
				drafts_of(&rig, (int32_t)r + 1), false, want[r]);
			n_of[n[r]]++;
		}
		rig_verify(&rig, MAX_ROWS);
		for (uint32_t r = 0; r < MAX_ROWS; r++) {
			assert_row(&rig, r, want[r]);
			assert_int_equal(rig.in.slot_last_token[r + 1], want[r][n[r] - 1]);
			assert_int_equal(rig.in.slot_length[r + 1], r + 2 + n[r]);
		}
		rig_deinit(&rig);
	}
	for (uint32_t n = 1; n <= 1 + K; n++)
		assert_true(n_of[n] > 50);
}

/* Rows of one token, at the same places; `verify` selects the op. */
static void sample_plainly(struct rig *rig, bool verify, int32_t *sampled)
{
	struct step_row rows[MAX_ROWS];

	for (int32_t r = 0; r < MAX_ROWS; r++) {
		rig->in.slot_length[r + 1] = r + 2;
		rows[r] = (struct step_row){.slot = r + 1, .flags = ROW_FROM_SLOT | ROW_SAMPLE,
			.n_tokens = 1, .next_id = -1};
	}
	rig_prepare(rig, rows, MAX_ROWS, MAX_ROWS, NULL);
	if (verify) {
		rig_verify(rig, MAX_ROWS);
		for (uint32_t r = 0; r < MAX_ROWS; r++)
			sampled[r] = sampled_of(rig, r)[0];
		return;
	}
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		memmove(rig->logits + r * VOCAB, logits_of(rig, r, 0), VOCAB * sizeof(float));
	RUN(sample, (&(struct op_sample){rig->logits, MAX_ROWS, VOCAB, SAMPLE_TARGET, rig->in,
		rig->sampled}));
	memcpy(sampled, rig->sampled, MAX_ROWS * sizeof(*sampled));
}

static void test_without_drafts_a_row_to_verify_gives_what_sampling_gives(void **state)
{
	int32_t verified[MAX_ROWS], plain[MAX_ROWS], sampled[MAX_ROWS];

	for (uint64_t seed = 0; seed < 200; seed++) {
		struct rig rig;

		rng = 5 + seed;
		setup(&rig, &warm);
		for (uint32_t r = 0; r < MAX_ROWS; r++)
			rig.in.slot_sampling[r + 1] = r ? mixed[r] : greedy;
		rig_verify(&rig, MAX_ROWS);
		for (uint32_t r = 0; r < MAX_ROWS; r++) {
			verified[r] = sampled_of(&rig, r)[0];
			assert_int_equal(sampled_of(&rig, r)[1], -1);
			assert_int_equal(rig.in.slot_length[r + 1], r + 3);
		}
		sample_plainly(&rig, true, plain);
		assert_memory_equal(plain, verified, sizeof(plain));
		for (uint32_t r = 0; r < MAX_ROWS; r++)
			assert_int_equal(rig.in.slot_length[r + 1], r + 3);
		sample_plainly(&rig, false, sampled);
		assert_memory_equal(sampled, verified, sizeof(sampled));
		rig_deinit(&rig);
	}
}

/* Not a token, one out of the vocabulary, ones that their own logits do not have. */
static void test_drafts_never_drawn_count_as_none(void **state)
{
	static const int32_t bad[] = {-1, VOCAB, INT32_MAX, INT32_MIN, 3, 4};
	struct rig rig;

	rng = 6;
	for (int round = 0; round < 100; round++) {
		struct rig twin;

		setup(&rig, &warm);
		rig_init(&twin, &sizes, N_PAGES);
		for (int32_t s = 1; s <= MAX_ROWS; s++) {
			rig.in.slot_sampling[s].seed = (uint64_t)round;
			for (uint32_t id = 0; id < VOCAB; id++)
				draft_logits_of(&rig, s, 0)[id] = random_float(&rng);
			draft_logits_of(&rig, s, 0)[3] = -INFINITY;
			draft_logits_of(&rig, s, 0)[4] = NAN;
		}
		for (size_t i = 0; i < rig.n_buffers; i++)
			memcpy(twin.buffers[i].data, rig.buffers[i].data, rig.buffers[i].bytes);
		for (int32_t r = 0; r < MAX_ROWS; r++)
			set_draft(&rig, r + 1, 0, bad[r]);
		rig_verify(&rig, MAX_ROWS);
		rig_verify(&twin, MAX_ROWS);
		for (uint32_t r = 0; r < MAX_ROWS; r++)
			assert_row(&rig, r, sampled_of(&twin, r));
		rig_deinit(&twin);
		rig_deinit(&rig);
	}
}

/* Drafts of a row that hold, whatever is drawn; greedy rows do not look at their logits. */
static void hold_drafts(struct rig *rig, uint32_t r)
{
	for (uint32_t i = 0; i < K; i++) {
		for (uint32_t id = 0; id < VOCAB; id++) {
			logits_of(rig, r, i)[id] = id == 4 + i ? 10 : -INFINITY;
			draft_logits_of(rig, (int32_t)r + 1, i)[id] = logits_of(rig, r, i)[id];
		}
		set_draft(rig, (int32_t)r + 1, i, (int32_t)(4 + i));
	}
}

static void assert_dropped(const struct rig *rig, uint32_t r)
{
	const int32_t slot = (int32_t)r + 1;

	assert_row(rig, r, (int32_t[]){-1, -1, -1, -1, -1});
	assert_int_equal(rig->in.slot_last_token[slot], 0);
	assert_int_equal(rig->in.slot_length[slot], r + 3);
	for (uint32_t i = 0; i < K; i++)
		assert_int_equal(drafts_of(rig, slot)[i], -1);
}

/* Of row 1, where drafts hold; of row 3, whose first is rejected; of row 4, which has none. Row 5 does not
 * look at what is not finite. The others are as without all that. */
static void check_not_finite(const struct slot_sampling *s, float bad, uint32_t token, uint32_t id)
{
	int32_t want[MAX_ROWS][1 + K];
	struct rig rig;
	uint8_t *saved;

	setup(&rig, s);
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		hold_drafts(&rig, r);
	set_draft(&rig, 4, 0, 20);
	draft_logits_of(&rig, 4, 0)[20] = 10; /* so that it was drawn */
	set_draft(&rig, 5, 0, -1);
	set_draft(&rig, 6, 0, -1);
	saved = rig_save(&rig);
	rig_verify(&rig, MAX_ROWS);
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		memcpy(want[r], sampled_of(&rig, r), sizeof(want[r]));
	assert_in_range(want[1][K], 0, VOCAB - 1);
	rig_restore(&rig, saved);
	logits_of(&rig, 1, token)[id] = bad;
	logits_of(&rig, 3, 0)[id] = bad;
	logits_of(&rig, 4, 0)[id] = bad;
	logits_of(&rig, 5, 1)[id] = bad;
	rig_verify(&rig, MAX_ROWS);
	assert_dropped(&rig, 1);
	assert_dropped(&rig, 3);
	assert_dropped(&rig, 4);
	assert_row(&rig, 0, want[0]);
	assert_row(&rig, 2, want[2]);
	assert_row(&rig, 5, want[5]);
	assert_int_equal(rig.in.slot_length[6], 5 + 3);
	free(saved);
	rig_deinit(&rig);
}

static void test_a_nan_or_infinity_in_logits_that_count_leaves_that_row_without_tokens(void **state)
{
	static const float bad[] = {NAN, -NAN, INFINITY};
	static const uint32_t at[] = {0, VOCAB / 2, VOCAB - 1};

	rng = 7;
	for (size_t i = 0; i < 1 + COUNT_OF(mixed); i++)
		for (uint32_t token = 0; token <= K; token++)
			for (size_t k = 0; k < COUNT_OF(bad); k++)
				check_not_finite(i ? &mixed[i - 1] : &greedy, bad[k], token,
					at[(k + token) % COUNT_OF(at)]);
}

static void test_logits_of_minus_infinity_alone_leave_a_row_without_tokens(void **state)
{
	struct rig rig;

	rng = 13;
	setup(&rig, &warm);
	rig.in.slot_sampling[1] = greedy;
	for (uint32_t r = 0; r < 3; r++) {
		hold_drafts(&rig, r);
		for (uint32_t id = 0; r < 2 && id < VOCAB; id++)
			logits_of(&rig, r, 1)[id] = -INFINITY;
	}
	rig_verify(&rig, 3);
	assert_dropped(&rig, 0);
	assert_dropped(&rig, 1);
	assert_int_equal(sampled_of(&rig, 2)[K - 1], 4 + K - 1);
	rig_deinit(&rig);
}

static void test_a_draft_of_logits_that_are_not_finite_counts_as_none(void **state)
{
	struct rig rig;

	rng = 14;
	setup(&rig, &warm);
	hold_drafts(&rig, 0);
	draft_logits_of(&rig, 1, 1)[VOCAB - 1] = NAN;
	rig_verify(&rig, 1);
	assert_row(&rig, 0, (int32_t[]){4, 5, -1, -1, -1});
	rig_deinit(&rig);
}

/* A row that does not verify, as op_sample has it. */
static void test_a_row_of_one_token_that_is_not_finite_keeps_its_length(void **state)
{
	struct rig rig;

	rng = 15;
	setup(&rig, &warm);
	rig.in.slot_sampling[2] = greedy;
	for (uint32_t r = 0; r < 2; r++) {
		rig.in.row_flags[r] = ROW_SAMPLE;
		logits_of(&rig, r, 0)[9] = r ? INFINITY : NAN;
	}
	rig_verify(&rig, 3);
	for (uint32_t r = 0; r < 2; r++) {
		assert_row(&rig, r, (int32_t[]){-1, -1, -1, -1, -1});
		assert_int_equal(rig.in.slot_last_token[r + 1], 0);
		assert_int_equal(rig.in.slot_length[r + 1], r + 2);
	}
	assert_in_range(sampled_of(&rig, 2)[0], 0, VOCAB - 1);
	rig_deinit(&rig);
}

static void test_verification_does_not_depend_on_the_batch(void **state)
{
	int32_t want[MAX_ROWS][1 + K];
	uint8_t *saved;
	struct rig rig;

	rng = 8;
	setup(&rig, &warm);
	for (uint32_t r = 0; r < MAX_ROWS; r++) {
		rig.in.slot_sampling[r + 1] = mixed[r];
		random_drafts(&rig, r);
	}
	saved = rig_save(&rig);
	rig_verify(&rig, MAX_ROWS);
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		memcpy(want[r], sampled_of(&rig, r), sizeof(want[r]));
	for (uint32_t r = 0; r < MAX_ROWS; r++) { /* alone, as row 0 */
		rig_restore(&rig, saved);
		rig.in.row_slot[0] = (int32_t)r + 1;
		memmove(logits_of(&rig, 0, 0), logits_of(&rig, r, 0),
			(1 + K) * VOCAB * sizeof(float));
		rig_verify(&rig, 1);
		assert_row(&rig, 0, want[r]);
	}
	free(saved);
	rig_deinit(&rig);
}

/* ---- slots ---- */

static void test_a_draft_is_judged_once(void **state)
{
	struct rig rig;

	rng = 9;
	setup(&rig, &warm);
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		random_drafts(&rig, r);
	rig_verify(&rig, MAX_ROWS);
	for (int32_t s = 1; s <= MAX_ROWS; s++)
		for (uint32_t i = 0; i < K; i++)
			assert_int_equal(drafts_of(&rig, s)[i], -1);
	rig_deinit(&rig);
}

static void test_rows_without_slot_or_flag_and_slots_without_row_are_untouched(void **state)
{
	uint8_t *saved, *now;
	struct rig rig;

	rng = 10;
	setup(&rig, &warm);
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		random_drafts(&rig, r);
	rig.in.row_slot[0] = -1;
	rig.in.row_slot[1] = MAX_SLOTS;
	rig.in.row_flags[2] = ROW_VERIFY;
	rig.in.row_flags[3] = ROW_FROM_SLOT;
	for (size_t i = 0; i < 4 * (1 + K); i++)
		rig.sampled[i] = -1; /* what is to come */
	saved = rig_save(&rig);
	for (size_t i = 0; i < 4 * (1 + K); i++)
		rig.sampled[i] = -9;
	rig_verify(&rig, 4);
	now = rig_save(&rig);
	assert_memory_equal(now, saved, rig_bytes(&rig));
	free(now);
	free(saved);
	rig_deinit(&rig);
}

static void test_length_and_drafts_end_with_the_row_and_with_the_pages(void **state)
{
	struct rig rig;

	rng = 11;
	setup(&rig, &greedy);
	for (uint32_t r = 0; r < 3; r++)
		for (uint32_t i = 0; i <= K; i++) {
			point_at(&rig, r, i, 6);
			if (i < K)
				set_draft(&rig, (int32_t)r + 1, i, 6);
		}
	/* Row 0 has three tokens, row 1 none, row 2 is at the end. */
	rig.in.query_start[1] = rig.in.query_start[2] = 3;
	rig.in.slot_length[3] = CAPACITY - 2;
	rig_verify(&rig, 3);
	assert_row(&rig, 0, (int32_t[]){6, 6, 6, -1, -1});
	assert_int_equal(rig.in.slot_length[1], 2 + 3);
	assert_row(&rig, 1, (int32_t[]){-1, -1, -1, -1, -1});
	assert_int_equal(rig.in.slot_length[2], 3);
	assert_int_equal(rig.in.slot_length[3], CAPACITY);
	rig_deinit(&rig);
}

/* Rows that do not verify, their logits one behind the other. */
static void test_rows_of_the_last_tokens_logits_alone_lie_close(void **state)
{
	struct op_verify a;
	struct rig rig;

	rng = 12;
	setup(&rig, &greedy);
	a = verify_args(&rig, MAX_ROWS);
	a.last_only = true;
	for (uint32_t r = 0; r < MAX_ROWS; r++) {
		rig.in.row_flags[r] = ROW_SAMPLE;
		rig.logits[(size_t)r * VOCAB + 7 + r] = 10;
	}
	RUN(verify, &a);
	for (uint32_t r = 0; r < MAX_ROWS; r++) {
		assert_row(&rig, r, (int32_t[]){7 + (int32_t)r, -1, -1, -1, -1});
		assert_int_equal(rig.in.slot_last_token[r + 1], 7 + r);
		assert_int_equal(rig.in.slot_length[r + 1], r + 2);
	}
	rig_deinit(&rig);
}

static void test_verify_refuses_shapes_that_cannot_be(void **state)
{
	struct op_verify bad[12];
	struct rig rig;

	setup(&rig, &greedy);
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		bad[i] = verify_args(&rig, 1);
	bad[0].logits = NULL;
	bad[1].sampled = NULL;
	bad[2].vocab = VOCAB - 1;
	bad[3].n_rows = MAX_ROWS + 1;
	bad[4].inputs.max_drafts = 0;
	bad[5].inputs.max_drafts = MAX_ROWS * (1 + K);
	bad[6].inputs.slot_draft_logits = NULL;
	bad[7].inputs.slot_drafts = NULL;
	bad[8].inputs.slot_length = NULL;
	bad[9].inputs.query_start = NULL;
	bad[10].inputs.seq_lens = NULL;
	bad[11].inputs.row_slot = NULL;
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		assert_refused(verify, &bad[i]);
	rig_deinit(&rig);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_greedy_takes_drafts_while_they_are_the_arg_max),
	cmocka_unit_test(test_greedy_ties_go_to_the_lowest_id),
	cmocka_unit_test(test_greedy_rows_do_not_touch_draft_logits),
	cmocka_unit_test(test_sampled_rows_are_verified_by_the_book),
	cmocka_unit_test(test_without_drafts_a_row_to_verify_gives_what_sampling_gives),
	cmocka_unit_test(test_drafts_never_drawn_count_as_none),
	cmocka_unit_test(test_a_nan_or_infinity_in_logits_that_count_leaves_that_row_without_tokens),
	cmocka_unit_test(test_logits_of_minus_infinity_alone_leave_a_row_without_tokens),
	cmocka_unit_test(test_a_draft_of_logits_that_are_not_finite_counts_as_none),
	cmocka_unit_test(test_a_row_of_one_token_that_is_not_finite_keeps_its_length),
	cmocka_unit_test(test_verification_does_not_depend_on_the_batch),
	cmocka_unit_test(test_a_draft_is_judged_once),
	cmocka_unit_test(test_rows_without_slot_or_flag_and_slots_without_row_are_untouched),
	cmocka_unit_test(test_length_and_drafts_end_with_the_row_and_with_the_pages),
	cmocka_unit_test(test_rows_of_the_last_tokens_logits_alone_lie_close),
	cmocka_unit_test(test_verify_refuses_shapes_that_cannot_be),
};

OPS_TEST_MAIN("cpu ops: verify", tests)
