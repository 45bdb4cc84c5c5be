/* SPDX-License-Identifier: MIT */
/* What a sequence remembers: forks, cuts, turns, and what a cancelled request leaves. */
#include "tests/daemon/rig.h"

#define LOGITS_TOKENS 8

/* ---- forks and cuts ---- */

static void open_with(struct rig_client *client, uint32_t sequence, const char *text)
{
	rig_ok(client, 0, RING_OP_OPEN, sequence, 0);
	rig_must(client, rig_step_text(client, 0, sequence, text, true));
}

static void test_forks_diverge_and_leave_the_parent_as_it_was(void **state)
{
	struct rig *rig = *state;
	static const char *const rest[] = {"\n", " 33\n", " 8 91\n", " 60 1 2\n"};
	static const char *const answers[] = {"17 52", "17 33 52", "8 17 52 91", "1 2 17 52 60"};
	struct rig_request requests[4];

	open_with(&rig->client, 1, "sort 52 17");
	rig_ok(&rig->client, 0, RING_OP_FORK, 1, 2);
	rig_ok(&rig->client, 0, RING_OP_FORK, 1, 3);
	rig_ok(&rig->client, 0, RING_OP_FORK, 3, 4); /* a fork of a fork */
	assert_int_equal(rig_pages_free(rig, 0), 511);
	rig_gate_close(rig); /* all at once: the copies of one page run ahead of one step */
	for (uint32_t i = 4; i-- > 0;) {
		requests[i] = rig_ask_text(&rig->client, i, i + 1, rest[i]);
		rig_submit(&rig->client, requests[i]);
	}
	rig_wait_steps(rig, 2 + 1);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 4; i++) {
		rig_wait(&rig->client, rig->results, i);
		rig_assert_text(&rig->client, &requests[i], &rig->results[i], answers[i]);
	}
}

static void test_fork_outlives_its_parent(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;
	struct rig_result result;

	open_with(&rig->client, 1, "sort 52 17 33 8 91 60 1 2");
	rig_ok(&rig->client, 0, RING_OP_FORK, 1, 2);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	assert_int_equal(rig_pages_free(rig, 0), 510);
	open_with(&rig->client, 1, "rev something else entirely");
	request = rig_ask_text(&rig->client, 0, 2, "\n");
	result = rig_do(&rig->client, request);
	rig_assert_text(&rig->client, &request, &result, "1 2 8 17 33 52 60 91");
}

/* A request whose page copy is queued, and which ends before any step carries it. */
static void cancel_before_the_copy(struct rig *rig, struct rig_client *client)
{
	struct rig_result results[8] = {0};
	struct rig_request busy, ask;

	open_with(client, 1, "sort 52 17");
	rig_ok(client, 0, RING_OP_FORK, 1, 2);
	rig_gate_close(rig);
	busy = rig_endless(client, 0, 0, 100);
	rig_submit(client, busy);
	rig_wait_steps(rig, 3); /* both places for launched steps are taken */
	ask = rig_ask_text(client, 1, 2, " 33\n");
	rig_submit(client, ask);
	RIG_AWAIT(engine_stats(rig->engine)->n_running >= 2);
	rig_cancel(client, 2, &ask);
	rig_cancel(client, 3, &busy);
	for (uint32_t i = 0; i < 4; i++)
		rig_wait(client, results, i);
	rig_gate_open(rig);
}

static void test_copies_of_a_cancelled_request_hold_no_page(void **state)
{
	struct rig *rig = *state;

	cancel_before_the_copy(rig, &rig->client);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 2, 0);
	rig_assert_all_free(rig);
}

static void test_copy_is_made_even_if_its_request_was_cancelled_before(void **state)
{
	struct rig *rig = *state;
	struct rig_request ask;

	cancel_before_the_copy(rig, &rig->client);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	/* " 33\n" came before the cancel: what follows continues it. */
	ask = rig_ask_text(&rig->client, 1, 2, "17 ");
	rig_must(&rig->client, ask);
	assert_memory_equal(rig_tokens(&rig->client, &ask),
		((int32_t[]){'3', '3', ' ', '5', '2', 2}), 24);
}

/* ---- histories ---- */

struct answer {
	uint32_t n;
	int32_t tokens[LOGITS_TOKENS];
	float logits[256];
};

