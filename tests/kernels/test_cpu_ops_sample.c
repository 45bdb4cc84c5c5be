/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_ops_fixture.h"
#include "tests/kernels/distribution.h"

enum { MAX_ROWS = 256, SMALL_VOCAB = 12, DRAWS = 20480 };

/* Row r samples slot r, at sequence length seq_lens[r]. */
struct rows {
	struct step_inputs in;
	int32_t row_slot[MAX_ROWS], row_flags[MAX_ROWS], seq_lens[MAX_ROWS];
	int32_t last_token[MAX_ROWS], sampled[MAX_ROWS];
	struct slot_sampling sampling[MAX_ROWS];
};

static const struct slot_sampling greedy = {.top_p = 1};

static void rows_init(struct rows *rows, const struct slot_sampling *sampling)
{
	for (int32_t r = 0; r < MAX_ROWS; r++) {
		rows->row_slot[r] = r;
		rows->row_flags[r] = ROW_SAMPLE;
		rows->seq_lens[r] = r + 1;
		rows->last_token[r] = rows->sampled[r] = -9;
		rows->sampling[r] = *sampling;
	}
	rows->in = (struct step_inputs){
		.max_rows = MAX_ROWS,
		.max_slots = MAX_ROWS,
		.row_slot = rows->row_slot,
		.row_flags = rows->row_flags,
		.seq_lens = rows->seq_lens,
		.slot_last_token = rows->last_token,
		.slot_sampling = rows->sampling,
	};
}

static void sample(struct rows *rows, const float *logits, uint32_t n_rows, uint32_t vocab,
	enum sample_purpose purpose)
{
	struct op_sample a = {
		.logits = logits,
		.n_rows = n_rows,
		.vocab = vocab,
		.purpose = purpose,
		.inputs = rows->in,
		.sampled = rows->sampled,
	};

	RUN(sample, &a);
}

/* ---- greedy ---- */

static int32_t sample_one(const float *logits, uint32_t vocab, const struct slot_sampling *sampling)
{
	struct rows rows;

	rows_init(&rows, sampling);
	sample(&rows, logits, 1, vocab, SAMPLE_TARGET);
	assert_int_equal(rows.last_token[0], rows.sampled[0] < 0 ? 0 : rows.sampled[0]);
	return rows.sampled[0];
}

static void test_greedy_takes_the_lowest_id_of_a_tie(void **state)
{
	static const float logits[] = {-3, 2, 5, 1, 5, 5};

	assert_int_equal(sample_one(logits, 6, &greedy), 2);
	assert_int_equal(sample_one(logits + 3, 3, &greedy), 1);
}

static void test_a_logit_of_minus_infinity_is_never_drawn(void **state)
{
	static const float logits[] = {-INFINITY, -7, -INFINITY, -INFINITY, -6, -INFINITY};
	struct slot_sampling s = {.temperature = 1e-3f, .top_p = 1};

	assert_int_equal(sample_one(logits, 6, &greedy), 4);
	assert_int_equal(sample_one(logits, 6, &s), 4);
	s.top_k = 3;
	assert_int_equal(sample_one(logits, 6, &s), 4);
	s = (struct slot_sampling){.temperature = INFINITY, .top_p = 1};
	for (s.seed = 0; s.seed < 100; s.seed++)
		assert_true(isfinite(logits[sample_one(logits, 6, &s)]));
}

static const struct slot_sampling ways[] = {
	{.top_p = 1},
	{.temperature = 1, .top_p = 1},
	{.temperature = 1, .top_p = 1, .min_p = 0.1f},
	{.temperature = 1, .top_p = 1, .top_k = 3},
	{.temperature = 1, .top_p = 0.9f},
};

/* Row 1 has it, rows 0 and 2 are as without it. */
static void check_not_finite(const struct slot_sampling *s, float bad, uint32_t at)
{
	float logits[3 * SMALL_VOCAB];
	int32_t want[3];
	struct rows rows;

	rows_init(&rows, s);
	random_fill_floats(&rng, logits, COUNT_OF(logits));
	logits[0] = logits[SMALL_VOCAB + 1] = -INFINITY;
	sample(&rows, logits, 3, SMALL_VOCAB, SAMPLE_TARGET);
	memcpy(want, rows.sampled, sizeof(want));
	assert_in_range(want[1], 0, SMALL_VOCAB - 1);
	logits[SMALL_VOCAB + at] = bad;
	sample(&rows, logits, 3, SMALL_VOCAB, SAMPLE_TARGET);
	assert_int_equal(rows.sampled[0], want[0]);
	assert_int_equal(rows.sampled[1], -1);
	assert_int_equal(rows.sampled[2], want[2]);
	assert_int_equal(rows.last_token[0], want[0]);
	assert_int_equal(rows.last_token[1], 0);
	assert_int_equal(rows.last_token[2], want[2]);
}

