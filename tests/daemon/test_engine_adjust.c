/* SPDX-License-Identifier: MIT */
/*
 * Requests that say something about their logits, end to end: their greedy tokens are those of the model's logits
 * adjusted by the book, under every graph mode, with drafts, behind histories and preemptions; and requests beside
 * them keep theirs.
 */
#include "tests/daemon/adjusted.h"
#include "tests/daemon/plain.h"

enum { K = 4, N_TOKENS = 24 };

/* Prompts of tinycalc; it would repeat itself, but for the penalties. */
static const char *const texts[] = {"count 4 30\n", "rev hello\n", "sort 5 3 9 1\n"};
enum { N_TEXTS = sizeof(texts) / sizeof(texts[0]) };

static void allow_range(struct adjusted *a, int32_t first, int32_t last)
{
	a->msg.n_allowed = ADJUSTED_VOCAB / 32;
	for (int32_t id = first; id <= last; id++)
		a->allowed[id / 32] |= 1u << id % 32;
}

/* One for each thing that can be said, and for all of them. */
static uint32_t make_all(struct adjusted *all)
{
	const struct msg_generate endless = {.max_tokens = N_TOKENS, .flags = MIMEO_GENERATE_IGNORE_EOS};
	uint32_t n = 0;

	all[n++] = (struct adjusted){.msg = endless};
	all[n] = (struct adjusted){.msg = endless};
	all[n++].msg.repetition_penalty = 1.8f;
	all[n] = (struct adjusted){.msg = endless};
	all[n].msg.presence_penalty = 2;
	all[n++].msg.frequency_penalty = 1.5f;
	all[n] = (struct adjusted){.msg = endless, .bias = {{' ', -100}, {'0', -INFINITY}, {'7', 20}}};
	all[n++].msg.n_bias = 3;
	all[n] = (struct adjusted){.msg = endless};
	allow_range(&all[n++], '0', '9');
	all[n] = (struct adjusted){.msg = {.max_tokens = N_TOKENS, .min_tokens = 17, .n_stop = 2, .stop = {' ', '\n'}}};
	n++;
	all[n] = (struct adjusted){.msg = {.max_tokens = N_TOKENS, .min_tokens = 5, .repetition_penalty = 1.2f,
					   .presence_penalty = 1, .frequency_penalty = 0.5f, .n_bias = 2},
		.bias = {{'1', 3.5f}, {'a', -INFINITY}}};
	allow_range(&all[n++], 0, 127);
	return n;
}

static void check_text(struct rig *rig, struct adjusted *a, const char *text)
{
	int32_t tokens[ADJUSTED_TOKENS_MAX];
	struct rig_request request;
	struct rig_result result;
	uint32_t n;

	a->msg.n_tokens = rig_prompt(text, tokens);
	n = adjusted_greedy(&plain, a, 0, tokens);
	request = adjusted_ask(&rig->client, 0, a, tokens);
	result = rig_must(&rig->client, request);
	if (!test_on_cuda())
		assert_int_equal(result.n_generated, n);
	adjusted_assert_same(&plain, a, 0, tokens, rig_tokens(&rig->client, &request),
		result.n_generated < n ? result.n_generated : n);
}

static void check_all(struct rig *rig)
{
	struct adjusted all[8];
	const uint32_t n = make_all(all);

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t t = 0; t < N_TEXTS; t++)
			check_text(rig, &all[i], texts[t]);
}

static void test_greedy_tokens_are_those_of_adjusted_logits(void **state)
{
	check_all(*state);
}

static void test_drafts_change_no_token_of_adjusted_logits(void **state)
{
	struct rig *rig = *state;

	check_all(rig);
	assert_true(rig_facts(rig).speculation.n_accepted[0] > 0);
}

