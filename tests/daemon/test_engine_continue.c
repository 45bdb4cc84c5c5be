/* SPDX-License-Identifier: MIT */
/*
 * Requests without tokens of their own: an open sequence goes on as if its last request had not ended, whatever that
 * was; token by token under a mask that the client changes each time; and what cannot go on is refused.
 */
#include "tests/daemon/adjusted.h"

enum { N_TOKENS = 24, K = 4, PROMPT = 40 };

static struct rig_request go_on(struct rig_client *client, uint32_t sequence, uint32_t max_tokens)
{
	return rig_ask(client, 0, sequence, NULL, 0, max_tokens, MIMEO_GENERATE_IGNORE_EOS);
}

/* tokens[0 ... n_prompt) and N_TOKENS more, in one request. */
static void expect_whole(struct rig *rig, int32_t *tokens, uint32_t n_prompt)
{
	struct rig_request request =
		rig_ask(&rig->client, 0, 0, tokens, n_prompt, N_TOKENS, MIMEO_GENERATE_IGNORE_EOS);

	assert_int_equal(rig_must(&rig->client, request).n_generated, N_TOKENS);
	memcpy(tokens + n_prompt, rig_tokens(&rig->client, &request), N_TOKENS * sizeof(*tokens));
}

static void assert_goes_on(struct rig *rig, uint32_t sequence, const int32_t *want, uint32_t n, uint32_t n_before)
{
	struct rig_request request = go_on(&rig->client, sequence, n);
	struct rig_result result = rig_must(&rig->client, request);

	assert_int_equal(result.n_generated, n);
	assert_int_equal(result.n_prompt, 0);
	assert_int_equal(result.n_sequence, n_before + n);
	assert_memory_equal(rig_tokens(&rig->client, &request), want, n * sizeof(*want));
}

/* In parts of 1, 2, 3, ... tokens behind a first part. */
static void test_a_sequence_goes_on_as_if_it_had_not_ended(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[PROMPT + N_TOKENS];
	uint32_t n = PROMPT + 4;

	rig_nonsense(tokens, PROMPT, 1);
	expect_whole(rig, tokens, PROMPT);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig->client, rig_ask(&rig->client, 0, 1, tokens, PROMPT, 4, MIMEO_GENERATE_IGNORE_EOS));
	for (uint32_t part = 1; n + part <= PROMPT + N_TOKENS; n += part++)
		assert_goes_on(rig, 1, tokens + n, part, n);
	rig_close_histories(&rig->client, 1);
}

/* Whose tokens are all computed: the last one is computed once more, in a page of its own where others share it. */
static void test_a_sequence_goes_on_behind_a_step(void **state)
{
	struct rig *rig = *state;

	for (uint32_t n_prompt = 31; n_prompt <= 33; n_prompt++) { /* a page has 16 tokens */
		int32_t tokens[PROMPT + N_TOKENS];
		const struct msg_row row = {1, n_prompt};
		const struct msg_step step = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};

		rig_nonsense(tokens, n_prompt, n_prompt);
		expect_whole(rig, tokens, n_prompt);
		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		rig_must(&rig->client, rig_step(&rig->client, 0, &step, &row, tokens));
		rig_ok(&rig->client, 0, RING_OP_FORK, 1, 2);
		rig_ok(&rig->client, 0, RING_OP_FORK, 1, 3);
		rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 3, n_prompt);
		for (uint32_t id = 1; id <= 3; id++)
			assert_goes_on(rig, id, tokens + n_prompt, N_TOKENS, n_prompt);
		rig_close_histories(&rig->client, 3);
	}
}

/* The token that stopped it is part of the sequence. */
static void test_a_sequence_goes_on_behind_its_end(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[64 + N_TOKENS];
	const uint32_t n = rig_prompt("1+2=", tokens);
	struct rig_request request;
	uint32_t n_answer;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	request = rig_ask(&rig->client, 0, 1, tokens, n, 16, 0);
	n_answer = rig_must(&rig->client, request).n_generated;
	memcpy(tokens + n, rig_tokens(&rig->client, &request), n_answer * sizeof(*tokens));
	assert_int_equal(tokens[n + n_answer - 1], 2);
	expect_whole(rig, tokens, n + n_answer);
	assert_goes_on(rig, 1, tokens + n + n_answer, N_TOKENS, n + n_answer);
	rig_close_histories(&rig->client, 1);
}

