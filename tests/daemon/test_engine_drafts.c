/* SPDX-License-Identifier: MIT */
/*
 * Requests that lower speculation or do without, beside others that have it: the same tokens, in shared
 * steps, and the account of verifications (struct engine_speculation) is of those who speculate alone.
 */
#include "tests/daemon/rig.h"

#include <sys/mman.h>
#include <unistd.h>

#include "daemon/output/log.h"
#include "tests/device_memory.h"

enum { K = 4, N_TOKENS = 60 };

static void setup(struct rig *rig, enum graph_mode mode, bool with_draft)
{
	rig_open_client(rig, &(struct rig_options){.mode = mode, .n_drafts = with_draft ? K : 0});
}

static struct rig_request ask(struct rig *rig, uint32_t index, const char *text, uint32_t draft_tokens)
{
	struct msg_generate msg;
	int32_t tokens[64];
	uint32_t n = rig_prompt(text, tokens);

	msg = rig_greedy(n, N_TOKENS);
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.draft_tokens = draft_tokens;
	rig->results[index] = (struct rig_result){0};
	return rig_generate(&rig->client, index, tokens, n, &msg);
}

static const char *const texts[] = {"count 4 30\n", "sort 52 17 33\n", "12+34="};
enum { N_TEXTS = sizeof(texts) / sizeof(texts[0]) };
static int32_t expected[N_TEXTS][N_TOKENS]; /* without a draft */

enum { END_TOKEN = 2 };

/* What a GPU's answer is compared in: behind the end token nothing has much of a lead. */
static uint32_t n_compared(const int32_t *tokens)
{
	uint32_t n = 0;

	while (n < N_TOKENS && (!test_on_cuda() || n == 0 || tokens[n - 1] != END_TOKEN))
		n++;
	return n;
}

static void check(struct rig *rig, const struct rig_request *request, uint32_t text)
{
	rig_wait(&rig->client, rig->results, request->index);
	assert_int_equal(rig->results[request->index].status, 0);
	assert_int_equal(rig->results[request->index].n_generated, N_TOKENS);
	assert_memory_equal(rig_tokens(&rig->client, request), expected[text],
		n_compared(expected[text]) * sizeof(expected[text][0]));
}

/* What has come to the account. */
static struct engine_speculation more_than(
	const struct engine_speculation *before, struct engine_speculation now)
{
	now.n_rows -= before->n_rows;
	now.n_tokens -= before->n_tokens;
	for (int i = 0; i < ENGINE_DRAFTS_MAX; i++) {
		now.n_offered[i] -= before->n_offered[i];
		now.n_accepted[i] -= before->n_accepted[i];
	}
	now.n_draft_steps -= before->n_draft_steps;
	now.draft_ns -= before->draft_ns;
	return now;
}

/* One request alone: what it adds to the account. */
static struct engine_speculation run_alone(
	struct rig *rig, uint32_t text, uint32_t draft_tokens, uint64_t *ret_steps)
{
	const struct engine_model_facts before = rig_facts(rig);
	struct rig_request request = ask(rig, 0, texts[text], draft_tokens);
	struct engine_model_facts after;

	rig_submit(&rig->client, request);
	check(rig, &request, text);
	after = rig_facts(rig);
	if (ret_steps)
		*ret_steps = after.n_steps - before.n_steps;
	return more_than(&before.speculation, after.speculation);
}

static int make_expected(void **state)
{
	struct rig rig;

	setup(&rig, GRAPH_NONE, false);
	for (uint32_t i = 0; i < N_TEXTS; i++) {
		struct rig_request request = ask(&rig, 0, texts[i], 0);

		assert_int_equal(rig_do(&rig.client, request).n_generated, N_TOKENS);
		memcpy(expected[i], rig_tokens(&rig.client, &request), sizeof(expected[i]));
	}
	rig_close(&rig);
	return 0;
}

/* ---- tests ---- */

static void test_request_without_speculation_verifies_nothing(void **state)
{
	struct rig *rig = *state;
	struct engine_speculation more;
	uint64_t n_steps;

	for (uint32_t i = 0; i < N_TEXTS; i++) {
		more = run_alone(rig, i, MIMEO_DRAFT_NONE, &n_steps);
		assert_int_equal(more.n_rows, 0);
		assert_int_equal(more.n_tokens, 0);
		assert_true(n_steps >= N_TOKENS);
		assert_true(run_alone(rig, i, 0, NULL).n_rows > 0);
	}
}

/* On a GPU what is behind the end token may differ, and so how many verifications it takes. */
static void assert_verified_twice(
	const struct engine_speculation *alone, struct engine_speculation both)
{
	if (!test_on_cuda()) {
		assert_int_equal(both.n_rows, 2 * alone->n_rows);
		assert_int_equal(both.n_tokens, 2 * alone->n_tokens);
	}
	assert_true(both.n_rows > alone->n_rows);
	assert_in_range(both.n_tokens, both.n_rows, both.n_rows * (1 + K));
}

