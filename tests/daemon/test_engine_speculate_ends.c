/* SPDX-License-Identifier: MIT */
/*
 * Requests that speculate end anywhere in a verification: by length, by a stop token, at the longest
 * sequence, cancelled. What is left of them is their history and nothing else: every continuation gives
 * the logits, bit by bit, and the tokens that an engine without a draft computes for the same history
 * afresh.
 */
#include "tests/daemon/plain.h"
#include "tests/daemon/rig.h"

#include "tests/device_memory.h"

enum { K = 4, HISTORY_MAX = 512, FOLLOW = 24, VOCAB = 256 };

struct history {
	int32_t tokens[HISTORY_MAX];
	uint32_t n;
};

static void settle(const struct rig *rig)
{
	RIG_AWAIT(engine_stats(rig->engine)->n_slots_free == rig->options.max_requests);
}

/* Nothing is in flight: what the engine counts ahead is nothing. */
static const struct sequence *settled(const struct rig *rig, uint32_t id)
{
	const struct sequence *s;

	settle(rig);
	s = &rig->engine->accounting.sessions[0]->sequences[id - 1];
	assert_int_equal(s->state, SEQUENCE_IDLE);
	assert_int_equal(s->n_pending, 0);
	assert_true(s->n_computed <= s->n_tokens);
	return s;
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	for (uint32_t id = 1; id <= 8; id++) {
		if (settled(rig, id)->open)
			rig_ok(&rig->client, 0, RING_OP_CLOSE, id, 0);
	}
	return rig_teardown(state);
}

/* ---- requests, and the history that they leave ---- */

static void push(struct history *h, const int32_t *tokens, uint32_t n)
{
	assert_true(h->n + n <= HISTORY_MAX);
	memcpy(h->tokens + h->n, tokens, n * sizeof(tokens[0]));
	h->n += n;
}

static uint32_t prompt_of(int32_t *tokens)
{
	return rig_prompt("count 4 30\n", tokens);
}

static struct rig_result ask(struct rig *rig, uint32_t sequence, const int32_t *tokens, uint32_t n,
	const struct msg_generate *more, struct history *h)
{
	struct msg_generate msg = *more;
	struct rig_request request;

	msg.sequence = sequence;
	msg.n_tokens = n;
	request = rig_generate(&rig->client, 1, tokens, n, &msg);
	rig->results[1] = (struct rig_result){0};
	rig_submit(&rig->client, request);
	rig_wait(&rig->client, rig->results, 1);
	push(h, tokens, n);
	push(h, rig_tokens(&rig->client, &request), rig->results[1].n_generated);
	return rig->results[1];
}

/* What an engine without a draft model answers to the history: logits behind it, and n tokens. */
static void expect(const struct history *h, uint32_t n, float *ret_logits, int32_t *ret)
{
	const struct msg_generate msg = {.n_tokens = h->n, .max_tokens = n,
		.flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS};
	const struct msg_output layout = msg_output_layout(n, 1, VOCAB, 0, 160);
	struct rig_request request = rig_generate(&plain, 0, h->tokens, h->n, &msg);

	assert_int_equal(rig_do(&plain, request).n_generated, n);
	memcpy(ret_logits, rig_logits(&plain, &request, &layout), VOCAB * sizeof(float));
	memcpy(ret, rig_tokens(&plain, &request), n * sizeof(int32_t));
}

/*
 * Each token is what the engine without a draft model chooses behind the tokens before it. Where a
 * device may choose differently (on CUDA, where two logits nearly tie), that engine goes on from the
 * token that was chosen. want: its tokens behind the history; overwritten.
 */
static void assert_tokens(const struct history *h, const int32_t tokens[FOLLOW],
	int32_t want[FOLLOW], const char *what)
{
	struct history own = *h;
	uint32_t start = 0; /* of want, in tokens */
	float logits[VOCAB];

	for (uint32_t i = 0; i < FOLLOW; i++) {
		bool same = tokens[i] == want[i - start];

		if (!same) {
			expect(&own, 1, logits, want);
			if (!test_same_choice(logits, VOCAB, tokens[i], want[0], true))
				fail_msg("%s: token %d, not %d, behind %u tokens", what,
					(int)tokens[i], (int)want[0], own.n);
		}
		push(&own, &tokens[i], 1);
		if (!same && i + 1 < FOLLOW) {
			start = i + 1;
			expect(&own, FOLLOW - start, logits, want);
		}
	}
}

