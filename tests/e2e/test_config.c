/* SPDX-License-Identifier: MIT */
/* The configuration of a real daemon: checked without a start, and read again while it serves. */
#include <signal.h>
#include <sys/stat.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/startup.h"

/* ---- --check-config ---- */

static void run_check(const struct daemon *daemon, const char *model, const char *option, const char *value,
	struct program_output *ret)
{
	const char *const argv[] = {daemon->argv[0], "--check-config", "--config", "/dev/null", "--socket",
		daemon->socket, "--model", model, option, value, NULL};

	program_run(argv, ret);
}

static void test_check_accepts_what_a_daemon_could_serve(void **state)
{
	static struct program_output output;
	const struct daemon *daemon = *state;
	char model[512];

	snprintf(model, sizeof(model), "m=%s", source_path("examples/models/tinycalc"));
	run_check(daemon, model, "--max-requests", "3", &output);
	assert_int_equal(output.status, 0);
	assert_non_null(strstr(output.text, "\nmax_requests = 3 "));
	assert_non_null(strstr(output.text, "# command line: --max-requests\n"));
	assert_int_equal(access(daemon->socket, F_OK), -1);
}

static void test_check_of_a_missing_model_or_user_ends_with_1(void **state)
{
	static struct program_output output;
	char model[512];

	run_check(*state, "m=/nowhere", "--weights", "no-such-user-here:2", &output);
	assert_int_equal(output.status, EXIT_ERROR);
	assert_non_null(strstr(output.text, "mimeod: --weights: there is no user no-such-user-here\n"));
	assert_non_null(strstr(output.text, "mimeod: model m: /nowhere"));
	snprintf(model, sizeof(model), "m=%s", source_path("examples/models/tinycalc"));
	run_check(*state, model, "--draft", "/nowhere", &output);
	assert_int_equal(output.status, EXIT_ERROR);
	assert_non_null(strstr(output.text, "mimeod: model m: draft: /nowhere"));
}

static void test_check_of_wrong_settings_ends_with_2_and_names_all(void **state)
{
	static struct program_output output;

	run_check(*state, "m", "--max-requests", "0", &output);
	assert_int_equal(output.status, EXIT_USAGE);
	assert_non_null(strstr(output.text, "mimeod: --model: \"m\" is not NAME=DIR\n"
					    "mimeod: --max-requests: \"0\" is not"));
}

/* ---- reload ---- */

static char config_path[96];

static void write_config(const char *text)
{
	file_write(config_path, text, strlen(text));
}

static void start_with_config(struct daemon *daemon, const char *text)
{
	snprintf(config_path, sizeof(config_path), "%s/c.conf", daemon->folder);
	write_config(text);
	daemon_option(daemon, "--config", config_path);
	daemon_start(daemon);
}

/* mimeoctl reload, with --json or without (NULL). */
static const char *reload_with(const struct daemon *daemon, const char *json, int status)
{
	static struct program_output output;
	const char *const argv[] = {build_path("daemon/mimeoctl"), "--socket", daemon->socket, "reload", json, NULL};

	program_run(argv, &output);
	if (output.status != status)
		fail_msg("mimeoctl reload: status %d: %s", output.status, output.text);
	return output.text;
}

static const char *reload(const struct daemon *daemon, int status)
{
	return reload_with(daemon, NULL, status);
}

static int connect_with_arena(const struct daemon *daemon, uint64_t bytes)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *m;

	config.socket_path = daemon->socket;
	config.arena_bytes = bytes;
	int rc = mimeo_connect(&m, &config);
	if (rc == 0)
		mimeo_close(m);
	return rc;
}

static void test_reload_applies_limits_while_sessions_are_served(void **state)
{
	struct daemon *daemon = *state;

	start_with_config(daemon, "[mimeod]\nmax_arena_bytes = 64K\n");
	assert_true(daemon_log_has(daemon, ", configuration: 1 file, of "));
	assert_true(daemon_log_has(daemon, config_path));
	struct mimeo *m = daemon_connect(daemon, 0, 64 << 10);
	assert_int_equal(connect_with_arena(daemon, 1 << 20), MIMEO_E_INVALID);
	write_config("[mimeod]\nmax_arena_bytes = 1M\nweights = 0:3\nspin_us = 0\ntoken_us = 70000\n");
	const char *text = reload(daemon, 0);
	assert_non_null(strstr(text, "applied: max_arena_bytes = 1M (was 64K)\n"));
	assert_non_null(strstr(text, "applied: weights = 0:3 (was not set)\n"));
	assert_non_null(strstr(text, "applied: token_us = 70000 (was 50000)\n"));
	assert_null(strstr(text, "restart"));
	assert_int_equal(connect_with_arena(daemon, 1 << 20), 0);
	assert_serves(m, 3);
	assert_string_equal(reload(daemon, 0), "no setting is different\n");
	mimeo_close(m);
	daemon_stop(daemon);
}

static void test_reload_names_what_needs_a_restart(void **state)
{
	struct daemon *daemon = *state;

	start_with_config(daemon, "[mimeod]\npage_tokens = 16\n");
	write_config("[mimeod]\npage_tokens = 32\nattention = naive\n[model other]\ndir = /nowhere\n");
	for (int i = 0; i < 2; i++) { /* as long as it is so */
		const char *text = reload(daemon, 0);

		assert_non_null(strstr(text, "needs a restart: page_tokens = 32 (in force: 16)\n"));
		assert_non_null(strstr(text, ": attention = naive (in force: auto)\n"));
		assert_non_null(strstr(text, "needs a restart: model other is new (or: mimeoctl models load)\n"));
		assert_null(strstr(text, "applied"));
	}
	assert_non_null(strstr(reload_with(daemon, "--json", 0), "model other is new"));
	write_config("[mimeod]\npage_tokens = 32\ndrain_timeout_s = 7\n");
	assert_string_equal(reload_with(daemon, "--json", 0),
		"{\n  \"applied\": [\n    \"drain_timeout_s = 7 (was 30)\"\n  ],\n"
		"  \"needs_restart\": [\n    \"page_tokens = 32 (in force: 16)\"\n  ]\n}\n");
	assert_string_equal(reload_with(daemon, "--json", 0),
		"{\n  \"applied\": [],\n  \"needs_restart\": [\n    \"page_tokens = 32 (in force: 16)\"\n  ]\n}\n");
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	assert_serves(m, 3);
	mimeo_close(m);
	daemon_stop(daemon);
}

