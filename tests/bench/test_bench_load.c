/* SPDX-License-Identifier: MIT */

/* mimeo-bench load as a user runs it: the numbers of one row go together, and the chart is XML. */

#include "tests/bench/run.h"

/* What holds for any lengths. */
static void assert_consistent(const json_t *rows, size_t i)
{
	static const char *const keys[] = {"first_median_s", "first_p90_s", "first_p99_s",
		"between_median_s", "between_p90_s", "between_p99_s"};
	double seconds = number(rows, i, "seconds"), requests = number(rows, i, "requests");

	assert_near(number(rows, i, "tokens_per_s"), number(rows, i, "tokens") / seconds);
	assert_near(number(rows, i, "requests_per_s"), requests / seconds);
	assert_ratio(rows, i, "between_median_s", "floor_s");
	/* One first token a request; others come together with it or after it. */
	assert_true(number(rows, i, "first_samples") == requests);
	assert_true(number(rows, i, "between_samples") <= number(rows, i, "tokens") - requests);
	assert_true(number(rows, i, "between_samples") > 0);
	for (size_t key = 0; key < 6; key++)
		assert_true(number(rows, i, keys[key]) > 0);
	for (size_t key = 0; key < 6; key += 3) {
		assert_true(number(rows, i, keys[key]) <= number(rows, i, keys[key + 1]));
		assert_true(number(rows, i, keys[key + 1]) <= number(rows, i, keys[key + 2]));
	}
	assert_true(number(rows, i, "first_p99_s") <= seconds);
}

static void test_tokens_are_requests_times_their_length(void **state)
{
	json_t *rows = rows_of(
		"load --processes 1,2 --requests 3 --in-flight 2 --prompt 10 --tokens 5 --prefix 4");

	assert_int_equal(json_array_size(rows), 2);
	for (size_t i = 0; i < 2; i++) {
		double requests = 3 * ((double)i + 1);

		assert_true(number(rows, i, "processes") == (double)i + 1);
		assert_true(number(rows, i, "in_flight") == 2);
		assert_true(number(rows, i, "prefix") == 4);
		assert_true(number(rows, i, "requests") == requests);
		assert_true(number(rows, i, "tokens") == 5 * requests);
		assert_true(number(rows, i, "prompt_tokens") == 10 * requests);
		assert_consistent(rows, i);
	}
	json_decref(rows);
}

static void test_lengths_are_within_their_ranges_and_the_seeds(void **state)
{
	static const char *const seeds[] = {"1", "1", "2"};
	double tokens[3], prompts[3];
	char arguments[256];

	for (size_t i = 0; i < 3; i++) {
		snprintf(arguments, sizeof(arguments), "load --processes 2 --requests 4 "
			"--prompt 8-40 --tokens 3-20 --seed %s", seeds[i]);
		json_t *rows = rows_of(arguments);

		tokens[i] = number(rows, 0, "tokens");
		prompts[i] = number(rows, 0, "prompt_tokens");
		assert_true(tokens[i] >= 8 * 3 && tokens[i] <= 8 * 20);
		assert_true(prompts[i] >= 8 * 8 && prompts[i] <= 8 * 40);
		assert_consistent(rows, 0);
		json_decref(rows);
	}
	assert_true(tokens[0] == tokens[1] && prompts[0] == prompts[1]);
	assert_true(tokens[0] != tokens[2] || prompts[0] != prompts[2]);
}

static void test_each_row_says_where_and_when_it_was_measured(void **state)
{
	json_t *rows = rows_of("load --processes 1 --requests 1 --prompt 4 --tokens 2");

	assert_ptr_equal(strstr(text(rows, 0, "device"), "cpu"), text(rows, 0, "device"));
	assert_int_equal(strlen(text(rows, 0, "date")), strlen("2030-01-02T03:04:05Z"));
	assert_true(*text(rows, 0, "version") >= '0' && *text(rows, 0, "version") <= '9');
	assert_true(*text(rows, 0, "commit"));
	assert_non_null(strstr(text(rows, 0, "model"), "tinycalc"));
	assert_non_null(strstr(text(rows, 0, "floor"), "reading each weight once"));
	json_decref(rows);
}

static void test_common_prefix_is_computed_once_for_all(void **state)
{
	json_t *rows = rows_of("load --processes 2 --in-flight 1 --requests 4 --prompt 80 --tokens 2 --prefix 64");

	/* The prefix is in the cache before, for 8 requests of 4 pages of 16 tokens. */
	assert_true(number(rows, 0, "cached_tokens") == 8 * 64);
	json_decref(rows);
	rows = rows_of("load --processes 2 --in-flight 1 --requests 4 --prompt 80 --tokens 2 --prefix 64 "
		"--prefix-sharing none");
	assert_true(number(rows, 0, "cached_tokens") == 0);
	json_decref(rows);
}

struct mode_case {
	const char *configured, *resolved, *eager; /* the first reason for eager steps; NULL: none */
	double graphs;
};