static void test_a_nan_or_infinity_in_a_row_leaves_that_row_without_a_token(void **state)
{
	static const float bad[] = {NAN, -NAN, INFINITY};
	static const uint32_t at[] = {0, 1, SMALL_VOCAB / 2, SMALL_VOCAB - 1};

	rng = 3;
	for (size_t i = 0; i < COUNT_OF(ways); i++)
		for (size_t k = 0; k < COUNT_OF(bad) * COUNT_OF(at); k++)
			check_not_finite(&ways[i], bad[k / COUNT_OF(at)], at[k % COUNT_OF(at)]);
}

static void test_a_row_of_minus_infinity_alone_has_no_token(void **state)
{
	static const float none[] = {-INFINITY, -INFINITY, -INFINITY};

	for (size_t i = 0; i < COUNT_OF(ways); i++)
		assert_int_equal(sample_one(none, 3, &ways[i]), -1);
}

static void test_parameters_out_of_range_keep_the_first_token_or_are_off(void **state)
{
	static const float logits[] = {1, 3, 2};
	static const struct slot_sampling first_only[] = {
		{.temperature = NAN, .top_p = 1},
		{.temperature = -1, .top_p = 1},
		{.temperature = 1, .top_p = 0},
		{.temperature = 1, .top_p = -1},
		{.temperature = 1, .top_p = 1, .min_p = 2},
		{.temperature = 1, .top_p = 0.99f, .min_p = 2},
		{.temperature = 1, .top_p = 1, .top_k = 1},
		{.temperature = 1e-45f, .top_p = 1},
	};
	static const struct slot_sampling off[] = {
		{.temperature = INFINITY, .top_p = 1},
		{.temperature = 1, .top_p = NAN},
		{.temperature = 1, .top_p = 1, .min_p = NAN},
		{.temperature = 1, .top_p = 1, .top_k = UINT32_MAX},
	};

	for (size_t i = 0; i < COUNT_OF(first_only) + COUNT_OF(off); i++) {
		bool filtered = i < COUNT_OF(first_only);
		struct rows rows;
		float copies[MAX_ROWS * 3];
		int others = 0;

		rows_init(&rows, filtered ? &first_only[i] : &off[i - COUNT_OF(first_only)]);
		for (int r = 0; r < MAX_ROWS; r++)
			memcpy(copies + 3 * r, logits, sizeof(logits));
		sample(&rows, copies, MAX_ROWS, 3, SAMPLE_TARGET);
		for (int r = 0; r < MAX_ROWS; r++) {
			assert_in_range(rows.sampled[r], 0, 2);
			others += rows.sampled[r] != 1;
		}
		assert_int_equal(others == 0, filtered);
	}
}

static void test_rows_without_slot_or_flag_touch_no_slot(void **state)
{
	float logits[4 * 3] = {0};
	struct rows rows;

	rows_init(&rows, &greedy);
	rows.row_slot[0] = -1;
	rows.row_flags[1] = ROW_FROM_SLOT;
	rows.row_slot[2] = 17;
	rows.row_slot[3] = MAX_ROWS;
	sample(&rows, logits, 4, 3, SAMPLE_TARGET);
	assert_int_equal(rows.sampled[0], -1);
	assert_int_equal(rows.sampled[1], -1);
	assert_int_equal(rows.sampled[2], 0);
	assert_int_equal(rows.sampled[3], -1);
	assert_int_equal(rows.sampled[4], -9);
	for (int s = 0; s < MAX_ROWS; s++)
		assert_int_equal(rows.last_token[s], s == 17 ? 0 : -9);
}

/* ---- the distribution ---- */

/* Above the 1 - 1e-6 quantile of chi-square (Wilson and Hilferty's approximation)? Bins that expect
 * less than 5 are pooled. */
static void check_chi_square(const uint32_t *counts, const double *p, uint32_t n, double draws)
{
	double statistic = 0, rest = 0, rest_count = 0, spread, limit;
	int freedom = -1;

	for (uint32_t i = 0; i < n; i++) {
		double expected = p[i] * draws;

		if (p[i] == 0) {
			assert_int_equal(counts[i], 0);
		} else if (expected < 5) {
			rest += expected;
			rest_count += counts[i];
		} else {
			statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
			freedom++;
		}
	}
	if (rest >= 5) {
		statistic += (rest_count - rest) * (rest_count - rest) / rest;
		freedom++;
	}
	if (freedom < 1)
		return;
	spread = 2.0 / (9 * freedom);
	limit = freedom * pow(1 - spread + 4.753 * sqrt(spread), 3);
	if (statistic > limit)
		fail_msg("chi-square %.1f above %.1f at %d degrees", statistic, limit, freedom);
}

