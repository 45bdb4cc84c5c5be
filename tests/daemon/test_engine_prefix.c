/* SPDX-License-Identifier: MIT */
/*
 * The prefix cache as requests see it: what they take of it, and that nothing else changes. A page holds 16
 * tokens; a prompt's last token is always computed. What a backend could get wrong is tested with each.
 */
#include "tests/daemon/rig.h"

enum { N_PROMPT = 70, N_TOKENS = 24 }; /* four whole pages and a part of one */

static uint64_t tokens_computed(const struct rig *rig)
{
	return atomic_load(&engine_stats(rig->engine)->n_tokens_in);
}

static struct rig_request ask(struct rig_client *client, uint32_t index, uint32_t sequence, const int32_t *prompt,
	uint32_t n)
{
	return rig_ask(client, index, sequence, prompt, n, N_TOKENS, MIMEO_GENERATE_IGNORE_EOS);
}

/* Ask, and keep the tokens in ret[N_TOKENS]. */
static struct rig_result answer(struct rig_client *client, const int32_t *prompt, uint32_t n, int32_t *ret)
{
	struct rig_request request = ask(client, 0, 0, prompt, n);
	struct rig_result result = rig_must(client, request);

	assert_int_equal(result.n_generated, N_TOKENS);
	memcpy(ret, rig_tokens(client, &request), N_TOKENS * sizeof(*ret));
	return result;
}

/* The prompt's answer by an engine that shares nothing. */
static void answer_alone(const int32_t *prompt, uint32_t n, const struct rig_options *options, int32_t *ret)
{
	struct rig_options alone = *options;
	struct rig rig;

	alone.prefix_sharing = ENGINE_PREFIX_NONE;
	rig_open_client(&rig, &alone);
	answer(&rig.client, prompt, n, ret);
	rig_close(&rig);
}

static void test_same_prompt_is_computed_once(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT], first[N_TOKENS], second[N_TOKENS];
	uint64_t before;

	rig_nonsense(prompt, N_PROMPT, 1);
	assert_int_equal(answer(&rig->client, prompt, N_PROMPT, first).n_cached, 0);
	before = tokens_computed(rig);
	assert_int_equal(answer(&rig->client, prompt, N_PROMPT, second).n_cached, 64);
	assert_memory_equal(first, second, sizeof(first));
	/* Rows that were launched before the end was seen count, too. */
	assert_in_range(tokens_computed(rig) - before, N_PROMPT - 64 + N_TOKENS - 1, N_PROMPT - 64 + N_TOKENS + 1);
	assert_int_equal(rig_facts(rig).n_cached_tokens, 64);
}

static void test_prompt_of_whole_pages_leaves_its_last_page_to_compute(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[64], first[N_TOKENS], second[N_TOKENS];

	rig_nonsense(prompt, 64, 2);
	answer(&rig->client, prompt, 64, first);
	assert_int_equal(answer(&rig->client, prompt, 64, second).n_cached, 48);
	assert_memory_equal(first, second, sizeof(first));
}

static void test_prompts_that_differ_share_what_is_before_the_difference(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT], other[N_PROMPT], expected[N_TOKENS], got[N_TOKENS];

	rig_nonsense(prompt, N_PROMPT, 3);
	memcpy(other, prompt, sizeof(other));
	other[40]++;
	answer_alone(other, N_PROMPT, &rig->options, expected);
	answer(&rig->client, prompt, N_PROMPT, got);
	assert_int_equal(answer(&rig->client, other, N_PROMPT, got).n_cached, 32);
	assert_memory_equal(got, expected, sizeof(got));
}

static void test_conversation_takes_its_answers_back(void **state)
{
	struct rig *rig = *state;
	int32_t talk[N_PROMPT + N_TOKENS + 10], expected[N_TOKENS], got[N_TOKENS];
	const uint32_t n = N_PROMPT + N_TOKENS + 10;

	rig_nonsense(talk, n, 4);
	answer(&rig->client, talk, N_PROMPT, talk + N_PROMPT);
	answer_alone(talk, n, &rig->options, expected);
	/* 93 tokens are computed: the answer's last one is not. */
	assert_int_equal(answer(&rig->client, talk, n, got).n_cached, 80);
	assert_memory_equal(got, expected, sizeof(got));
}

