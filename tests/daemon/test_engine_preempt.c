/* SPDX-License-Identifier: MIT */
/*
 * Pages are taken as tokens come: a request that is preempted and computed once more has the tokens that it
 * has alone, an idle sequence that was evicted has its history, and what waits is served. A page holds 16
 * tokens.
 */
#include "tests/daemon/masks.h"

enum { N = 6, PROMPT = 40, MORE = 24, K = 4 };

static const struct rig_options flex = {.mode = GRAPH_FULL, .attention = "flex"};

static struct rig_request ask(struct rig_client *client, uint32_t index, uint32_t sequence,
	const struct mask *m, bool sampled)
{
	struct msg_generate msg = rig_greedy(PROMPT, MORE);
	int32_t tokens[PROMPT], payload[3 * PROMPT];

	rig_nonsense(tokens, PROMPT, index);
	msg.sequence = sequence;
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	if (sampled)
		msg.sampling = (struct mimeo_sampling){.temperature = 1, .seed = 77 + index,
			.flags = MIMEO_SAMPLING_SEEDED};
	if (m)
		msg.mask = m->msg;
	return rig_generate(client, index, payload,
		m ? mask_payload(m, tokens, PROMPT, payload) : mask_payload(&(struct mask){0}, tokens, PROMPT, payload),
		&msg);
}

static struct mask masks[] = {
	{.msg = {.kind = MIMEO_MASK_DEFAULT}},
	{.msg = {.kind = MIMEO_MASK_WINDOW, .window = 7}},
	{.msg = {.kind = MIMEO_MASK_WINDOW, .window = 6, .sinks = 3}},
	{.msg = {.kind = MIMEO_MASK_PREFIX, .prefix = 33}},
	{.msg = {.kind = MIMEO_MASK_PREFIX, .prefix = PROMPT}},
	{.msg = {.kind = MIMEO_MASK_DOCUMENTS}},
};

/* N requests together, each of a mask of its own if the options have flex; odd ones are sampled, unless there
 * are drafts: what stands behind one depends on where it was drawn. */
static uint64_t run_all(const struct rig_options *options, int32_t tokens[N][MORE])
{
	const bool own = options->attention && !strcmp(options->attention, "flex");
	struct rig_request requests[N];
	struct rig rig;
	uint64_t n;

	rig_open_client(&rig, options);
	for (uint32_t i = 0; i < N; i++) {
		for (uint32_t j = 0; j < MASK_TOKENS_MAX; j++)
			masks[i].words[j] = j / 7;
		requests[i] = ask(&rig.client, i, 0, own ? &masks[i] : NULL, i % 2 && !options->n_drafts);
		rig_submit(&rig.client, requests[i]);
	}
	for (uint32_t i = 0; i < N; i++) {
		rig_wait(&rig.client, rig.results, i);
		assert_int_equal(rig.results[i].status, 0);
		assert_int_equal(rig.results[i].n_prompt, PROMPT);
		assert_int_equal(rig.results[i].n_generated, MORE);
		memcpy(tokens[i], rig_tokens(&rig.client, &requests[i]), sizeof(tokens[i]));
	}
	rig_assert_all_free(&rig);
	n = rig.runner->n_preempted;
	rig_close(&rig);
	return n;
}

/* Preempted behind each token, each second, each third; in whole prompts and in chunks of 7; with pages for
 * two of the requests, whose needs preempt, too. */
static void assert_same(struct rig_options options)
{
	int32_t expected[N][MORE], tokens[N][MORE];

	/* Else, on CUDA, near ties end otherwise when tokens are computed once more. */
	options.deterministic = true;
	assert_int_equal(run_all(&options, expected), 0);
	options.kv_pages = 10;
	for (options.preempt_every = 0; options.preempt_every <= 3; options.preempt_every++) {
		/* a prefix is computed whole */
		options.max_batch_tokens = options.preempt_every % 2 && !options.attention ? 7 : 64;
		options.max_requests = options.max_batch_tokens == 7 ? 7 / (1 + options.n_drafts) : 16;
		assert_true(run_all(&options, tokens) > (options.preempt_every == 1 ? N * (MORE - 1) / (1 + options.n_drafts) : 0));
		assert_memory_equal(tokens, expected, sizeof(tokens));
	}
}