/* DRAWS draws, MAX_ROWS a launch: over positions of one seed, or over seeds at one position. */
static void draw_counts(const float *logits, uint32_t vocab, const struct slot_sampling *s,
	bool over_seeds, uint32_t *counts)
{
	float *copies = malloc(sizeof(float) * MAX_ROWS * vocab);
	struct rows rows;

	assert_non_null(copies);
	for (uint32_t r = 0; r < MAX_ROWS; r++)
		memcpy(copies + (size_t)r * vocab, logits, sizeof(float) * vocab);
	memset(counts, 0, sizeof(*counts) * vocab);
	for (uint32_t done = 0; done < DRAWS; done += MAX_ROWS) {
		rows_init(&rows, s);
		for (uint32_t r = 0; r < MAX_ROWS; r++) {
			rows.seq_lens[r] = over_seeds ? 77 : (int32_t)(done + r + 1);
			rows.sampling[r].seed = over_seeds ? done + r : s->seed;
		}
		sample(&rows, copies, MAX_ROWS, vocab, SAMPLE_TARGET);
		for (uint32_t r = 0; r < MAX_ROWS; r++) {
			assert_in_range(rows.sampled[r], 0, vocab - 1);
			counts[rows.sampled[r]]++;
		}
	}
	free(copies);
}

static void check_draws(const struct slot_sampling *s)
{
	/* Two ties, one of them across the usual thresholds; no order. */
	static const float logits[SMALL_VOCAB] = {
		0.5f,
		2,
		-1,
		3,
		2,
		1,
		0.25f,
		-2,
		2.5f,
		1,
		1,
		-0.5f,
	};
	uint32_t counts[SMALL_VOCAB];
	double p[SMALL_VOCAB];

	filtered_distribution(logits, SMALL_VOCAB, s, p);
	draw_counts(logits, SMALL_VOCAB, s, false, counts);
	check_chi_square(counts, p, SMALL_VOCAB, DRAWS);
	draw_counts(logits, SMALL_VOCAB, s, true, counts);
	check_chi_square(counts, p, SMALL_VOCAB, DRAWS);
}

static void check_all_draws(const struct slot_sampling *cases, size_t n)
{
	for (size_t i = 0; i < n; i++)
		check_draws(&cases[i]);
}

static void test_draws_follow_the_temperature(void **state)
{
	static const struct slot_sampling cases[] = {
		{.temperature = 1, .top_p = 1, .seed = 1},
		{.temperature = 0.5f, .top_p = 1, .seed = 2},
		{.temperature = 3, .top_p = 1, .seed = 3},
	};

	check_all_draws(cases, COUNT_OF(cases));
}

static void test_draws_follow_top_k_with_ties_to_the_lowest_id(void **state)
{
	static const struct slot_sampling cases[] = {
		{.temperature = 1, .top_p = 1, .top_k = 1, .seed = 4},
		{.temperature = 1, .top_p = 1, .top_k = 3, .seed = 5},
		{.temperature = 2, .top_p = 1, .top_k = 6, .seed = 6},
		{.temperature = 2, .top_p = 1, .top_k = 11, .seed = 7},
		{.temperature = 1, .top_p = 1, .top_k = 12, .seed = 8},
	};

	check_all_draws(cases, COUNT_OF(cases));
}

static void test_draws_follow_top_p_with_the_crossing_token(void **state)
{
	static const struct slot_sampling cases[] = {
		{.temperature = 1, .top_p = 0.05f, .seed = 9},
		{.temperature = 1, .top_p = 0.5f, .seed = 10},
		{.temperature = 2, .top_p = 0.9f, .seed = 11},
		{.temperature = 1, .top_p = 0.999f, .seed = 12},
	};

	check_all_draws(cases, COUNT_OF(cases));
}

static void test_draws_follow_min_p(void **state)
{
	static const struct slot_sampling cases[] = {
		{.temperature = 1, .top_p = 1, .min_p = 0.1f, .seed = 13},
		{.temperature = 2, .top_p = 1, .min_p = 0.5f, .seed = 14},
	};

	check_all_draws(cases, COUNT_OF(cases));
}