static void test_an_evicted_sequence_goes_on(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[PROMPT + N_TOKENS], other[140];

	rig_nonsense(tokens, PROMPT, 3);
	rig_nonsense(other, 140, 4);
	expect_whole(rig, tokens, PROMPT);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig->client, rig_ask(&rig->client, 0, 1, tokens, PROMPT, 4, MIMEO_GENERATE_IGNORE_EOS));
	rig_must(&rig->client, rig_ask(&rig->client, 0, 0, other, 140, 4, MIMEO_GENERATE_IGNORE_EOS));
	assert_true(rig->runner->n_evicted > 0);
	assert_goes_on(rig, 1, tokens + PROMPT + 4, N_TOKENS - 4, PROMPT + 4);
	rig_close_histories(&rig->client, 1);
}

static void test_sampled_tokens_go_on_with_their_seed(void **state)
{
	struct rig *rig = *state;
	struct msg_generate msg = {.n_tokens = PROMPT, .max_tokens = N_TOKENS, .flags = MIMEO_GENERATE_IGNORE_EOS,
		.sampling = {.temperature = 1, .seed = 9, .flags = MIMEO_SAMPLING_SEEDED}};
	int32_t tokens[PROMPT], want[N_TOKENS];
	struct rig_request request;

	rig_nonsense(tokens, PROMPT, 5);
	request = rig_generate(&rig->client, 0, tokens, PROMPT, &msg);
	rig_must(&rig->client, request);
	memcpy(want, rig_tokens(&rig->client, &request), sizeof(want));
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	msg.sequence = 1;
	msg.max_tokens = 1;
	for (uint32_t i = 0; i < N_TOKENS; i++) {
		request = rig_generate(&rig->client, 0, tokens, msg.n_tokens, &msg);
		rig_must(&rig->client, request);
		assert_int_equal(rig_tokens(&rig->client, &request)[0], want[i]);
		msg.n_tokens = 0;
	}
	rig_close_histories(&rig->client, 1);
}

/* ---- one token at a time, under a mask that changes ---- */

/* A digit, a letter, a digit, ...; with penalties that count from the first of them. */
static void test_a_mask_changes_with_each_token(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[64 + N_TOKENS];
	const uint32_t n = rig_prompt("count 4 30\n", tokens);

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	for (uint32_t i = 0; i < N_TOKENS; i++) {
		struct adjusted a = {.msg = {.sequence = 1, .n_tokens = i ? 0 : n, .max_tokens = 1,
					     .n_allowed = ADJUSTED_VOCAB / 32, .presence_penalty = 2,
					     .frequency_penalty = 2, .penalty_start = n}};
		struct rig_request request;

		for (int32_t id = i % 2 ? 'a' : '0'; id <= (i % 2 ? 'z' : '9'); id++)
			a.allowed[id / 32] |= 1u << id % 32;
		adjusted_greedy(&rig->client, &a, i ? n + i : 0, tokens);
		request = adjusted_ask(&rig->client, 0, &a, tokens);
		assert_int_equal(rig_must(&rig->client, request).n_generated, 1);
		adjusted_assert_same(&rig->client, &a, i ? n + i : 0, tokens, rig_tokens(&rig->client, &request), 1);
		tokens[n + i] = rig_tokens(&rig->client, &request)[0];
		assert_in_range(tokens[n + i], i % 2 ? 'a' : '0', i % 2 ? 'z' : '9');
	}
	rig_close_histories(&rig->client, 1);
}

/* Such a request is one row of one token, as a step of its client's own loop is. */
static void test_one_token_more_is_a_decode(void **state)
{
	struct rig *rig = *state;
	const struct graph_entry *decode = NULL;
	uint64_t before;
	int32_t tokens[PROMPT];

	for (uint32_t i = 0; i < rig->runner->graphs.n && !decode; i++) {
		const struct descriptor *d = &rig->runner->graphs.descriptors[i];

		decode = d->mode == GRAPH_FULL && d->tokens == 1 ? &rig->runner->graphs.entries[i] : NULL;
	}
	assert_non_null(decode);
	rig_nonsense(tokens, PROMPT, 6);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig->client, rig_ask(&rig->client, 0, 1, tokens, PROMPT, 1, MIMEO_GENERATE_IGNORE_EOS));
	RIG_AWAIT(rig_facts(rig).n_steps == atomic_load(&engine_stats(rig->engine)->n_steps));
	before = atomic_load(&decode->n_replays);
	rig_must(&rig->client, go_on(&rig->client, 1, 1));
	assert_true(atomic_load(&decode->n_replays) > before);
	rig_close_histories(&rig->client, 1);
}

