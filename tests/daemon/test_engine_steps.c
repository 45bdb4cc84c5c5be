/* SPDX-License-Identifier: MIT */
/* A client's own loop through step requests, against what generate requests answer. */
#include "tests/daemon/rig.h"

#include "tests/device_memory.h"

#define VOCAB 256
#define HIDDEN 160
#define N_TOKENS 24

static const struct rig_options full = {.mode = GRAPH_FULL_AND_PIECEWISE};

static const char *const prompts[] = {"347+586=", "count 97 4\n", "sort 52 17 33\n", "rev hello\n",
	"rev mimeograph\n"};
#define N_PROMPTS 5

struct outputs {
	const int32_t *tokens;
	const float *logits, *hidden;
};

static struct outputs outputs_of(const struct rig_client *client, const struct rig_request *request,
	uint32_t n_rows, uint32_t outputs)
{
	struct msg_output layout = msg_output_layout(outputs & MIMEO_STEP_TOKENS ? n_rows : 0,
		outputs & MIMEO_STEP_LOGITS ? n_rows : 0, VOCAB, outputs & MIMEO_STEP_HIDDEN ? n_rows : 0,
		HIDDEN);
	const uint8_t *area = client->region.arena + request->sqe.output_offset;

	return (struct outputs){(const int32_t *)(area + layout.tokens),
		(const float *)(area + layout.logits), (const float *)(area + layout.hidden)};
}

static int32_t argmax(const float *logits)
{
	int32_t best = 0;

	for (int32_t i = 1; i < VOCAB; i++)
		best = logits[i] > logits[best] ? i : best;
	return best;
}

static void open_all(struct rig_client *client, uint32_t n)
{
	for (uint32_t i = 1; i <= n; i++)
		rig_ok(client, 0, RING_OP_OPEN, i, 0);
}

static void generated(struct rig_client *client, const char *prompt, const struct mimeo_sampling *sampling,
	int32_t ret[static N_TOKENS])
{
	int32_t tokens[64];
	uint32_t n = rig_prompt(prompt, tokens);
	struct msg_generate msg = rig_greedy(n, N_TOKENS);
	struct rig_request request;

	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.sampling = *sampling;
	request = rig_generate(client, 0, tokens, n, &msg);
	assert_int_equal(rig_do(client, request).n_generated, N_TOKENS);
	memcpy(ret, rig_tokens(client, &request), N_TOKENS * sizeof(ret[0]));
}

/* Row i of the loop is sequence order[i]; results go to ret[sequence - 1]. */
static void loop(struct rig_client *client, const struct mimeo_sampling *sampling, const uint32_t *order,
	uint32_t n_rows, int32_t (*ret)[N_TOKENS], bool own_argmax)
{
	struct msg_step msg = {.n_rows = n_rows, .sampling = *sampling,
		.outputs = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS};
	struct msg_row rows[N_PROMPTS];
	int32_t tokens[512];

	for (uint32_t k = 0; k < N_TOKENS; k++) {
		struct rig_request request;
		struct rig_result result;
		struct outputs out;
		uint32_t n = 0;

		for (uint32_t i = 0; i < n_rows; i++) {
			uint32_t which = order[i] - 1, from = n;

			if (k)
				tokens[n++] = ret[which][k - 1];
			else
				n += rig_prompt(prompts[which], tokens + n);
			rows[i] = (struct msg_row){order[i], n - from};
		}
		request = rig_step(client, 1, &msg, rows, tokens);
		result = rig_do(client, request);
		assert_int_equal(result.status, 0);
		assert_int_equal(result.finish, MIMEO_FINISH_NONE);
		assert_int_equal(result.n_prompt, n);
		assert_int_equal(result.n_events, 1);
		out = outputs_of(client, &request, n_rows, msg.outputs);
		for (uint32_t i = 0; i < n_rows; i++)
			ret[order[i] - 1][k] =
				own_argmax ? argmax(out.logits + i * VOCAB) : out.tokens[i];
	}
}

/*
 * How many of the tokens are compared. Where logits depend on the number of rows, what the model
 * says past the end of its answer, which it was never trained for, is not promised.
 */
static size_t compared(const int32_t *tokens)
{
	size_t n = 0;

	while (n < N_TOKENS && (!test_on_cuda() || n == 0 || tokens[n - 1] != 2))
		n++;
	return n;
}

static void assert_loop_equals_generate(const struct rig_options *options,
	const struct mimeo_sampling *sampling, const uint32_t *order, uint32_t n_rows, bool own_argmax)
{
	int32_t stepped[N_PROMPTS][N_TOKENS], expected[N_TOKENS];
	struct rig rig;

	rig_open_client(&rig, options);
	open_all(&rig.client, N_PROMPTS);
	loop(&rig.client, sampling, order, n_rows, stepped, own_argmax);
	for (uint32_t i = 0; i < n_rows; i++) {
		generated(&rig.client, prompts[order[i] - 1], sampling, expected);
		assert_memory_equal(stepped[order[i] - 1], expected,
			compared(expected) * sizeof(expected[0]));
	}
	rig_close(&rig);
}