static void test_preempted_requests_have_the_tokens_of_others(void **state)
{
	assert_same((struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE});
}

static void test_preempted_requests_have_the_tokens_of_others_without_graphs(void **state)
{
	assert_same((struct rig_options){.mode = GRAPH_NONE});
}

static void test_preempted_requests_keep_their_masks(void **state)
{
	assert_same(flex);
}

static void test_preempted_requests_have_the_tokens_of_others_with_drafts(void **state)
{
	assert_same((struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K});
}

/* ---- idle sequences ---- */

/* History of 40 tokens under the sequence's id, by a step under the mask (NULL: the model's). */
static void fill(struct rig_client *client, uint32_t sequence, const struct mimeo_mask *mask)
{
	struct msg_row row = {sequence, PROMPT};
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	int32_t tokens[PROMPT];

	if (mask)
		msg.mask = *mask;
	rig_nonsense(tokens, PROMPT, 100 + sequence);
	rig_ok(client, 0, RING_OP_OPEN, sequence, 0);
	rig_must(client, rig_step(client, 0, &msg, &row, tokens));
}

static struct rig_request ask_on(struct rig_client *client, uint32_t index, uint32_t sequence,
	const struct mimeo_mask *mask)
{
	struct msg_generate msg = rig_greedy(8, 8);
	int32_t tokens[8];

	rig_nonsense(tokens, 8, sequence);
	msg.sequence = sequence;
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	if (mask)
		msg.mask = *mask;
	return rig_generate(client, index, tokens, 8, &msg);
}

/* Takes all other pages for a while. */
static void take_all(struct rig *rig, uint32_t n_tokens)
{
	int32_t tokens[512];

	rig_nonsense(tokens, n_tokens, 1);
	assert_int_equal(rig_must(&rig->client, rig_ask(&rig->client, 7, 0, tokens, n_tokens, 2,
		MIMEO_GENERATE_IGNORE_EOS)).n_generated, 2);
}

static struct sequence *sequence_of(struct rig *rig, uint32_t id)
{
	return &rig->engine->accounting.sessions[0]->sequences[id - 1];
}

/* Sequences 1, 2, 3 of 3 pages each, in the order 2, 3, 1 of their last use; 10 pages. */
static void test_idle_sequences_are_evicted_least_recently_used_first(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;

	for (uint32_t id = 1; id <= 3; id++)
		fill(&rig->client, id, NULL);
	rig_must(&rig->client, ask_on(&rig->client, 0, 1, NULL));
	take_all(rig, 20); /* 2 pages: 1 is free, or evicted with sequence 2 */
	assert_int_equal(rig->runner->n_evicted, 1);
	assert_int_equal(sequence_of(rig, 2)->table.n_pages, 0);
	assert_int_equal(sequence_of(rig, 3)->table.n_pages, 3);
	take_all(rig, 80);
	assert_int_equal(rig->runner->n_evicted, 2);
	assert_int_equal(sequence_of(rig, 3)->table.n_pages, 0);
	assert_true(sequence_of(rig, 1)->table.n_pages > 0);
	request = rig_ask_text(&rig->client, 0, 0, "rev hello\n");
	rig_must(&rig->client, request);
	for (uint32_t id = 1; id <= 3; id++)
		rig_ok(&rig->client, 0, RING_OP_CLOSE, id, 0);
}