static void test_prompts_in_flight_share_with_one_that_runs(void **state)
{
	struct rig *rig = *state;
	struct rig_request requests[8];
	int32_t prompt[N_PROMPT], expected[N_TOKENS];

	rig_nonsense(prompt, N_PROMPT, 5);
	answer_alone(prompt, N_PROMPT, &rig->options, expected);
	for (uint32_t i = 0; i < 8; i++) {
		requests[i] = ask(&rig->client, i, 0, prompt, N_PROMPT);
		rig_submit(&rig->client, requests[i]);
	}
	for (uint32_t i = 0; i < 8; i++) {
		rig_wait(&rig->client, rig->results, i);
		assert_memory_equal(rig_tokens(&rig->client, &requests[i]), expected, sizeof(expected));
		assert_int_equal(rig->results[i].n_cached, i ? 64 : 0);
	}
}

static void test_other_users_share_only_where_all_do(void **state)
{
	static const enum engine_prefix_sharing sharing[] = {ENGINE_PREFIX_USER, ENGINE_PREFIX_ALL};
	int32_t prompt[N_PROMPT], got[N_TOKENS];

	rig_nonsense(prompt, N_PROMPT, 6);
	for (int i = 0; i < 2; i++) {
		struct rig_client *other;
		struct rig rig;

		rig_open_client(&rig, &(struct rig_options){.prefix_sharing = sharing[i]});
		other = rig_other(&rig, 8);
		other->port->uid = rig.client.port->uid + 1;
		answer(&rig.client, prompt, N_PROMPT, got);
		assert_int_equal(answer(other, prompt, N_PROMPT, got).n_cached, i ? 64 : 0);
		rig_close(&rig);
	}
}

static void test_cached_pages_are_free_for_others(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT], long_one[200], first[N_TOKENS], got[N_TOKENS];

	rig_nonsense(prompt, N_PROMPT, 7);
	rig_nonsense(long_one, 200, 8);
	answer(&rig->client, prompt, N_PROMPT, first);
	assert_int_equal(rig_pages_free(rig, 0), 16);
	assert_in_range(rig_facts(rig).pages_cached, 4, 6);
	answer(&rig->client, long_one, 200, got); /* 14 pages of 16 */
	assert_in_range(answer(&rig->client, prompt, N_PROMPT, got).n_cached, 0, 32);
	assert_memory_equal(first, got, sizeof(got));
}

static void test_truncated_and_forked_sequences_leave_cached_pages_as_they_are(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT], other[N_PROMPT], expected[N_TOKENS], got[N_TOKENS];

	rig_nonsense(prompt, N_PROMPT, 9);
	rig_nonsense(other, N_PROMPT, 10);
	answer_alone(prompt, N_PROMPT, &rig->options, expected);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig->client, ask(&rig->client, 0, 1, prompt, N_PROMPT));
	rig_ok(&rig->client, 1, RING_OP_FORK, 1, 2);
	/* In the middle of a cached page, in both. */
	for (uint32_t id = 1; id <= 2; id++) {
		rig_ok(&rig->client, 2, RING_OP_TRUNCATE, id, 20);
		rig_must(&rig->client, ask(&rig->client, 3, id, other, 50));
	}
	assert_int_equal(answer(&rig->client, prompt, N_PROMPT, got).n_cached >= 16, 1);
	assert_memory_equal(got, expected, sizeof(got));
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 2, 0);
}

static void test_step_on_a_new_sequence_begins_with_cached_pages(void **state)
{
	struct rig *rig = *state;
	const uint32_t vocab = rig->runner->model->config.vocab_size;
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_LOGITS};
	const struct msg_output layout = msg_output_layout(0, 1, vocab, 0, 0);
	float *first = malloc(vocab * sizeof(*first));
	int32_t prompt[N_PROMPT];

	assert_non_null(first);
	rig_nonsense(prompt, N_PROMPT, 11);
	for (uint32_t id = 1; id <= 2; id++) {
		struct rig_request request;
		struct rig_result result;

		rig_ok(&rig->client, 0, RING_OP_OPEN, id, 0);
		request = rig_step(&rig->client, 0, &msg, &(struct msg_row){id, N_PROMPT}, prompt);
		result = rig_must(&rig->client, request);
		assert_int_equal(result.n_cached, id == 1 ? 0 : 64);
		assert_int_equal(result.n_sequence, N_PROMPT);
		if (id == 1)
			memcpy(first, rig_logits(&rig->client, &request, &layout), vocab * sizeof(*first));
		else if (!test_on_cuda())
			assert_memory_equal(first, rig_logits(&rig->client, &request, &layout),
				vocab * sizeof(*first));
	}
	for (uint32_t id = 1; id <= 2; id++)
		rig_ok(&rig->client, 0, RING_OP_CLOSE, id, 0);
	free(first);
}