static const struct mimeo_sampling greedy;
static const uint32_t forward[] = {1, 2, 3, 4, 5}, backward[] = {5, 4, 3, 2, 1};

static void test_own_loop_over_tokens_equals_generate(void **state)
{
	assert_loop_equals_generate(&full, &greedy, forward, N_PROMPTS, false);
}

static void test_own_loop_over_logits_equals_generate(void **state)
{
	assert_loop_equals_generate(&full, &greedy, forward, N_PROMPTS, true);
}

static void test_order_of_rows_does_not_matter(void **state)
{
	assert_loop_equals_generate(&full, &greedy, backward, N_PROMPTS, true);
	assert_loop_equals_generate(&full, &greedy, (uint32_t[]){4, 1, 3}, 3, false);
}

static void test_own_loop_in_small_chunks_equals_generate(void **state)
{
	for (uint32_t tokens = 1; tokens <= 7; tokens += 3) {
		struct rig_options options = full;

		options.max_batch_tokens = tokens;
		assert_loop_equals_generate(&options, &greedy, forward, N_PROMPTS, true);
	}
}

static void test_own_loop_with_a_seed_draws_what_generate_draws(void **state)
{
	const struct mimeo_sampling sampling = {.temperature = 1.3f, .top_p = 0.95f, .top_k = 40,
		.seed = 7, .flags = MIMEO_SAMPLING_SEEDED};

	assert_loop_equals_generate(&full, &sampling, forward, N_PROMPTS, false);
}

static void test_own_loop_replays_decode_graphs(void **state)
{
	struct rig *rig = *state;
	int32_t stepped[N_PROMPTS][N_TOKENS];
	struct engine_graph_facts facts;
	uint64_t n_decodes = 0;

	open_all(&rig->client, N_PROMPTS);
	loop(&rig->client, &greedy, forward, N_PROMPTS, stepped, false);
	/* One step a request, not one more; all but the prompts' are decodes. */
	assert_int_equal(engine_stats(rig->engine)->n_steps, N_TOKENS);
	assert_int_equal(engine_stats(rig->engine)->n_replays, N_TOKENS);
	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++)
		n_decodes += facts.query_len ? facts.n_replays : 0;
	assert_int_equal(n_decodes, N_TOKENS - 1);
	assert_int_equal(engine_stats(rig->engine)->n_rows, N_TOKENS * N_PROMPTS);
}

/* ---- outputs ---- */

/* The logits are what the checkpoint's own output matrix makes of the hidden state. */
static void assert_logits_of_hidden(const uint16_t *head, const float *hidden, const float *logits)
{
	double worst = 0;

	for (uint32_t v = 0; v < VOCAB; v++) {
		double sum = 0;

		for (uint32_t k = 0; k < HIDDEN; k++) {
			uint32_t bits = (uint32_t)head[v * HIDDEN + k] << 16;
			float weight;

			memcpy(&weight, &bits, sizeof(weight));
			sum += (double)hidden[k] * weight;
		}
		worst = fmax(worst, fabs(sum - logits[v]));
	}
	assert_true(worst < 1e-3);
}

static void assert_same_hidden(const float *a, const float *b)
{
	double largest = 0, worst = 0;

	for (uint32_t k = 0; k < HIDDEN; k++) {
		largest = fmax(largest, fabs(a[k]));
		worst = fmax(worst, fabs(a[k] - b[k]));
	}
	assert_true(worst < (test_on_cuda() ? TEST_LOGITS_CUDA * largest : 1e-4));
}

static void test_hidden_state_is_that_of_each_row(void **state)
{
	struct rig *rig = *state;
	const uint32_t outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN;
	struct msg_row rows[2];
	struct msg_step msg = {.n_rows = 2, .outputs = outputs};
	int32_t tokens[128];
	float hidden[2][HIDDEN];
	uint16_t *head;

	head = test_fetch(rig->device, rig->engine->runners.all[0]->model->head.data,
		sizeof(*head) * VOCAB * HIDDEN);
	open_all(&rig->client, 4);
	for (uint32_t pass = 0; pass < 2; pass++) {
		uint32_t n = rig_prompt(prompts[pass ? 1 : 0], tokens), m;
		struct rig_request request;
		struct outputs out;

		m = rig_prompt(prompts[pass ? 0 : 1], tokens + n);
		rows[0] = (struct msg_row){1 + 2 * pass, n};
		rows[1] = (struct msg_row){2 + 2 * pass, m};
		request = rig_step(&rig->client, 0, &msg, rows, tokens);
		rig_must(&rig->client, request);
		out = outputs_of(&rig->client, &request, 2, outputs);
		for (uint32_t i = 0; i < 2; i++) {
			const float *h = out.hidden + i * HIDDEN;

			assert_logits_of_hidden(head, h, out.logits + i * VOCAB);
			if (!pass)
				memcpy(hidden[i], h, sizeof(hidden[i]));
			else /* the other order */
				assert_same_hidden(hidden[1 - i], h);
		}
	}
	free(head);
}