static const struct mimeo_mask own[] = {
	{.kind = MIMEO_MASK_DEFAULT},
	{.kind = MIMEO_MASK_WINDOW, .window = 5},
	{.kind = MIMEO_MASK_WINDOW, .window = 4, .sinks = 2},
	{.kind = MIMEO_MASK_PREFIX, .prefix = 6},
};
enum { N_OWN = sizeof(own) / sizeof(own[0]) };

/* The tokens of a request on an open history, of its fork, and of that cut to 30 tokens; then a step's row. */
static void histories(const struct rig_options *options, bool evict, int32_t tokens[N_OWN][4][8])
{
	struct rig rig;

	rig_open_client(&rig, options);
	for (uint32_t i = 0; i < N_OWN; i++) {
		const struct mimeo_mask *mask = own[i].kind ? &own[i] : NULL;
		struct msg_row row = {4, 8};
		struct msg_step step = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS, .mask = own[i]};
		struct rig_request request;
		int32_t ids[8];

		fill(&rig.client, 1, NULL);
		if (evict)
			take_all(&rig, 150);
		rig_ok(&rig.client, 0, RING_OP_FORK, 1, 2);
		rig_ok(&rig.client, 0, RING_OP_FORK, 1, 3);
		rig_ok(&rig.client, 0, RING_OP_FORK, 1, 4);
		rig_ok(&rig.client, 0, RING_OP_TRUNCATE, 3, 30);
		for (uint32_t id = 1; id <= 3; id++) {
			request = ask_on(&rig.client, 0, id, mask);
			rig_must(&rig.client, request);
			memcpy(tokens[i][id - 1], rig_tokens(&rig.client, &request), sizeof(tokens[i][0]));
			rig_ok(&rig.client, 0, RING_OP_CLOSE, id, 0);
		}
		rig_nonsense(ids, 8, 9);
		request = rig_step(&rig.client, 0, &step, &row, ids);
		rig_must(&rig.client, request);
		memset(tokens[i][3], 0, sizeof(tokens[i][3]));
		tokens[i][3][0] = rig_tokens(&rig.client, &request)[0];
		rig_ok(&rig.client, 0, RING_OP_CLOSE, 4, 0);
		assert_true((rig.runner->n_evicted > i) == evict);
	}
	rig_assert_all_free(&rig);
	rig_close(&rig);
}

/* Under the model's mask, which is causal, or a window. */
static void test_evicted_history_keeps_the_models_mask(void **state)
{
	static int32_t expected[N_OWN][4][8], tokens[N_OWN][4][8];
	struct rig_options options = flex;

	options.deterministic = true;
	for (int windowed = 0; windowed < 2; windowed++) {
		if (windowed)
			options.mask = (struct mimeo_mask){.kind = MIMEO_MASK_WINDOW, .window = 9};
		options.kv_pages = 0;
		histories(&options, false, expected);
		options.kv_pages = 10;
		histories(&options, true, tokens);
		assert_memory_equal(tokens, expected, sizeof(tokens));
	}
}

/* Six forks of a fixed sequence name 18 pages, and have 3. */
static void test_fixed_sequences_keep_their_pages_which_count_once(void **state)
{
	struct rig *rig = *state;
	struct rig_result result;
	int32_t tokens[100];

	fill(&rig->client, 1, &own[1]);
	for (uint32_t id = 2; id <= 7; id++)
		rig_ok(&rig->client, 0, RING_OP_FORK, 1, id);
	take_all(rig, 100); /* the other 7 pages */
	fill(&rig->client, 8, NULL);
	take_all(rig, 100);
	assert_int_equal(rig->runner->n_evicted, 1);
	assert_int_equal(sequence_of(rig, 1)->table.n_pages, 3);
	/* It starts with the 7 pages that there are, and needs an 8th. */
	rig_nonsense(tokens, 100, 1);
	result = rig_do(&rig->client, rig_ask(&rig->client, 0, 0, tokens, 100, 50, MIMEO_GENERATE_IGNORE_EOS));
	assert_int_equal(result.status, MIMEO_E_NO_MEMORY);
	assert_int_equal(result.detail, RING_DETAIL_PAGES);
	assert_int_equal(result.n_generated, 13);
	for (uint32_t id = 1; id <= 8; id++)
		rig_ok(&rig->client, 0, RING_OP_CLOSE, id, 0);
	rig_assert_all_free(rig);
}

