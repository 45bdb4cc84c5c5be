/* SPDX-License-Identifier: MIT */
/*
 * Log-probabilities of sampled tokens, of verified ones and of tokens that are given, against the
 * log-softmax in double precision; and means of rows. On the device of MIMEO_DEVICE.
 */
#include "kernels/convert.h"
#include "tests/kernels/adjustment.h"
#include "tests/kernels/speculate_fixture.h"

enum { ROWS = 4, K = 3, LENGTH = 9 };

static const struct slot_sampling greedy = {.top_p = 1};
static const struct slot_sampling drawn = {.temperature = 1.5f, .top_p = 1, .seed = 5};
/* One that is no multiple of 32, some that fill a block's pass and more, and real ones. */
static const uint32_t vocabs[] = {17, 1000, 8192, 32003, 151936};

static void set_up(struct rig *rig, uint32_t vocab, uint32_t k, const struct slot_sampling *sampling)
{
	const struct step_inputs sizes = {
		.max_rows = ROWS,
		.max_tokens = ROWS * (1 + K),
		.max_slots = ROWS,
		.max_pages = 1,
		.page_tokens = 64,
		.vocab_size = vocab,
		.max_drafts = k,
	};

	rig_init(rig, &sizes, 2 * ROWS);
	rig_init_slots(rig, 1, k, sampling);
	for (int32_t r = 0; r < ROWS; r++) {
		rig->in.row_slot[r] = r;
		rig->in.row_flags[r] = ROW_SAMPLE | ROW_LOGPROBS;
		rig->in.seq_lens[r] = LENGTH;
		rig->in.query_start[r] = r * (int32_t)(1 + k);
	}
	rig->in.query_start[ROWS] = ROWS * (int32_t)(1 + k);
	for (size_t i = 0; i < (size_t)ROWS * (1 + k) * vocab; i++)
		rig->logits[i] = 6 * random_float(&rng);
}

static void set_top(struct rig *rig, int32_t slot, uint32_t n_top)
{
	rig_update(rig, &(struct slot_update){.slot = slot,
		.flags = UPDATE_CLEAR | UPDATE_SET,
		.adjust = {.repetition = 1, .n_top = n_top}});
}

static void rig_sample(struct rig *rig)
{
	struct op_sample a = {rig->logits, ROWS, rig->in.vocab_size, SAMPLE_TARGET, rig->in, rig->sampled};

	RUN(sample, &a);
}

static float *copy_of(const float *logits, uint32_t vocab)
{
	float *copy = scratch(vocab * sizeof(float));

	memcpy(copy, logits, vocab * sizeof(float));
	return copy;
}

/* Or within float32's own steps. */
#define assert_logprob(have, want, tolerance)                                                      \
	assert_close(have, want, (tolerance) + 1e-7 * fabs(want))

/* entries[1 ... n_top], by falling logit, ties by id. */
static void check_top(const struct token_logprob *entries, const float *logits, uint32_t vocab, uint32_t n_top)
{
	const double log_sum = book_log_sum(logits, vocab);
	int32_t before = -1;

	for (uint32_t i = 1; i <= n_top; i++) {
		int32_t best = -1;

		for (int32_t id = 0; id < (int32_t)vocab; id++) {
			if (before >= 0 && (logits[id] > logits[before] ||
						   (logits[id] == logits[before] && id <= before)))
				continue;
			if (isfinite(logits[id]) && (best < 0 || logits[id] > logits[best]))
				best = id;
		}
		assert_int_equal(entries[i].token, best);
		if (best < 0) {
			assert_true(isnan(entries[i].logprob));
			return;
		}
		assert_logprob(entries[i].logprob, (double)logits[best] - log_sum, 2e-6);
		before = best;
	}
}

static void check_entry(const struct token_logprob *entries, int32_t token, const float *logits, uint32_t vocab,
	double tolerance)
{
	assert_int_equal(entries[0].token, token);
	assert_logprob(entries[0].logprob, (double)logits[token] - book_log_sum(logits, vocab), tolerance);
}