static void test_allowed_tokens_alone_are_generated(void **state)
{
	struct rig *rig = *state;

	for (uint64_t seed = 0; seed < 20; seed++) {
		struct adjusted a = {.msg = {.max_tokens = N_TOKENS, .flags = MIMEO_GENERATE_IGNORE_EOS,
					     .sampling = {.temperature = 3, .seed = seed,
						     .flags = MIMEO_SAMPLING_SEEDED}}};
		int32_t tokens[ADJUSTED_TOKENS_MAX];
		struct rig_request request;

		allow_range(&a, '3', '8');
		a.bias[0] = (struct mimeo_bias){'5', -INFINITY};
		a.msg.n_bias = 1;
		a.msg.n_tokens = rig_prompt(texts[seed % N_TEXTS], tokens);
		request = adjusted_ask(&rig->client, 0, &a, tokens);
		assert_int_equal(rig_must(&rig->client, request).n_generated, N_TOKENS);
		for (uint32_t i = 0; i < N_TOKENS; i++) {
			assert_in_range(rig_tokens(&rig->client, &request)[i], '3', '8');
			assert_int_not_equal(rig_tokens(&rig->client, &request)[i], '5');
		}
	}
}

/* ---- others ---- */

static struct rig_request ask_plain(struct rig_client *client, uint32_t index)
{
	int32_t tokens[64];
	struct msg_generate msg = rig_greedy(rig_prompt(texts[index % N_TEXTS], tokens), N_TOKENS);

	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	if (index % 2)
		msg.sampling = (struct mimeo_sampling){
			.temperature = 1, .seed = index, .flags = MIMEO_SAMPLING_SEEDED};
	return rig_generate(client, index, tokens, msg.n_tokens, &msg);
}

/* In the slots that adjusted ones had, and beside others. */
static void test_requests_beside_and_behind_adjusted_ones_keep_their_tokens(void **state)
{
	enum { N = 6 };
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	int32_t alone[N][N_TOKENS], prompt[64];
	struct rig_request requests[2 * N];
	struct adjusted all[8];
	const uint32_t n_all = make_all(all);

	for (uint32_t i = 0; i < N; i++) {
		requests[i] = ask_plain(client, i);
		rig_must(client, requests[i]);
		memcpy(alone[i], rig_tokens(client, &requests[i]), sizeof(alone[i]));
	}
	for (int round = 0; round < 2; round++) {
		memset(rig->results, 0, sizeof(rig->results));
		for (uint32_t i = 0; i < N; i++) {
			struct adjusted *a = &all[1 + i % (n_all - 1)];

			a->msg.n_tokens = rig_prompt(texts[i % N_TEXTS], prompt);
			requests[N + i] = adjusted_ask(client, N + i, a, prompt);
			rig_submit(client, requests[N + i]);
			requests[i] = ask_plain(client, i);
			rig_submit(client, requests[i]);
		}
		for (uint32_t i = 0; i < 2 * N; i++) {
			rig_wait(client, rig->results, i);
			assert_int_equal(rig->results[i].status, 0);
			if (i < N)
				assert_memory_equal(rig_tokens(client, &requests[i]), alone[i], sizeof(alone[i]));
		}
	}
}

/* ---- histories ---- */

static const struct msg_generate penalised = {.max_tokens = N_TOKENS, .flags = MIMEO_GENERATE_IGNORE_EOS,
	.repetition_penalty = 1.3f, .presence_penalty = 0.8f, .frequency_penalty = 0.6f};

/* Appends a greedy plain answer to sequence 1 and the tokens; the new number of tokens. */
static uint32_t answer_on(struct rig *rig, const char *text, int32_t *tokens, uint32_t n)
{
	const uint32_t n_prompt = rig_prompt(text, tokens + n);
	struct rig_request request = rig_ask(
		&rig->client, 0, 1, tokens + n, n_prompt, 12, MIMEO_GENERATE_IGNORE_EOS);

	rig_must(&rig->client, request);
	n += n_prompt;
	memcpy(tokens + n, rig_tokens(&rig->client, &request), 12 * sizeof(*tokens));
	return n + 12;
}

static void check_behind(struct rig *rig, struct adjusted *a, uint32_t sequence, uint32_t n_history, int32_t *tokens)
{
	struct rig_request request;

	a->msg.sequence = sequence;
	a->msg.n_tokens = rig_prompt(texts[1], tokens + n_history);
	adjusted_greedy(&plain, a, n_history, tokens);
	request = adjusted_ask(&rig->client, 0, a, tokens + n_history);
	assert_int_equal(rig_must(&rig->client, request).n_generated, N_TOKENS);
	adjusted_assert_same(&plain, a, n_history, tokens, rig_tokens(&rig->client, &request), N_TOKENS);
}

