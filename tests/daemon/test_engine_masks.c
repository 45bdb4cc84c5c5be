/* SPDX-License-Identifier: MIT */
/*
 * Attention under masks: the requests' own, in graphs and without, against a dense
 * reference; and what may not be cut into chunks.
 */
#include "tests/daemon/masks.h"

/* The reference is sure of a token that leads by more: of what activations in bf16 may turn round. */
#define MARGIN (test_on_cuda() ? 1.0 : 1e-3)

static const struct rig_options flex = {.mode = GRAPH_FULL, .attention = "flex"};

/* ---- asking ---- */

/* Documents of 5, 6, 7, ... tokens. */
static void number_documents(struct mask *m, uint32_t n)
{
	uint32_t left = 5, size = 5;

	for (uint32_t i = 0, document = 9; i < MASK_TOKENS_MAX; i++, left--) {
		if (left == 0) {
			left = ++size;
			document ^= 0x80; /* any other number */
		}
		m->words[i] = i < n ? document : m->words[n - 1];
	}
}

static struct rig_request ask(struct rig_client *client, uint32_t index, const int32_t *tokens,
	uint32_t n, uint32_t max_tokens, const struct mask *m)
{
	struct msg_generate msg = rig_greedy(n, max_tokens);
	int32_t payload[3 * MASK_TOKENS_MAX];

	msg.flags = MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_IGNORE_EOS;
	msg.mask = m->msg;
	return rig_generate(client, index, payload, mask_payload(m, tokens, n, payload), &msg);
}

/* The reference's, by the greedy tokens that it was first asked about. */
struct answer {
	double logits[DENSE_VOCAB];
	int32_t tokens[8];
	bool known;
};

/* The prompt's logits; and each token that follows, as far as the reference is sure of it. */
static void learn(const struct dense *dense, const struct mask *m, const int32_t *prompt, uint32_t n,
	const int32_t *generated, uint32_t n_generated, struct answer *ret)
{
	int32_t tokens[MASK_TOKENS_MAX];
	uint32_t n_sure = 0;

	memcpy(tokens, prompt, n * sizeof(*tokens));
	memcpy(tokens + n, generated, n_generated * sizeof(*tokens));
	for (uint32_t i = 0; i < n_generated; i++) {
		double logits[DENSE_VOCAB];
		int32_t next;

		dense_logits(dense, tokens, NULL, n + i, mask_sees, m, logits);
		if (i == 0)
			memcpy(ret->logits, logits, sizeof(logits));
		next = dense_next(logits, MARGIN);
		if (next >= 0)
			assert_int_equal(tokens[n + i], next);
		n_sure += next >= 0;
	}
	assert_true(n_sure > 0);
	memcpy(ret->tokens, generated, n_generated * sizeof(*generated));
	ret->known = true;
}

static void check_answer(const struct dense *dense, const struct rig_client *client,
	const struct rig_request *request, const struct mask *m, const int32_t *prompt, uint32_t n,
	uint32_t n_generated, struct answer *answer)
{
	struct msg_output layout = msg_output_layout(n_generated, 1, 256, 0, 160);

	/* of the cuda device logits depend on the number of rows: asked about each time */
	if (!answer->known || test_on_cuda())
		learn(dense, m, prompt, n, rig_tokens(client, request), n_generated, answer);
	dense_check(answer->logits, rig_logits(client, request, &layout), MASK_TOLERANCE);
	assert_memory_equal(rig_tokens(client, request), answer->tokens,
		n_generated * sizeof(answer->tokens[0]));
}

#define N_PROMPT 40u
#define N_GENERATED 6u

