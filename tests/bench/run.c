/* SPDX-License-Identifier: MIT */
#include "tests/bench/run.h"

const char *bench_program = "daemon/mimeo-bench";

int shell(char output[OUTPUT_MAX], const char *format, ...)
{
	char command[2048];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(command, sizeof(command), format, arguments);
	va_end(arguments);
	FILE *pipe = popen(command, "re");
	assert_non_null(pipe);
	output[fread(output, 1, OUTPUT_MAX - 1, pipe)] = '\0';
	int status = pclose(pipe);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

void assert_run(int status, const char *arguments, const char *message)
{
	char output[OUTPUT_MAX];

	assert_int_equal(
		shell(output, "\"$MIMEO_BUILD\"/%s %s 2>&1", bench_program, arguments), status);
	assert_non_null(strstr(output, message));
}

void assert_one_line(int status, const char *arguments, const char *message)
{
	char output[OUTPUT_MAX];

	assert_int_equal(
		shell(output, "\"$MIMEO_BUILD\"/%s %s 2>&1", bench_program, arguments), status);
	assert_non_null(strstr(output, message));
	assert_ptr_equal(strchr(output, '\n'), output + strlen(output) - 1);
}

void run_in_folder(const char *arguments, char output[OUTPUT_MAX])
{
	shell(output, "d=$(mktemp -d); chmod 711 $d; TMPDIR=$d \"$MIMEO_BUILD\"/%s %s; echo \"status $?\"; "
		"rmdir $d && echo empty", bench_program, arguments);
}

void run_shipped(const char *arguments, char output[OUTPUT_MAX])
{
	assert_int_equal(shell(output, "\"$MIMEO_BUILD\"/%s --device cpu --model " MODELS "tinycalc %s",
		bench_program, arguments), 0);
}

json_t *rows_of_model(const char *model, const char *arguments)
{
	char output[OUTPUT_MAX];

	assert_int_equal(shell(output, "\"$MIMEO_BUILD\"/%s --json --device cpu %s %s", bench_program,
		model, arguments), 0);
	json_t *rows = json_loads(output, 0, NULL);
	assert_true(json_is_array(rows));
	return rows;
}

json_t *rows_of(const char *arguments)
{
	return rows_of_model("--model " MODELS "tinycalc", arguments);
}

json_t *rows_of_tiny(const char *arguments)
{
	return rows_of_model("--shape tiny", arguments);
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

void assert_near(double value, double expected)
{
	assert_true(fabs(value / expected - 1) < 1e-6);
}

void assert_ratio(const json_t *rows, size_t row, const char *value, const char *floor)
{
	assert_true(number(rows, row, value) > 0 && number(rows, row, floor) > 0);
	assert_near(number(rows, row, "ratio"), number(rows, row, value) / number(rows, row, floor));
}

void assert_measured(const json_t *rows, const char *const *measures, size_t n, int samples)
{
	assert_int_equal(json_array_size(rows), n);
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(text(rows, i, "measure"), measures[i]);
		assert_true(number(rows, i, "samples") == samples);
		assert_true(number(rows, i, "median_s") <= number(rows, i, "p99_s"));
		assert_true(number(rows, i, "floor_median_s") <= number(rows, i, "floor_p99_s"));
		assert_ratio(rows, i, "median_s", "floor_median_s");
		assert_true(strncmp(text(rows, i, "device"), "cpu", 3) == 0);
		assert_true(*text(rows, i, "floor") != '\0');
	}
}
