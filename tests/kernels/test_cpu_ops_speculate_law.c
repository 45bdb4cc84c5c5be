/* SPDX-License-Identifier: MIT */
/*
 * What comes out of drafting and verifying is distributed as the target would have it. Target and
 * draft are chains over a small vocabulary: a token's logits depend on the token before it. Many
 * slots with a seed each draft, verify and, where one token came of it, do so again; the first two
 * tokens are counted. Seeds are fixed, so a test passes always or never.
 */
#include "tests/kernels/adjustment.h"
#include "tests/kernels/speculate_fixture.h"

enum { ROWS = 1024, VOCAB = 18, DRAFT_VOCAB = 9, K_MAX = 4, START = 3, LENGTH = 5 };

static const double LEAST = 1e-4; /* of a test's probability that is still chance */

struct law {
	uint32_t k, draws;
	float noise;      /* between the draft's logits and the target's */
	bool small_vocab; /* the draft knows every other token */
	/* temperature, top_p, min_p, top_k; of the slots' seeds the first */
	struct slot_sampling sampling;
	const struct adjusted *adjusted; /* NULL: logits are taken as they are */
};

/* What all slots are told about their logits. */
struct adjusted {
	struct slot_adjust adjust;
	struct token_bias bias[2];
	uint32_t allowed;
	int32_t tokens[6]; /* before the first: two of the prompt, then output */
};

struct counts {
	uint32_t first[VOCAB], pair[VOCAB * VOCAB], n_held, n;
};

static float target_logits[VOCAB][VOCAB], draft_logits[VOCAB][VOCAB];
static int32_t d2t[DRAFT_VOCAB];

/* The draft's rows with a small vocabulary are of ids that are token / 2 of the target's. */
static void make_chains(const struct law *law)
{
	rng = 77;
	for (uint32_t t = 0; t < VOCAB; t++)
		for (uint32_t id = 0; id < VOCAB; id++)
			target_logits[t][id] = 3 * random_float(&rng);
	for (uint32_t t = 0; t < VOCAB; t++)
		for (uint32_t id = 0; id < VOCAB; id++)
			draft_logits[t][id] =
				target_logits[t][id] + law->noise * random_float(&rng);
	for (int32_t i = 0; i < DRAFT_VOCAB; i++)
		d2t[i] = i;
	for (uint32_t t = 0; law->small_vocab && t < VOCAB; t++)
		for (uint32_t i = 0; i < DRAFT_VOCAB; i++)
			draft_logits[t][i] = draft_logits[t][2 * i];
}

static void draft_distribution(const struct law *law, uint32_t token, double *q)
{
	float logits[VOCAB];

	for (uint32_t id = 0; id < VOCAB; id++)
		logits[id] = !law->small_vocab ? draft_logits[token][id]
			     : id % 2 == 0     ? draft_logits[token][id / 2]
					       : -INFINITY;
	filtered_distribution(logits, VOCAB, &law->sampling, q);
}

/* ---- adjustment ---- */

/* The distribution behind a token; `first`: -1, or the batch's first token, which is counted. */
static void target_distribution(const struct law *law, uint32_t token, int32_t first, double *p)
{
	const struct adjusted *a = law->adjusted;
	bool in_prompt[VOCAB] = {0}, banned[VOCAB];
	uint32_t outputs[VOCAB] = {0};
	float bias[VOCAB] = {0}, logits[VOCAB];
	const struct book_state book = {a ? &a->adjust : NULL, bias, banned, in_prompt, outputs,
		LENGTH + 1 + (first >= 0)};

	if (!a) {
		filtered_distribution(target_logits[token], VOCAB, &law->sampling, p);
		return;
	}
	for (uint32_t i = 0; i < a->adjust.n_bias; i++)
		bias[a->bias[i].token] = a->bias[i].bias;
	for (uint32_t i = 0; i < COUNT_OF(a->tokens); i++) {
		in_prompt[a->tokens[i]] |= i < 2;
		outputs[a->tokens[i]] += i >= 2;
	}
	if (first >= 0)
		outputs[first]++;
	for (uint32_t id = 0; id < VOCAB; id++) {
		banned[id] = a->adjust.masked && !(a->allowed >> id & 1);
		logits[id] = (float)book_adjusted(&book, target_logits[token][id], id);
	}
	filtered_distribution(logits, VOCAB, &law->sampling, p);
}