/* ---- of sampled tokens ---- */

static void test_a_sampled_token_has_its_log_probability_and_the_likeliest_beside_it(void **state)
{
	static const uint32_t n_top[ROWS] = {0, 1, 5, 20};

	rng = 1;
	for (size_t v = 0; v < COUNT_OF(vocabs); v++) {
		const struct slot_sampling *const ways[] = {&greedy, &drawn};
		const uint32_t vocab = vocabs[v];

		for (size_t w = 0; w < COUNT_OF(ways); w++) {
			struct rig rig;

			set_up(&rig, vocab, 0, ways[w]);
			for (int32_t r = 0; r < ROWS; r++)
				set_top(&rig, r, n_top[r]);
			rig_adjust(&rig, ROWS);
			rig_sample(&rig);
			for (uint32_t r = 0; r < ROWS; r++) {
				check_entry(logprobs_of(&rig, r, 0), rig.sampled[r],
					logits_of(&rig, r, 0), vocab, 2e-6);
				check_top(logprobs_of(&rig, r, 0), logits_of(&rig, r, 0), vocab,
					n_top[r] < vocab ? n_top[r] : vocab);
			}
			rig_deinit(&rig);
		}
	}
}

static void test_ties_of_the_likeliest_go_to_the_lowest_ids(void **state)
{
	enum { VOCAB = 5000 };
	struct rig rig;

	rng = 2;
	set_up(&rig, VOCAB, 0, &greedy);
	for (int32_t r = 0; r < ROWS; r++)
		set_top(&rig, r, 20);
	for (uint32_t id = 0; id < VOCAB; id++) {
		logits_of(&rig, 0, 0)[id] = 1;               /* all are equal */
		logits_of(&rig, 1, 0)[id] = (float)(id % 3); /* a third */
		logits_of(&rig, 2, 0)[id] = -(float)(id / 300);
		logits_of(&rig, 3, 0)[id] = id % 1000 ? -1e30f : 1; /* five, and then the rest */
	}
	rig_adjust(&rig, ROWS);
	for (uint32_t r = 0; r < ROWS; r++)
		check_top(logprobs_of(&rig, r, 0), logits_of(&rig, r, 0), VOCAB, 20);
	rig_deinit(&rig);
}

static void test_fewer_finite_logits_than_likeliest_leave_entries_without_token(void **state)
{
	enum { VOCAB = 5000 };
	struct rig rig;

	rng = 3;
	set_up(&rig, VOCAB, 0, &greedy);
	for (int32_t r = 0; r < ROWS; r++)
		set_top(&rig, r, 20);
	for (uint32_t r = 0; r < ROWS; r++)
		for (uint32_t id = 0; id < VOCAB; id++)
			if (id % 1000 != 7)
				logits_of(&rig, r, 0)[id] = -INFINITY;
	rig_adjust(&rig, ROWS);
	rig_sample(&rig);
	for (uint32_t r = 0; r < ROWS; r++) {
		check_entry(logprobs_of(&rig, r, 0), rig.sampled[r], logits_of(&rig, r, 0), VOCAB, 2e-6);
		check_top(logprobs_of(&rig, r, 0), logits_of(&rig, r, 0), VOCAB, 6);
		for (uint32_t i = 6; i <= 20; i++)
			assert_int_equal(logprobs_of(&rig, r, 0)[i].token, -1);
	}
	rig_deinit(&rig);
}

static void test_logits_that_are_not_finite_have_no_log_probabilities(void **state)
{
	static const float bad[] = {NAN, INFINITY};

	rng = 4;
	for (size_t b = 0; b < COUNT_OF(bad); b++) {
		struct rig rig;

		set_up(&rig, 1000, 0, &greedy);
		for (int32_t r = 0; r < ROWS; r++)
			set_top(&rig, r, 3);
		logits_of(&rig, 1, 0)[999] = bad[b];
		rig_adjust(&rig, ROWS);
		rig_sample(&rig);
		for (uint32_t i = 0; i <= 3; i++) {
			assert_int_equal(logprobs_of(&rig, 1, 0)[i].token, -1);
			assert_true(isnan(logprobs_of(&rig, 1, 0)[i].logprob));
		}
		check_top(logprobs_of(&rig, 2, 0), logits_of(&rig, 2, 0), 1000, 3);
		rig_deinit(&rig);
	}
}