/* ---- refusals ---- */

static void test_a_sequence_without_tokens_cannot_go_on(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	request = go_on(&rig->client, 1, 4);
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_INVALID, RING_DETAIL_CONTINUE, 1, 0});
	request = go_on(&rig->client, 0, 4);
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_INVALID, RING_DETAIL_EMPTY});
	request = go_on(&rig->client, 2, 4);
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_UNKNOWN_SEQUENCE, RING_DETAIL_SEQUENCE, 2});
	rig_close_histories(&rig->client, 1);
}

/* Its last token was computed under a mask that is gone; one behind it can go on. */
static void test_a_token_that_cannot_be_computed_again_is_not(void **state)
{
	struct rig *rig = *state;
	const struct msg_row row = {1, 8};
	const struct msg_step step = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS,
		.mask = {.kind = MIMEO_MASK_PREFIX, .prefix = 8}};
	struct rig_request request;
	int32_t tokens[8];

	rig_nonsense(tokens, 8, 7);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig->client, rig_step(&rig->client, 0, &step, &row, tokens));
	request = go_on(&rig->client, 1, 4);
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_UNSUPPORTED, RING_DETAIL_CONTINUE, 1, 1});
	request = rig_ask(&rig->client, 0, 1, tokens, 1, 4, MIMEO_GENERATE_IGNORE_EOS);
	rig_must(&rig->client, request);
	rig_must(&rig->client, go_on(&rig->client, 1, 4));
	rig_close_histories(&rig->client, 1);
}

#define MODE_TEST(test, name, ...)                                                                 \
	{#test "_" name, test, rig_setup, rig_teardown, &(struct rig_options){__VA_ARGS__}}
#define FULL .mode = GRAPH_FULL_AND_PIECEWISE, .deterministic = true

int main(void)
{
	const struct CMUnitTest tests[] = {
		MODE_TEST(test_a_sequence_goes_on_as_if_it_had_not_ended, "full", FULL),
		MODE_TEST(test_a_sequence_goes_on_as_if_it_had_not_ended, "eager", .mode = GRAPH_NONE,
			.deterministic = true),
		MODE_TEST(test_a_sequence_goes_on_as_if_it_had_not_ended, "with_drafts", FULL, .n_drafts = K),
		MODE_TEST(test_a_sequence_goes_on_behind_a_step, "full", FULL),
		MODE_TEST(test_a_sequence_goes_on_behind_a_step, "with_drafts", FULL, .n_drafts = K),
		MODE_TEST(test_a_sequence_goes_on_behind_a_step, "sharing", FULL,
			.prefix_sharing = ENGINE_PREFIX_USER),
		MODE_TEST(test_a_sequence_goes_on_behind_its_end, "full", FULL),
		MODE_TEST(test_an_evicted_sequence_goes_on, "full", FULL, .kv_pages = 10),
		MODE_TEST(test_an_evicted_sequence_goes_on, "with_drafts", FULL, .kv_pages = 10, .n_drafts = K),
		MODE_TEST(test_sampled_tokens_go_on_with_their_seed, "full", FULL),
		MODE_TEST(test_a_mask_changes_with_each_token, "full", FULL),
		MODE_TEST(test_a_mask_changes_with_each_token, "with_drafts", FULL, .n_drafts = K),
		RIG_FULL_TEST(test_one_token_more_is_a_decode),
		RIG_FULL_TEST(test_a_sequence_without_tokens_cannot_go_on),
		RIG_TEST(test_a_token_that_cannot_be_computed_again_is_not, .mode = GRAPH_FULL,
			.attention = "flex"),
	};
	static const struct test_cpu_only only[] = {{NULL, NULL}};

	return TEST_RUN_GROUP("engine: sequences that go on", tests, only, NULL, NULL);
}
