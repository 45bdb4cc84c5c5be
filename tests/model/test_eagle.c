/* SPDX-License-Identifier: MIT */

/*
 * Speculation over tinycalc with its draft model, by a loop on the host: greedy, K = 4. Measured are
 * the tokens that a step of the target yields, on the kinds of questions that both were trained on.
 * (A reference loop of the draft model's training: 4.58 in all, count 4.87, sort 4.21, rev 3.60, add
 * 2.56.)
 *
 * The loop does what the device's ops do: all 1 + K tokens go through the draft model after a
 * verification, with ids of rejected draft tokens in the tail, and only lengths say what counts.
 */

#include "tests/model/draft_rig.h"
#include "tests/model/fixture.h"

#include "tests/device.h"
#include "tests/e2e/questions.h"

enum { K = 4, N_KINDS = 4, END = 2, SEQUENCE = 1, PLAIN = 2 };

struct speculation {
	struct draft_rig *d;
	uint32_t length;         /* tokens of the target's cache that count */
	int32_t last, drafts[K]; /* the token behind them; its draft tokens */
	int32_t answer[QUESTION_ANSWER_MAX];
	uint32_t n_answer, n_steps;
};

/* Draft 0 of tokens that begin at `start`, of which `last` is the last that counts; then the
 * others, each from the one before. */
static void propose(
	struct speculation *s, const int32_t *ids, uint32_t start, uint32_t n, uint32_t last)
{
	const int32_t row = (int32_t)last;
	struct draft_pass pass = draft_rig_from_target(s->d, n);

	draft_rig_pass(s->d, &pass, &(struct draft_rig_row){SEQUENCE, start, n, ids, last}, 1);
	s->drafts[0] = draft_rig_token(s->d, 0);
	for (uint32_t i = 1; i < K; i++) {
		pass = draft_rig_from_draft(s->d, i == 1 ? n : 1);
		pass.index = i == 1 ? &row : NULL;
		draft_rig_pass(s->d, &pass,
			&(struct draft_rig_row){
				SEQUENCE, start + last + i, 1, &s->drafts[i - 1], 0},
			1);
		s->drafts[i] = draft_rig_token(s->d, 0);
	}
}

static void prefill(struct speculation *s, const struct question *q)
{
	const uint32_t vocab = s->d->rig.model->config.vocab_size, n = q->n_prompt;
	int32_t ids[RIG_TOKENS];

	draft_rig_target(s->d, SEQUENCE, q->prompt, n);
	s->length = n;
	s->last = rig_argmax_of(s->d->target_logits + (size_t)(n - 1) * vocab, vocab);
	s->answer[s->n_answer++] = s->last;
	memcpy(ids, q->prompt + 1, (n - 1) * sizeof(*ids));
	ids[n - 1] = s->last;
	propose(s, ids, 0, n, n - 1);
}

/* One step of the target over the last token and its draft tokens. */
static void verify(struct speculation *s)
{
	const uint32_t vocab = s->d->rig.model->config.vocab_size, start = s->length;
	int32_t tokens[1 + K] = {s->last}, ids[1 + K];
	uint32_t held = 0;

	memcpy(tokens + 1, s->drafts, sizeof(s->drafts));
	s->d->rig.lengths[SEQUENCE] = start;
	draft_rig_target(s->d, SEQUENCE, tokens, 1 + K);
	s->n_steps++;
	for (;; held++) {
		s->last = rig_argmax_of(s->d->target_logits + held * vocab, vocab);
		s->answer[s->n_answer++] = s->last;
		if (held == K || s->last != tokens[1 + held] || s->last == END)
			break;
	}
	s->length = start + held + 1;
	memcpy(ids, tokens + 1, K * sizeof(*ids));
	ids[K] = 0;
	ids[held] = s->last;
	propose(s, ids, start, 1 + K, held);
}

static void answer_with_drafts(struct speculation *s, const struct question *q)
{
	s->d->rig.lengths[SEQUENCE] = s->n_answer = s->n_steps = 0;
	prefill(s, q);
	while (s->last != END && s->n_answer + 1 + K <= QUESTION_ANSWER_MAX)
		verify(s);
}

/* The target alone, a token at a time. */
static uint32_t answer_plainly(struct rig *rig, const struct question *q, int32_t *ret)
{
	uint32_t n = 0;

	rig->lengths[PLAIN] = 0;
	rig_step(rig, &(struct rig_row){PLAIN, q->n_prompt, q->prompt}, 1);
	for (;;) {
		ret[n++] = rig_argmax(rig, 0);
		if (ret[n - 1] == END || n == QUESTION_ANSWER_MAX)
			return n;
		rig_step(rig, &(struct rig_row){PLAIN, 1, &ret[n - 1]}, 1);
	}
}

struct tally {
	const char *name;
	uint32_t n_tokens, n_steps;
};
static struct tally tallies[N_KINDS + 1] = {
	{"add", 0, 0}, {"count", 0, 0}, {"sort", 0, 0}, {"rev", 0, 0}, {"in all", 0, 0}};

static double per_step(const struct tally *tally)
{
	return (double)tally->n_tokens / tally->n_steps;
}

/* Tokens that steps yielded; the first is the prompt's. */
static void count(struct tally *tally, const struct speculation *s)
{
	tally->n_tokens += s->n_answer - 1;
	tally->n_steps += s->n_steps;
}

static void start(struct draft_rig *d)
{
	char target[512], draft[512];

	source_path("examples/models/tinycalc", target);
	source_path("examples/models/tinycalc-eagle", draft);
	draft_rig_init(d, target, draft, "paged");
}

static void test_tinycalc_says_the_same_with_its_draft_in_a_quarter_of_the_steps(void **state)
{
	enum { N = 120 };
	static struct question questions[N];
	int32_t plain[QUESTION_ANSWER_MAX];
	struct draft_rig d;
	struct speculation s = {.d = &d};

	start(&d);
	questions_make(questions, N, 2026);
	for (uint32_t i = 0; i < N; i++) {
		const struct question *q = &questions[i];

		answer_with_drafts(&s, q);
		assert_int_equal(answer_plainly(&d.rig, q, plain), s.n_answer);
		assert_memory_equal(s.answer, plain, s.n_answer * sizeof(*plain));
		assert_int_equal(s.n_answer, q->n_answer);
		assert_memory_equal(s.answer, q->answer, s.n_answer * sizeof(*plain));
		count(&tallies[i % N_KINDS], &s);
		count(&tallies[N_KINDS], &s);
	}
	draft_rig_deinit(&d);
	assert_true(per_step(&tallies[N_KINDS]) >= 4.4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_tinycalc_says_the_same_with_its_draft_in_a_quarter_of_the_steps),
	};
	int failed = cmocka_run_group_tests_name("eagle", tests, NULL, NULL);

	/* behind the rest: nothing may stand before TAP's first line */
	for (uint32_t i = 0; i <= N_KINDS && tallies[i].n_steps; i++)
		printf("# %s: %.2f tokens a step (%u in %u)\n", tallies[i].name,
			per_step(&tallies[i]), tallies[i].n_tokens, tallies[i].n_steps);
	return failed;
}
