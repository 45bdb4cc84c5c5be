/* SPDX-License-Identifier: MIT */
/*
 * Log-probabilities of generated tokens and of a request's own, end to end: those of the logits that a plain request
 * of all tokens before has, under every graph mode, with drafts, in chunks, behind preemptions; whatever changes the
 * logits.
 */
#include "tests/daemon/adjusted.h"
#include "tests/daemon/plain.h"

enum { N_TOKENS = 16, K = 4, LONG = 70 };

static const struct mimeo_logprob *entries_of(const struct rig_client *client, const struct rig_request *request,
	uint64_t offset, uint32_t width, uint32_t i)
{
	return (const struct mimeo_logprob *)rig_output(client, request, offset) + (size_t)i * width;
}

/* ---- generated tokens ---- */

static void check_generated(struct rig *rig, struct adjusted *a, const char *text)
{
	const uint32_t n_top = a->msg.top_logprobs;
	int32_t tokens[ADJUSTED_TOKENS_MAX];
	struct rig_request request;
	struct msg_output layout;

	a->msg.flags |= MIMEO_GENERATE_LOGPROBS | MIMEO_GENERATE_IGNORE_EOS;
	a->msg.max_tokens = N_TOKENS;
	a->msg.n_tokens = rig_prompt(text, tokens);
	layout = rig_generate_layout(&rig->client, &a->msg);
	request = adjusted_ask(&rig->client, 0, a, tokens);
	assert_int_equal(rig_must(&rig->client, request).n_generated, N_TOKENS);
	memcpy(tokens + a->msg.n_tokens, rig_tokens(&rig->client, &request), N_TOKENS * sizeof(*tokens));
	for (uint32_t i = 0; i < N_TOKENS; i++)
		adjusted_assert_logprobs(entries_of(&rig->client, &request, layout.logprobs, 1 + n_top, i),
			tokens[a->msg.n_tokens + i], adjusted_logits(&plain, tokens, a->msg.n_tokens + i), n_top);
}

static void test_generated_tokens_have_their_log_probabilities(void **state)
{
	static const uint32_t n_top[] = {0, 1, 5, 20};
	struct rig *rig = *state;

	for (uint32_t i = 0; i < 4; i++) {
		struct adjusted a = {.msg = {.top_logprobs = n_top[i]}};

		check_generated(rig, &a, "count 4 30\n");
		a.msg.sampling = (struct mimeo_sampling){
			.temperature = 1.5f, .top_k = 20, .seed = i, .flags = MIMEO_SAMPLING_SEEDED};
		check_generated(rig, &a, "sort 5 3 9 1\n");
		a.msg.repetition_penalty = 1.5f;
		a.msg.presence_penalty = 1.5f;
		a.msg.frequency_penalty = 0.5f;
		a.msg.n_bias = 2;
		a.bias[0] = (struct mimeo_bias){'1', 25};
		a.bias[1] = (struct mimeo_bias){'2', -INFINITY};
		check_generated(rig, &a, "rev hello\n");
	}
}

/* ---- the request's own tokens ---- */

static struct rig_request ask_scores(
	struct rig_client *client, uint32_t index, const int32_t *tokens, uint32_t n, uint32_t n_top)
{
	const struct msg_generate msg = {.n_tokens = n, .max_tokens = 4, .top_logprobs = n_top,
		.flags = MIMEO_GENERATE_PROMPT_LOGPROBS | MIMEO_GENERATE_IGNORE_EOS};

	return rig_generate_adjusted(client, index, tokens, &msg, NULL, NULL);
}

/* Of tokens[n_history ... n_history + n), all but the first. */
static void assert_scores(struct rig_client *client, const struct rig_request *request, uint64_t offset,
	const int32_t *tokens, uint32_t n_history, uint32_t n, uint32_t n_top)
{
	const struct mimeo_logprob *first = entries_of(client, request, offset, 1 + n_top, 0);

	for (uint32_t k = 0; k <= n_top; k++)
		assert_true(first[k].token == -1 && isnan(first[k].logprob));
	for (uint32_t i = 1; i < n; i++)
		adjusted_assert_logprobs(entries_of(client, request, offset, 1 + n_top, i), tokens[n_history + i],
			adjusted_logits(&plain, tokens, n_history + i), n_top);
}