static struct answer continue_with(struct rig_client *client, uint32_t sequence, const int32_t *ids,
	uint32_t n)
{
	struct rig_request request = rig_ask(client, 0, sequence, ids, n, LOGITS_TOKENS,
		MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_IGNORE_EOS);
	struct msg_output layout = msg_output_layout(LOGITS_TOKENS, 1, 256, 0, 160);
	struct rig_result result = rig_do(client, request);
	struct answer answer = {.n = result.n_generated};

	assert_int_equal(result.status, 0);
	assert_int_equal(result.n_prompt, n);
	memcpy(answer.tokens, rig_tokens(client, &request), answer.n * sizeof(answer.tokens[0]));
	memcpy(answer.logits, rig_logits(client, &request, &layout), sizeof(answer.logits));
	return answer;
}

/*
 * Where logits depend on how the history was chunked, the first token has to be as good a choice by
 * the other's logits; what follows it, in texts that the model was not trained for, is not compared.
 */
static void assert_same(const struct answer *a, const struct answer *b)
{
	double most = -INFINITY, largest = 0, tolerance = 1e-4;

	for (int i = 0; i < 256; i++) {
		most = fmax(most, b->logits[i]);
		largest = fmax(largest, fabs(b->logits[i]));
	}
	if (test_on_cuda())
		tolerance = TEST_LOGITS_CUDA_RANDOM * largest;
	assert_int_equal(a->n, LOGITS_TOKENS);
	assert_int_equal(b->n, LOGITS_TOKENS);
	for (int i = 0; i < 256; i++)
		if (!(fabs(a->logits[i] - b->logits[i]) < tolerance))
			fail_msg("logit %d: %g and %g", i, a->logits[i], b->logits[i]);
	if (test_on_cuda())
		assert_true(b->logits[a->tokens[0]] >= most - 2 * tolerance);
	else
		assert_memory_equal(a->tokens, b->tokens, sizeof(a->tokens));
}

static void test_sequence_continued_equals_one_long_prompt(void **state)
{
	struct rig *rig = *state;
	int32_t history[256];
	uint32_t n = rig_prompt("count 4 30\n", history), n_more;
	struct answer first, second, third, whole;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	first = continue_with(&rig->client, 1, history, n);
	memcpy(history + n, first.tokens, sizeof(first.tokens));
	n += LOGITS_TOKENS;
	n_more = rig_prompt("sort 52 17 33\n", history + n);
	second = continue_with(&rig->client, 1, history + n, n_more);
	n += n_more;
	whole = continue_with(&rig->client, 0, history, n);
	assert_same(&second, &whole);
	memcpy(history + n, second.tokens, sizeof(second.tokens));
	n += LOGITS_TOKENS;
	history[n] = 'z';
	third = continue_with(&rig->client, 1, history + n, 1);
	whole = continue_with(&rig->client, 0, history, n + 1);
	assert_same(&third, &whole);
}

static void test_sequence_cut_equals_one_that_never_had_the_tail(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[256], whole_tokens[256];
	uint32_t n = rig_prompt("sort 52 17 33 8 91 60 1 2\n", tokens);
	struct answer cut, whole;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	continue_with(&rig->client, 1, tokens, n);
	for (uint32_t keep = 33; keep > 0; keep -= 3) {
		rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 1, keep);
		assert_int_equal(rig_pages_free(rig, 0), 512 - (keep + 15) / 16);
		rig_ok(&rig->client, 0, RING_OP_FORK, 1, 2);
		cut = continue_with(&rig->client, 2, (int32_t[]){'7', '\n'}, 2);
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 2, 0);
		if (keep > n) /* the answer's first tokens are part of it */
			continue;
		memcpy(whole_tokens, tokens, keep * sizeof(tokens[0]));
		whole_tokens[keep] = '7';
		whole_tokens[keep + 1] = '\n';
		whole = continue_with(&rig->client, 0, whole_tokens, keep + 2);
		assert_same(&cut, &whole);
	}
}