/* All slots, with one launch. */
static void tell_slots(struct rig *rig, const struct adjusted *a)
{
	const size_t before = n_buffers;
	struct buffer told = pinned_copy(a, sizeof(*a)), updates = buffer_new(ROWS * sizeof(struct slot_update));
	const struct adjusted *own = told.data;
	struct op_update_slots args = {updates.data, ROWS, rig->in};

	for (int32_t s = 0; s < ROWS; s++)
		((struct slot_update *)updates.data)[s] = (struct slot_update){
			s, UPDATE_CLEAR | UPDATE_SET, a->adjust, own->bias, &own->allowed, own->tokens,
			COUNT_OF(a->tokens), 2};
	RUN(update_slots, &args);
	buffers_free_to(before);
}

/* ---- one batch ---- */

static void set_up(struct rig *rig, const struct law *law)
{
	const struct step_inputs sizes = {
		.max_rows = ROWS,
		.max_tokens = ROWS * (1 + K_MAX),
		.max_slots = ROWS,
		.max_pages = 1,
		.page_tokens = 64,
		.vocab_size = VOCAB,
		.max_drafts = law->k,
	};

	rig_init(rig, &sizes, 2 * ROWS);
	rig_init_slots(rig, 1, law->k, &law->sampling);
	for (int32_t r = 0; r < ROWS; r++) {
		rig->in.row_flags[r] =
			ROW_VERIFY | ROW_SAMPLE | (law->adjusted ? ROW_ADJUST | ROW_COUNT : 0);
		rig->in.query_start[r] = r * (int32_t)(1 + law->k);
		rig->draft.last_index[r] = 0;
	}
	rig->in.query_start[ROWS] = ROWS * (int32_t)(1 + law->k);
}

static void begin_batch(struct rig *rig, const struct law *law, uint64_t seed)
{
	if (law->adjusted)
		tell_slots(rig, law->adjusted);
	for (uint32_t s = 0; s < ROWS; s++) {
		rig->in.row_slot[s] = (int32_t)s;
		rig->in.slot_sampling[s].seed = seed + s;
		rig->in.slot_last_token[s] = START;
		rig->in.slot_length[s] = LENGTH;
	}
}

/* Slot r's token that i drafts are behind; any if its row is done. */
static int32_t token_at(const struct rig *rig, uint32_t r, uint32_t i)
{
	if (rig->in.row_slot[r] < 0)
		return START;
	return i ? drafts_of(rig, (int32_t)r)[i - 1] : rig->in.slot_last_token[r];
}

static void draft_all(struct rig *rig, const struct law *law)
{
	struct op_draft_advance a = advance_args(rig, ROWS);
	struct buffer ids = pinned_copy(d2t, sizeof(d2t));
	const uint32_t width = law->small_vocab ? DRAFT_VOCAB : VOCAB;

	if (law->small_vocab) {
		a.d2t = ids.data;
		a.draft_vocab = DRAFT_VOCAB;
	}
	*rig->draft.step = 0;
	for (uint32_t i = 0; i < law->k; i++) {
		for (uint32_t r = 0; r < ROWS; r++)
			memcpy(rig->draft_logits + r * width, draft_logits[token_at(rig, r, i)],
				width * sizeof(float));
		RUN(draft_advance, &a);
	}
	for (uint32_t r = 0; r < ROWS; r++)
		for (uint32_t i = 0; i <= law->k; i++)
			memcpy(logits_of(rig, r, i), target_logits[token_at(rig, r, i)],
				VOCAB * sizeof(float));
}