static void test_more_results_than_a_step_can_carry_take_more_steps(void **state)
{
	struct rig *rig = *state;
	struct msg_row rows[N_PROMPTS];
	struct msg_step msg = {.n_rows = N_PROMPTS, .outputs = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS};
	int32_t tokens[512], stepped[N_PROMPTS], next[N_PROMPTS];
	struct rig_request request;
	struct outputs out;
	uint32_t n = 0;

	/* As with a vocabulary whose logits fill the record slot; nothing is running. */
	rig->engine->runners.all[0]->inputs.limits.max_results = 2;
	open_all(&rig->client, N_PROMPTS);
	for (uint32_t i = 0; i < N_PROMPTS; i++) {
		uint32_t m = rig_prompt(prompts[i], tokens + n);

		rows[i] = (struct msg_row){i + 1, m};
		n += m;
	}
	for (uint32_t k = 0; k < 2; k++) {
		uint64_t before = engine_stats(rig->engine)->n_steps;

		request = rig_step(&rig->client, 0, &msg, rows, tokens);
		rig_must(&rig->client, request);
		assert_int_equal(engine_stats(rig->engine)->n_steps - before, 3);
		out = outputs_of(&rig->client, &request, N_PROMPTS, msg.outputs);
		for (uint32_t i = 0; i < N_PROMPTS; i++) {
			(k ? next : stepped)[i] = argmax(out.logits + i * VOCAB);
			assert_int_equal(out.tokens[i], argmax(out.logits + i * VOCAB));
			rows[i].n_tokens = 1;
			tokens[i] = stepped[i];
		}
	}
	for (uint32_t i = 0; i < N_PROMPTS; i++) {
		int32_t expected[N_TOKENS];

		generated(&rig->client, prompts[i], &greedy, expected);
		assert_int_equal(stepped[i], expected[0]);
		assert_int_equal(next[i], expected[1]);
	}
}

static void test_step_and_generate_share_a_history(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;
	struct rig_result result;

	open_all(&rig->client, 1);
	rig_must(&rig->client, rig_step_text(&rig->client, 0, 1, "sort 52 ", true));
	rig_must(&rig->client, rig_step_text(&rig->client, 0, 1, "1", false));
	rig_must(&rig->client, rig_step_text(&rig->client, 0, 1, "7 33", false));
	request = rig_ask_text(&rig->client, 0, 1, "\n");
	result = rig_do(&rig->client, request);
	rig_assert_text(&rig->client, &request, &result, "17 33 52");
}

static void test_cancelled_step_can_be_followed_by_another(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;
	struct rig_result result;

	open_all(&rig->client, 1);
	rig_gate_close(rig);
	request = rig_step_text(&rig->client, 0, 1, "sort 52 17 33 8 91", true);
	rig_submit(&rig->client, request);
	rig_wait_steps(rig, 2);
	rig_cancel(&rig->client, 1, &request);
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].status, MIMEO_E_CANCELLED);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 1);
	request = rig_ask_text(&rig->client, 0, 1, "\n");
	result = rig_do(&rig->client, request);
	rig_assert_text(&rig->client, &request, &result, "8 17 33 52 91");
}

static void test_prompt_tokens_are_counted_once(void **state)
{
	struct rig *rig = *state;

	open_all(&rig->client, 1);
	rig_must(&rig->client, rig_step_text(&rig->client, 0, 1, "sort 52 17", true));
	assert_int_equal(rig->client.port->n_prompt_tokens, 11);
	rig_must(&rig->client, rig_ask_text(&rig->client, 0, 0, "9+8="));
	assert_int_equal(rig->client.port->n_prompt_tokens, 11 + 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own_loop_over_tokens_equals_generate),
		cmocka_unit_test(test_own_loop_over_logits_equals_generate),
		cmocka_unit_test(test_order_of_rows_does_not_matter),
		cmocka_unit_test(test_own_loop_in_small_chunks_equals_generate),
		cmocka_unit_test(test_own_loop_with_a_seed_draws_what_generate_draws),
		RIG_FULL_TEST(test_own_loop_replays_decode_graphs),
		RIG_FULL_TEST(test_hidden_state_is_that_of_each_row),
		RIG_FULL_TEST(test_more_results_than_a_step_can_carry_take_more_steps),
		RIG_FULL_TEST(test_step_and_generate_share_a_history),
		RIG_TEST(test_cancelled_step_can_be_followed_by_another,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_batch_tokens = 4, .max_requests = 4),
		RIG_TEST(test_prompt_tokens_are_counted_once,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_batch_tokens = 4),
	};

	static const struct test_cpu_only only[] = {
		{"test_own_loop_with_a_seed_draws_what_generate_draws",
			"logits depend on the number of rows, and so do draws at temperature 1.3"},
	};

	return TEST_RUN_GROUP("engine steps", tests, only, NULL, NULL);
}
