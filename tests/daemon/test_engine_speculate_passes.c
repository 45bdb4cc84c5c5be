/* SPDX-License-Identifier: MIT */
/*
 * How many passes a draft makes in a step: as many as its most demanding row
 * wants drafts, of the rows that verify in a later step; none if no row wants any.
 */
#include "tests/daemon/choices.h"

static struct rig_request submit_drafting(
	struct rig *rig, uint32_t index, uint32_t draft_tokens, uint32_t max_tokens)
{
	struct msg_generate msg = {.max_tokens = max_tokens,
		.flags = MIMEO_GENERATE_IGNORE_EOS, .draft_tokens = draft_tokens};
	struct rig_request request;
	int32_t tokens[40];

	msg.n_tokens = rig_prompt("count 4 30\n", tokens);
	request = rig_generate(&rig->client, index, tokens, msg.n_tokens, &msg);
	rig_submit(&rig->client, request);
	return request;
}

/* Steps by the passes of a token a row that they had, those of so many rows; the last step of a request,
 * which launches nothing behind it, has fewer. */
static void count_steps(const struct rig *rig, uint32_t n_rows, uint32_t n_steps[K])
{
	assert_in_range(n_choices, 1, CHOICES_MAX);
	memset(n_steps, 0, K * sizeof(n_steps[0]));
	for (uint32_t i = 0; i < n_choices; i++) {
		uint32_t n = 0;

		if (choices[i].set != &rig->speculator->prefill.graphs || choices[i].shape.rows != n_rows)
			continue;
		while (i + 1 < n_choices && choices[i + 1].set == &rig->speculator->decode.graphs) {
			n++;
			i++;
		}
		assert_in_range(n, 0, K - 1);
		n_steps[n]++;
	}
}

/* Of one that wants fewer the device would stop in time, too; but its passes would run. */
static void test_request_has_no_more_passes_than_it_wants(void **state)
{
	static const enum graph_mode modes[] = {GRAPH_NONE, GRAPH_FULL_AND_PIECEWISE};
	uint32_t n_steps[K];

	for (uint32_t i = 0; i < 2 * K; i++) {
		uint32_t wanted = 1 + i % K;
		struct rig rig;

		choices_open(&rig, &(struct rig_options){.mode = modes[i / K]});
		submit_drafting(&rig, 0, wanted, 60);
		rig_wait(&rig.client, rig.results, 0);
		assert_int_equal(rig.results[0].n_generated, 60);
		choices_settle(&rig);
		count_steps(&rig, 1, n_steps);
		for (uint32_t n = 1; n < K; n++)
			assert_true(n == wanted - 1 ? n_steps[n] > 4 : !n_steps[n]);
		assert_true(wanted == 1 ? n_steps[0] > 4 : n_steps[0] <= 1);
		rig_close(&rig);
	}
}

static void test_step_has_the_passes_of_its_neediest_row(void **state)
{
	struct rig *rig = *state;
	static const uint32_t wanted[] = {1, 3, MIMEO_DRAFT_NONE}, max_tokens[] = {300, 60, 300};
	struct rig_request requests[3];
	uint32_t n_steps[K];

	rig_gate_close(rig);
	for (uint32_t i = 0; i < 3; i++)
		requests[i] = submit_drafting(rig, i, wanted[i], max_tokens[i]);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 3; i++)
		rig_wait(&rig->client, rig->results, i);
	choices_settle(rig);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(rig->results[i].n_generated, max_tokens[i]);
		/* On a GPU a row's bits depend on the rows beside it, and tokens that are near ties on its bits. */
		if (!test_on_cuda())
			assert_memory_equal(rig_tokens(&rig->client, &requests[i]),
				rig_tokens(&rig->client, &requests[2]), max_tokens[i] * sizeof(int32_t));
	}
	count_steps(rig, 3, n_steps);
	assert_true(n_steps[2] > 4 && n_steps[0] <= 1 && !n_steps[1] && !n_steps[3]);
	count_steps(rig, 2, n_steps); /* the second has ended */
	assert_true(n_steps[0] > 4 && !n_steps[1] && !n_steps[2] && !n_steps[3]);
}

static void test_step_whose_rows_want_no_drafts_has_no_pass(void **state)
{
	struct rig *rig = *state;

	submit_drafting(rig, 0, MIMEO_DRAFT_NONE, 60);
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].n_generated, 60);
	choices_settle(rig);
	assert_in_range(n_choices, 60, CHOICES_MAX);
	for (uint32_t i = 0; i < n_choices; i++)
		assert_ptr_equal(choices[i].set, &rig->runner->graphs);
}

/* A prompt in chunks: draft tokens behind the first chunk would not be read. */
static void test_chunk_of_a_prompt_has_no_passes_of_a_token_a_row(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;
	int32_t tokens[3 * TOKENS];
	uint32_t n_steps[K];

	rig_nonsense(tokens, 3 * TOKENS, 1);
	request = rig_ask(&rig->client, 0, 0, tokens, 3 * TOKENS, 40, MIMEO_GENERATE_IGNORE_EOS);
	assert_int_equal(rig_do(&rig->client, request).n_generated, 40);
	choices_settle(rig);
	count_steps(rig, 1, n_steps);
	assert_in_range(n_steps[0], 2, 3); /* and the request's last step */
	assert_true(n_steps[K - 1] > 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_request_has_no_more_passes_than_it_wants),
		CHOICES_TEST(test_step_has_the_passes_of_its_neediest_row,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		CHOICES_TEST(test_step_whose_rows_want_no_drafts_has_no_pass,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		CHOICES_TEST(test_chunk_of_a_prompt_has_no_passes_of_a_token_a_row,
			.mode = GRAPH_FULL_AND_PIECEWISE),
	};

	return cmocka_run_group_tests_name("engine speculation's passes", tests, NULL, NULL);
}
