/* SPDX-License-Identifier: MIT */
/* mimeoctl beside a daemon that works: requests one by one, pages, limits. */
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/ctl.h"

/* The caller's. */
static json_t *json_of(const struct program_output *output)
{
	json_t *json;

	assert_int_equal(output->status, 0);
	json = json_loads(output->text, 0, NULL);
	assert_non_null(json);
	return json;
}

static json_int_t number_of(const json_t *row, const char *key)
{
	const json_t *value = json_object_get(row, key);

	assert_true(json_is_integer(value));
	return json_integer_value(value);
}

static json_int_t id_of_the_one_request(void)
{
	json_t *rows = json_of(MIMEOCTL("--json", "requests"));
	json_int_t id;

	assert_int_equal(json_array_size(rows), 1);
	id = number_of(json_array_get(rows, 0), "id");
	json_decref(rows);
	return id;
}

static bool lists_none(void)
{
	return strcmp(MIMEOCTL("requests", "list")->text, "no requests\n") == 0;
}

static void test_request_is_shown_and_cancelled_by_its_id(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	const int32_t tokens[] = {1, '1', '+', '2', '='};
	struct mimeo_generate generate = generate_of(tokens, 5, 100);
	const struct program_output *output;
	struct mimeo_event event;
	char id[24];
	json_t *row;

	generate.request_class = MIMEO_CLASS_BATCH;
	generate.deadline_ms = 10 * PATIENCE_MS;
	file_write(group_hold_file, "", 0);
	submit_generate(m, &generate);
	assert_true(EVENTUALLY(!lists_none()));
	snprintf(id, sizeof(id), "%lld", (long long)id_of_the_one_request());
	row = json_of(MIMEOCTL("--json", "requests", "show", id));
	assert_string_equal(json_string_value(json_object_get(row, "class")), "batch");
	assert_int_equal(number_of(row, "prompt_tokens"), 5);
	assert_int_equal(number_of(row, "max_tokens"), 100);
	assert_int_equal(number_of(row, "pid"), getpid());
	assert_int_equal(number_of(row, "uid"), getuid());
	assert_true(json_is_string(json_object_get(row, "user")));
	assert_true(json_number_value(json_object_get(row, "deadline_s")) > 0);
	json_decref(row);
	assert_int_equal(MIMEOCTL("requests", "cancel", id)->status, 0);
	event = wait_final(m);
	assert_int_equal(event.status, MIMEO_E_CANCELLED);
	assert_int_equal(event.finish, MIMEO_FINISH_CANCELLED);
	assert_message_has(&event, "an operator of the daemon cancelled the request");
	output = MIMEOCTL("requests", "cancel", id);
	assert_int_equal(output->status, 1);
	assert_non_null(strstr(output->text, "is in flight: mimeoctl requests lists those that are"));
	assert_int_equal(MIMEOCTL("requests", "show", id)->status, 1);
	unlink(group_hold_file);
	mimeo_close(m);
}

static const json_t *row_of(const json_t *rows, const char *key, const char *value)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *text = json_string_value(json_object_get(row, key));

		if (text && strcmp(text, value) == 0)
			return row;
	}
	fail_msg("no row whose %s is %s", key, value);
	return NULL;
}

static void test_pages_and_limits_count_what_a_client_has(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 1 << 20);
	json_t *pages, *limits;

	assert_serves(m, 1);
	pages = json_of(MIMEOCTL("--json", "pages"));
	assert_int_equal(number_of(row_of(pages, "of", "model"), "pages"), daemon_count(*state, "pages_total"));
	assert_int_equal(number_of(row_of(pages, "of", "user"), "uid"), getuid());
	assert_true(json_is_string(json_object_get(row_of(pages, "of", "session"), "client")));
	limits = json_of(MIMEOCTL("--json", "limits"));
	assert_int_equal(number_of(row_of(limits, "resource", "sessions"), "used"), 1);
	assert_true(number_of(row_of(limits, "resource", "shared memory"), "used_bytes") >= 1 << 20);
	assert_int_equal(MIMEOCTL("pages", "drop")->status, 0);
	assert_int_equal(MIMEOCTL("--model", "none", "pages", "drop")->status, 1);
	json_decref(limits);
	json_decref(pages);
	mimeo_close(m);
}