/* As verify does it, but that what takes a rejected draft's place is drawn from p. */
static void verify_wrongly(struct rig *rig, const struct law *law)
{
	for (int32_t r = 0; r < ROWS; r++) {
		int32_t *sampled = rig->sampled + (uint32_t)r * (1 + law->k);
		uint32_t position = (uint32_t)rig->in.slot_length[r] + 1, n;

		if (rig->in.row_slot[r] < 0)
			continue;
		n = book_verify(rig, (uint32_t)r, r, position, drafts_of(rig, r), true, sampled);
		rig->in.slot_length[r] += (int32_t)n;
		rig->in.slot_last_token[r] = sampled[n - 1];
	}
}

/* Each row's first two tokens; a row that has both gets no slot. */
static void run_batch(struct rig *rig, const struct law *law, bool wrong, struct counts *counts)
{
	int32_t tokens[ROWS][2];
	uint32_t n[ROWS] = {0};

	for (int round = 0; round < 2; round++) {
		draft_all(rig, law);
		if (law->adjusted)
			rig_adjust(rig, ROWS);
		if (wrong)
			verify_wrongly(rig, law);
		else
			rig_verify(rig, ROWS);
		for (uint32_t r = 0; r < ROWS; r++) {
			counts->n_held += round == 0 && sampled_of(rig, r)[1] >= 0;
			for (uint32_t i = 0; n[r] < 2 && i <= law->k; i++)
				if (sampled_of(rig, r)[i] >= 0)
					tokens[r][n[r]++] = sampled_of(rig, r)[i];
			if (n[r] == 2)
				rig->in.row_slot[r] = -1;
		}
	}
	for (uint32_t r = 0; r < ROWS; r++) {
		assert_int_equal(n[r], 2);
		counts->first[tokens[r][0]]++;
		counts->pair[tokens[r][0] * VOCAB + tokens[r][1]]++;
	}
	counts->n += ROWS;
}

/* ---- laws ---- */

struct verdict {
	double first, pair;  /* probabilities of counts as far off */
	double held, min_sum; /* drafts that held, and the sum of min(p, q) */
};

static struct verdict judge(const struct law *law, const struct counts *counts)
{
	double p[VOCAB], q[VOCAB], next[VOCAB], joint[VOCAB * VOCAB];
	struct verdict verdict = {.held = (double)counts->n_held / counts->n};

	target_distribution(law, START, -1, p);
	draft_distribution(law, START, q);
	for (uint32_t i = 0; i < VOCAB; i++) {
		verdict.min_sum += p[i] < q[i] ? p[i] : q[i];
		target_distribution(law, i, (int32_t)i, next);
		for (uint32_t j = 0; j < VOCAB; j++)
			joint[i * VOCAB + j] = p[i] * next[j];
	}
	verdict.first = goodness_of_fit(counts->first, p, VOCAB);
	verdict.pair = goodness_of_fit(counts->pair, joint, VOCAB * VOCAB);
	return verdict;
}

static struct verdict run_law(const struct law *law, bool wrong)
{
	struct counts counts = {0};
	struct rig rig;

	make_chains(law);
	set_up(&rig, law);
	while (counts.n < law->draws) {
		begin_batch(&rig, law, law->sampling.seed + counts.n);
		run_batch(&rig, law, wrong, &counts);
	}
	rig_deinit(&rig);
	return judge(law, &counts);
}

/* Returns the share of first drafts that held. */
static double check_law(const struct law *law)
{
	struct verdict v = run_law(law, false);
	double spread = sqrt(v.min_sum * (1 - v.min_sum) / law->draws);

	if (!(v.first > LEAST && v.pair > LEAST))
		fail_msg("seed %llu: first token %.2g, two tokens %.2g",
			(unsigned long long)law->sampling.seed, v.first, v.pair);
	/* 3.9 deviations: 1e-4. */
	if (!(fabs(v.held - v.min_sum) <= 3.9 * spread + 1e-9))
		fail_msg("seed %llu: held %.5f, sum of min(p, q) %.5f",
			(unsigned long long)law->sampling.seed, v.held, v.min_sum);
	assert_true(v.min_sum > 0.05 && v.min_sum < 0.99); /* both ways are taken */
	return v.held;
}

static void check_laws(const struct law *laws, size_t n)
{
	for (size_t i = 0; i < n; i++)
		check_law(&laws[i]);
}

