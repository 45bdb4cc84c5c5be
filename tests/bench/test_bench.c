/* SPDX-License-Identifier: MIT */

/*
 * mimeo-bench as a user runs it: what it prints is whole and consistent. How large the figures are
 * is the machine's affair, and no test's.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#define OUTPUT_MAX 65536

/* Runs it with these arguments: its exit status, and what it wrote to both outputs or to one. */
static int run(const char *arguments, const char *outputs, char output[OUTPUT_MAX])
{
	const char *build = getenv("MIMEO_BUILD");
	char command[2048];
	size_t n;
	FILE *pipe;
	int status;

	snprintf(command, sizeof(command), "'%s/daemon/mimeo-bench' %s %s", build ? build : ".",
		arguments, outputs);
	pipe = popen(command, "re");
	assert_non_null(pipe);
	n = fread(output, 1, OUTPUT_MAX - 1, pipe);
	output[n] = '\0';
	status = pclose(pipe);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* The rows that a bench of the shipped model writes as JSON. */
static json_t *rows_of(const char *arguments)
{
	const char *source = getenv("MIMEO_SOURCE");
	char all[1024], output[OUTPUT_MAX];
	json_t *rows;

	snprintf(all, sizeof(all), "--json --device cpu --model '%s/examples/models/tinycalc' %s",
		source ? source : ".", arguments);
	assert_int_equal(run(all, "", output), 0);
	rows = json_loads(output, 0, NULL);
	assert_true(json_is_array(rows));
	return rows;
}

static double number(const json_t *rows, size_t row, const char *key)
{
	const json_t *value = json_object_get(json_array_get(rows, row), key);

	assert_true(json_is_number(value));
	return json_number_value(value);
}

static const char *text(const json_t *rows, size_t row, const char *key)
{
	const char *value = json_string_value(json_object_get(json_array_get(rows, row), key));

	assert_non_null(value);
	return value;
}

/* Each row: so many samples, a median that is not above the P99, and the same of its floor. */
static void assert_measured(const json_t *rows, const char *const *measures, size_t n, int samples)
{
	assert_int_equal(json_array_size(rows), n);
	for (size_t i = 0; i < n; i++) {
		double median = number(rows, i, "median_s");
		double floor = number(rows, i, "floor_median_s");

		assert_string_equal(text(rows, i, "measure"), measures[i]);
		assert_true(number(rows, i, "samples") == samples);
		assert_true(median > 0 && median <= number(rows, i, "p99_s"));
		assert_true(floor > 0 && floor <= number(rows, i, "floor_p99_s"));
		assert_true(number(rows, i, "ratio") > 0.999 * median / floor);
		assert_true(number(rows, i, "ratio") < 1.001 * median / floor);
		assert_true(strncmp(text(rows, i, "device"), "cpu", 3) == 0);
		assert_true(*text(rows, i, "floor") != '\0');
	}
}

static void test_attach_prints_each_leg_beside_its_floor(void **state)
{
	static const char *const measures[] = {
		"connect and handshake", "to the first token", "to the first token of a graph"};
	json_t *rows = rows_of("attach --count 2");

	(void)state;
	assert_measured(rows, measures, 3, 2);
	assert_true(number(rows, 0, "median_s") < number(rows, 1, "median_s"));
	assert_true(number(rows, 1, "median_s") < number(rows, 2, "median_s"));
	assert_true(number(rows, 2, "target_s") == 0.010);
	json_decref(rows);
}

static void test_kill_sees_everything_come_back(void **state)
{
	static const char *const measures[] = {
		"pages back", "slots back", "file descriptors back", "all of it back"};
	json_t *rows = rows_of("kill --count 3");

	(void)state;
	assert_measured(rows, measures, 4, 3);
	for (size_t i = 0; i < 3; i++)
		assert_true(number(rows, i, "median_s") <= number(rows, 3, "median_s"));
	json_decref(rows);
}

static void test_share_tells_the_rows_of_its_replays(void **state)
{
	json_t *rows = rows_of("share --processes 1,2 --tokens 12");

	(void)state;
	assert_int_equal(json_array_size(rows), 2);
	for (size_t i = 0; i < 2; i++) {
		assert_true(number(rows, i, "processes") == (double)i + 1);
		assert_true(number(rows, i, "tokens") == 12 * ((double)i + 1));
		assert_true(number(rows, i, "floor_median_s") > 0);
		assert_true(number(rows, i, "rows_per_replay") <= (double)i + 1);
	}
	/* The first token is the prompt's; with one process all others come out of a graph. */
	assert_true(number(rows, 0, "replays") >= 11);
	assert_true(number(rows, 0, "shared_replays") == 0);
	json_decref(rows);
}

static void test_more_tokens_than_the_model_takes_are_refused(void **state)
{
	char arguments[1024], output[OUTPUT_MAX];
	const char *source = getenv("MIMEO_SOURCE");

	(void)state;
	snprintf(arguments, sizeof(arguments),
		"--device cpu --model '%s/examples/models/tinycalc' share --processes 1 "
		"--tokens 1000000",
		source ? source : ".");
	assert_int_equal(run(arguments, "2>&1 >/dev/null", output), 1);
	assert_non_null(strstr(output, "the model's length leaves room for"));
}

static void test_table_names_device_and_floor(void **state)
{
	char arguments[1024], output[OUTPUT_MAX];
	const char *source = getenv("MIMEO_SOURCE");

	(void)state;
	snprintf(arguments, sizeof(arguments),
		"--device cpu --model '%s/examples/models/tinycalc' attach --count 1",
		source ? source : ".");
	assert_int_equal(run(arguments, "", output), 0);
	assert_non_null(strstr(output, "mimeo-bench attach: device cpu"));
	assert_non_null(strstr(output, "MEDIAN"));
	assert_non_null(strstr(output, "\nfloor: connecting to a Unix socket"));
}

static void test_nonsense_is_status_2_and_no_daemon_status_1(void **state)
{
	char output[OUTPUT_MAX];

	(void)state;
	assert_int_equal(run("", "2>&1", output), 2);
	assert_int_equal(run("melt", "2>&1", output), 2);
	assert_non_null(strstr(output, "there is no bench \"melt\""));
	assert_int_equal(run("attach --count x", "2>&1", output), 2);
	assert_int_equal(run("attach --tokens 5", "2>&1", output), 2);
	assert_int_equal(run("share --count 5", "2>&1", output), 2);
	assert_int_equal(run("attach --socket /nonexistent/x.sock", "2>&1", output), 1);
}

static void test_one_failure_is_told_in_one_line(void **state)
{
	char output[OUTPUT_MAX];

	(void)state;
	assert_int_equal(run("ring --socket /nonexistent/x.sock", "2>&1", output), 1);
	assert_non_null(strstr(output, "/nonexistent/x.sock"));
	assert_ptr_equal(strchr(output, '\n'), output + strlen(output) - 1);
}

/* A copy of the program, where nothing is beside it. */
static void test_missing_model_is_status_1_with_each_place_named(void **state)
{
	char folder[] = "/tmp/mimeo-bench-test-XXXXXX", command[2048], output[OUTPUT_MAX];
	const char *build = getenv("MIMEO_BUILD");

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(command, sizeof(command),
		"mkdir %s/a %s/a/b %s/a/b/c && cp '%s/daemon/mimeo-bench' %s/a/b/c && cd %s && "
		"LD_LIBRARY_PATH='%s/sdk' a/b/c/mimeo-bench --mimeod /bin/true attach 2>&1; "
		"echo \"status $?\"; cd / && rm -r %s",
		folder, folder, folder, build ? build : ".", folder, folder, build ? build : ".",
		folder);
	FILE *pipe = popen(command, "re");
	assert_non_null(pipe);
	output[fread(output, 1, OUTPUT_MAX - 1, pipe)] = '\0';
	pclose(pipe);
	assert_non_null(strstr(output, "a/b/c/../share/mimeo/models/tinycalc"));
	assert_non_null(strstr(output, "a/b/c/../../examples/models/tinycalc"));
	assert_non_null(strstr(output, "\nstatus 1\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attach_prints_each_leg_beside_its_floor),
		cmocka_unit_test(test_kill_sees_everything_come_back),
		cmocka_unit_test(test_share_tells_the_rows_of_its_replays),
		cmocka_unit_test(test_more_tokens_than_the_model_takes_are_refused),
		cmocka_unit_test(test_table_names_device_and_floor),
		cmocka_unit_test(test_nonsense_is_status_2_and_no_daemon_status_1),
		cmocka_unit_test(test_one_failure_is_told_in_one_line),
		cmocka_unit_test(test_missing_model_is_status_1_with_each_place_named),
	};

	return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