static struct mask masks[] = {
	{.msg = {.kind = MIMEO_MASK_DEFAULT}},
	{.msg = {.kind = MIMEO_MASK_WINDOW, .window = 7}},
	{.msg = {.kind = MIMEO_MASK_WINDOW, .window = 6, .sinks = 3}},
	{.msg = {.kind = MIMEO_MASK_PREFIX, .prefix = 33}},
	{.msg = {.kind = MIMEO_MASK_PREFIX, .prefix = N_PROMPT}},
	{.msg = {.kind = MIMEO_MASK_DOCUMENTS}},
};
#define N_MASKS (sizeof(masks) / sizeof(masks[0]))

static struct answer answers[N_MASKS];

static void check_masks(const struct dense *dense, const struct rig_options *options)
{
	struct rig_client client, other;
	struct rig_result results[8] = {0};
	struct rig_request requests[N_MASKS];
	int32_t prompts[N_MASKS][N_PROMPT];
	struct rig rig;

	rig_open(&rig, options);
	rig_attach(&rig, &client, 8);
	rig_attach(&rig, &other, 8);
	rig_submit(&other, rig_endless(&other, 0, 0, 300));
	for (uint32_t i = 0; i < N_MASKS; i++) {
		rig_nonsense(prompts[i], N_PROMPT, i);
		number_documents(&masks[i], N_PROMPT);
		requests[i] = ask(&client, i, prompts[i], N_PROMPT, N_GENERATED, &masks[i]);
		rig_submit(&client, requests[i]);
	}
	for (uint32_t i = 0; i < N_MASKS; i++) {
		rig_wait(&client, results, i);
		assert_int_equal(results[i].status, 0);
		check_answer(dense, &client, &requests[i], &masks[i], prompts[i], N_PROMPT,
			N_GENERATED, &answers[i]);
	}
	rig_detach(&client);
	rig_detach(&other);
	rig_close(&rig);
}

static void test_masks_of_requests_agree_with_a_dense_reference_in_every_mode(void **state)
{
	static const enum graph_mode modes[] = {GRAPH_FULL, GRAPH_NONE, GRAPH_PIECEWISE,
		GRAPH_FULL_AND_PIECEWISE, GRAPH_FULL_DECODE_ONLY};
	struct dense dense;

	dense_open(&dense);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct rig_options options = flex;

		options.mode = modes[i];
		check_masks(&dense, &options);
	}
	dense_close(&dense);
}

/* Steps of 41 tokens: the prompts are cut, but for the prefixes, which are not. */
static void test_masks_agree_with_a_dense_reference_in_small_steps(void **state)
{
	struct rig_options options = flex;
	struct dense dense;

	options.max_batch_tokens = N_PROMPT + 1;
	dense_open(&dense);
	check_masks(&dense, &options);
	dense_close(&dense);
}

static void test_requests_without_a_mask_get_the_models_and_others_their_own(void **state)
{
	static const struct mimeo_mask models[] = {
		{.kind = MIMEO_MASK_WINDOW, .window = 9, .sinks = 2},
		{.kind = MIMEO_MASK_PREFIX, .prefix = UINT32_MAX},
	};
	const struct mask none = {0}, *asked[] = {&none, &masks[1]};
	int32_t prompt[N_PROMPT];
	struct dense dense;

	rig_nonsense(prompt, N_PROMPT, 3);
	dense_open(&dense);
	for (size_t i = 0; i < 2; i++) {
		struct rig_options options = flex;
		struct mask model = {.msg = models[i]};
		struct rig rig;

		if (model.msg.prefix)
			model.msg.prefix = N_PROMPT;
		options.mask = models[i];
		rig_open_client(&rig, &options);
		for (size_t j = 0; j < 2; j++) {
			const struct rig_request request =
				ask(&rig.client, 0, prompt, N_PROMPT, N_GENERATED, asked[j]);
			struct answer answer = {0};

			rig_must(&rig.client, request);
			check_answer(&dense, &rig.client, &request, j == 0 ? &model : &masks[1],
				prompt, N_PROMPT, N_GENERATED, &answer);
		}
		rig_close(&rig);
	}
	dense_close(&dense);
}