static void test_tokens_follow_the_targets_law_whatever_the_temperature(void **state)
{
	static const struct law laws[] = {
		{1, 204800, 2, false, {1, 1, 0, 0, 1u << 20}},
		{2, 20480, 2, false, {0.5f, 1, 0, 0, 2u << 20}},
		{4, 20480, 2, false, {2, 1, 0, 0, 3u << 20}},
	};

	check_laws(laws, COUNT_OF(laws));
}

static void test_tokens_follow_the_targets_law_under_each_filter(void **state)
{
	static const struct law laws[] = {
		{1, 20480, 2, false, {1, 1, 0, 4, 4u << 20}},
		{3, 20480, 2, false, {2, 1, 0, 9, 5u << 20}},
		{2, 20480, 2, false, {1, 0.7f, 0, 0, 6u << 20}},
		{4, 20480, 2, false, {1, 0.95f, 0, 0, 7u << 20}},
		{1, 20480, 2, false, {1, 1, 0.1f, 0, 8u << 20}},
		{3, 20480, 2, false, {1.5f, 1, 0.3f, 0, 9u << 20}},
	};

	check_laws(laws, COUNT_OF(laws));
}

static void test_tokens_follow_the_targets_law_under_filters_together(void **state)
{
	static const struct law laws[] = {
		{2, 20480, 2, false, {1.5f, 0.8f, 0, 8, 10u << 20}},
		{3, 20480, 2, false, {0.8f, 1, 0.05f, 10, 11u << 20}},
		{4, 20480, 2, false, {2, 0.9f, 0.1f, 12, 12u << 20}},
	};

	check_laws(laws, COUNT_OF(laws));
}

static void test_tokens_follow_the_targets_law_with_a_draft_of_fewer_tokens(void **state)
{
	static const struct law laws[] = {
		{2, 20480, 1, true, {1, 1, 0, 0, 13u << 20}},
		{4, 20480, 1, true, {1, 0.9f, 0, 8, 14u << 20}},
	};

	check_laws(laws, COUNT_OF(laws));
}

static void test_a_poor_draft_is_seen_in_what_holds_alone(void **state)
{
	static const struct law poor = {3, 20480, 30, false, {1, 1, 0, 0, 15u << 20}};
	static const struct law good = {3, 20480, 0.5f, false, {1, 1, 0, 0, 15u << 20}};

	assert_true(check_law(&poor) < 0.5);
	assert_true(check_law(&good) > 0.8);
}

/* Drafts are drawn as if there were no adjustment. */
static void test_tokens_follow_the_law_of_adjusted_logits(void **state)
{
	static const struct adjusted all[] = {
		{{.repetition = 1.6f}, {{0}}, 0, {1, 2, 3, 3, 4, 5}},
		{{.repetition = 1, .presence = 1.5f, .frequency = 0.5f}, {{0}}, 0, {1, 2, 3, 3, 4, 5}},
		{{.repetition = 1, .frequency = -0.7f}, {{0}}, 0, {1, 2, 3, 3, 4, 5}},
		{{.repetition = 1, .n_bias = 2}, {{6, 2.5f}, {11, -INFINITY}}, 0, {0}},
		{{.repetition = 1, .masked = 1}, {{0}}, 0x2d6b5, {0}},
		{{.repetition = 1, .min_position = LENGTH + 2, .n_ends = 3, .ends = {0, 7, 12}}, {{0}}, 0, {0}},
		{{.repetition = 1.3f, .presence = 0.5f, .frequency = 0.25f, .n_bias = 2, .masked = 1,
			 .min_position = LENGTH + 2, .n_ends = 1, .ends = {4}},
			{{6, 2.5f}, {9, -INFINITY}}, 0x3fdf7, {1, 2, 3, 3, 4, 5}},
	};

	for (uint32_t i = 0; i < COUNT_OF(all); i++) {
		check_law(&(struct law){1 + i % K_MAX, 20480, 1, false, {1.2f, 1, 0, 0, (20u + i) << 20}, &all[i]});
		check_law(&(struct law){4, 20480, 1, i % 2, {1.5f, 0.95f, 0, 14, (30u + i) << 20}, &all[i]});
	}
}