static void assert_mode(struct mode_case *mode)
{
	char arguments[256];

	snprintf(arguments, sizeof(arguments), "load --processes 2 --in-flight 1 --requests 4 "
		"--prompt 4-64 --tokens 2-16 --graph-mode %s", mode->configured);
	json_t *rows = rows_of(arguments);
	double asked = number(rows, 0, "prompt_tokens") + number(rows, 0, "tokens");
	double steps = number(rows, 0, "steps"), eager = number(rows, 0, "eager_steps");

	assert_string_equal(text(rows, 0, "graph_mode"), mode->resolved);
	assert_true(number(rows, 0, "step_mean_s") > 0);
	/* All of a request goes through the model but its last token; a step or two too many may. */
	assert_true(number(rows, 0, "tokens_taken_in") >= asked - 8);
	assert_true(number(rows, 0, "tokens_taken_in") <= asked + 8);
	/* The run that is not measured has other prompts. */
	assert_true(number(rows, 0, "cached_tokens") == 0);
	/* Two processes with a request each: no step gives more than two tokens. */
	assert_true(steps >= number(rows, 0, "tokens") / 2);
	mode->graphs = number(rows, 0, "graphs");
	if (mode->eager)
		assert_ptr_equal(strstr(text(rows, 0, "eager"), mode->eager), text(rows, 0, "eager"));
	else
		assert_true(eager == 0);
	/* Without graphs nothing is padded and all is eager. */
	if (mode->graphs == 0)
		assert_true(number(rows, 0, "padded_percent") == 0 && eager == steps);
	else
		assert_true(eager < steps);
	if (strcmp(mode->configured, mode->resolved) != 0)
		assert_non_null(strstr(text(rows, 0, "graph_mode_reason"), "paged"));
	json_decref(rows);
}

static void test_each_graph_mode_serves_with_the_graphs_that_it_has(void **state)
{
	/* The paged backend takes no mixed batch in a graph. */
	struct mode_case modes[] = {{"NONE", "NONE", "mode "}, {"PIECEWISE", "PIECEWISE", NULL},
		{"FULL_DECODE_ONLY", "FULL_DECODE_ONLY", "mixed "},
		{"FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE", NULL},
		{"FULL", "FULL_AND_PIECEWISE", NULL}};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		assert_mode(&modes[i]);
	assert_true(modes[0].graphs == 0);
	assert_true(modes[3].graphs == modes[1].graphs + modes[2].graphs);
	assert_true(modes[4].graphs == modes[3].graphs);
}

/* Panels, and a line for each of them, of a chart that an XML parser accepts. */
static void assert_chart(const char *arguments, int n_panels, int n_lines)
{
	char expected[64], output[OUTPUT_MAX];

	snprintf(expected, sizeof(expected), "svg %d %d\n", n_lines, 34 + 300 * n_panels);
	shell(output, "f=$(mktemp); \"$MIMEO_BUILD\"/%s --device cpu --model " MODELS "tinycalc %s "
		"--plot $f >/dev/null; python3 -c 'import sys, xml.dom.minidom as m; "
		"d = m.parse(sys.argv[1]); print(d.documentElement.tagName, "
		"len(d.getElementsByTagName(\"polyline\")), d.documentElement.getAttribute(\"height\"))' "
		"$f; rm $f", bench_program, arguments);
	assert_string_equal(output, expected);
}

static void test_chart_has_throughput_and_latency_over_processes(void **state)
{
	assert_chart("load --processes 1,2 --requests 2 --prompt 8 --tokens 4", 3, 8);
}

static void test_chart_of_decode_has_rows_and_contexts(void **state)
{
	assert_chart("decode --batches 1,2 --contexts 64,128 --count 4", 3, 10);
}

static void test_ranges_and_charts_are_refused_where_they_make_no_sense(void **state)
{
	static const char *const refused[] = {"load --prompt 5-3", "load --prompt 5-",
		"load --prompt -5", "load --tokens 1", "load --in-flight 0", "load --requests 0",
		"load --seed 0", "load --processes 65", "share --prompt 5-9",
		"attach --plot /tmp/x.svg"};

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		assert_run(2, refused[i], "see --help");
	assert_run(1, "--device cpu load --processes 1 --requests 1 --prompt 4 --tokens 2 "
		"--plot /nonexistent/x.svg", "/nonexistent/x.svg: No such file or directory");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_common_prefix_is_computed_once_for_all),
		cmocka_unit_test(test_tokens_are_requests_times_their_length),
		cmocka_unit_test(test_lengths_are_within_their_ranges_and_the_seeds),
		cmocka_unit_test(test_each_graph_mode_serves_with_the_graphs_that_it_has),
		cmocka_unit_test(test_each_row_says_where_and_when_it_was_measured),
		cmocka_unit_test(test_chart_has_throughput_and_latency_over_processes),
		cmocka_unit_test(test_chart_of_decode_has_rows_and_contexts),
		cmocka_unit_test(test_ranges_and_charts_are_refused_where_they_make_no_sense),
	};

	return cmocka_run_group_tests_name("bench_load", tests, NULL, NULL);
}