/* Go on with the sequence, of that history, by one more token and FOLLOW tokens of its own. */
static void assert_history(struct rig *rig, uint32_t sequence, struct history *h, const char *what)
{
	const struct msg_generate msg = {.sequence = sequence, .n_tokens = 1, .max_tokens = FOLLOW,
		.flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS};
	const struct msg_output layout = msg_output_layout(FOLLOW, 1, VOCAB, 0, 160);
	static const int32_t more = ' ';
	struct rig_request request;
	float logits[VOCAB];
	int32_t want[FOLLOW];

	push(h, &more, 1);
	expect(h, FOLLOW, logits, want);
	request = rig_generate(&rig->client, 2, &more, 1, &msg);
	rig->results[2] = (struct rig_result){0};
	rig_submit(&rig->client, request);
	rig_wait(&rig->client, rig->results, 2);
	assert_int_equal(rig->results[2].n_generated, FOLLOW);
	if (!test_same_logits(rig_logits(&rig->client, &request, &layout), logits, VOCAB, false))
		fail_msg("%s: other logits behind %u tokens", what, h->n);
	assert_tokens(h, rig_tokens(&rig->client, &request), want, what);
	push(h, rig_tokens(&rig->client, &request), FOLLOW);
}

/* ---- claims ---- */

static void test_request_ends_at_any_token_and_leaves_its_history(void **state)
{
	struct rig *rig = *state;

	for (uint32_t n = 1; n <= 3 * (K + 1); n++) {
		const struct msg_generate msg = {.max_tokens = n, .flags = MIMEO_GENERATE_IGNORE_EOS};
		struct history h = {.n = 0};
		struct rig_result result;
		int32_t tokens[64];

		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		result = ask(rig, 1, tokens, prompt_of(tokens), &msg, &h);
		assert_int_equal(result.n_generated, n);
		assert_int_equal(result.finish, MIMEO_FINISH_LENGTH);
		assert_int_equal(settled(rig, 1)->n_tokens, h.n);
		assert_history(rig, 1, &h, "ended by length");
		assert_history(rig, 1, &h, "continued");
		settled(rig, 1);
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	}
}

/* Each token of the answer in turn stops it, where it comes first. */
static void test_stop_token_among_accepted_drafts_is_the_last(void **state)
{
	struct rig *rig = *state;
	struct history prompt = {.n = 0};
	float logits[VOCAB];
	int32_t answer[32];

	prompt.n = prompt_of(prompt.tokens);
	expect(&prompt, 32, logits, answer);
	for (uint32_t i = 0; i < 32; i++) {
		struct msg_generate msg = {.max_tokens = 100, .n_stop = 1, .stop = {answer[i]}};
		struct history h = {.n = 0};
		struct rig_result result;
		uint32_t first = 0;

		while (answer[first] != answer[i])
			first++;
		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		result = ask(rig, 1, prompt.tokens, prompt.n, &msg, &h);
		assert_int_equal(result.finish, MIMEO_FINISH_STOP);
		assert_int_equal(result.n_generated, first + 1);
		assert_memory_equal(h.tokens + prompt.n, answer, (first + 1) * sizeof(answer[0]));
		assert_history(rig, 1, &h, "ended by a stop token");
		settled(rig, 1);
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	}
}

static void test_truncated_history_is_exact(void **state)
{
	struct rig *rig = *state;
	const struct msg_generate msg = {.max_tokens = 29, .flags = MIMEO_GENERATE_IGNORE_EOS};

	for (uint32_t keep = 1; keep <= 41; keep += 5) {
		struct history h = {.n = 0};
		int32_t tokens[64];

		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		ask(rig, 1, tokens, prompt_of(tokens), &msg, &h);
		rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 1, keep);
		h.n = keep;
		assert_history(rig, 1, &h, "truncated");
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	}
}

/* Rows that verified since `before`. */
static uint32_t rows_since(const struct rig *rig, struct engine_speculation before)
{
	settle(rig);
	return (uint32_t)(rig_facts(rig).speculation.n_rows - before.n_rows);
}

/* In the middle of a page, behind steps in flight; the copied page has the draft's part, too: what a
 * child drafts holds as well as its parent's would. */