static void test_sequence_of_a_cancelled_request_keeps_only_what_was_reported(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;
	struct answer after, whole;
	int32_t tokens[64];
	uint32_t n = rig_prompt("count 4 30\n", tokens);

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_gate_close(rig);
	request = rig_ask(&rig->client, 0, 1, tokens, n, 40, 0);
	rig_submit(&rig->client, request);
	rig_wait_steps(rig, 2); /* the prompt, and a decode past what the host knows */
	rig_cancel(&rig->client, 1, &request);
	rig_wait(&rig->client, rig->results, 0);
	rig_gate_open(rig);
	assert_int_equal(rig->results[0].n_generated, 0);
	rig_wait(&rig->client, rig->results, 1);
	tokens[n] = '9';
	tokens[n + 1] = ' ';
	after = continue_with(&rig->client, 1, tokens + n, 2);
	whole = continue_with(&rig->client, 0, tokens, n + 2);
	assert_same(&after, &whole);
}

static void test_close_while_busy_takes_effect_afterwards(void **state)
{
	struct rig *rig = *state;
	struct rig_request requests[4];

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_gate_close(rig);
	requests[0] = rig_ask_text(&rig->client, 0, 1, "rev hello\n");
	requests[1] = rig_call(&rig->client, 1, RING_OP_CLOSE, 1, 0);
	requests[2] = rig_ask_text(&rig->client, 2, 1, "rev hello\n");
	requests[3] = rig_call(&rig->client, 3, RING_OP_OPEN, 1, 0);
	for (uint32_t i = 0; i < 4; i++)
		rig_submit(&rig->client, requests[i]);
	rig_wait_waiting(rig, 3);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 4; i++)
		rig_wait(&rig->client, rig->results, i);
	assert_int_equal(rig->results[0].status, 0);
	assert_true(rig->results[0].n_generated > 0);
	assert_int_equal(rig->results[1].status, 0);
	assert_int_equal(rig->results[2].status, MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(rig->results[2].values[0], 1);
	assert_int_equal(rig->results[3].status, 0);
}

/* The second request's tokens follow all that the first one left: as one by one on another sequence. */
static void test_two_requests_on_one_sequence_run_in_order_of_submission(void **state)
{
	enum { N = 9, MORE = 20 };
	struct rig *rig = *state;
	struct rig_request requests[2], one;
	int32_t prompts[2][N];
	struct rig_result result;

	for (uint32_t i = 0; i < 2; i++) {
		rig_ok(&rig->client, 0, RING_OP_OPEN, 1 + i, 0);
		rig_nonsense(prompts[i], N, i);
	}
	rig_gate_close(rig);
	for (uint32_t i = 0; i < 2; i++) {
		requests[i] = rig_ask(&rig->client, i, 1, prompts[i], N, MORE, MIMEO_GENERATE_IGNORE_EOS);
		rig_submit(&rig->client, requests[i]);
	}
	rig_wait_waiting(rig, 1);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 2; i++)
		rig_wait(&rig->client, rig->results, i);
	for (uint32_t i = 0; i < 2; i++) {
		one = rig_ask(&rig->client, 2, 2, prompts[i], N, MORE, MIMEO_GENERATE_IGNORE_EOS);
		result = rig_must(&rig->client, one);
		assert_int_equal(rig->results[i].status, 0);
		assert_int_equal(rig->results[i].n_sequence, (i + 1) * (N + MORE));
		assert_int_equal(result.n_sequence, (i + 1) * (N + MORE));
		assert_memory_equal(rig_tokens(&rig->client, &requests[i]), rig_tokens(&rig->client, &one),
			MORE * sizeof(int32_t));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_FULL_TEST(test_forks_diverge_and_leave_the_parent_as_it_was),
		RIG_FULL_TEST(test_fork_outlives_its_parent),
		RIG_FULL_TEST(test_copies_of_a_cancelled_request_hold_no_page),
		RIG_FULL_TEST(test_copy_is_made_even_if_its_request_was_cancelled_before),
		RIG_FULL_TEST(test_sequence_continued_equals_one_long_prompt),
		RIG_FULL_TEST(test_sequence_cut_equals_one_that_never_had_the_tail),
		RIG_FULL_TEST(test_sequence_of_a_cancelled_request_keeps_only_what_was_reported),
		RIG_FULL_TEST(test_close_while_busy_takes_effect_afterwards),
		RIG_FULL_TEST(test_two_requests_on_one_sequence_run_in_order_of_submission),
	};

	return cmocka_run_group_tests_name("engine histories", tests, NULL, NULL);
}
