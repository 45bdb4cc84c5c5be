/* SPDX-License-Identifier: MIT */
/*
 * Right answers, whichever requests share the steps: golden.json's cases and 300 questions, asked alone and
 * by four processes at once, with FULL graphs and without any, by generate and by step requests.
 * Each run is compared token by token, the end token included, with what is known to be right; so
 * all runs agree with each other. MIMEO_TEST_DRAFT names a model of examples/models that drafts for it.
 */
#include <jansson.h>
#include <math.h>

#include "tests/device.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/questions.h"

#define N_QUESTIONS 300
#define N_CLIENTS 4
#define N_STEPPED 48
#define N_SINGLE 60
#define WINDOW 16

static struct question questions[N_QUESTIONS];

struct share {
	const struct daemon *daemon;
	uint32_t first, n;
	struct reply *replies; /* [N_QUESTIONS], shared */
};

static struct daemon full, eager;

static bool has_draft(void)
{
	const char *name = getenv("MIMEO_TEST_DRAFT");

	return name && *name;
}

static void start(struct daemon *daemon, const char *mode)
{
	static char draft[4096];
	char below[128];

	daemon_init(daemon);
	if (has_draft()) {
		snprintf(below, sizeof(below), "examples/models/%s", getenv("MIMEO_TEST_DRAFT"));
		snprintf(draft, sizeof(draft), "%s", source_path(below));
		daemon_option(daemon, "--draft", draft);
	}
	daemon_option(daemon, "--graph-mode", mode);
	daemon_start(daemon);
}

static int start_both(void **state)
{
	questions_make(questions, N_QUESTIONS, 1);
	start(&full, "full");
	start(&eager, "none");
	return 0;
}

static int end_both(void **state)
{
	daemon_deinit(&full);
	daemon_deinit(&eager);
	return 0;
}

static int use_full(void **state)
{
	*state = &full;
	return 0;
}

static int use_eager(void **state)
{
	*state = &eager;
	return 0;
}

/* ---- golden.json ---- */

static void check_logits(const float *logits, uint32_t n, json_t *golden)
{
	double largest = 0, worst = 0;

	assert_non_null(logits);
	assert_int_equal(n, json_array_size(golden));
	for (uint32_t i = 0; i < n; i++)
		largest = fmax(largest, fabs(json_number_value(json_array_get(golden, i))));
	for (uint32_t i = 0; i < n; i++)
		worst = fmax(worst,
			fabs(logits[i] - json_number_value(json_array_get(golden, i))) / largest);
	assert_true(worst < test_logits_tolerance(true));
}

static uint32_t take_tokens(json_t *array, int32_t *ret, uint32_t size)
{
	uint32_t n = (uint32_t)json_array_size(array);

	assert_true(n > 0 && n <= size);
	for (uint32_t i = 0; i < n; i++)
		ret[i] = (int32_t)json_integer_value(json_array_get(array, i));
	return n;
}

static void check_case(struct mimeo *m, json_t *golden)
{
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_request *request = mimeo_request_get(m);
	struct reply reply = {0};
	int32_t prompt[512], greedy[QUESTION_ANSWER_MAX];
	struct mimeo_event event;

	generate.n_tokens = take_tokens(json_object_get(golden, "prompt"), prompt, 512);
	uint32_t n = take_tokens(json_object_get(golden, "greedy"), greedy, QUESTION_ANSWER_MAX);
	generate.tokens = prompt;
	generate.max_tokens = n;
	generate.flags = MIMEO_GENERATE_PROMPT_LOGITS;
	assert_int_equal(mimeo_request_prep_generate(request, &generate), 0);
	assert_int_equal(mimeo_submit(m), 1);
	do {
		assert_int_equal(mimeo_event_wait(m, &event, (int)PATIENCE_MS), 1);
		reply_take(&reply, &event);
		if (event.kind == MIMEO_EVENT_FINAL)
			check_logits(event.logits, mimeo_model_get(m, 0)->vocab_size,
				json_object_get(golden, "logits_last"));
		mimeo_event_seen(m, &event);
	} while (reply.n_finals == 0);
	assert_int_equal(reply.status, 0);
	assert_int_equal(reply.n_tokens, n);
	assert_memory_equal(reply.tokens, greedy, n * sizeof(int32_t));
}

