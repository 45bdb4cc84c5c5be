/* SPDX-License-Identifier: MIT */
/*
 * Logits that are not finite end their request, and no other. The model is random, but for one token: its
 * embedding is NaN, so that requests with it have such logits from there on, and its row of the head 0,
 * so that no request generates it.
 */
#include "tests/daemon/rig.h"

#include <sys/mman.h>
#include <unistd.h>

#include "daemon/output/log.h"
#include "tests/daemon/checkpoint.h"

enum { BROKEN = 200, N_TOKENS = 12, N_PROMPT = 5, K = 3, VOCAB = 256 };
#define BF16_NAN 0x7fc0u

#define SIZES                                                                                      \
	"--hidden", "160", "--heads", "4", "--kv-heads", "2", "--head-dim", "24", "--inner", "96", \
		"--vocab", "256", "--tied", "0", "--seed", "5"

static const char *const model_options[] = {SIZES, "--layers", "2", NULL};
static const char *const draft_options[] = {"--family", "eagle", SIZES, NULL};

static const int32_t sound[N_PROMPT] = {1, 10, 20, 30, 5};
static const int32_t broken[N_PROMPT] = {1, 10, 20, 30, BROKEN};

static const struct mimeo_sampling ways[] = {
	{.top_p = 1},
	{.temperature = 1, .top_p = 1, .seed = 3, .flags = MIMEO_SAMPLING_SEEDED},
	{.temperature = 1, .top_p = 0.9f, .top_k = 20, .seed = 4, .flags = MIMEO_SAMPLING_SEEDED},
};
enum { N_WAYS = sizeof(ways) / sizeof(ways[0]) };

static struct checkpoint model, draft;

static int make_models(void **state)
{
	checkpoint_make(&model, model_options);
	checkpoint_fill_row(&model, "model.embed_tokens.weight", BROKEN, BF16_NAN);
	checkpoint_fill_row(&model, "lm_head.weight", BROKEN, 0);
	checkpoint_make(&draft, draft_options);
	return 0;
}

static int remove_models(void **state)
{
	checkpoint_remove(&model);
	checkpoint_remove(&draft);
	return 0;
}

static struct rig_request ask(struct rig_client *client, uint32_t index, const int32_t *prompt,
	const struct mimeo_sampling *sampling)
{
	struct msg_generate msg = rig_greedy(N_PROMPT, N_TOKENS);

	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.sampling = *sampling;
	return rig_generate(client, index, prompt, N_PROMPT, &msg);
}

static void assert_ended(const struct rig_result *result, uint32_t n_generated)
{
	assert_int_equal(result->status, MIMEO_E_NOT_FINITE);
	assert_int_equal(result->finish, MIMEO_FINISH_ERROR);
	assert_int_equal(result->n_generated, n_generated);
}

/* ---- generate ---- */

/* Three requests side by side, the second with the token; then one in the slots and pages that it had. */
static void check_beside(struct rig *rig, const struct mimeo_sampling *sampling)
{
	struct rig_client *client = &rig->client;
	const uint64_t before = rig_facts(rig).n_not_finite;
	struct rig_request requests[3], again;
	int32_t alone[N_TOKENS];

	requests[0] = ask(client, 0, sound, sampling);
	assert_int_equal(rig_must(client, requests[0]).n_generated, N_TOKENS);
	memcpy(alone, rig_tokens(client, &requests[0]), sizeof(alone));
	memset(rig->results, 0, sizeof(rig->results));
	rig_gate_close(rig);
	for (uint32_t i = 0; i < 3; i++) {
		requests[i] = ask(client, i, i == 1 ? broken : sound, sampling);
		rig_submit(client, requests[i]);
	}
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 3; i++)
		rig_wait(client, rig->results, i);
	assert_ended(&rig->results[1], 0);
	assert_int_equal(rig_facts(rig).n_not_finite, before + 1);
	for (uint32_t i = 0; i < 3; i += 2) {
		assert_int_equal(rig->results[i].status, MIMEO_OK);
		assert_int_equal(rig->results[i].n_generated, N_TOKENS);
		if (!test_on_cuda())
			assert_memory_equal(rig_tokens(client, &requests[i]), alone, sizeof(alone));
	}
	again = ask(client, 3, sound, sampling);
	assert_int_equal(rig_must(client, again).n_generated, N_TOKENS);
	assert_memory_equal(rig_tokens(client, &again), alone, sizeof(alone));
}

