/* SPDX-License-Identifier: MIT */
#include "tests/ipc/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/output/metrics.h"
#include "daemon/output/table.h"

static const struct table_column columns[] = {
	{"name", "NAME", TABLE_TEXT, .cut = true},
	{"bytes", "MEMORY", TABLE_BYTES},
	{"hidden", NULL, TABLE_COUNT},
	{"took", "TOOK", TABLE_SECONDS},
};

static struct table *sample(unsigned flags)
{
	struct table *table;

	assert_int_equal(table_new(&table, columns, ARRAY_SIZE(columns), flags), 0);
	table_row(table);
	table_set_text(table, "name", "tinycalc");
	table_set_count(table, "bytes", 3700000);
	table_set_count(table, "hidden", 7);
	return table;
}

static char *printed(struct table *table, enum table_form form, int expected)
{
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	assert_int_equal(table_print(table, file, form), expected);
	fclose(file);
	table_free(table);
	return text;
}

static void test_text_has_units_and_right_aligned_numbers(void **state)
{
	char *text = printed(sample(0), TABLE_AS_TEXT, 0);

	assert_string_equal(text, "NAME        MEMORY  TOOK\n"
				  "tinycalc  3.53 MiB     -\n");
	free(text);
}

static void test_json_has_raw_numbers_and_all_columns(void **state)
{
	char *text = printed(sample(0), TABLE_AS_JSON, 0);

	assert_string_equal(text, "[\n  {\n    \"name\": \"tinycalc\",\n    \"bytes\": 3700000,\n"
				  "    \"hidden\": 7,\n    \"took\": null\n  }\n]\n");
	free(text);
}

static void test_wide_columns_are_in_the_wide_text_and_in_json_only(void **state)
{
	static const struct table_column wide[] = {
		{"name", "NAME", TABLE_TEXT},
		{"why", "WHY", TABLE_TEXT, .wide = true},
	};
	static const enum table_form forms[] = {
		TABLE_AS_TEXT, TABLE_AS_WIDE_TEXT, TABLE_AS_JSON};

	for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
		struct table *table;

		assert_int_equal(table_new(&table, wide, ARRAY_SIZE(wide), 0), 0);
		table_row(table);
		table_set_text(table, "name", "a");
		table_set_text(table, "why", "long story");
		char *text = printed(table, forms[i], 0);
		assert_int_equal(strstr(text, "long story") != NULL, forms[i] != TABLE_AS_TEXT);
		assert_non_null(strstr(text, "a"));
		free(text);
	}
}

static void test_narrow_table_cuts_text_to_80_columns(void **state)
{
	static const char name[] = "a name of which the middle part is repeated, is repeated, is repeated, end";

	for (unsigned flags = 0; flags <= TABLE_NARROW; flags += TABLE_NARROW) {
		struct table *table = sample(flags);

		table_row(table);
		table_set_text(table, "name", name);
		char *text = printed(table, TABLE_AS_TEXT, 0);
		assert_int_equal(strstr(text, name) == NULL, flags == TABLE_NARROW);
		assert_int_equal(strcspn(text, "\n") <= 80, flags == TABLE_NARROW);
		assert_non_null(strstr(text, "tinycalc"));
		assert_non_null(strstr(text, "3.53 MiB"));
		free(text);
	}
}

static void test_usual_columns_are_in_the_text_only_where_a_row_has_something_else(void **state)
{
	static const struct table_column usual[] = {
		{"name", "NAME", TABLE_TEXT},
		{"owner", "OWNER", TABLE_TEXT, .usual = "target"},
		{"draft", "DRAFT", TABLE_TEXT, .usual = ""},
		{"tokens", "TOKENS", TABLE_COUNT, .usual = ""},
		{"rate", "RATE", TABLE_NUMBER, .usual = ""},
	};
	static const char *const titles[] = {"NAME", "NAME OWNER DRAFT TOKENS RATE"};

	for (int form = TABLE_AS_TEXT; form <= TABLE_AS_WIDE_TEXT; form++) {
		for (int other = 0; other < 2; other++) {
			struct table *table;

			assert_int_equal(table_new(&table, usual, ARRAY_SIZE(usual), 0), 0);
			table_row(table);
			table_set_text(table, "owner", "target");
			table_set_count(table, "tokens", 0);
			table_set_number(table, "rate", 0);
			table_row(table);
			table_set_text(table, "owner", other ? "model" : "target");
			if (other) {
				table_set_text(table, "draft", "eagle");
				table_set_count(table, "tokens", 4);
				table_set_number(table, "rate", 0.5);
			}
			char *text = printed(table, (enum table_form)form, 0);
			char line[64] = "", *rest;

			text[strcspn(text, "\n")] = '\0';
			for (char *word = strtok_r(text, " ", &rest); word;
				word = strtok_r(NULL, " ", &rest))
				snprintf(line + strlen(line), sizeof(line) - strlen(line), "%s%s",
					line[0] ? " " : "", word);
			assert_string_equal(line, titles[other || form == TABLE_AS_WIDE_TEXT]);
			free(text);
		}
	}
}

