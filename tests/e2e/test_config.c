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
	assert_non_null(strstr(output.text, "mimeod: weights: there is no user no-such-user-here\n"));
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		OWN(test_check_accepts_what_a_daemon_could_serve),
		OWN(test_check_of_a_missing_model_or_user_ends_with_1),
		OWN(test_check_of_wrong_settings_ends_with_2_and_names_all),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("e2e-config", tests, NULL, NULL);
}