/* The sequence's earlier tokens count for repetition; for the others only from where the request says. */
static void test_penalties_count_an_open_sequences_history(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[ADJUSTED_TOKENS_MAX];
	struct adjusted a = {.msg = penalised};
	uint32_t n;

	for (uint32_t start = 0; start <= 40; start += 20) {
		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		n = answer_on(rig, texts[0], tokens, 0);
		n = answer_on(rig, texts[2], tokens, n);
		rig_ok(&rig->client, 0, RING_OP_FORK, 1, 2);
		a.msg.penalty_start = start;
		check_behind(rig, &a, 1, n, tokens);
		check_behind(rig, &a, 2, n, tokens); /* the fork, beside the parent's pages */
		rig_close_histories(&rig->client, 2);
	}
}

static void test_penalties_count_a_cached_prompt(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[ADJUSTED_TOKENS_MAX];
	struct adjusted a = {.msg = penalised};
	struct rig_request request;

	a.msg.n_tokens = 70;
	rig_nonsense(tokens, 70, 1);
	adjusted_greedy(&plain, &a, 0, tokens);
	for (int i = 0; i < 2; i++) {
		request = adjusted_ask(&rig->client, 0, &a, tokens);
		assert_int_equal(rig_must(&rig->client, request).n_cached, i ? 64 : 0);
		adjusted_assert_same(&plain, &a, 0, tokens, rig_tokens(&rig->client, &request), N_TOKENS);
	}
}

/* More tokens than a step counts for all slots together, of a prompt that is cached. */
static void test_long_histories_are_counted_in_parts(void **state)
{
	enum { N = 16, LONG = 1100 };
	struct rig *rig = *state;
	static int32_t prompt[LONG];
	struct adjusted a = {.msg = {.max_tokens = 4, .flags = MIMEO_GENERATE_IGNORE_EOS, .n_tokens = LONG,
				     .repetition_penalty = 100, .n_bias = 2}, .bias = {{'x', 100}, {'y', 60}}};
	struct rig_request requests[N];
	uint64_t n_steps;

	_Static_assert(N * LONG > INPUTS_UPDATE_TOKENS && (N - 1) * LONG > INPUTS_UPDATE_TOKENS, "in two parts");
	/* x would be taken, were it not the last token of the prompt; so y is, once. */
	for (uint32_t i = 0; i < LONG; i++)
		prompt[i] = i ? 32 + (int32_t)(i % 64) : 1;
	prompt[LONG - 1] = 'x';
	rig_must(&rig->client, adjusted_ask(&rig->client, 0, &a, prompt));
	/* All of them are in the first step behind those in flight. */
	rig_gate_close(rig);
	n_steps = atomic_load(&engine_stats(rig->engine)->n_steps);
	rig_submit(&rig->client, rig_endless(&rig->client, N, 0, 4));
	RIG_AWAIT(atomic_load(&engine_stats(rig->engine)->n_steps) == n_steps + 2);
	rig->results[0] = (struct rig_result){0};
	for (uint32_t i = 0; i < N; i++) {
		requests[i] = adjusted_ask(&rig->client, i, &a, prompt);
		rig_submit(&rig->client, requests[i]);
	}
	RIG_AWAIT(rig->client.port->n_in_flight == N + 1 && rig->client.port->n_waiting == 0);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < N; i++) {
		const int32_t *tokens = rig_tokens(&rig->client, &requests[i]);

		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].status, 0);
		assert_int_equal(rig->results[i].n_cached, LONG / 16 * 16);
		assert_int_equal(rig->results[i].n_generated, 4);
		assert_int_equal(tokens[0], 'y');
		assert_int_not_equal(tokens[1], 'x');
		assert_int_not_equal(tokens[1], 'y');
	}
	rig_wait(&rig->client, rig->results, N);
}

/* ---- preemption ---- */