/* ---- causal ---- */

static const char *const questions[][2] = {
	{"347+586=", "933"}, {"sort 52 17 33 8 91\n", "8 17 33 52 91"}, {"rev mimeograph\n", "hpargoemim"},
};

static void test_answers_are_the_same_with_every_mode_and_one_family_of_graphs_suffices(void **state)
{
	static const enum graph_mode modes[] = {GRAPH_FULL, GRAPH_NONE, GRAPH_PIECEWISE,
		GRAPH_FULL_AND_PIECEWISE, GRAPH_FULL_DECODE_ONLY};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct rig_options options = flex;
		struct engine_graph_facts facts;
		struct rig rig;

		options.mode = modes[i];
		rig_open_client(&rig, &options);
		assert_int_equal(rig.engine->runners.all[0]->options.mode.resolved, modes[i]);
		for (size_t q = 0; q < 3; q++)
			rig_assert_answer(&rig.client, 0, questions[q][0], questions[q][1]);
		for (uint32_t g = 0; modes[i] == GRAPH_FULL &&
			engine_graph_facts(rig.engine, 0, g, &facts); g++) {
			assert_string_equal(facts.mode, "FULL");
			assert_int_equal(facts.query_len, 0);
		}
		if (modes[i] == GRAPH_FULL)
			assert_int_equal(engine_stats(rig.engine)->n_replays,
				engine_stats(rig.engine)->n_steps);
		rig_close(&rig);
	}
}

/* The logits and tokens of a request under flex and under paged: on the cpu device to the last bit. */
static void test_causal_requests_get_what_paged_gives(void **state)
{
	double expected[DENSE_VOCAB];
	float logits[2][256];
	int32_t prompt[N_PROMPT], tokens[2][N_GENERATED];

	rig_nonsense(prompt, N_PROMPT, 3);
	for (int i = 0; i < 2; i++) {
		struct rig_options options = {.mode = GRAPH_NONE, .attention = i ? "flex" : "paged"};
		struct msg_output layout = msg_output_layout(N_GENERATED, 1, 256, 0, 160);
		struct rig_request request;
		struct rig rig;

		rig_open_client(&rig, &options);
		request = ask(&rig.client, 0, prompt, N_PROMPT, N_GENERATED, &masks[0]);
		rig_must(&rig.client, request);
		memcpy(logits[i], rig_logits(&rig.client, &request, &layout), sizeof(logits[i]));
		memcpy(tokens[i], rig_tokens(&rig.client, &request), sizeof(tokens[i]));
		rig_close(&rig);
	}
	for (int i = 0; i < 256; i++)
		expected[i] = (double)logits[0][i];
	dense_check(expected, logits[1], MASK_TOLERANCE);
	if (!test_on_cuda()) {
		assert_memory_equal(logits[1], logits[0], sizeof(logits[0]));
		assert_memory_equal(tokens[1], tokens[0], sizeof(tokens[0]));
	}
}

/* ---- what is not cut ---- */

/* A generated token that was not computed comes ahead of the prefix, and makes both too long for one
 * step: the prefix then has the next one for itself. */