static void check_model(enum graph_mode mode, bool drafts)
{
	const struct rig_options options = {.mode = mode, .model = model.folder, .max_seq_len = 128,
		.kv_pages = 8, .draft = draft.folder, .n_drafts = drafts ? K : 0};
	struct rig rig;

	rig_open_client(&rig, &options);
	for (uint32_t i = 0; i < N_WAYS; i++)
		check_beside(&rig, &ways[i]);
	assert_int_equal(engine_stats(rig.engine)->n_failed, N_WAYS);
	rig_close(&rig);
}

static void test_such_a_request_ends_and_those_beside_and_behind_it_do_not(void **state)
{
	check_model(GRAPH_NONE, false);
	check_model(GRAPH_FULL_AND_PIECEWISE, false);
}

static void test_such_a_request_ends_with_a_draft_model_too(void **state)
{
	check_model(GRAPH_NONE, true);
	check_model(GRAPH_FULL_AND_PIECEWISE, true);
}

/* The first tokens of the sound prompt. */
static uint32_t generate_first(
	const struct checkpoint *checkpoint, uint32_t n_drafts, int32_t *ret, struct rig_result *ret_result)
{
	const struct rig_options options = {.mode = GRAPH_FULL_AND_PIECEWISE, .max_seq_len = 128,
		.model = checkpoint->folder, .draft = draft.folder, .n_drafts = n_drafts};
	struct rig_request request;
	struct rig rig;

	rig_open_client(&rig, &options);
	request = ask(&rig.client, 0, sound, &ways[0]);
	*ret_result = rig_do(&rig.client, request);
	memcpy(ret, rig_tokens(&rig.client, &request), N_TOKENS * sizeof(*ret));
	rig_close(&rig);
	return ret_result->n_generated;
}

/* Where the last token that is neither in the prompt nor before it stands. */
static uint32_t last_new(const int32_t *tokens)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i + 1 < N_TOKENS; i++) {
		bool seen = false;

		for (uint32_t k = 0; k < N_PROMPT; k++)
			seen = seen || sound[k] == tokens[i];
		for (uint32_t k = 0; k < i; k++)
			seen = seen || tokens[k] == tokens[i];
		ret = seen ? ret : i;
	}
	return ret;
}

static void test_tokens_before_are_delivered(void **state)
{
	int32_t whole[N_TOKENS], cut[N_TOKENS];
	struct checkpoint made;
	struct rig_result result;
	uint32_t at;

	checkpoint_make(&made, model_options);
	assert_int_equal(generate_first(&made, 0, whole, &result), N_TOKENS);
	at = last_new(whole);
	assert_true(at > 0);
	checkpoint_fill_row(&made, "model.embed_tokens.weight", (uint32_t)whole[at], BF16_NAN);
	generate_first(&made, 0, cut, &result);
	assert_ended(&result, at + 1);
	assert_memory_equal(cut, whole, (at + 1) * sizeof(*cut));
	/* Draft tokens that were accepted together with the one that leads to it are not delivered. */
	generate_first(&made, K, cut, &result);
	assert_in_range(result.n_generated, at + 1 > K ? at + 1 - K : 0, at + 1);
	assert_ended(&result, result.n_generated);
	assert_memory_equal(cut, whole, result.n_generated * sizeof(*cut));
	checkpoint_remove(&made);
}

/* ---- steps ---- */

static struct rig_result step(struct rig_client *client, uint32_t outputs, struct rig_request *ret)
{
	static const struct msg_row rows[] = {{.sequence = 1, .n_tokens = N_PROMPT},
		{.sequence = 2, .n_tokens = N_PROMPT}, {.sequence = 3, .n_tokens = N_PROMPT}};
	const struct msg_step msg = {.n_rows = 3, .outputs = outputs, .sampling = ways[0]};
	int32_t tokens[3 * N_PROMPT];