/* Six together, in pages for two; each is preempted behind each token, where the build can. */
static void run_together(const struct rig_options *options, int32_t tokens[6][N_TOKENS])
{
	struct rig_request requests[6];
	struct adjusted all[8];
	int32_t prompt[40];
	struct rig rig;

	make_all(all);
	rig_open_client(&rig, options);
	for (uint32_t i = 0; i < 6; i++) {
		struct adjusted *a = &all[1 + i];

		a->msg.flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_LOGPROBS;
		a->msg.n_stop = 0;
		a->msg.n_tokens = 40;
		rig_nonsense(prompt, 40, i);
		requests[i] = adjusted_ask(&rig.client, i, a, prompt);
		rig_submit(&rig.client, requests[i]);
	}
	for (uint32_t i = 0; i < 6; i++) {
		rig_wait(&rig.client, rig.results, i);
		assert_int_equal(rig.results[i].status, 0);
		assert_int_equal(rig.results[i].n_generated, N_TOKENS);
		memcpy(tokens[i], rig_tokens(&rig.client, &requests[i]), sizeof(tokens[i]));
	}
	rig_assert_all_free(&rig);
	if (options->kv_pages)
		assert_true(rig.runner->n_preempted > 0);
	rig_close(&rig);
}

static void test_preempted_requests_are_adjusted_as_before(void **state)
{
	for (uint32_t n_drafts = 0; n_drafts <= K; n_drafts += K) {
		struct rig_options options = {.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = n_drafts,
			.deterministic = true};
		int32_t expected[6][N_TOKENS], tokens[6][N_TOKENS];

		run_together(&options, expected);
		options.kv_pages = 10;
		for (options.preempt_every = 0; options.preempt_every <= 2; options.preempt_every++) {
			options.prefix_sharing =
				options.preempt_every % 2 ? ENGINE_PREFIX_USER : ENGINE_PREFIX_NONE;
			run_together(&options, tokens);
			assert_memory_equal(tokens, expected, sizeof(tokens));
		}
	}
}

/* ---- refusals ---- */

static void test_what_cannot_be_is_refused(void **state)
{
	struct rig *rig = *state;
	const struct adjusted base = {.msg = {.n_tokens = 2, .max_tokens = 4}};
	const int32_t prompt[] = {1, '1'};
	struct rig_request request;
	struct adjusted a;

#define EXPECT(status, detail, ...)                                                                \
	request = adjusted_ask(&rig->client, 0, &a, prompt);                                       \
	rig_expect(&rig->client, &request, (struct rig_expected){status, detail, __VA_ARGS__})
	a = base;
	a.msg.n_bias = 2;
	a.bias[0] = (struct mimeo_bias){3, 1};
	a.bias[1] = (struct mimeo_bias){3, 1};
	EXPECT(MIMEO_E_INVALID, RING_DETAIL_BIAS, 1, 3, 256);
	a.bias[1] = (struct mimeo_bias){256, 1};
	EXPECT(MIMEO_E_INVALID, RING_DETAIL_BIAS, 1, 256, 256);
	a.bias[1] = (struct mimeo_bias){4, NAN};
	EXPECT(MIMEO_E_INVALID, RING_DETAIL_BIAS, 1, 4, 256);
	a = base;
	a.msg.n_allowed = 7;
	EXPECT(MIMEO_E_INVALID, RING_DETAIL_ALLOWED, 7, 8);
	a = base;
	a.msg.n_bias = 1;
	request = adjusted_ask(&rig->client, 0, &a, prompt);
	request.sqe.payload_length -= 4;
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, 12, 16});
	a = base;
	a.msg.n_allowed = UINT32_MAX;
	request = rig_generate(&rig->client, 0, prompt, 2, &a.msg);
	rig_expect(&rig->client, &request,
		(struct rig_expected){MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, 8, INT32_MAX});
#undef EXPECT
}

static void test_bans_of_every_token_are_refused_by_name(void **state)
{
	struct rig *rig = *state;
	const int32_t prompt[] = {1, '1'};
	struct adjusted a = {.msg = {.n_tokens = 2, .max_tokens = 4, .n_allowed = 8}};
	const struct rig_expected refused = {MIMEO_E_NO_TOKEN, RING_DETAIL_NO_TOKEN};
	struct rig_request request = adjusted_ask(&rig->client, 0, &a, prompt);

	rig_expect(&rig->client, &request, refused);
	allow_range(&a, 2, 2); /* the end, which comes too early */
	a.msg.min_tokens = 1;
	request = adjusted_ask(&rig->client, 0, &a, prompt);
	rig_expect(&rig->client, &request, refused);
	allow_range(&a, 7, 7);
	a.msg.n_bias = 1;
	a.bias[0] = (struct mimeo_bias){7, -INFINITY};
	request = adjusted_ask(&rig->client, 0, &a, prompt);
	rig_expect(&rig->client, &request, refused);
	a.msg.min_tokens = 0;
	request = adjusted_ask(&rig->client, 0, &a, prompt);
	assert_int_equal(rig_must(&rig->client, request).n_generated, 1);
	assert_int_equal(rig_tokens(&rig->client, &request)[0], 2);
}

