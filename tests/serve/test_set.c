/* SPDX-License-Identifier: MIT */
/* mimeoctl set, and the request log. */
#include "harness.h"

#include <string.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/engine/request_log.h"

static void await_log(const struct harness *harness, const char *text)
{
	for (unsigned i = 0; i < PATIENCE_MS && !harness_log_has(harness, text); i++)
		usleep(1000);
	if (!harness_log_has(harness, text))
		fail_msg("no line with: %s", text);
}

static int set(struct harness *harness, const char *setting, const char *says)
{
	return operator_order(harness, (struct ask){.op = "set", .setting = setting}, says);
}

static void test_set_changes_the_log_level_at_once(void **state)
{
	assert_false(log_enabled(LOG_LEVEL_DEBUG));
	assert_int_equal(set(*state, "log_level=debug", "log_level = debug, until a reload"), 0);
	assert_true(log_enabled(LOG_LEVEL_DEBUG));
	assert_int_equal(set(*state, "log_level=warn", "log_level = warn"), 0);
	assert_false(log_enabled(LOG_LEVEL_INFO));
	assert_int_equal(set(*state, "log_level=info", "log_level = info"), 0);
}

static void test_set_refuses_other_values_and_other_settings(void **state)
{
	assert_int_equal(set(*state, "log_level=loud", "log_level: \"loud\" is not error, warn, info or debug"),
		MIMEO_E_INVALID);
	assert_int_equal(set(*state, "request_log=on", "request_log: \"on\" is not yes or no"), MIMEO_E_INVALID);
	assert_int_equal(set(*state, "request_log", "request_log: \"\" is not"), MIMEO_E_INVALID);
	assert_int_equal(set(*state, "max_sessions=3", "max_sessions cannot be set so"), MIMEO_E_INVALID);
	assert_int_equal(set(*state, "log=debug", "log cannot be set so"), MIMEO_E_INVALID);
	assert_true(log_enabled(LOG_LEVEL_INFO));
}

static void test_request_log_has_ids_tokens_times_and_outcome(void **state)
{
	struct harness *harness = *state;
	struct request_log *log = engine_request_log(harness->engine);
	struct request_record record = {.id = 17, .session = 3, .pid = 100, .uid = 1000, .client = "a b", .model = "tinycalc",
		.op = "generate", .class = "normal", .finish = MIMEO_FINISH_STOP, .n_prompt = 7, .n_cached = 4,
		.n_generated = 5, .submitted_ns = 1000000000, .started_ns = 1250000000, .first_token_ns = 1500000000,
		.ended_ns = 3000000000};

	assert_false(request_log_is_on(log));
	assert_int_equal(set(harness, "request_log=yes", "request_log = yes"), 0);
	assert_true(request_log_is_on(log));
	request_log_put(log, &record);
	await_log(harness, "info: request ended request=17 outcome=stop op=generate model=tinycalc class=normal session=3 "
		"user=1000 pid=100 client=\"a b\" prompt_tokens=7 cached_tokens=4 generated_tokens=5 queue_s=0.250000 "
		"first_token_s=0.500000 total_s=2.000000\n");
	/* one that was cancelled before it started */
	record.id = 18;
	record.status = MIMEO_E_CANCELLED;
	record.started_ns = record.first_token_ns = 0;
	request_log_put(log, &record);
	/* What ended before it is switched off is written. */
	assert_int_equal(set(harness, "request_log=no", "request_log = no"), 0);
	assert_true(harness_log_has(harness, "request=18 outcome=MIMEO_E_CANCELLED op=generate"));
	assert_true(harness_log_has(harness, "generated_tokens=5 total_s=2.000000\n"));
	assert_false(request_log_is_on(log));
}

static void test_request_log_counts_what_it_lost(void **state)
{
	struct harness *harness = *state;
	struct request_log *log = engine_request_log(harness->engine);
	struct request_record record = {.op = "step", .status = MIMEO_E_INVALID};

	/* while nobody takes them */
	for (unsigned i = 0; i < REQUEST_LOG_SIZE + 3; i++)
		request_log_put(log, &record);
	for (unsigned i = 0; i < REQUEST_LOG_SIZE - 1; i++)
		assert_true(request_log_take(log, &record));
	assert_int_equal(set(harness, "request_log=yes", "request_log = yes"), 0);
	await_log(harness, "requests that are missing in the log, because more than 4096 ended within 200 ms: 3\n");
	assert_true(harness_log_has(harness, "request refused outcome=MIMEO_E_INVALID op=step session=0"));
}

#define logged(test) harness_test_with(test, harness_configure_logged)

int main(void)
{
	const struct CMUnitTest tests[] = {
		logged(test_set_changes_the_log_level_at_once),
		logged(test_set_refuses_other_values_and_other_settings),
		logged(test_request_log_has_ids_tokens_times_and_outcome),
		logged(test_request_log_counts_what_it_lost),
	};

	return cmocka_run_group_tests_name("set", tests, NULL, NULL);
}