static void test_draws_follow_all_filters_in_their_order(void **state)
{
	static const struct slot_sampling cases[] = {
		{.temperature = 1.5f, .top_k = 8, .top_p = 0.8f, .min_p = 0.2f, .seed = 15},
		{.temperature = 0.7f, .top_k = 10, .top_p = 0.95f, .min_p = 0.05f, .seed = 16},
		{.temperature = 2, .top_k = 4, .top_p = 0.75f, .min_p = 0, .seed = 17},
		{.temperature = 2, .top_k = 0, .top_p = 0.9f, .min_p = 0.4f, .seed = 18},
	};

	check_all_draws(cases, COUNT_OF(cases));
}

/* min_p 1 leaves the ones that tie with the first, whether they are ordered or not. */
static void test_tokens_that_have_min_p_to_the_bit_are_drawn(void **state)
{
	static const float logits[] = {2, 5, 5, 1, 5};
	static const struct slot_sampling cases[] = {
		{.temperature = 1, .top_p = 1, .min_p = 1, .seed = 19},
		{.temperature = 1, .top_p = 1, .top_k = 4, .min_p = 1, .seed = 20},
		{.temperature = 1, .top_p = 0.99f, .min_p = 1, .seed = 21},
	};
	static const double p[] = {0, 1 / 3.0, 1 / 3.0, 0, 1 / 3.0};
	uint32_t counts[COUNT_OF(logits)];

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		draw_counts(logits, COUNT_OF(logits), &cases[i], false, counts);
		check_chi_square(counts, p, COUNT_OF(logits), DRAWS);
	}
}

/* ---- the noise ---- */

/* Gumbel noise for every token, by the words of the op's head; nothing is skipped. */
static int32_t plain_draw(const float *logits, uint32_t vocab, const struct slot_sampling *s,
	uint32_t position, uint32_t purpose)
{
	double best = -HUGE_VAL;
	int32_t best_id = -1;

	for (uint32_t i = 0; i < vocab; i++) {
		double u = plain_uniform(s->seed, position, purpose, i);
		double score = (double)logits[i] / (double)s->temperature - log(-log(u));

		if ((s->top_k == 0 || rank_of(logits, vocab, i) < s->top_k) && score > best) {
			best = score;
			best_id = (int32_t)i;
		}
	}
	return best_id;
}

static void test_draw_equals_a_plain_arg_max_over_a_large_vocabulary(void **state)
{
	enum { VOCAB = 3001, ROWS = 16 };
	struct buffer logits = random_floats(ROWS * VOCAB);
	float *x = logits.data;

	rng = 50;
	for (size_t i = 0; i < ROWS * VOCAB; i++)
		x[i] = 6 * (random_float(&rng) + random_float(&rng) + random_float(&rng));
	for (uint32_t purpose = SAMPLE_TARGET; purpose <= SAMPLE_RESIDUAL; purpose++) {
		struct slot_sampling s = {.temperature = 1.3f, .top_p = 1, .seed = UINT64_MAX};
		struct rows rows;

		s.top_k = purpose % 2 ? 0 : 40;
		rows_init(&rows, &s);
		sample(&rows, x, ROWS, VOCAB, (enum sample_purpose)purpose);
		for (uint32_t r = 0; r < ROWS; r++)
			assert_int_equal(
				rows.sampled[r], plain_draw(x + (size_t)r * VOCAB, VOCAB, &s,
							 (uint32_t)rows.seq_lens[r], purpose));
	}
}

static void test_draw_does_not_depend_on_the_batch(void **state)
{
	enum { VOCAB = 257 };
	struct slot_sampling s = {.temperature = 1, .top_p = 0.95f, .top_k = 100, .seed = 5};
	struct buffer logits = random_floats(MAX_ROWS * VOCAB), moved = buffer_new(logits.bytes);
	float *from = logits.data, *to = moved.data;
	int32_t alone[MAX_ROWS];
	struct rows rows;

	rows_init(&rows, &s);
	for (int r = 0; r < MAX_ROWS; r++) {
		rows.seq_lens[0] = 3 * r;
		sample(&rows, from + r * VOCAB, 1, VOCAB, SAMPLE_TARGET);
		alone[r] = rows.sampled[0];
	}
	/* In reverse order, other slots, among other rows with other parameters. */
	for (int r = 0; r < MAX_ROWS; r++) {
		int place = MAX_ROWS - 1 - r;

		rows.row_slot[place] = (r + 100) % MAX_ROWS;
		rows.seq_lens[place] = 3 * r;
		if (r % 3 == 0)
			rows.sampling[(r + 100) % MAX_ROWS].temperature = 0;
		memcpy(to + place * VOCAB, from + r * VOCAB, VOCAB * sizeof(float));
	}
	sample(&rows, to, MAX_ROWS, VOCAB, SAMPLE_TARGET);
	for (int r = 0; r < MAX_ROWS; r++)
		if (r % 3)
			assert_int_equal(rows.sampled[MAX_ROWS - 1 - r], alone[r]);
}