static void test_requests_with_and_without_speculation_share_steps(void **state)
{
	static const enum graph_mode modes[] = {GRAPH_FULL_AND_PIECEWISE, GRAPH_PIECEWISE, GRAPH_NONE};

	for (size_t m = 0; m < sizeof(modes) / sizeof(modes[0]); m++) {
		struct rig_request requests[N_TEXTS];
		struct engine_speculation alone;
		uint64_t n_plain, n_before;
		struct rig rig;

		setup(&rig, modes[m], true);
		alone = run_alone(&rig, 1, 0, NULL);
		run_alone(&rig, 0, MIMEO_DRAFT_NONE, &n_plain);
		n_before = rig_facts(&rig).n_steps;
		rig_gate_close(&rig);
		for (uint32_t i = 0; i < N_TEXTS; i++) {
			requests[i] = ask(&rig, i, texts[i], i == 1 ? 0 : MIMEO_DRAFT_NONE);
			rig_submit(&rig.client, requests[i]);
		}
		rig_gate_open(&rig);
		for (uint32_t i = 0; i < N_TEXTS; i++)
			check(&rig, &requests[i], i);
		/* what the one verified is what it verified alone */
		assert_verified_twice(&alone, rig_facts(&rig).speculation);
		assert_true(rig_facts(&rig).n_steps - n_before < n_plain + 8);
		rig_close(&rig);
	}
}

static void test_request_lowers_its_drafts_and_never_raises_them(void **state)
{
	struct rig *rig = *state;
	struct engine_speculation full, more;

	full = run_alone(rig, 0, 0, NULL);
	assert_true(full.n_accepted[K - 1] > 0);
	more = run_alone(rig, 0, K + 1, NULL);
	/* but for the time, and a discarded step that is read before or behind */
	assert_memory_equal(&more, &full, offsetof(struct engine_speculation, n_draft_steps));
	for (uint32_t k = 1; k < K; k++) {
		more = run_alone(rig, 0, k, NULL);
		assert_true(more.n_accepted[k - 1] > 0);
		assert_int_equal(more.n_offered[k], 0);
		assert_int_equal(more.n_accepted[k], 0);
		assert_true(more.n_rows > full.n_rows && more.n_tokens <= (k + 1) * more.n_rows);
	}
}

/* A request on sequence 1: rows that it verified. */
static uint64_t verified_on(struct rig *rig, uint32_t draft_tokens)
{
	const uint64_t before = rig_facts(rig).speculation.n_rows;
	struct msg_generate msg;
	int32_t tokens[64];
	uint32_t n = rig_prompt(texts[0], tokens);

	msg = rig_greedy(n, 20);
	msg.sequence = 1;
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.draft_tokens = draft_tokens;
	assert_int_equal(
		rig_do(&rig->client, rig_generate(&rig->client, 0, tokens, n, &msg)).n_generated, 20);
	return rig_facts(rig).speculation.n_rows - before;
}