static void test_final_event_has_the_length_of_the_sequence(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT], got[N_TOKENS];
	struct rig_result result;

	rig_nonsense(prompt, N_PROMPT, 12);
	assert_int_equal(answer(&rig->client, prompt, N_PROMPT, got).n_sequence, N_PROMPT + N_TOKENS);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	result = rig_must(&rig->client, ask(&rig->client, 0, 1, prompt, 10));
	assert_int_equal(result.n_sequence, 10 + N_TOKENS);
	result = rig_must(&rig->client, rig_call(&rig->client, 0, RING_OP_TRUNCATE, 1, 7));
	assert_int_equal(result.n_sequence, 7);
	result = rig_must(&rig->client, rig_call(&rig->client, 0, RING_OP_LENGTH, 1, 0));
	assert_int_equal(result.n_sequence, 7);
	assert_int_equal(rig_do(&rig->client, rig_call(&rig->client, 0, RING_OP_LENGTH, 2, 0)).status,
		MIMEO_E_UNKNOWN_SEQUENCE);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

/* ---- what is not shared ---- */

static void test_masks_that_look_forward_are_not_cached(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT], expected[N_TOKENS], got[N_TOKENS];
	struct msg_generate msg = rig_greedy(N_PROMPT, N_TOKENS);

	rig_nonsense(prompt, N_PROMPT, 13);
	answer_alone(prompt, N_PROMPT, &rig->options, expected);
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.mask = (struct mimeo_mask){.kind = MIMEO_MASK_PREFIX, .prefix = 40};
	rig_must(&rig->client, rig_generate(&rig->client, 0, prompt, N_PROMPT, &msg));
	assert_int_equal(rig_facts(rig).pages_cached, 0);
	assert_int_equal(answer(&rig->client, prompt, N_PROMPT, got).n_cached, 0);
	assert_memory_equal(got, expected, sizeof(got));
	/* Nor does such a request begin with pages of causal ones. */
	assert_int_equal(rig_must(&rig->client,
		rig_generate(&rig->client, 0, prompt, N_PROMPT, &msg)).n_cached, 0);
}

/* ---- with a draft model ---- */

static void test_draft_model_goes_on_from_a_cached_prefix_as_well(void **state)
{
	struct rig *rig = *state;
	struct engine_model_facts facts[3];
	struct rig_request request;
	uint64_t taken[2], rows[2];
	int32_t tokens[64], n;

	n = (int32_t)rig_prompt("count 11 12 13 14 15 16 17 18 19 20 21 22\n", tokens);
	facts[0] = rig_facts(rig);
	for (int i = 0; i < 2; i++) {
		request = rig_ask(&rig->client, 0, 0, tokens, (uint32_t)n, 40, MIMEO_GENERATE_IGNORE_EOS);
		/* Two whole pages; the second one's last key depends on the token behind it. */
		assert_int_equal(rig_must(&rig->client, request).n_cached, i ? 16 : 0);
		facts[i + 1] = rig_facts(rig);
		taken[i] = facts[i + 1].speculation.n_tokens - facts[i].speculation.n_tokens;
		rows[i] = facts[i + 1].speculation.n_rows - facts[i].speculation.n_rows;
	}
	assert_int_equal(taken[0], taken[1]);
	assert_int_equal(rows[0], rows[1]);
}

/* Those with and without draft tokens, each a second time. */
static void test_requests_with_and_without_draft_tokens_share_nothing(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT];

	rig_nonsense(prompt, N_PROMPT, 14);
	for (int again = 0; again < 2; again++) {
		for (int drafts = 0; drafts < 2; drafts++) {
			struct msg_generate msg = rig_greedy(N_PROMPT, N_TOKENS);

			msg.draft_tokens = drafts ? 0 : MIMEO_DRAFT_NONE;
			assert_int_equal(rig_must(&rig->client,
				rig_generate(&rig->client, 0, prompt, N_PROMPT, &msg)).n_cached, !again ? 0 : drafts ? 48 : 64);
		}
	}
}

/* ---- the tests ---- */