static uint64_t scores_offset(const struct rig_client *client, uint32_t n, uint32_t n_top)
{
	const struct msg_generate msg = {.n_tokens = n, .max_tokens = 4, .top_logprobs = n_top,
		.flags = MIMEO_GENERATE_PROMPT_LOGPROBS};

	return rig_generate_layout(client, &msg).prompt_logprobs;
}

static void test_a_prompts_tokens_have_their_log_probabilities(void **state)
{
	static const uint32_t lengths[] = {1, 2, 17, LONG};
	struct rig *rig = *state;
	int32_t tokens[LONG];

	for (uint32_t i = 0; i < 4; i++) {
		const uint32_t n = lengths[i], n_top = 3 * i;
		struct rig_request request;

		rig_nonsense(tokens, n, i);
		request = ask_scores(&rig->client, 0, tokens, n, n_top);
		assert_int_equal(rig_must(&rig->client, request).n_generated, 4);
		assert_scores(&rig->client, &request, scores_offset(&rig->client, n, n_top), tokens, 0, n, n_top);
	}
	assert_true(rig->runner->n_positions >= 1 + 2 + 17 + LONG);
}

/* The prompt is in the cache: it is computed all the same. */
static void test_a_cached_prompt_has_its_log_probabilities(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[LONG];

	rig_nonsense(tokens, LONG, 7);
	for (int i = 0; i < 2; i++) {
		struct rig_request request = ask_scores(&rig->client, 0, tokens, LONG, 1);

		assert_int_equal(rig_must(&rig->client, request).n_cached, 0);
		assert_scores(&rig->client, &request, scores_offset(&rig->client, LONG, 1), tokens, 0, LONG, 1);
	}
	assert_int_equal(rig_must(&rig->client, rig_ask(&rig->client, 0, 0, tokens, LONG, 4, 0)).n_cached, 64);
}

static void test_a_history_has_no_log_probabilities_but_counts(void **state)
{
	struct rig *rig = *state;
	struct msg_generate msg = {.sequence = 1, .n_tokens = 20, .max_tokens = 4, .top_logprobs = 2,
		.flags = MIMEO_GENERATE_PROMPT_LOGPROBS | MIMEO_GENERATE_IGNORE_EOS};
	int32_t tokens[50];
	struct rig_request request;

	rig_nonsense(tokens, 50, 8);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	request = rig_ask(&rig->client, 0, 1, tokens, 26, 4, MIMEO_GENERATE_IGNORE_EOS);
	rig_must(&rig->client, request);
	memcpy(tokens + 26, rig_tokens(&rig->client, &request), 4 * sizeof(*tokens));
	request = rig_generate_adjusted(&rig->client, 0, tokens + 30, &msg, NULL, NULL);
	rig_must(&rig->client, request);
	assert_scores(&rig->client, &request, rig_generate_layout(&rig->client, &msg).prompt_logprobs, tokens, 30, 20, 2);
	rig_close_histories(&rig->client, 1);
}

/* Several together, in chunks, preempted where the build can. */
static void test_preempted_requests_have_the_same_log_probabilities(void **state)
{
	enum { N = 5 };
	const struct rig_options options = {.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 12, .preempt_every = 3,
		.max_batch_tokens = 32, .prefix_sharing = ENGINE_PREFIX_USER};
	struct rig_request requests[N];
	int32_t tokens[N][LONG];
	struct rig rig;

	rig_open_client(&rig, &options);
	for (uint32_t i = 0; i < N; i++) {
		rig_nonsense(tokens[i], LONG, i);
		requests[i] = ask_scores(&rig.client, i, tokens[i], LONG - i, 2);
		rig_submit(&rig.client, requests[i]);
	}
	for (uint32_t i = 0; i < N; i++) {
		rig_wait(&rig.client, rig.results, i);
		assert_int_equal(rig.results[i].status, 0);
		assert_scores(&rig.client, &requests[i], scores_offset(&rig.client, LONG - i, 2), tokens[i], 0,
			LONG - i, 2);
	}
	rig_assert_all_free(&rig);
	rig_close(&rig);
}

/* ---- others ---- */

static struct {
	const struct kernel_ops *real;
	struct kernel_ops kernels;
	struct device *device;
	_Atomic bool closed, reached;
} gate;