static void test_golden_cases_agree(void **state)
{
	char below[128];

	snprintf(below, sizeof(below), "examples/models/%s/golden.json", test_model());
	json_t *golden = json_load_file(source_path(below), 0, NULL);
	json_t *cases = json_object_get(golden, "cases"), *one;
	struct mimeo *m = daemon_connect(*state, 0, 0);
	size_t i;

	assert_true(json_array_size(cases) > 0);
	json_array_foreach(cases, i, one) check_case(m, one);
	mimeo_close(m);
	json_decref(golden);
}

/* ---- questions ---- */

static void test_one_client_alone_is_answered_exactly(void **state)
{
	static struct reply replies[N_QUESTIONS];
	struct mimeo *m = daemon_connect(*state, 0, 0);

	assert_int_equal(questions_ask(m, questions, N_QUESTIONS, WINDOW, replies), 0);
	assert_int_equal(replies_wrong(questions, replies, N_QUESTIONS), 0);
	mimeo_close(m);
}

static void test_questions_one_at_a_time_are_answered_exactly(void **state)
{
	static struct reply replies[N_SINGLE];
	struct mimeo *m = daemon_connect(*state, 0, 0);

	assert_int_equal(questions_ask(m, questions, N_SINGLE, 1, replies), 0);
	assert_int_equal(replies_wrong(questions, replies, N_SINGLE), 0);
	mimeo_close(m);
}

static int ask_share(void *arg)
{
	const struct share *share = arg;
	struct mimeo *m = daemon_connect_child(share->daemon, MIMEO_SPIN_DEFAULT);

	CHILD_EXPECT(questions_ask(m, questions + share->first, share->n, WINDOW,
			     share->replies + share->first) == 0);
	mimeo_close(m);
	return 0;
}

static void test_four_processes_at_once_are_answered_exactly(void **state)
{
	struct share share = {.daemon = *state, .n = N_QUESTIONS / N_CLIENTS};
	pid_t pids[N_CLIENTS];

	share.replies = shared_new(N_QUESTIONS * sizeof(struct reply));
	for (uint32_t i = 0; i < N_CLIENTS; i++) {
		share.first = i * share.n;
		pids[i] = process_run(ask_share, &share);
	}
	for (uint32_t i = 0; i < N_CLIENTS; i++)
		assert_int_equal(process_exit_status(pids[i], PATIENCE_MS), 0);
	assert_int_equal(replies_wrong(questions, share.replies, N_QUESTIONS), 0);
	shared_free(share.replies, N_QUESTIONS * sizeof(struct reply));
}

static void test_step_requests_give_the_same_tokens(void **state)
{
	static struct reply replies[N_STEPPED];
	struct mimeo *m = daemon_connect(*state, 256, 0);

	assert_int_equal(questions_step(m, questions, N_STEPPED, replies), 0);
	assert_int_equal(replies_wrong(questions, replies, N_STEPPED), 0);
	mimeo_close(m);
}

/* ---- what ran them ---- */

static void test_full_mode_replayed_graphs(void **state)
{
	assert_true(daemon_count(*state, "replays") > 0);
	assert_int_equal(daemon_count(*state, "eager_mode"), 0);
}

static void test_mode_none_replayed_nothing(void **state)
{
	assert_int_equal(daemon_count(*state, "replays"), 0);
	assert_true(daemon_count(*state, "eager_mode") > 0);
}

static void test_draft_verified_what_it_was_asked_for(void **state)
{
	int64_t n_rows = daemon_number(*state, "models", 0, "verified_rows");
	int64_t n_tokens = daemon_number(*state, "models", 0, "verified_tokens");

	assert_int_equal(daemon_number(*state, "models", 0, "draft_tokens"), has_draft() ? 4 : 0);
	if (has_draft())
		assert_true(n_rows > 0 && n_tokens > 3 * n_rows);
	else
		assert_true(n_rows == 0 && n_tokens == 0);
}

/* The same test with both daemons. */
#define BOTH(test)                                                                                 \
	{#test "_with_graphs", test, use_full, NULL, NULL},                                        \
	{                                                                                          \
#test "_eager", test, use_eager, NULL, NULL                                        \
	}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		BOTH(test_golden_cases_agree),
		BOTH(test_one_client_alone_is_answered_exactly),
		BOTH(test_questions_one_at_a_time_are_answered_exactly),
		BOTH(test_four_processes_at_once_are_answered_exactly),
		BOTH(test_step_requests_give_the_same_tokens),
		BOTH(test_draft_verified_what_it_was_asked_for),
		cmocka_unit_test_setup(test_full_mode_replayed_graphs, use_full),
		cmocka_unit_test_setup(test_mode_none_replayed_nothing, use_eager),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("answers", tests, start_both, end_both);
}