static void test_log_probabilities_are_those_before_the_adjustment(void **state)
{
	enum { VOCAB = 1000 };
	static const struct token_bias bias[] = {{5, 40}, {6, -INFINITY}, {700, 12.5f}};
	static const int32_t tokens[] = {5, 9, 9, 700, 11, 5};
	struct rig rig;
	float *raw;

	rng = 5;
	for (int i = 0; i < 50; i++) {
		set_up(&rig, VOCAB, 0, &drawn);
		rig.in.slot_sampling[0].seed = (uint64_t)i;
		rig.in.row_flags[0] |= ROW_ADJUST | ROW_COUNT;
		rig_update(&rig, &(struct slot_update){.slot = 0,
			.flags = UPDATE_CLEAR | UPDATE_SET,
			.adjust = {.repetition = 1.7f, .presence = 1.5f, .frequency = -0.25f, .n_bias = 3,
				.n_top = (uint32_t)i % 2 ? 5 : 0},
			.bias = bias,
			.tokens = tokens,
			.n_tokens = COUNT_OF(tokens),
			.n_prompt = 1});
		if (i % 5 == 0) /* of those that penalties change the most */
			logits_of(&rig, 0, 0)[i % 2 ? 9 : 700] = 90;
		raw = copy_of(logits_of(&rig, 0, 0), VOCAB);
		rig_adjust(&rig, 1);
		assert_true(memcmp(raw, logits_of(&rig, 0, 0), VOCAB * sizeof(float)) != 0);
		rig_sample(&rig);
		check_entry(logprobs_of(&rig, 0, 0), rig.sampled[0], raw, VOCAB, 2e-5);
		check_top(logprobs_of(&rig, 0, 0), raw, VOCAB, i % 2 ? 5 : 0);
		rig_deinit(&rig);
	}
}

/* All bits, those of the sum of exponentials too. Rows of an odd vocabulary differ in their alignment. */
static void test_log_probabilities_do_not_depend_on_the_place_of_the_row(void **state)
{
	static const uint32_t odd[] = {1003, 50257};

	rng = 10;
	for (size_t v = 0; v < COUNT_OF(odd); v++) {
		struct rig rig;

		set_up(&rig, odd[v], 0, &greedy);
		for (int32_t r = 0; r < ROWS; r++) {
			set_top(&rig, r, 20);
			memcpy(logits_of(&rig, (uint32_t)r, 0), logits_of(&rig, 0, 0), odd[v] * sizeof(float));
		}
		rig_adjust(&rig, ROWS);
		for (uint32_t r = 1; r < ROWS; r++)
			assert_memory_equal(logprobs_of(&rig, r, 0), logprobs_of(&rig, 0, 0),
				LOGPROBS_WIDTH * sizeof(struct token_logprob));
		rig_deinit(&rig);
	}
}

/* ---- of verified tokens ---- */