/* The test tells one law from the other. */
static void test_the_law_of_adjusted_logits_is_missed_without_the_adjustment(void **state)
{
	static const struct adjusted counted = {
		{.repetition = 1, .presence = 1.5f, .frequency = 0.5f}, {{0}}, 0, {1, 2, 3, 3, 4, 5}};
	static const struct adjusted uncounted = {
		{.repetition = 1}, {{0}}, 0, {1, 2, 3, 3, 4, 5}};
	struct law law = {2, 20480, 1, false, {1, 1, 0, 0, 40u << 20}, &counted};
	struct counts counts = {0};
	struct rig rig;

	make_chains(&law);
	set_up(&rig, &law);
	law.adjusted = &uncounted;
	while (counts.n < law.draws) {
		begin_batch(&rig, &law, law.sampling.seed + counts.n);
		run_batch(&rig, &law, false, &counts);
	}
	rig_deinit(&rig);
	law.adjusted = &counted;
	assert_true(judge(&law, &counts).first < 1e-12);
	law.adjusted = &uncounted;
	assert_true(judge(&law, &counts).pair > LEAST);
}

/* The same test, of a verification that lacks the residual. */
static void test_the_law_is_missed_where_the_residual_is_replaced_by_p(void **state)
{
	static const struct law laws[] = {
		{1, 20480, 2, false, {1, 1, 0, 0, 1u << 20}},
		{4, 20480, 2, false, {2, 0.9f, 0.1f, 12, 12u << 20}},
	};

	for (size_t i = 0; i < COUNT_OF(laws); i++) {
		struct verdict right = run_law(&laws[i], false), wrong = run_law(&laws[i], true);

		assert_true(right.first > LEAST && right.pair > LEAST);
		assert_true(wrong.first < 1e-12 && wrong.pair < 1e-12);
	}
}

/* The test's own arithmetic, against tables of chi-square. */
static void test_chi_square_is_as_in_the_tables(void **state)
{
	static const struct {
		uint32_t freedom;
		double x, above;
	} known[] = {{1, 3.841459, 0.05}, {2, 9.210340, 0.01}, {5, 20.515006, 0.001},
		{10, 18.307038, 0.05}, {17, 33.408664, 0.01}, {100, 124.342113, 0.05}};

	for (size_t i = 0; i < COUNT_OF(known); i++)
		assert_close(chi_square_above(known[i].x, known[i].freedom), known[i].above,
			1e-6 * known[i].above);
	assert_true(goodness_of_fit((uint32_t[]){1, 9}, (double[]){0, 1}, 2) == 0);
	assert_close(goodness_of_fit((uint32_t[]){60, 40}, (double[]){0.5, 0.5}, 2), 0.0455003, 1e-6);
	/* The two small bins are one of 10. */
	assert_close(goodness_of_fit((uint32_t[]){90, 7, 3}, (double[]){0.92, 0.04, 0.04}, 3),
		chi_square_above(4.0 / 92 + 4.0 / 8, 1), 1e-12);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_chi_square_is_as_in_the_tables),
	cmocka_unit_test(test_tokens_follow_the_targets_law_whatever_the_temperature),
	cmocka_unit_test(test_tokens_follow_the_targets_law_under_each_filter),
	cmocka_unit_test(test_tokens_follow_the_targets_law_under_filters_together),
	cmocka_unit_test(test_tokens_follow_the_targets_law_with_a_draft_of_fewer_tokens),
	cmocka_unit_test(test_a_poor_draft_is_seen_in_what_holds_alone),
	cmocka_unit_test(test_tokens_follow_the_law_of_adjusted_logits),
	cmocka_unit_test(test_the_law_of_adjusted_logits_is_missed_without_the_adjustment),
	cmocka_unit_test(test_the_law_is_missed_where_the_residual_is_replaced_by_p),
};

OPS_TEST_MAIN("cpu ops: the law of speculation", tests)