/* The candidates for the last word have this one among them, ahead of a tab. */
static bool offers(const char *const *words, const char *candidate)
{
	const struct program_output *output = ctl_run(words);
	char line[80];

	assert_int_equal(output->status, 0);
	snprintf(line, sizeof(line), "%s\t", candidate);
	return strncmp(output->text, line, strlen(line)) == 0 || strstr(output->text, line);
}
#define OFFERS(candidate, ...)                                                                     \
	offers((const char *const[]){"complete", "--", "--socket", group_daemon.socket, __VA_ARGS__, NULL}, candidate)

static void test_completion_knows_what_the_daemon_has(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	json_t *rows = json_of(MIMEOCTL("--json", "sessions"));
	char id[24];

	snprintf(id, sizeof(id), "%lld", (long long)number_of(json_array_get(rows, 0), "id"));
	assert_true(OFFERS(id, "sessions", "kill", ""));
	assert_false(OFFERS(id, "sessions", "kill", "x"));
	assert_true(OFFERS(test_model(), "--model", ""));
	assert_true(OFFERS("FULL", "graphs", "drop", "F"));
	assert_true(OFFERS("8", "graphs", "drop", "FULL", "") || OFFERS("8x1", "graphs", "drop", "FULL", ""));
	json_decref(rows);
	rows = json_of(MIMEOCTL("--json", "limits"));
	assert_true(OFFERS(json_string_value(json_object_get(row_of(rows, "resource", "sessions"), "user")), "--user", ""));
	json_decref(rows);
	mimeo_close(m);
}

/* What bash puts in place of the last word. */
static void test_bash_completes_by_the_shipped_script(void **state)
{
	char script[512];
	static struct program_output output;

	snprintf(script, sizeof(script),
		"source '%s'; COMP_WORDS=(mimeoctl --socket '%s' --model ''); COMP_CWORD=4; _mimeoctl '%s'; "
		"printf '%%s\n' \"${COMPREPLY[@]}\"",
		source_path("completion/mimeoctl.bash"), group_daemon.socket, build_path("daemon/mimeoctl"));
	program_run((const char *const[]){"/bin/bash", "-c", script, NULL}, &output);
	snprintf(script, sizeof(script), "%s\n", test_model());
	assert_string_equal(output.text, script);
}

static void test_misspelt_names_of_the_daemons_are_corrected(void **state)
{
	char name[64], meant[128];

	snprintf(name, sizeof(name), "%sx", test_model());
	snprintf(meant, sizeof(meant), "did you mean %s?", test_model());
	assert_non_null(strstr(MIMEOCTL("--model", name, "graphs")->text, meant));
	assert_non_null(strstr(MIMEOCTL("--model", name, "pages", "drop")->text, meant));
	assert_non_null(strstr(MIMEOCTL("graphs", "drop", "FULL 8y1")->text, "did you mean FULL 8x1?"));
}

static void test_user_is_a_filter_of_rows(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	char uid[16], other[16];
	json_t *rows;

	snprintf(uid, sizeof(uid), "%u", (unsigned)getuid());
	snprintf(other, sizeof(other), "%u", (unsigned)getuid() + 1);
	rows = json_of(MIMEOCTL("--json", "--user", uid, "sessions"));
	assert_int_equal(json_array_size(rows), 1);
	json_decref(rows);
	assert_string_equal(MIMEOCTL("--user", other, "sessions")->text, "no sessions\n");
	mimeo_close(m);
}

static void test_session_is_shown_by_its_id(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	json_t *rows = json_of(MIMEOCTL("--json", "sessions")), *row;
	char id[24];

	snprintf(id, sizeof(id), "%lld", (long long)number_of(json_array_get(rows, 0), "id"));
	row = json_of(MIMEOCTL("--json", "sessions", "show", id));
	assert_int_equal(number_of(row, "pid"), getpid());
	assert_int_equal(MIMEOCTL("sessions", "show", "4711")->status, 1);
	json_decref(row);
	json_decref(rows);
	mimeo_close(m);
}