static void test_each_verified_token_has_its_own_log_probabilities(void **state)
{
	enum { VOCAB = 4000 };
	static const int32_t drafts[K] = {30, 31, 99};
	float *raw[3];
	struct rig rig;

	rng = 6;
	set_up(&rig, VOCAB, K, &greedy);
	rig_update(&rig, &(struct slot_update){.slot = 2,
		.flags = UPDATE_CLEAR | UPDATE_SET,
		.adjust = {.repetition = 1.1f, .presence = 2, .n_top = 4}});
	rig.in.row_flags[2] |= ROW_VERIFY | ROW_ADJUST | ROW_COUNT;
	rig.in.slot_length[2] = LENGTH;
	memcpy(drafts_of(&rig, 2), drafts, sizeof(drafts));
	logits_of(&rig, 2, 0)[30] = logits_of(&rig, 2, 1)[31] = logits_of(&rig, 2, 2)[30] = 50;
	for (uint32_t i = 0; i < 3; i++)
		raw[i] = copy_of(logits_of(&rig, 2, i), VOCAB);
	set_top(&rig, 0, 2);
	set_top(&rig, 1, 0);
	set_top(&rig, 3, 0);
	rig_adjust(&rig, ROWS);
	rig_verify(&rig, ROWS);
	assert_int_equal(sampled_of(&rig, 2)[2], 30);
	for (uint32_t i = 0; i < 3; i++) {
		check_entry(logprobs_of(&rig, 2, i), sampled_of(&rig, 2)[i], raw[i], VOCAB, 2e-5);
		check_top(logprobs_of(&rig, 2, i), raw[i], VOCAB, 4);
	}
	check_entry(logprobs_of(&rig, 0, 0), sampled_of(&rig, 0)[0], logits_of(&rig, 0, 0), VOCAB, 2e-6);
	check_top(logprobs_of(&rig, 0, 0), logits_of(&rig, 0, 0), VOCAB, 2);
	rig_deinit(&rig);
}

static void test_rows_without_the_flag_leave_their_entries_alone(void **state)
{
	struct token_logprob *saved;
	struct rig rig;
	size_t n;

	rng = 7;
	set_up(&rig, 100, K, &greedy);
	n = (size_t)ROWS * (1 + K) * LOGPROBS_WIDTH * sizeof(*saved);
	saved = scratch(n);
	memcpy(saved, rig.in.row_logprobs, n);
	for (uint32_t r = 0; r < ROWS; r++)
		rig.in.row_flags[r] = ROW_SAMPLE;
	rig_adjust(&rig, ROWS);
	rig_verify(&rig, ROWS);
	assert_memory_equal(rig.in.row_logprobs, saved, n);
	rig_deinit(&rig);
}

/* ---- the outbox ---- */

static void test_the_outbox_copies_entries_of_rows_with_the_flag(void **state)
{
	enum { TOKENS = 1 + K, ENTRIES = TOKENS * LOGPROBS_WIDTH };
	struct buffer flags = buffer_new(ROWS * 4), from = random_floats(2 * ROWS * ENTRIES),
		      to = buffer_new(ROWS * ENTRIES * sizeof(struct token_logprob)),
		      sampled = random_floats(ROWS * TOKENS), out = buffer_new(ROWS * TOKENS * 4),
		      flag = buffer_new(8);
	struct op_outbox a = {.sampled = sampled.data, .out = out.data, .flag = flag.data, .step = 77,
		.n_rows = ROWS * TOKENS, .row_flags = flags.data, .logprobs = from.data,
		.out_logprobs = to.data, .n_logprob_rows = ROWS, .logprob_tokens = TOKENS};
	const size_t bytes = ENTRIES * sizeof(struct token_logprob);

	for (uint32_t r = 0; r < ROWS; r++)
		I(flags)[r] = ROW_SAMPLE | (r % 2 ? (int32_t)ROW_LOGPROBS : 0);
	RUN(outbox, &a);
	assert_memory_equal(out.data, sampled.data, ROWS * TOKENS * 4);
	assert_int_equal(*(uint64_t *)flag.data, 77);
	for (uint32_t r = 0; r < ROWS; r++) {
		const uint8_t *have = (uint8_t *)to.data + r * bytes;

		if (r % 2)
			assert_memory_equal(have, (uint8_t *)from.data + r * bytes, bytes);
		for (size_t i = 0; r % 2 == 0 && i < bytes; i++)
			assert_int_equal(have[i], 0xff);
	}
	a.row_flags = NULL;
	assert_refused(outbox, &a);
}

/* ---- of given tokens ---- */

