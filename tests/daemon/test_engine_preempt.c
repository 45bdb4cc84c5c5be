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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_preempted_requests_have_the_tokens_of_others),
		cmocka_unit_test(test_preempted_requests_have_the_tokens_of_others_without_graphs),
		cmocka_unit_test(test_preempted_requests_keep_their_masks),
		cmocka_unit_test(test_preempted_requests_have_the_tokens_of_others_with_drafts),
	};

	return cmocka_run_group_tests_name("engine preempt", tests, NULL, NULL);
}
