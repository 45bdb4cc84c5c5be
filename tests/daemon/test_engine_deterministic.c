/* SPDX-License-Identifier: MIT */
/*
 * A deterministic model: what a request gets has the same bits alone and among any neighbours, however its
 * prompt was cut and whatever was preempted. A page holds 16 tokens, a vocabulary 256 ids.
 */
#include "tests/daemon/rig.h"

#include <string.h>

enum { PROMPT = 45, MORE = 20, VOCAB = 256, HIDDEN = 160, NEIGHBOURS_MAX = 14 };

struct answer {
	int32_t tokens[MORE];
	float logits[VOCAB]; /* behind the prompt */
};

/* One request of PROMPT tokens, sampled unless there are drafts, in the middle of neighbours of other lengths. */
static struct answer answer_among(const struct rig_options *options, uint32_t n_neighbours)
{
	const struct msg_output layout = msg_output_layout(MORE, 1, VOCAB, 0, HIDDEN);
	struct msg_generate msg = rig_greedy(PROMPT, MORE);
	struct rig_request own = {0};
	struct answer answer = {0};
	int32_t tokens[PROMPT + 8 * NEIGHBOURS_MAX];
	struct rig rig;

	msg.flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_DETERMINISTIC;
	if (!options->n_drafts)
		msg.sampling = (struct mimeo_sampling){.temperature = 1, .seed = 5, .flags = MIMEO_SAMPLING_SEEDED};
	rig_open_client(&rig, options);
	for (uint32_t i = 0; i <= n_neighbours; i++) {
		const uint32_t n = 1 + 9 * i % PROMPT;

		if (i == n_neighbours / 2) {
			rig_nonsense(tokens, PROMPT, 99);
			own = rig_generate(&rig.client, 0, tokens, PROMPT, &msg);
			rig_submit(&rig.client, own);
		}
		rig_nonsense(tokens, n, i);
		if (i < n_neighbours)
			rig_submit(&rig.client, rig_ask(&rig.client, 1 + i, 0, tokens, n, 5 + i, MIMEO_GENERATE_IGNORE_EOS));
	}
	for (uint32_t i = 0; i <= n_neighbours; i++) {
		rig_wait(&rig.client, rig.results, i);
		assert_int_equal(rig.results[i].status, 0);
	}
	assert_int_equal(rig.results[0].n_generated, MORE);
	memcpy(answer.tokens, rig_tokens(&rig.client, &own), sizeof(answer.tokens));
	memcpy(answer.logits, rig_logits(&rig.client, &own, &layout), sizeof(answer.logits));
	rig_close(&rig);
	return answer;
}

static void assert_same(const struct answer *a, const struct answer *b)
{
	for (uint32_t i = 0; i < VOCAB; i++) {
		if (memcmp(&a->logits[i], &b->logits[i], sizeof(a->logits[i])) != 0)
			fail_msg("logit %u: %.9g and %.9g", i, (double)a->logits[i], (double)b->logits[i]);
	}
	assert_memory_equal(a->tokens, b->tokens, sizeof(a->tokens));
}

/* In steps of up to 64 tokens, and of so few that a prompt takes several. */
static void check(struct rig_options options)
{
	static const uint32_t n_neighbours[] = {0, 1, 5, NEIGHBOURS_MAX};
	struct answer alone, among;

	options.deterministic = true;
	alone = answer_among(&options, 0);
	for (uint32_t i = 0; i < sizeof(n_neighbours) / sizeof(n_neighbours[0]); i++) {
		options.max_batch_tokens = options.max_requests = 0;
		options.preempt_every = options.n_drafts && options.kv_pages ? 7 : 0;
		among = answer_among(&options, n_neighbours[i]);
		assert_same(&among, &alone);
		options.max_batch_tokens = 17;
		options.max_requests = 16 / (1 + options.n_drafts);
		among = answer_among(&options, n_neighbours[i]);
		assert_same(&among, &alone);
	}
}

static void test_neighbours_change_no_bit(void **state)
{
	check((struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE});
}

static void test_neighbours_change_no_bit_without_graphs(void **state)
{
	check((struct rig_options){.mode = GRAPH_NONE});
}

static void test_neighbours_change_no_bit_under_flex(void **state)
{
	check((struct rig_options){.mode = GRAPH_FULL, .attention = "flex"});
}