/* ---- ends ---- */

static void test_many_long_requests_with_few_pages_all_end_right(void **state)
{
	struct rig *rig = *state;
	struct rig_request request = rig_endless(&rig->client, 0, 0, 140), requests[12];
	int32_t expected[140];

	rig_must(&rig->client, request);
	memcpy(expected, rig_tokens(&rig->client, &request), sizeof(expected));
	for (uint32_t i = 0; i < 12; i++) {
		requests[i] = rig_endless(&rig->client, i, 0, 140);
		rig_submit(&rig->client, requests[i]);
	}
	for (uint32_t i = 0; i < 12; i++) {
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].n_generated, 140);
		assert_memory_equal(rig_tokens(&rig->client, &requests[i]), expected, sizeof(expected));
	}
	assert_true(rig->runner->n_preempted > 0);
	rig_assert_all_free(rig);
}

static void test_preempted_questions_are_answered_right(void **state)
{
	static const char *const questions[][2] = {
		{"347+586=", "933"}, {"rev hello\n", "olleh"}, {"sort 52 17 33\n", "17 33 52"}, {"9+8=", "17"}};
	struct rig_request requests[4];

	for (uint32_t every = 1; every <= 3; every++) {
		struct rig rig;

		rig_open_client(&rig, &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 10,
			.preempt_every = every, .max_batch_tokens = every == 2 ? 16 : 64});
		for (uint32_t i = 0; i < 4; i++) {
			requests[i] = rig_ask_text(&rig.client, i, 0, questions[i][0]);
			rig_submit(&rig.client, requests[i]);
		}
		for (uint32_t i = 0; i < 4; i++) {
			rig_wait(&rig.client, rig.results, i);
			rig_assert_text(&rig.client, &requests[i], &rig.results[i], questions[i][1]);
		}
		assert_true(rig.runner->n_preempted > 4);
		rig_close(&rig);
	}
}

/* The model's length is 512 tokens. The pages hold 512 tokens or more, or 80. */
static void test_request_without_a_limit_ends_where_nothing_more_fits(void **state)
{
	struct rig *rig = *state;
	const uint32_t n_held = kv_pages_total(rig->runner->kv) * 16, most = n_held < 512 ? n_held : 512;
	const struct msg_generate msg = {.n_tokens = 12, .flags = MIMEO_GENERATE_IGNORE_EOS};
	struct rig_request request;
	struct rig_result result;
	int32_t tokens[40];

	rig_nonsense(tokens, 12, 1);
	result = rig_must(&rig->client, rig_generate(&rig->client, 0, tokens, 12, &msg));
	assert_int_equal(result.n_generated, most - 12);
	assert_int_equal(result.finish, MIMEO_FINISH_LENGTH);
	/* The sequence's own tokens count. */
	fill(&rig->client, 1, NULL);
	request = rig_generate(&rig->client, 0, tokens, 12, &(struct msg_generate){
		.n_tokens = 12, .sequence = 1, .flags = MIMEO_GENERATE_IGNORE_EOS});
	assert_int_equal(rig_must(&rig->client, request).n_generated, most - PROMPT - 12);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	/* A stop ends it before. */
	request = rig_generate(&rig->client, 0, tokens, rig_prompt("347+586=", tokens),
		&(struct msg_generate){.n_tokens = rig_prompt("347+586=", tokens)});
	result = rig_must(&rig->client, request);
	rig_assert_text(&rig->client, &request, &result, "933");
}

/* Submit two requests; the first needs all 10 pages as its tokens come, so the second is preempted. Returns
 * the second. */