/* A client that writes to its arena while they wait changes nothing. */
static void test_bias_and_mask_are_copied_once(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[ADJUSTED_TOKENS_MAX];
	struct adjusted all[8], *a = &all[make_all(all) - 1];
	struct rig_request request;

	a->msg.n_tokens = rig_prompt(texts[0], tokens);
	adjusted_greedy(&plain, a, 0, tokens);
	request = adjusted_ask(&rig->client, 0, a, tokens);
	rig->results[0] = (struct rig_result){0};
	rig_gate_close(rig);
	rig_submit(&rig->client, request);
	RIG_AWAIT(atomic_load(&engine_stats(rig->engine)->n_requests) > 0 && rig->client.port->n_in_flight == 1);
	memset(rig->client.region.arena + request.sqe.payload_offset, 0xff, request.sqe.payload_length);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].status, 0);
	adjusted_assert_same(&plain, a, 0, tokens, rig_tokens(&rig->client, &request), rig->results[0].n_generated);
}

/* ---- */

#define MODE_TEST(test, name, ...)                                                                 \
	{#test "_" name, test, rig_setup, rig_teardown, &(struct rig_options){__VA_ARGS__}}

int main(void)
{
	const struct CMUnitTest tests[] = {
		MODE_TEST(test_greedy_tokens_are_those_of_adjusted_logits, "eager", .mode = GRAPH_NONE),
		MODE_TEST(test_greedy_tokens_are_those_of_adjusted_logits, "in_pieces", .mode = GRAPH_PIECEWISE),
		MODE_TEST(test_greedy_tokens_are_those_of_adjusted_logits, "full",
			.mode = GRAPH_FULL_AND_PIECEWISE),
		MODE_TEST(test_greedy_tokens_are_those_of_adjusted_logits, "flex", .mode = GRAPH_FULL,
			.attention = "flex"),
		MODE_TEST(test_greedy_tokens_are_those_of_adjusted_logits, "late",
			.mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true),
		MODE_TEST(test_drafts_change_no_token_of_adjusted_logits, "eager", .mode = GRAPH_NONE,
			.n_drafts = K),
		MODE_TEST(test_drafts_change_no_token_of_adjusted_logits, "full",
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K),
		MODE_TEST(test_drafts_change_no_token_of_adjusted_logits, "one", .mode = GRAPH_FULL_AND_PIECEWISE,
			.n_drafts = 1),
		RIG_FULL_TEST(test_allowed_tokens_alone_are_generated),
		MODE_TEST(test_allowed_tokens_alone_are_generated, "with_drafts",
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K),
		MODE_TEST(test_requests_beside_and_behind_adjusted_ones_keep_their_tokens, "without_drafts",
			.mode = GRAPH_FULL_AND_PIECEWISE, .deterministic = true),
		MODE_TEST(test_requests_beside_and_behind_adjusted_ones_keep_their_tokens, "eager",
			.mode = GRAPH_NONE, .deterministic = true),
		RIG_FULL_TEST(test_penalties_count_an_open_sequences_history),
		MODE_TEST(test_penalties_count_an_open_sequences_history, "with_drafts",
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K),
		RIG_TEST(test_penalties_count_a_cached_prompt, .mode = GRAPH_FULL_AND_PIECEWISE,
			.prefix_sharing = ENGINE_PREFIX_USER),
		RIG_TEST(test_long_histories_are_counted_in_parts, .mode = GRAPH_NONE, .max_seq_len = 8192, .max_requests = 17, .max_batch_tokens = 256,
			.prefix_sharing = ENGINE_PREFIX_USER),
		cmocka_unit_test(test_preempted_requests_are_adjusted_as_before),
		RIG_FULL_TEST(test_what_cannot_be_is_refused),
		RIG_FULL_TEST(test_bans_of_every_token_are_refused_by_name),
		RIG_FULL_TEST(test_bias_and_mask_are_copied_once),
	};
	static const struct test_cpu_only only[] = {{NULL, NULL}};

	return TEST_RUN_GROUP("engine: adjustment of logits", tests, only, open_plain, close_plain);
}