static void test_ended_requests_are_logged_from_set_to_set(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	const int32_t tokens[] = {1, '1', '+', '2', '='};
	struct mimeo_generate generate = generate_of(tokens, 5, 3);
	char line[160];

	assert_int_equal(MIMEOCTL("set", "request_log=yes")->status, 0);
	submit_generate(m, &generate);
	const struct mimeo_event event = wait_final(m);
	snprintf(line, sizeof(line), "outcome=%s op=generate model=%s class=normal session=",
		event.finish == MIMEO_FINISH_STOP ? "stop" : "length", test_model());
	assert_true(EVENTUALLY(daemon_log_has(*state, line)));
	snprintf(line, sizeof(line), " prompt_tokens=5 cached_tokens=0 generated_tokens=%u queue_s=0.", event.n_generated);
	assert_true(daemon_log_has(*state, line));
	assert_int_equal(MIMEOCTL("set", "request_log=no")->status, 0);
	assert_true(daemon_log_has(*state, "an operator set request_log = no"));
	assert_int_equal(MIMEOCTL("set", "request_log")->status, 3);
	mimeo_close(m);
}

/* The argument of all slices of the trace with that name, summed; NULL: how many they are. */
static double trace_sum(const json_t *trace, const char *name, const char *argument)
{
	const json_t *event;
	double sum = 0;
	size_t i;

	json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
	{
		if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0 ||
			strcmp(json_string_value(json_object_get(event, "name")), name) != 0)
			continue;
		sum += !argument ? 1 : json_number_value(json_object_get(json_object_get(event, "args"), argument));
	}
	return sum;
}

static void test_sums_of_a_trace_are_those_of_the_counters(void **state)
{
	static const struct {
		const char *metric, *slice, *argument;
	} sums[] = {
		{"mimeo_steps_total", "step", NULL},
		{"mimeo_rows_total", "step", "rows"},
		{"mimeo_tokens_processed_total", "step", "tokens"},
		{"mimeo_padded_rows_total", "step", "padding"},
		{"mimeo_requests_finished_total", "generate", NULL},
		{"mimeo_tokens_generated_total", "generate", "generated_tokens"},
	};
	enum { N = sizeof(sums) / sizeof(sums[0]) };
	struct mimeo *m = daemon_connect(*state, 0, 0);
	const int32_t tokens[] = {1, '1', '+', '2', '='};
	struct mimeo_generate generate = generate_of(tokens, 5, 20);
	int64_t before[N];

	for (int i = 0; i < N; i++)
		before[i] = daemon_metric(*state, sums[i].metric);
	assert_int_equal(MIMEOCTL("trace", "start")->status, 0);
	assert_int_equal(MIMEOCTL("trace", "start")->status, 1);
	for (int i = 0; i < 3; i++) {
		submit_generate(m, &generate);
		assert_int_equal(wait_final(m).status, 0);
	}
	/* the step behind the last token, too */
	assert_true(EVENTUALLY(daemon_metric(*state, "mimeo_step_seconds_count") ==
		daemon_metric(*state, "mimeo_steps_total")));
	json_t *trace = json_of(MIMEOCTL("trace", "stop"));
	for (int i = 0; i < N; i++)
		assert_int_equal(trace_sum(trace, sums[i].slice, sums[i].argument),
			daemon_metric(*state, sums[i].metric) - before[i]);
	assert_true(trace_sum(trace, "launch", NULL) == trace_sum(trace, "step", NULL));
	json_decref(trace);
	mimeo_close(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GROUP_TEST(test_request_is_shown_and_cancelled_by_its_id),
		GROUP_TEST(test_session_is_shown_by_its_id),
		GROUP_TEST(test_sums_of_a_trace_are_those_of_the_counters),
		GROUP_TEST(test_ended_requests_are_logged_from_set_to_set),
		GROUP_TEST(test_completion_knows_what_the_daemon_has),
		GROUP_TEST(test_bash_completes_by_the_shipped_script),
		GROUP_TEST(test_misspelt_names_of_the_daemons_are_corrected),
		GROUP_TEST(test_user_is_a_filter_of_rows),
		GROUP_TEST(test_pages_and_limits_count_what_a_client_has),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("operators", tests, group_daemon_start_held, group_daemon_end);
}