static void test_prefix_behind_a_token_that_was_not_computed_is_whole(void **state)
{
	struct rig *rig = *state;
	struct mask m = {.msg = {.kind = MIMEO_MASK_PREFIX, .prefix = 24}};
	int32_t tokens[MASK_TOKENS_MAX];
	struct rig_request request;
	struct dense dense;
	struct answer answer = {.known = false};
	struct msg_generate msg;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_nonsense(tokens, 8, 2);
	request = rig_ask(&rig->client, 0, 1, tokens, 8, 1, MIMEO_GENERATE_IGNORE_EOS);
	rig_must(&rig->client, request);
	tokens[8] = rig_tokens(&rig->client, &request)[0];
	rig_nonsense(tokens + 9, 26, 4);
	m.begin = 9;
	msg = rig_greedy(26, N_GENERATED);
	msg.sequence = 1;
	msg.flags = MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_IGNORE_EOS;
	msg.mask = m.msg;
	request = rig_generate(&rig->client, 0, tokens + 9, 26, &msg);
	rig_must(&rig->client, request);
	dense_open(&dense);
	check_answer(&dense, &rig->client, &request, &m, tokens, 9 + 26, N_GENERATED, &answer);
	dense_close(&dense);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

/* The index of the request that ends next. */
static uint32_t next_final(struct rig_client *client)
{
	struct ring_cqe cqe;

	for (;;) {
		RIG_AWAIT(ring_cq_peek(&client->region.ring, &cqe));
		ring_cq_advance(&client->region.ring);
		if (cqe.kind != RING_CQE_FINAL)
			continue;
		assert_int_equal(cqe.status, 0);
		return cqe.request;
	}
}

enum { LONGEST = 16, PREFIXES = 10 };

/* Decodes of so many tokens beside prefixes that fill a step; order[]: the requests as they end, the
 * decodes' indices from PREFIXES on. */
static void run_prefixes_beside_decodes(uint32_t n_decodes, uint32_t n_tokens, uint32_t *order)
{
	struct rig_options options = flex;
	struct mask m = {.msg = {.kind = MIMEO_MASK_PREFIX, .prefix = LONGEST}};
	int32_t prompt[LONGEST];
	struct rig_request request;
	struct rig rig;

	options.max_batch_tokens = LONGEST;
	rig_nonsense(prompt, LONGEST, 8);
	rig_open_client(&rig, &options);
	rig_gate_close(&rig);
	for (uint32_t i = 0; i < n_decodes; i++)
		rig_submit(&rig.client, rig_endless(&rig.client, PREFIXES + i, 0, n_tokens));
	rig_wait_steps(&rig, 1);
	for (uint32_t i = 0; i < PREFIXES; i++) {
		request = ask(&rig.client, i, prompt, LONGEST, 1, &m);
		rig_submit(&rig.client, request);
	}
	rig_wait_waiting(&rig, 0);
	rig_gate_open(&rig);
	for (uint32_t i = 0; i < n_decodes + PREFIXES; i++)
		order[i] = next_final(&rig.client);
	rig_close(&rig);
}

static void test_prefix_that_fills_a_step_does_not_starve_beside_decodes(void **state)
{
	uint32_t order[PREFIXES + 6];

	run_prefixes_beside_decodes(6, 60, order);
	for (uint32_t i = 0; i < PREFIXES + 6; i++)
		assert_int_equal(order[i] < PREFIXES, i < PREFIXES);
}

static void test_prefixes_that_fill_steps_leave_some_to_decodes(void **state)
{
	uint32_t order[PREFIXES + 1];

	run_prefixes_beside_decodes(1, 6, order);
	assert_in_range(order[PREFIXES], 0, PREFIXES - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_masks_of_requests_agree_with_a_dense_reference_in_every_mode),
		cmocka_unit_test(test_masks_agree_with_a_dense_reference_in_small_steps),
		cmocka_unit_test(test_requests_without_a_mask_get_the_models_and_others_their_own),
		cmocka_unit_test(
			test_answers_are_the_same_with_every_mode_and_one_family_of_graphs_suffices),
		cmocka_unit_test(test_causal_requests_get_what_paged_gives),
		RIG_TEST(test_prefix_behind_a_token_that_was_not_computed_is_whole,
			.mode = GRAPH_FULL, .attention = "flex", .max_batch_tokens = 24, .max_requests = 4),
		cmocka_unit_test(test_prefix_that_fills_a_step_does_not_starve_beside_decodes),
		cmocka_unit_test(test_prefixes_that_fill_steps_leave_some_to_decodes),
	};

	return cmocka_run_group_tests_name("engine: masks", tests, NULL, NULL);
}