static struct rig_request preempted(struct rig *rig, struct rig_client *client, uint32_t deadline_ms, bool waits)
{
	const uint64_t before = rig->runner->n_preempted, failed = engine_stats(rig->engine)->n_failed;
	struct msg_generate msg = rig_greedy(PROMPT, 60);
	struct rig_request request;
	int32_t tokens[100];

	memset(rig->results, 0, sizeof(rig->results)); /* those of the last time */
	rig_nonsense(tokens, 100, 1);
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.deadline_ms = deadline_ms;
	rig_gate_close(rig);
	rig_submit(&rig->client, rig_ask(&rig->client, 0, 0, tokens, 90, 60, MIMEO_GENERATE_IGNORE_EOS));
	request = rig_generate(client, 1, tokens, PROMPT, &msg);
	rig_submit(client, request);
	rig_gate_open(rig);
	RIG_AWAIT(rig->runner->n_preempted > before || engine_stats(rig->engine)->n_failed > failed);
	if (waits)
		RIG_AWAIT(engine_stats(rig->engine)->n_waiting == 1 || engine_stats(rig->engine)->n_failed > failed);
	return request;
}

static void test_preempted_requests_that_end_leave_nothing(void **state)
{
	struct rig *rig = *state;
	struct rig_client *other = rig_other(rig, 8), gone;
	struct rig_result results[8] = {0};

	for (int waits = 0; waits < 2; waits++) {
		struct rig_request request;

		memset(results, 0, sizeof(results));
		rig->results[0] = (struct rig_result){0};
		request = preempted(rig, other, 0, waits);
		rig_cancel(other, 2, &request);
		rig_wait(other, results, 1);
		assert_int_equal(results[1].status, MIMEO_E_CANCELLED);
		assert_in_range(results[1].n_generated, 0, 59);
		assert_int_equal(results[1].n_prompt, PROMPT);
		rig_wait(&rig->client, rig->results, 0);
		assert_int_equal(rig->results[0].n_generated, 60);
		rig_assert_all_free(rig);

		/* If its deadline does not come before. */
		memset(results, 0, sizeof(results));
		rig->results[0] = (struct rig_result){0};
		request = preempted(rig, other, 150, waits);
		rig_wait(other, results, 1);
		assert_true(results[1].status == MIMEO_E_DEADLINE || results[1].n_generated == 60);
		rig_wait(&rig->client, rig->results, 0);
		rig_assert_all_free(rig);

		rig->results[0] = (struct rig_result){0};
		rig_attach(rig, &gone, 8);
		preempted(rig, &gone, 0, waits);
		rig_detach(&gone);
		rig_wait(&rig->client, rig->results, 0);
		rig_assert_all_free(rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_preempted_questions_are_answered_right),
		cmocka_unit_test(test_preempted_requests_have_the_tokens_of_others),
		cmocka_unit_test(test_preempted_requests_have_the_tokens_of_others_without_graphs),
		cmocka_unit_test(test_preempted_requests_keep_their_masks),
		cmocka_unit_test(test_preempted_requests_have_the_tokens_of_others_with_drafts),
		RIG_TEST(test_idle_sequences_are_evicted_least_recently_used_first,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 11),
		cmocka_unit_test(test_evicted_history_keeps_the_models_mask),
		RIG_TEST(test_fixed_sequences_keep_their_pages_which_count_once,
			.mode = GRAPH_FULL, .attention = "flex", .kv_pages = 10),
		RIG_TEST(test_many_long_requests_with_few_pages_all_end_right,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 14, .deterministic = true),
		RIG_TEST(test_request_without_a_limit_ends_where_nothing_more_fits,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		RIG_TEST(test_request_without_a_limit_ends_where_nothing_more_fits,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 5),
		RIG_TEST(test_preempted_requests_that_end_leave_nothing,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 10),
	};

	return cmocka_run_group_tests_name("engine preempt", tests, NULL, NULL);
}