	for (uint32_t i = 0; i < 3; i++)
		memcpy(tokens + i * N_PROMPT, i == 1 ? broken : sound, sizeof(sound));
	*ret = rig_step(client, 0, &msg, rows, tokens);
	return rig_do(client, *ret);
}

static void test_a_step_that_wants_tokens_ends_and_one_that_does_not_gets_its_logits(void **state)
{
	const struct rig_options options = {
		.mode = GRAPH_FULL_AND_PIECEWISE, .model = model.folder, .max_seq_len = 128};
	const struct msg_output layout = msg_output_layout(0, 3, VOCAB, 0, 0);
	struct rig_request request;
	struct rig_result result;
	const float *logits;
	struct rig rig;

	rig_open_client(&rig, &options);
	for (uint32_t i = 1; i <= 3; i++)
		rig_ok(&rig.client, 0, RING_OP_OPEN, i, 0);
	result = step(&rig.client, MIMEO_STEP_LOGITS, &request);
	assert_int_equal(result.status, MIMEO_OK);
	logits = rig_logits(&rig.client, &request, &layout);
	for (uint32_t i = 0; i < VOCAB; i++) {
		assert_true(isfinite(logits[i]) && isfinite(logits[2 * VOCAB + i]));
		assert_true(isnan(logits[VOCAB + i]));
	}
	assert_int_equal(rig_facts(&rig).n_not_finite, 1);
	result = step(&rig.client, MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS, &request);
	assert_int_equal(result.status, MIMEO_E_NOT_FINITE);
	assert_int_equal(result.finish, MIMEO_FINISH_NONE);
	assert_int_equal(rig_facts(&rig).n_not_finite, 2);
	/* What the sequence holds now is as bad, until it is cut. */
	rig_close_histories(&rig.client, 3);
	rig_close(&rig);
}

/* ---- every request; what operators see ---- */

static uint32_t count_in(int fd, const char *part)
{
	char text[8192];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	uint32_t count = 0;

	assert_true(n >= 0);
	text[n] = 0;
	for (const char *at = text; (at = strstr(at, part)); at++)
		count++;
	return count;
}

static void test_one_column_of_the_head_ends_every_request_and_is_warned_of_once_a_model(void **state)
{
	struct rig_options options = {
		.mode = GRAPH_FULL_AND_PIECEWISE, .max_seq_len = 128, .n_models = 2};
	int fd = memfd_create("log", MFD_CLOEXEC);
	struct checkpoint made;
	struct engine_model_facts facts;
	struct rig_result result;
	struct rig rig;

	assert_true(fd >= 0);
	log_open(fd);
	checkpoint_make(&made, model_options);
	checkpoint_fill_row(&made, "lm_head.weight", VOCAB - 1, BF16_NAN);
	options.model = made.folder;
	rig_open_client(&rig, &options);
	for (uint32_t i = 0; i < 2 * N_WAYS; i++) {
		result = rig_do(&rig.client, ask(&rig.client, 0, sound, &ways[i % N_WAYS]));
		assert_ended(&result, 0);
	}
	assert_int_equal(rig_facts(&rig).n_not_finite, 2 * N_WAYS);
	engine_model_facts(rig.engine, 1, &facts);
	assert_int_equal(facts.n_not_finite, 0);
	assert_int_equal(count_in(fd, "tinycalc-0: logits are not finite"), 1);
	assert_int_equal(count_in(fd, "logits are not finite"), 1);
	rig_close(&rig);
	log_open(STDERR_FILENO);
	close(fd);
	checkpoint_remove(&made);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_such_a_request_ends_and_those_beside_and_behind_it_do_not),
		cmocka_unit_test(test_such_a_request_ends_with_a_draft_model_too),
		cmocka_unit_test(test_tokens_before_are_delivered),
		cmocka_unit_test(
			test_a_step_that_wants_tokens_ends_and_one_that_does_not_gets_its_logits),
		cmocka_unit_test(
			test_one_column_of_the_head_ends_every_request_and_is_warned_of_once_a_model),
	};

	return cmocka_run_group_tests_name("engine not finite", tests, make_models, remove_models);
}