static void wait_at_gate(void *arg)
{
	atomic_store(&gate.reached, true);
	while (atomic_load(&gate.closed))
		rig_pause();
}

static int gate_logprobs(struct stream *stream, const struct op_logprobs *args)
{
	if (atomic_load(&gate.closed) && gate.device->ops->stream_host_func(stream, wait_at_gate, NULL))
		return DEVICE_E_INVALID;
	return gate.real->logprobs(stream, args);
}

static void hold_logprobs(struct device *device)
{
	gate.device = device;
	gate.real = device->kernels;
	gate.kernels = *gate.real;
	gate.kernels.logprobs = gate_logprobs;
	device->kernels = &gate.kernels;
	atomic_store(&gate.closed, false);
	atomic_store(&gate.reached, false);
}

/* The step's other rows have their tokens while the prompt's log-probabilities are still computed. */
static void test_others_do_not_wait_for_a_prompts_log_probabilities(void **state)
{
	struct rig *rig = *state;
	struct rig_request other, request;
	int32_t tokens[20];
	uint32_t n;

	rig_nonsense(tokens, 20, 9);
	other = rig_endless(&rig->client, 0, 0, 400);
	rig->results[0] = rig->results[1] = (struct rig_result){0};
	rig_submit(&rig->client, other);
	RIG_AWAIT((rig_poll(&rig->client, rig->results), rig->results[0].n_generated > 2));
	atomic_store(&gate.closed, true);
	request = ask_scores(&rig->client, 1, tokens, 20, 1);
	rig_submit(&rig->client, request);
	RIG_AWAIT(atomic_load(&gate.reached));
	/* That of the step in which the prompt is, while its end has not come. */
	RIG_AWAIT(rig->runner->launched >= rig->runner->completed + 1);
	n = (uint32_t)rig->runner->completed + 1;
	RIG_AWAIT((rig_poll(&rig->client, rig->results), rig->results[0].n_generated >= n));
	assert_int_equal(rig->results[1].n_generated, 0);
	atomic_store(&gate.closed, false);
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[1].status, 0);
	rig_cancel(&rig->client, 2, &other);
	rig_wait(&rig->client, rig->results, 0);
	rig_wait(&rig->client, rig->results, 2);
}

/* ---- */

#define MODE_TEST(test, name, ...)                                                                 \
	{#test "_" name, test, rig_setup, rig_teardown, &(struct rig_options){__VA_ARGS__}}

int main(void)
{
	const struct CMUnitTest tests[] = {
		MODE_TEST(test_generated_tokens_have_their_log_probabilities, "eager", .mode = GRAPH_NONE),
		MODE_TEST(test_generated_tokens_have_their_log_probabilities, "full",
			.mode = GRAPH_FULL_AND_PIECEWISE),
		MODE_TEST(test_generated_tokens_have_their_log_probabilities, "with_drafts",
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K),
		MODE_TEST(test_a_prompts_tokens_have_their_log_probabilities, "eager", .mode = GRAPH_NONE),
		MODE_TEST(test_a_prompts_tokens_have_their_log_probabilities, "full",
			.mode = GRAPH_FULL_AND_PIECEWISE),
		MODE_TEST(test_a_prompts_tokens_have_their_log_probabilities, "flex", .mode = GRAPH_FULL,
			.attention = "flex"),
		MODE_TEST(test_a_prompts_tokens_have_their_log_probabilities, "in_chunks",
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_batch_tokens = 16, .max_requests = 4),
		MODE_TEST(test_a_prompts_tokens_have_their_log_probabilities, "with_drafts",
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K),
		RIG_TEST(test_a_cached_prompt_has_its_log_probabilities, .mode = GRAPH_FULL_AND_PIECEWISE,
			.prefix_sharing = ENGINE_PREFIX_USER),
		RIG_FULL_TEST(test_a_history_has_no_log_probabilities_but_counts),
		cmocka_unit_test(test_preempted_requests_have_the_same_log_probabilities),
		RIG_TEST(test_others_do_not_wait_for_a_prompts_log_probabilities,
			.mode = GRAPH_FULL_AND_PIECEWISE, .on_device = hold_logprobs),
	};
	static const struct test_cpu_only only[] = {{NULL, NULL}};

	return TEST_RUN_GROUP("engine: log-probabilities", tests, only, open_plain, close_plain);
}
