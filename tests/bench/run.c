/* SPDX-License-Identifier: MIT */
#include "tests/bench/run.h"

const char *bench_program = "daemon/mimeo-bench";

int run(const char *arguments, const char *outputs, char output[OUTPUT_MAX])
{
	const char *build = getenv("MIMEO_BUILD");
	char command[2048];
	size_t n;
	FILE *pipe;
	int status;

	snprintf(command, sizeof(command), "'%s/%s' %s %s", build ? build : ".", bench_program,
		arguments, outputs);
	pipe = popen(command, "re");
	assert_non_null(pipe);
	n = fread(output, 1, OUTPUT_MAX - 1, pipe);
	output[n] = '\0';
	status = pclose(pipe);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

void run_in_folder(const char *arguments, const char *outputs, char output[OUTPUT_MAX])
{
	char folder[] = "/tmp/mimeo-bench-test-XXXXXX", command[2048];
	const char *build = getenv("MIMEO_BUILD");

	assert_non_null(mkdtemp(folder));
	snprintf(command, sizeof(command),
		"TMPDIR=%s '%s/%s' %s %s; echo \"status $?\"; rmdir %s && echo empty",
		folder, build ? build : ".", bench_program, arguments, outputs, folder);
	FILE *pipe = popen(command, "re");
	assert_non_null(pipe);
	output[fread(output, 1, OUTPUT_MAX - 1, pipe)] = '\0';
	pclose(pipe);
}

void run_shipped(const char *arguments, char output[OUTPUT_MAX])
{
	const char *source = getenv("MIMEO_SOURCE");
	char all[2048];

	snprintf(all, sizeof(all), "--device cpu --model '%s/examples/models/tinycalc' %s",
		source ? source : ".", arguments);
	assert_int_equal(run(all, "", output), 0);
}

json_t *rows_of(const char *arguments)
{
	char all[1024], output[OUTPUT_MAX];
	json_t *rows;

	snprintf(all, sizeof(all), "--json %s", arguments);
	run_shipped(all, output);
	rows = json_loads(output, 0, NULL);
	assert_true(json_is_array(rows));
	return rows;
}

double number(const json_t *rows, size_t row, const char *key)
{
	const json_t *value = json_object_get(json_array_get(rows, row), key);

	assert_true(json_is_number(value));
	return json_number_value(value);
}

const char *text(const json_t *rows, size_t row, const char *key)
{
	const char *value = json_string_value(json_object_get(json_array_get(rows, row), key));

	assert_non_null(value);
	return value;
}

void assert_measured(const json_t *rows, const char *const *measures, size_t n, int samples)
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

json_t *rows_of_tiny(const char *arguments)
{
	char all[1024], output[OUTPUT_MAX];
	json_t *rows;

	snprintf(all, sizeof(all), "--json --device cpu --shape tiny %s", arguments);
	assert_int_equal(run(all, "", output), 0);
	rows = json_loads(output, 0, NULL);
	assert_true(json_is_array(rows));
	return rows;
}

void assert_ratio(const json_t *rows, size_t row, const char *value, const char *floor)
{
	double ratio = number(rows, row, value) / number(rows, row, floor);

	assert_true(number(rows, row, value) > 0 && number(rows, row, floor) > 0);
	assert_true(number(rows, row, "ratio") > 0.999 * ratio);
	assert_true(number(rows, row, "ratio") < 1.001 * ratio);
}