static void test_reload_in_json_is_refused_where_a_line_is_not_utf8(void **state)
{
	struct daemon *daemon = *state;

	start_with_config(daemon, "[mimeod]\n");
	write_config("[mimeod]\ndraft = /\xff\n");
	assert_non_null(strstr(reload_with(daemon, "--json", EXIT_ERROR), "cannot write"));
	assert_non_null(strstr(reload(daemon, 0), ": draft = /\xff "));
	daemon_stop(daemon);
}

static void test_bad_reload_changes_nothing_and_says_why(void **state)
{
	struct daemon *daemon = *state;

	start_with_config(daemon, "[mimeod]\nmax_arena_bytes = 64K\n");
	write_config("[mimeod]\nmax_arena_bytes = 1M\nmax_sessions = 0\nbogus = 1\n");
	const char *text = reload(daemon, EXIT_ERROR);
	assert_non_null(strstr(text, "nothing was changed: "));
	assert_non_null(strstr(text, "c.conf:3: max_sessions: \"0\" is not an integer"));
	assert_non_null(strstr(text, "c.conf:4: bogus: unknown key"));
	assert_true(daemon_log_has(daemon, "c.conf:4: bogus: unknown key"));
	assert_int_equal(connect_with_arena(daemon, 1 << 20), MIMEO_E_INVALID);
	static char many[8192] = "[mimeod]\n";
	for (size_t at = 9; at + 16 < sizeof(many); at += strlen(many + at))
		strcpy(many + at, "bogus = 1\n");
	write_config(many);
	reload(daemon, EXIT_ERROR);
	assert_true(daemon_log_has(daemon, "reload: and "));
	assert_true(daemon_log_has(daemon, " more errors\n"));
	write_config("[mimeod]\nmax_arena_bytes = 1M\nweights = no-such-user-here:2\n");
	assert_non_null(strstr(reload(daemon, EXIT_ERROR), "c.conf:3: weights: there is no user no-such-user-here"));
	assert_int_equal(connect_with_arena(daemon, 1 << 20), MIMEO_E_INVALID);
	assert_int_equal(connect_with_arena(daemon, 64 << 10), 0);
	daemon_stop(daemon);
}

static void test_limits_below_what_is_held_leave_sessions_alone(void **state)
{
	struct daemon *daemon = *state;

	start_with_config(daemon, "[mimeod]\n");
	struct mimeo *m = daemon_connect(daemon, 0, 8 << 20), *n = daemon_connect(daemon, 0, 8 << 20);
	write_config("[mimeod]\nmax_sessions = 1\nmax_shared_bytes = 1M\nmax_sequence_bytes = 1M\n"
		     "max_arena_bytes = 64K\n");
	reload(daemon, 0);
	assert_serves(m, 3);
	assert_serves(n, 3);
	mimeo_close(n);
	mimeo_close(m);
	assert_true(EVENTUALLY(daemon_count(daemon, "sessions") == 0));
	daemon_stop(daemon);
}

/* Its read would wait for a writer, and nobody would be served meanwhile. */
static void test_reload_from_a_pipe_is_refused(void **state)
{
	struct daemon *daemon = *state;

	start_with_config(daemon, "[mimeod]\n");
	assert_int_equal(unlink(config_path), 0);
	assert_int_equal(mkfifo(config_path, 0600), 0);
	assert_non_null(strstr(reload(daemon, EXIT_ERROR), "c.conf: neither a file nor a character device"));
	daemon_stop(daemon);
}

static void test_hangup_reloads(void **state)
{
	struct daemon *daemon = *state;

	start_with_config(daemon, "[mimeod]\nlog_level = info\n");
	write_config("[mimeod]\nlog_level = debug\n");
	kill(daemon->pid, SIGHUP);
	assert_true(EVENTUALLY(daemon_log_has(daemon, "reload: applied: log_level = debug (was info)")));
	mimeo_close(daemon_connect(daemon, 0, 0));
	assert_true(EVENTUALLY(daemon_log_has(daemon, " debug: ")));
	write_config("[mimeod]\nlog_level = error\n");
	reload(daemon, 0);
	assert_true(daemon_log_has(daemon, "reload: applied: log_level = error (was debug)"));
	daemon_stop(daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OWN(test_check_accepts_what_a_daemon_could_serve),
		OWN(test_check_of_a_missing_model_or_user_ends_with_1),
		OWN(test_check_of_wrong_settings_ends_with_2_and_names_all),
		OWN(test_reload_applies_limits_while_sessions_are_served),
		OWN(test_reload_names_what_needs_a_restart),
		OWN(test_reload_in_json_is_refused_where_a_line_is_not_utf8),
		OWN(test_bad_reload_changes_nothing_and_says_why),
		OWN(test_limits_below_what_is_held_leave_sessions_alone),
		OWN(test_reload_from_a_pipe_is_refused),
		OWN(test_hangup_reloads),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("e2e-config", tests, NULL, NULL);
}