/* Pairs of draws that differ in one part of the key fill a 4 x 4 table evenly. */
enum key_part { BY_PURPOSE, BY_POSITION, BY_SEED, BY_POSITION_AND_PURPOSE };

static void check_independent(enum key_part part)
{
	static const float logits[4 * MAX_ROWS];
	struct slot_sampling s = {.temperature = 1, .top_p = 1};
	uint32_t pairs[16] = {0};
	double even[16];

	for (int i = 0; i < 16; i++)
		even[i] = 1.0 / 16;
	for (uint32_t done = 0; done < DRAWS; done += MAX_ROWS) {
		int32_t first[MAX_ROWS];
		struct rows rows;

		rows_init(&rows, &s);
		for (uint32_t r = 0; r < MAX_ROWS; r++) {
			rows.sampling[r].seed = 2 * (done + r);
			rows.seq_lens[r] = 10;
		}
		sample(&rows, logits, MAX_ROWS, 4, SAMPLE_TARGET);
		memcpy(first, rows.sampled, sizeof(first));
		for (uint32_t r = 0; r < MAX_ROWS; r++) {
			rows.sampling[r].seed += part == BY_SEED;
			rows.seq_lens[r] += part == BY_POSITION || part == BY_POSITION_AND_PURPOSE;
		}
		sample(&rows, logits, MAX_ROWS, 4,
			part == BY_PURPOSE || part == BY_POSITION_AND_PURPOSE ? SAMPLE_DRAFT
									      : SAMPLE_TARGET);
		for (uint32_t r = 0; r < MAX_ROWS; r++)
			pairs[first[r] * 4 + rows.sampled[r]]++;
	}
	check_chi_square(pairs, even, 16, DRAWS);
}

static void test_draws_of_two_purposes_are_independent(void **state)
{
	check_independent(BY_PURPOSE);
	check_independent(BY_POSITION_AND_PURPOSE);
}

static void test_draws_of_two_positions_are_independent(void **state)
{
	check_independent(BY_POSITION);
}

static void test_draws_of_two_seeds_are_independent(void **state)
{
	check_independent(BY_SEED);
}

static void test_sample_refuses_shapes_that_cannot_be(void **state)
{
	float logits[3] = {0};
	struct rows rows;
	struct op_sample bad[5];

	rows_init(&rows, &greedy);
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		bad[i] = (struct op_sample){logits, 1, 3, SAMPLE_TARGET, rows.in, rows.sampled};
	bad[0].logits = NULL;
	bad[1].vocab = 0;
	bad[2].n_rows = MAX_ROWS + 1;
	bad[3].purpose = SAMPLE_RESIDUAL + 1;
	bad[4].inputs.slot_last_token = NULL;
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		assert_refused(sample, &bad[i]);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_greedy_takes_the_lowest_id_of_a_tie),
	cmocka_unit_test(test_a_logit_of_minus_infinity_is_never_drawn),
	cmocka_unit_test(test_a_nan_or_infinity_in_a_row_leaves_that_row_without_a_token),
	cmocka_unit_test(test_a_row_of_minus_infinity_alone_has_no_token),
	cmocka_unit_test(test_parameters_out_of_range_keep_the_first_token_or_are_off),
	cmocka_unit_test(test_rows_without_slot_or_flag_touch_no_slot),
	cmocka_unit_test(test_draws_follow_the_temperature),
	cmocka_unit_test(test_draws_follow_top_k_with_ties_to_the_lowest_id),
	cmocka_unit_test(test_draws_follow_top_p_with_the_crossing_token),
	cmocka_unit_test(test_draws_follow_min_p),
	cmocka_unit_test(test_draws_follow_all_filters_in_their_order),
	cmocka_unit_test(test_tokens_that_have_min_p_to_the_bit_are_drawn),
	cmocka_unit_test(test_draw_equals_a_plain_arg_max_over_a_large_vocabulary),
	cmocka_unit_test(test_draw_does_not_depend_on_the_batch),
	cmocka_unit_test(test_draws_of_two_purposes_are_independent),
	cmocka_unit_test(test_draws_of_two_positions_are_independent),
	cmocka_unit_test(test_draws_of_two_seeds_are_independent),
	cmocka_unit_test(test_sample_refuses_shapes_that_cannot_be),
};

OPS_TEST_MAIN("cpu ops: sample", tests)