static void test_forks_have_the_history_and_the_drafts_of_it(void **state)
{
	struct rig *rig = *state;

	for (uint32_t n = 3; n <= 12; n++) {
		const struct msg_generate msg = {
			.max_tokens = n, .flags = MIMEO_GENERATE_IGNORE_EOS};
		struct history h = {.n = 0}, again;
		struct rig_request fork = rig_call(&rig->client, 3, RING_OP_FORK, 1, 2);
		struct engine_speculation before;
		int32_t tokens[64];
		uint32_t rows;

		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		ask(rig, 1, tokens, prompt_of(tokens), &msg, &h);
		rig_must(&rig->client, fork);
		again = h;
		before = rig_facts(rig).speculation;
		assert_history(rig, 2, &h, "child");
		rows = rows_since(rig, before);
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 2, 0);
		before = rig_facts(rig).speculation;
		assert_history(rig, 1, &again, "parent");
		assert_int_equal(rows, rows_since(rig, before));
		assert_in_range(rows, 1, FOLLOW - 1);
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	}
}

/* The null page, of the model's and of the draft's layers: it is read and never written. */
static void copy_null_pages(const struct rig *rig, uint8_t *ret, size_t size)
{
	const struct runner *runner = rig->engine->runners.all[0];
	const size_t of_target = kv_layer_page_bytes(kv_cache_config(runner->kv));
	const size_t of_draft = kv_layer_page_bytes(kv_cache_config(runner->draft_kv));
	size_t at = 0;

	for (uint32_t i = 0; i < runner->model->config.n_layers; i++, at += of_target) {
		assert_true(at + of_target <= size);
		test_copy(rig->device, ret + at, runner->context.kv_layers[i], of_target);
	}
	assert_true(at + of_draft <= size);
	test_copy(rig->device, ret + at, runner->speculator.kv_layer, of_draft);
}

/* Pages are as many as two histories take, one of them to the longest sequence's very end. */
static void test_sequences_reach_the_last_position_of_the_last_page(void **state)
{
	static const uint32_t longest[] = {61, 64, 80};
	static const uint32_t drafts[] = {1, 4, 8};

	for (int i = 0; i < 9; i++) {
		const uint32_t end = longest[i / 3];
		const struct rig_options options = {.mode = i % 2 ? GRAPH_NONE : GRAPH_FULL_AND_PIECEWISE,
			.n_drafts = drafts[i % 3], .max_seq_len = end,
			.kv_pages = 3 + (end + 15) / 16};
		struct msg_generate msg = {.max_tokens = 5, .flags = MIMEO_GENERATE_IGNORE_EOS};
		struct history first = {.n = 0}, second = {.n = 0}, prompt = {.n = 0};
		static uint8_t null_pages[2][1u << 20];
		float logits[VOCAB];
		int32_t answer[80];
		struct rig rig;

		prompt.n = prompt_of(prompt.tokens);
		expect(&prompt, end - prompt.n, logits, answer);
		rig_open_client(&rig, &options);
		copy_null_pages(&rig, null_pages[0], sizeof(null_pages[0]));
		rig_ok(&rig.client, 0, RING_OP_OPEN, 1, 0);
		rig_ok(&rig.client, 0, RING_OP_OPEN, 2, 0);
		ask(&rig, 1, prompt.tokens, prompt.n, &msg, &first);
		msg.max_tokens = end - prompt.n;
		ask(&rig, 2, prompt.tokens, prompt.n, &msg, &second);
		assert_int_equal(second.n, end);
		assert_memory_equal(second.tokens + prompt.n, answer,
			(end - prompt.n) * sizeof(answer[0]));
		assert_history(&rig, 1, &first, "beside a full one");
		assert_int_equal(settled(&rig, 2)->n_tokens, end);
		/* And again from the middle of its last page. */
		rig_ok(&rig.client, 0, RING_OP_TRUNCATE, 2, end - FOLLOW - 1);
		second.n = end - FOLLOW - 1;
		assert_history(&rig, 2, &second, "to the end again");
		settle(&rig);
		copy_null_pages(&rig, null_pages[1], sizeof(null_pages[1]));
		assert_memory_equal(null_pages[0], null_pages[1], sizeof(null_pages[0]));
		teardown(&(void *){&rig});
	}
}