static void test_sequence_speculates_on_what_its_draft_has_seen(void **state)
{
	struct rig *rig = *state;
	uint32_t seen;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	assert_true(verified_on(rig, 0) > 0);
	assert_true(verified_on(rig, 0) > 0);
	seen = 2 * (uint32_t)(strlen(texts[0]) + 1 + 20);
	assert_int_equal(verified_on(rig, MIMEO_DRAFT_NONE), 0);
	assert_int_equal(verified_on(rig, 0), 0);
	rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 1, seen - 5);
	assert_true(verified_on(rig, 0) > 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

/* ---- the account ---- */

/* A request of so many tokens at most, which ends where it ends. */
static struct engine_speculation account_of(
	struct rig *rig, const char *text, uint32_t max_tokens, uint32_t flags, uint32_t n_generated)
{
	const struct engine_speculation before = rig_facts(rig).speculation;
	int32_t tokens[64];
	uint32_t n = rig_prompt(text, tokens);

	assert_int_equal(
		rig_do(&rig->client, rig_ask(&rig->client, 0, 0, tokens, n, max_tokens, flags))
			.n_generated,
		n_generated);
	rig_assert_all_free(rig); /* tokens come ahead of the draft's passes */
	return more_than(&before, rig_facts(rig).speculation);
}

/* The prompt's step gives a token, and one verification the others: all its drafts hold. */
static void assert_offered(const struct engine_speculation *more, uint32_t n)
{
	assert_int_equal(more->n_rows, 1);
	assert_int_equal(more->n_tokens, n);
	for (uint32_t i = 0; i < ENGINE_DRAFTS_MAX; i++) {
		assert_int_equal(more->n_offered[i], i < n && i < K);
		assert_int_equal(more->n_accepted[i], i < n && i < K);
	}
}

static void test_drafts_beyond_a_requests_limit_are_not_offered(void **state)
{
	struct rig *rig = *state;
	struct engine_speculation more;

	for (uint32_t limit = 2; limit <= 1 + K + 1; limit++) {
		more = account_of(rig, "count 10 9\n", limit, MIMEO_GENERATE_IGNORE_EOS, limit);
		assert_offered(&more, limit - 1);
	}
}

static void test_drafts_behind_an_end_token_are_not_offered(void **state)
{
	struct rig *rig = *state;
	struct engine_speculation more;

	more = account_of(rig, "12+34=", N_TOKENS, 0, 3); /* "46" and its end */
	assert_offered(&more, 2);
}

static void test_each_token_of_a_verification_held_or_is_behind_those_that_did(void **state)
{
	struct rig *rig = *state;

	for (uint32_t i = 0; i < N_TEXTS; i++) {
		struct engine_speculation more = run_alone(rig, i, 0, NULL);
		uint64_t n_held = 0;

		assert_int_equal(more.n_offered[0], more.n_rows);
		for (uint32_t k = 0; k < K; k++) {
			n_held += more.n_accepted[k];
			assert_true(more.n_accepted[k] <= more.n_offered[k]);
			assert_true(!k || more.n_accepted[k] <= more.n_accepted[k - 1]);
			assert_true(!k || more.n_offered[k] + 1 >= more.n_offered[k - 1]);
		}
		/* the last row may have ended with a draft */
		assert_in_range(n_held + more.n_rows - more.n_tokens, 0, 1);
	}
}

/* At a chunk's end the draft needs the prompt's next token, which no step has sampled. */
static void test_prompt_in_chunks_is_drafted_for_as_a_whole_one(void **state)
{
	static const uint32_t chunks[] = {64, 16, 4};
	struct engine_speculation account[3];

	for (int i = 0; i < 3; i++) {
		struct rig rig;

		rig_open_client(&rig, &(struct rig_options){.n_drafts = 3,
			.max_batch_tokens = chunks[i], .max_requests = 1});
		rig_do(&rig.client, rig_ask_text(&rig.client, 0, 0, "sort 52 17 33 8 91 64 75 28 46\n"));
		account[i] = rig_facts(&rig).speculation;
		rig_close(&rig);
		assert_int_equal(account[i].n_rows, account[0].n_rows);
		assert_int_equal(account[i].n_tokens, account[0].n_tokens);
		assert_memory_equal(account[i].n_offered, account[0].n_offered,
			sizeof(account[0].n_offered));
		assert_memory_equal(account[i].n_accepted, account[0].n_accepted,
			sizeof(account[0].n_accepted));
	}
	assert_true(account[0].n_tokens > 2 * account[0].n_rows);
}

static void test_time_of_drafts_is_that_between_their_beginning_and_the_steps_end(void **state)
{
	struct rig *rig = *state;
	struct engine_speculation more;

	more = account_of(rig, "12+34=", 1, 0, 1); /* the runner's first step, and its only one */
	const struct inputs_slot *slot = &rig->engine->runners.all[0]->inputs.slots[1];

	assert_int_equal(*slot->flag, 1);
	assert_true(*slot->began < *slot->draft_began && *slot->draft_began < *slot->ended);
	assert_int_equal(more.n_draft_steps, 1);
	assert_int_equal(more.draft_ns, *slot->ended - *slot->draft_began);
	run_alone(rig, 0, 0, NULL);
	rig_assert_all_free(rig); /* all steps are read */
	more = rig_facts(rig).speculation;
	assert_int_equal(more.n_draft_steps, rig_facts(rig).n_steps);
	assert_true(more.draft_ns < atomic_load(&engine_stats(rig->engine)->lane_ns));
	assert_int_equal(run_alone(rig, 0, MIMEO_DRAFT_NONE, NULL).n_draft_steps, 0);
	assert_int_equal(rig_facts(rig).speculation.draft_ns, more.draft_ns);
}

/* ---- rows without drafts ---- */

static void assert_undrafted(
	struct rig *rig, const struct engine_speculation *before, enum engine_undrafted reason, uint64_t n)
{
	const struct engine_speculation now = rig_facts(rig).speculation;

	for (unsigned i = 0; i < N_UNDRAFTED; i++)
		assert_int_equal(now.n_undrafted[i] - before->n_undrafted[i], i == reason ? n : 0);
}

static void test_rows_that_decode_without_drafts_are_counted_by_reason(void **state)
{
	struct rig *rig = *state;
	const struct msg_row row = {1, 1};
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	struct engine_speculation before;
	struct rig_request step;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	before = rig_facts(rig).speculation;
	assert_true(verified_on(rig, 0) > 0);
	assert_undrafted(rig, &before, UNDRAFTED_ASKED, 0);
	/* the prompt's step gives the first token */
	verified_on(rig, MIMEO_DRAFT_NONE);
	assert_undrafted(rig, &before, UNDRAFTED_ASKED, 19);
	before = rig_facts(rig).speculation;
	verified_on(rig, 0);
	assert_undrafted(rig, &before, UNDRAFTED_SEQUENCE, 19);
	before = rig_facts(rig).speculation;
	for (int i = 0; i < 3; i++)
		rig_must(&rig->client, rig_step(&rig->client, 0, &msg, &row, &(int32_t){'a'}));
	/* the first has the answer's last token to compute, too, and is a prompt of two */
	assert_undrafted(rig, &before, UNDRAFTED_STEP, 2);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	setup(rig, GRAPH_FULL_AND_PIECEWISE, false);
	step = ask(rig, 0, texts[0], MIMEO_DRAFT_NONE);
	rig_must(&rig->client, step);
	assert_undrafted(rig, &(struct engine_speculation){0}, UNDRAFTED_ASKED, 0); /* without a draft none is missed */
}

/* What is logged while so many requests of 440 tokens run, all at once. */
static void log_of(const struct rig_options *options, uint32_t n, char *ret, size_t size)
{
	int file = memfd_create("log", MFD_CLOEXEC);
	struct rig rig;
	ssize_t length;

	assert_true(file >= 0 && n <= 16);
	log_open(file);
	rig_open(&rig, options);
	rig_attach(&rig, &rig.client, 16);
	for (uint32_t i = 0; i < n; i++)
		rig_submit(&rig.client, rig_endless(&rig.client, i, 0, 440));
	for (uint32_t i = 0; i < n; i++)
		rig_wait(&rig.client, rig.results, i);
	assert_true(rig_facts(&rig).speculation.n_rows > 1000);
	rig_close(&rig);
	length = pread(file, ret, size - 1, 0);
	assert_true(length >= 0);
	ret[length] = '\0';
	log_open(STDERR_FILENO);
	close(file);
}

static void test_draft_of_another_model_is_reported_once(void **state)
{
	static char log[1 << 16];
	const char *at;

	log_of(&(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "mla",
		.model = rig_source("examples/models/tinycalc-mla"),
		.n_drafts = 1}, 5, log, sizeof(log));
	at = strstr(log, "warn: model tinycalc-0: few draft tokens are accepted (");
	assert_non_null(at);
	assert_non_null(strstr(at, " first ones): was the draft model trained for this model?\n"));
	assert_null(strstr(strchr(at, '\n'), "few draft tokens"));
	log_of(&(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE,
		.n_drafts = 1}, 8, log, sizeof(log));
	assert_null(strstr(log, "few draft tokens"));
}

static void test_pages_bytes_have_the_drafts_part_in_them(void **state)
{
	uint64_t bytes[2];

	for (int i = 0; i < 2; i++) {
		const struct model_config *c;
		struct kv_config kv;
		struct rig rig;

		setup(&rig, GRAPH_NONE, i);
		const struct device_info info = test_device_info(rig.device);

		c = i ? &rig.engine->runners.all[0]->options.draft->config
		      : &rig.engine->runners.all[0]->model->config;
		kv = model_kv(c, &info, 16);
		bytes[i] = rig_facts(&rig).kv_bytes - (i ? bytes[0] : 0);
		assert_int_equal(bytes[i], rig_facts(&rig).pages_total * kv_page_bytes(&kv));
		rig_close(&rig);
	}
}

#define TEST(test) RIG_TEST(test, .mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_request_without_speculation_verifies_nothing),
		cmocka_unit_test(test_requests_with_and_without_speculation_share_steps),
		TEST(test_request_lowers_its_drafts_and_never_raises_them),
		TEST(test_sequence_speculates_on_what_its_draft_has_seen),
		cmocka_unit_test(test_pages_bytes_have_the_drafts_part_in_them),
		TEST(test_rows_that_decode_without_drafts_are_counted_by_reason),
		cmocka_unit_test(test_draft_of_another_model_is_reported_once),
		TEST(test_drafts_beyond_a_requests_limit_are_not_offered),
		TEST(test_drafts_behind_an_end_token_are_not_offered),
		TEST(test_each_token_of_a_verification_held_or_is_behind_those_that_did),
		cmocka_unit_test(test_prompt_in_chunks_is_drafted_for_as_a_whole_one),
		TEST(test_time_of_drafts_is_that_between_their_beginning_and_the_steps_end),
	};

	static const struct test_cpu_only only[] = {
		{"test_prompt_in_chunks", "the last bits of hidden states depend on the chunk"},
	};

	return TEST_RUN_GROUP("engine drafts", tests, only, make_expected, NULL);
}