static void test_neighbours_change_no_bit_under_a_window(void **state)
{
	check((struct rig_options){.mode = GRAPH_FULL, .attention = "flex",
		.mask = {.kind = MIMEO_MASK_WINDOW, .window = 9, .sinks = 2}});
}

static void test_neighbours_change_no_bit_where_prefixes_are_cached(void **state)
{
	check((struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .prefix_sharing = ENGINE_PREFIX_USER});
}

static void test_neighbours_change_no_bit_with_drafts(void **state)
{
	check((struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = 4});
	check((struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = 4, .kv_pages = 10});
}

/* Pages for two requests at a time. */
static void test_neighbours_that_preempt_change_no_bit(void **state)
{
	check((struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 10});
}

static void test_graphs_change_no_bit(void **state)
{
	struct rig_options options = {.mode = GRAPH_NONE, .deterministic = true};
	struct answer eager = answer_among(&options, 3), replayed;

	options.mode = GRAPH_FULL_AND_PIECEWISE;
	replayed = answer_among(&options, 3);
	assert_same(&replayed, &eager);
}

/* A decode has the logits and the hidden state of the prompt that has its token in the end. */
static void test_a_decode_has_the_bits_of_a_prompt(void **state)
{
	struct rig *rig = *state;
	const struct msg_output layout = msg_output_layout(0, 1, VOCAB, 1, HIDDEN);
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN,
		.flags = MIMEO_STEP_DETERMINISTIC};
	uint8_t whole[(VOCAB + HIDDEN) * sizeof(float)], cut[sizeof(whole)];
	struct rig_request request = {0};
	int32_t tokens[PROMPT];

	rig_nonsense(tokens, PROMPT, 8);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 2, 0);
	request = rig_step(&rig->client, 0, &msg, &(struct msg_row){1, PROMPT}, tokens);
	rig_must(&rig->client, request);
	memcpy(whole, rig_logits(&rig->client, &request, &layout), sizeof(whole));
	rig_must(&rig->client, rig_step(&rig->client, 0, &msg, &(struct msg_row){2, PROMPT - 2}, tokens));
	for (uint32_t i = PROMPT - 2; i < PROMPT; i++) {
		request = rig_step(&rig->client, 0, &msg, &(struct msg_row){2, 1}, tokens + i);
		rig_must(&rig->client, request);
	}
	memcpy(cut, rig_logits(&rig->client, &request, &layout), sizeof(cut));
	assert_memory_equal(cut, whole, sizeof(whole));
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 2, 0);
}

static void test_a_model_that_is_not_deterministic_refuses_requests_that_ask_for_it(void **state)
{
	struct rig *rig = *state;
	const struct rig_expected refused = {MIMEO_E_UNSUPPORTED, RING_DETAIL_DETERMINISTIC, 0, 0, 0, 0};
	const struct msg_step step = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS, .flags = MIMEO_STEP_DETERMINISTIC};
	struct rig_request request;
	int32_t token = 'x';

	/* The cpu device's are deterministic in any case. */
	rig->engine->runners.all[0]->model->deterministic = false;
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	request = rig_ask(&rig->client, 0, 0, &token, 1, 1, MIMEO_GENERATE_DETERMINISTIC);
	rig_expect(&rig->client, &request, refused);
	request = rig_step(&rig->client, 0, &step, &(struct msg_row){1, 1}, &token);
	rig_expect(&rig->client, &request, refused);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_neighbours_change_no_bit),
		cmocka_unit_test(test_neighbours_change_no_bit_without_graphs),
		cmocka_unit_test(test_neighbours_change_no_bit_under_flex),
		cmocka_unit_test(test_neighbours_change_no_bit_under_a_window),
		cmocka_unit_test(test_neighbours_change_no_bit_where_prefixes_are_cached),
		cmocka_unit_test(test_neighbours_change_no_bit_with_drafts),
		cmocka_unit_test(test_neighbours_that_preempt_change_no_bit),
		cmocka_unit_test(test_graphs_change_no_bit),
		RIG_TEST(test_a_decode_has_the_bits_of_a_prompt, .mode = GRAPH_FULL_AND_PIECEWISE, .deterministic = true),
		RIG_TEST(test_a_model_that_is_not_deterministic_refuses_requests_that_ask_for_it, .mode = GRAPH_FULL),
	};

	return cmocka_run_group_tests_name("engine deterministic", tests, NULL, NULL);
}