static void test_given_tokens_have_their_log_probabilities(void **state)
{
	rng = 8;
	for (size_t v = 0; v < COUNT_OF(vocabs); v++) {
		const uint32_t vocab = vocabs[v];
		const size_t before = n_buffers;
		struct buffer logits = buffer_new((size_t)ROWS * vocab * sizeof(float)),
			      out = buffer_new(ROWS * LOGPROBS_WIDTH * sizeof(struct token_logprob)),
			      tokens = buffer_new(ROWS * sizeof(int32_t));
		struct op_logprobs a = {logits.data, tokens.data, out.data, ROWS, vocab, 12};

		for (size_t i = 0; i < (size_t)ROWS * vocab; i++)
			F(logits)[i] = 6 * random_normal(&rng);
		for (uint32_t r = 0; r < ROWS; r++)
			I(tokens)[r] = (int32_t)random_below(&rng, vocab);
		I(tokens)[1] = -1;
		I(tokens)[2] = (int32_t)vocab;
		RUN(logprobs, &a);
		for (uint32_t r = 0; r < ROWS; r++) {
			const struct token_logprob *entries =
				(struct token_logprob *)out.data + r * LOGPROBS_WIDTH;

			check_top(entries, F(logits) + r * vocab, vocab, 12);
			if (r == 1 || r == 2)
				assert_int_equal(entries[0].token, -1);
			else
				check_entry(entries, I(tokens)[r], F(logits) + r * vocab, vocab, 4e-6);
		}
		buffers_free_to(before);
	}
}

/* ---- means ---- */

static void test_a_mean_is_the_same_in_whatever_parts_its_rows_come(void **state)
{
	enum { N = 37, COLS = 301 };
	const bool f32 = !test_on_cuda();
	const size_t act = f32 ? 4 : 2;
	struct buffer x = buffer_new(N * COLS * act), sum = buffer_new(COLS * sizeof(double)),
		      mean = buffer_new(COLS * sizeof(float));
	float whole[COLS], *values = scratch(N * COLS * sizeof(float));

	rng = 9;
	for (size_t i = 0; i < N * COLS; i++) {
		values[i] = (float)((int32_t)random_below(&rng, 255) - 127) / 64; /* bf16 has these */
		if (f32)
			F(x)[i] = values[i];
		else
			((uint16_t *)x.data)[i] = (uint16_t)(bits_of_float(values[i]) >> 16);
	}
	for (uint32_t part = 1; part <= N; part += 6) {
		for (uint32_t at = 0; at < N; at += part) {
			const uint32_t n = N - at < part ? N - at : part;
			struct op_mean_rows a = {(uint8_t *)x.data + at * COLS * act, sum.data, mean.data,
				n, COLS, at == 0, at + n == N ? N : 0};

			memset(mean.data, 0xff, mean.bytes);
			RUN(mean_rows, &a);
		}
		if (part == 1)
			memcpy(whole, mean.data, sizeof(whole));
		assert_floats_equal(F(mean), whole, COLS);
	}
	for (uint32_t c = 0; c < COLS; c++) {
		double want = 0;

		for (uint32_t r = 0; r < N; r++)
			want += (double)values[r * COLS + c];
		assert_close(whole[c], want / N, 1e-6);
	}
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_a_sampled_token_has_its_log_probability_and_the_likeliest_beside_it),
	cmocka_unit_test(test_ties_of_the_likeliest_go_to_the_lowest_ids),
	cmocka_unit_test(test_fewer_finite_logits_than_likeliest_leave_entries_without_token),
	cmocka_unit_test(test_logits_that_are_not_finite_have_no_log_probabilities),
	cmocka_unit_test(test_log_probabilities_are_those_before_the_adjustment),
	cmocka_unit_test(test_log_probabilities_do_not_depend_on_the_place_of_the_row),
	cmocka_unit_test(test_each_verified_token_has_its_own_log_probabilities),
	cmocka_unit_test(test_rows_without_the_flag_leave_their_entries_alone),
	cmocka_unit_test(test_the_outbox_copies_entries_of_rows_with_the_flag),
	cmocka_unit_test(test_given_tokens_have_their_log_probabilities),
	cmocka_unit_test(test_a_mean_is_the_same_in_whatever_parts_its_rows_come),
};

OPS_TEST_MAIN("ops: log-probabilities", tests)