static void test_full_disk_is_an_error(void **state)
{
	for (unsigned form = TABLE_AS_TEXT; form <= TABLE_AS_JSON; form++) {
		FILE *full = fopen("/dev/full", "w");
		struct table *table = sample(0);

		assert_non_null(full);
		assert_int_equal(table_print(table, full, (enum table_form)form), -ENOSPC);
		table_free(table);
		fclose(full);
	}
}

static void test_long_value_of_a_record_goes_on_in_the_next_line_on_a_terminal(void **state)
{
	static const struct table_column column = {"path", "path", TABLE_TEXT};
	char path[120], *text;

	memset(path, 'p', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	for (int wide = 0; wide < 2; wide++) {
		struct table *table;

		assert_int_equal(table_new(&table, &column, 1, TABLE_RECORD), 0);
		table_row(table);
		table_set_text(table, "path", path);
		text = printed(table, wide ? TABLE_AS_WIDE_TEXT : TABLE_AS_TEXT, 0);
		assert_int_equal(strcspn(text, "\n"), wide ? 6 + 119 : 80);
		free(text);
	}
}

static void test_record_is_lines_and_one_object(void **state)
{
	char *text = printed(sample(TABLE_RECORD), TABLE_AS_TEXT, 0);

	assert_non_null(strstr(text, "NAME    tinycalc\n"));
	assert_null(strstr(text, "hidden"));
	free(text);
	text = printed(sample(TABLE_RECORD), TABLE_AS_JSON, 0);
	assert_int_equal(text[0], '{');
	free(text);
}

static void test_empty_list_is_an_empty_array(void **state)
{
	struct table *table;

	assert_int_equal(table_new(&table, columns, ARRAY_SIZE(columns), 0), 0);
	char *text = printed(table, TABLE_AS_JSON, 0);
	assert_string_equal(text, "[]\n");
	free(text);
}

static void test_unknown_key_is_an_error_when_printing(void **state)
{
	struct table *table = sample(0);

	table_set_count(table, "nothing", 1);
	free(printed(table, TABLE_AS_TEXT, -EINVAL));
}

static void test_text_in_a_number_column_is_an_error_when_printing(void **state)
{
	struct table *table = sample(0);

	table_set_text(table, "bytes", "many");
	free(printed(table, TABLE_AS_JSON, -EINVAL));
}

static void test_units_change_where_three_digits_end(void **state)
{
	char text[TABLE_FORMAT_MAX];

	assert_string_equal(table_format_bytes(text, 0), "0 B");
	assert_string_equal(table_format_bytes(text, 1023), "1023 B");
	assert_string_equal(table_format_bytes(text, 1024), "1.00 KiB");
	assert_string_equal(table_format_bytes(text, 3.0 * (1ull << 40)), "3.00 TiB");
	assert_string_equal(table_format_seconds(text, 0), "0 s");
	assert_string_equal(table_format_seconds(text, 12.3e-6), "12.3 us");
	assert_string_equal(table_format_seconds(text, 0.9999), "1.00 s");
	assert_string_equal(table_format_seconds(text, 59.999), "1m00s");
	assert_string_equal(table_format_seconds(text, 7500), "2h05m");
	assert_string_equal(table_format_seconds(text, 273600), "3d04h");
	assert_string_equal(table_format_number(text, 1234.5), "1234");
	assert_string_equal(table_format_number(text, 0.5), "0.50");
}

static void test_precise_column_has_six_digits(void **state)
{
	static const struct table_column precise[] = {{"loss", "LOSS", TABLE_PRECISE}, {"ratio", "RATIO", TABLE_NUMBER}};
	struct table *table;

	assert_int_equal(table_new(&table, precise, ARRAY_SIZE(precise), 0), 0);
	table_row(table);
	table_set_number(table, "loss", 14.235);
	table_set_number(table, "ratio", 14.235);
	char *text = printed(table, TABLE_AS_TEXT, 0);
	assert_non_null(strstr(text, "14.2350   14.2\n"));
	free(text);
}

static void test_exposition_names_each_metric_once_and_escapes_labels(void **state)
{
	static struct metrics metrics;
	char text[512];

	metrics = (struct metrics){0};
	metrics_add_labelled(&metrics, METRIC_GAUGE, "m_pages", "Pages",
		(struct metric_label[METRIC_LABELS_MAX]){{"model", "a\"b\\c\nd"}}, 3);
	metrics_add_labelled(&metrics, METRIC_GAUGE, "m_pages", "Pages",
		(struct metric_label[METRIC_LABELS_MAX]){{"model", "e"}}, 4);
	metrics_add_labelled(&metrics, METRIC_GAUGE, "m_pages", "Pages",
		(struct metric_label[METRIC_LABELS_MAX]){{"model", "f,"}, {"at", "\"\\\n"}}, 5);
	metrics_add(&metrics, METRIC_COUNTER, "m_total", "All", 4503599627370497.0);
	metrics_add(&metrics, METRIC_GAUGE, "m_seconds", "Time", 0.125);
	assert_true(metrics_render(&metrics, text, sizeof(text)) > 0);
	assert_string_equal(text,
		"# HELP m_pages Pages\n# TYPE m_pages gauge\n"
		"m_pages{model=\"a\\\"b\\\\c\\nd\"} 3\nm_pages{model=\"e\"} 4\n"
		"m_pages{model=\"f,\",at=\"\\\"\\\\\\n\"} 5\n"
		"# HELP m_total All\n# TYPE m_total counter\n"
		"m_total 4503599627370497\n"
		"# HELP m_seconds Time\n# TYPE m_seconds gauge\nm_seconds 0.125\n");
}

static void test_exposition_that_does_not_fit_is_refused(void **state)
{
	static struct metrics metrics;
	char text[40];

	metrics = (struct metrics){0};
	metrics_add(&metrics, METRIC_COUNTER, "m_total", "All there is", 1);
	assert_int_equal(metrics_render(&metrics, text, sizeof(text)), -ENOSPC);
}

static void test_metrics_beyond_the_capacity_are_counted(void **state)
{
	static struct metrics metrics;

	metrics = (struct metrics){0};
	for (int i = 0; i < METRICS_MAX + 3; i++)
		metrics_add(&metrics, METRIC_COUNTER, "m_total", "All", i);
	assert_int_equal(metrics.n_samples, METRICS_MAX);
	assert_int_equal(metrics.n_dropped, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text_has_units_and_right_aligned_numbers),
		cmocka_unit_test(test_json_has_raw_numbers_and_all_columns),
		cmocka_unit_test(test_long_value_of_a_record_goes_on_in_the_next_line_on_a_terminal),
		cmocka_unit_test(test_record_is_lines_and_one_object),
		cmocka_unit_test(test_wide_columns_are_in_the_wide_text_and_in_json_only),
		cmocka_unit_test(test_narrow_table_cuts_text_to_80_columns),
		cmocka_unit_test(test_usual_columns_are_in_the_text_only_where_a_row_has_something_else),
		cmocka_unit_test(test_full_disk_is_an_error),
		cmocka_unit_test(test_empty_list_is_an_empty_array),
		cmocka_unit_test(test_unknown_key_is_an_error_when_printing),
		cmocka_unit_test(test_text_in_a_number_column_is_an_error_when_printing),
		cmocka_unit_test(test_units_change_where_three_digits_end),
		cmocka_unit_test(test_precise_column_has_six_digits),
		cmocka_unit_test(test_exposition_names_each_metric_once_and_escapes_labels),
		cmocka_unit_test(test_exposition_that_does_not_fit_is_refused),
		cmocka_unit_test(test_metrics_beyond_the_capacity_are_counted),
	};

	return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