static void test_cancelled_and_overdue_requests_leave_their_history(void **state)
{
	struct rig *rig = *state;

	for (uint32_t i = 0; i < 24; i++) {
		struct msg_generate msg = {.sequence = 1, .max_tokens = 400,
			.flags = MIMEO_GENERATE_IGNORE_EOS, .deadline_ms = i % 2 ? 1 + i / 4 : 0};
		struct history h = {.n = 0};
		struct rig_request request;
		int32_t tokens[64];

		msg.n_tokens = prompt_of(tokens);
		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		request = rig_generate(&rig->client, 1, tokens, msg.n_tokens, &msg);
		memset(rig->results, 0, sizeof(rig->results));
		rig_submit(&rig->client, request);
		while (!msg.deadline_ms && rig->results[1].n_generated < 1 + i)
			rig_poll(&rig->client, rig->results);
		if (!msg.deadline_ms)
			rig_cancel(&rig->client, 3, &request);
		rig_wait(&rig->client, rig->results, 1);
		if (!msg.deadline_ms)
			rig_wait(&rig->client, rig->results, 3);
		/* A deadline may pass before the request starts; its sequence stays empty then. */
		if (rig->results[1].n_sequence || !msg.deadline_ms) {
			push(&h, tokens, msg.n_tokens);
			push(&h, rig_tokens(&rig->client, &request), rig->results[1].n_generated);
		}
		assert_int_equal(rig->results[1].n_sequence, h.n);
		assert_int_equal(settled(rig, 1)->n_tokens, h.n);
		if (h.n && h.n < 300)
			assert_history(rig, 1, &h, "cancelled");
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	}
}

/* The draft has to have been at all of a history from its beginning. */
static void test_histories_that_the_draft_missed_have_no_drafts(void **state)
{
	struct rig *rig = *state;
	const struct msg_generate msg = {.max_tokens = 9, .flags = MIMEO_GENERATE_IGNORE_EOS};
	struct history h = {.n = 0};
	struct engine_speculation before;
	struct rig_request step;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	step = rig_step_text(&rig->client, 0, 1, "count 4 30", true);
	rig_must(&rig->client, step);
	h.n = rig_prompt("count 4 30", h.tokens);
	ask(rig, 1, &(int32_t){'\n'}, 1, &msg, &h);
	assert_history(rig, 1, &h, "behind a step");
	settle(rig);
	assert_int_equal(rig_facts(rig).speculation.n_rows, 0);
	/* From the beginning again, and then missed in the middle. */
	rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 1, 0);
	h.n = 0;
	ask(rig, 1, (int32_t[]){1, '9', '+', '8', '='}, 5, &msg, &h);
	assert_history(rig, 1, &h, "from the beginning");
	settle(rig);
	before = rig_facts(rig).speculation;
	assert_true(before.n_rows > 0);
	step = rig_step_text(&rig->client, 0, 1, "3+4=", false);
	rig_must(&rig->client, step);
	push(&h, (int32_t[]){'3', '+', '4', '='}, 4);
	assert_history(rig, 1, &h, "behind a step in the middle");
	settle(rig);
	assert_int_equal(rig_facts(rig).speculation.n_rows, before.n_rows);
	/* Back to where it was at. */
	rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 1, 10);
	h.n = 10;
	assert_history(rig, 1, &h, "back");
	settle(rig);
	assert_true(rig_facts(rig).speculation.n_rows > before.n_rows);
}

/* A client's own loop, one greedy token a step, while others speculate beside it. */
static void test_own_loops_beside_verifications_have_their_own_tokens(void **state)
{
	struct rig *rig = *state;
	struct history prompt = {.n = 0};
	struct rig_request step;
	float logits[VOCAB];
	int32_t answer[40];

	prompt.n = rig_prompt("sort 52 17 33\n", prompt.tokens);
	expect(&prompt, 40, logits, answer);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_submit(&rig->client, rig_endless(&rig->client, 1, 0, 450));
	for (uint32_t i = 0; i < 40; i++) {
		const struct msg_row row = {1, i ? 1 : prompt.n};
		const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};

		step = rig_step(&rig->client, 2, &msg, &row, i ? &answer[i - 1] : prompt.tokens);
		rig->results[2] = (struct rig_result){0};
		rig_submit(&rig->client, step);
		rig_wait(&rig->client, rig->results, 2);
		assert_int_equal(rig->results[2].status, 0);
		assert_int_equal(*rig_tokens(&rig->client, &step), answer[i]);
	}
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[1].n_generated, 450);
}

#define TEST(test)                                                                                 \
	{#test, test, rig_setup, teardown,                                                        \
		&(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K}}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_request_ends_at_any_token_and_leaves_its_history),
		TEST(test_stop_token_among_accepted_drafts_is_the_last),
		TEST(test_truncated_history_is_exact),
		TEST(test_forks_have_the_history_and_the_drafts_of_it),
		cmocka_unit_test(test_sequences_reach_the_last_position_of_the_last_page),
		TEST(test_cancelled_and_overdue_requests_leave_their_history),
		TEST(test_histories_that_the_draft_missed_have_no_drafts),
		TEST(test_own_loops_beside_verifications_have_their_own_tokens),
	};

	return cmocka_run_group_tests_name("engine speculation's ends", tests, open_plain, close_plain);
}