#define PREFIX_OPTIONS .mode = GRAPH_FULL_AND_PIECEWISE, .prefix_sharing = ENGINE_PREFIX_USER

static const struct backend {
	const char *attention, *model; /* NULL: tinycalc */
} backends[] = {
	{"paged", NULL}, {"naive", NULL}, {"flex", NULL},
	{"mla", "examples/models/tinycalc-mla"}, {"mla_planned", "examples/models/tinycalc-mla"},
};
enum { N_BACKENDS = sizeof(backends) / sizeof(backends[0]) };

static const struct backend_test {
	const char *name;
	CMUnitTestFunction run;
	struct rig_options options;
} backend_tests[] = {
#define BACKEND_TEST(test, ...) {#test, test, {PREFIX_OPTIONS, __VA_ARGS__}}
	BACKEND_TEST(test_same_prompt_is_computed_once, .spin_us = 0),
	BACKEND_TEST(test_prompt_of_whole_pages_leaves_its_last_page_to_compute, .spin_us = 0),
	BACKEND_TEST(test_prompts_that_differ_share_what_is_before_the_difference, .spin_us = 0),
	BACKEND_TEST(test_conversation_takes_its_answers_back, .spin_us = 0),
	BACKEND_TEST(test_prompts_in_flight_share_with_one_that_runs, .max_batch_tokens = 48),
	BACKEND_TEST(test_cached_pages_are_free_for_others, .kv_pages = 16),
	BACKEND_TEST(test_truncated_and_forked_sequences_leave_cached_pages_as_they_are, .spin_us = 0),
	BACKEND_TEST(test_step_on_a_new_sequence_begins_with_cached_pages, .spin_us = 0),
};
enum { N_BACKEND_TESTS = sizeof(backend_tests) / sizeof(backend_tests[0]) };

static const struct CMUnitTest other_tests[] = {
	cmocka_unit_test(test_other_users_share_only_where_all_do),
	RIG_TEST(test_final_event_has_the_length_of_the_sequence, PREFIX_OPTIONS),
	RIG_TEST(test_masks_that_look_forward_are_not_cached, .mode = GRAPH_FULL, .attention = "flex",
		.prefix_sharing = ENGINE_PREFIX_USER),
	RIG_TEST(test_draft_model_goes_on_from_a_cached_prefix_as_well, PREFIX_OPTIONS, .n_drafts = 4),
	RIG_TEST(test_requests_with_and_without_draft_tokens_share_nothing, PREFIX_OPTIONS, .n_drafts = 4),
};
enum { N_OTHER_TESTS = sizeof(other_tests) / sizeof(other_tests[0]) };

static struct rig_options options[N_BACKENDS][N_BACKEND_TESTS];
static char names[N_BACKENDS][N_BACKEND_TESTS][128];

static int setup(void **state)
{
	struct rig_options *o = *state;

	if (o->model)
		o->model = rig_source(o->model);
	return rig_setup(state);
}

static struct CMUnitTest backend_test(uint32_t backend, uint32_t i)
{
	const struct backend_test *test = &backend_tests[i];
	struct rig_options *o = &options[backend][i];
	char *name = names[backend][i];

	*o = test->options;
	o->attention = backends[backend].attention;
	o->model = backends[backend].model;
	/* Engines may choose different products, which round differently. */
	o->deterministic = test_on_cuda();
	snprintf(name, sizeof(names[backend][i]), "%s: %s", o->attention, test->name);
	return (struct CMUnitTest){name, test->run, setup, rig_teardown, o};
}

int main(void)
{
	struct CMUnitTest tests[N_BACKENDS * N_BACKEND_TESTS + N_OTHER_TESTS];
	static const char narrow[] = "batches of other shapes round differently on cuda, and noise has narrow margins";
	const struct test_cpu_only only[] = {
		{"naive: ", "the naive backend is for the cpu device"},
		{"flex: ", narrow},
		{"mla: ", narrow},
		{"mla_planned: ", narrow},
	};
	uint32_t n = 0;

	for (uint32_t backend = 0; backend < N_BACKENDS; backend++) {
		for (uint32_t i = 0; i < N_BACKEND_TESTS; i++)
			tests[n++] = backend_test(backend, i);
	}
	memcpy(tests + n, other_tests, sizeof(other_tests));
	return TEST_RUN_GROUP("engine prefix", tests, only, NULL, NULL);
}
