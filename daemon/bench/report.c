/* SPDX-License-Identifier: MIT */
#include "daemon/bench/report.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"measure", "MEASURE", TABLE_TEXT},
	REPORT_SAMPLES_COLUMNS,
	{"target", "TARGET", TABLE_TEXT},
	{"met", "MET", TABLE_TEXT},
	{"target_ratio", NULL, TABLE_NUMBER},
	{"target_s", NULL, TABLE_NUMBER},
	REPORT_COLUMNS,
};

unsigned report_n_cpus(void)
{
	cpu_set_t cpus;

	return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (unsigned)CPU_COUNT(&cpus) : 1;
}

const char *report_verdict(double value, double most, bool judged)
{
	if (!judged || !isfinite(value))
		return NULL;
	return value <= most ? "yes" : "no";
}

void report_add(struct report *report, const struct measure *measure)
{
	if (report->n_rows < REPORT_ROWS_MAX)
		report->rows[report->n_rows++] = *measure;
}

static void set_target(
	struct table *table, const struct measure *measure, double median, double ratio)
{
	char text[64], seconds[TABLE_FORMAT_MAX];
	const char *met = NULL;

	if (measure->target_ratio > 0) {
		snprintf(text, sizeof(text), "ratio <= %g", measure->target_ratio);
		table_set_text(table, "target", text);
		table_set_number(table, "target_ratio", measure->target_ratio);
		met = report_verdict(ratio, measure->target_ratio, !measure->unfit);
	} else if (measure->target_seconds > 0) {
		snprintf(text, sizeof(text), "median <= %s",
			table_format_seconds(seconds, measure->target_seconds));
		table_set_text(table, "target", text);
		table_set_number(table, "target_s", measure->target_seconds);
		met = report_verdict(median, measure->target_seconds, !measure->unfit);
	}
	if (met)
		table_set_text(table, "met", met);
}

void report_number(struct table *table, const char *key, double value)
{
	if (isfinite(value))
		table_set_number(table, key, value);
}

void report_common(
	struct table *table, const struct target *target, const char *floor, const char *note)
{
	table_set_text(table, "floor", floor);
	table_set_text(table, "device", target->device);
	table_set_count(table, "n_cpus", report_n_cpus());
	table_set_text(table, "loop", target->loop);
	table_set_text(table, "version", target->version);
	if (note)
		table_set_text(table, "note", note);
}

void report_samples(struct table *table, struct samples *result, struct samples *floor)
{
	double median = samples_quantile(result, 0.5), least = samples_quantile(floor, 0.5);

	table_set_count(table, "samples", result->n);
	report_number(table, "median_s", median);
	report_number(table, "p99_s", samples_quantile(result, 0.99));
	report_number(table, "floor_median_s", least);
	report_number(table, "floor_p99_s", samples_quantile(floor, 0.99));
	report_number(table, "ratio", median / least);
}

void report_model(struct table *table, const struct bench_options *options)
{
	table_set_text(table, "model", options->shape ? options->shape : options->model_dir);
}

void report_cost(
	struct table *table, const struct rates *rates, const struct report_cost *cost)
{
	double bytes = (double)cost->bytes;
	double floor = fmax(bytes / rates->copy, cost->flop / rates->product);

	report_number(table, "seconds", cost->seconds);
	report_number(table, "tb_per_s", bytes / cost->seconds * 1e-12);
	report_number(table, "tflop_per_s", cost->flop / cost->seconds * 1e-12);
	report_number(table, "floor_s", floor);
	report_number(table, "ratio", cost->seconds / floor);
	table_set_count(table, "bytes", cost->bytes);
	report_number(table, "copy_bytes_per_s", rates->copy);
	report_number(table, "product_flop_per_s", rates->product);
}

void report_rates(const char *floor, const struct rates *rates)
{
	printf("floor: %s; %.3g TB/s read and written, %.3g TFLOP/s\n", floor, rates->copy * 1e-12,
		rates->product * 1e-12);
}

static void fill(struct table *table, const struct report *report, const struct measure *measure,
	const struct target *target)
{
	double median = samples_quantile(measure->result, 0.5);
	double floor = samples_quantile(measure->floor, 0.5);

	table_row(table);
	table_set_text(table, "bench", report->bench);
	table_set_text(table, "measure", measure->name);
	report_samples(table, measure->result, measure->floor);
	set_target(table, measure, median, median / floor);
	report_common(table, target, measure->floor_name, measure->note);
}

void report_heading(const char *bench, const struct target *target)
{
	if (target->is_none)
		printf("mimeo-bench %s: device %s, %u CPUs, in process, version %s\n", bench,
			target->device, report_n_cpus(), target->version);
	else
		printf("mimeo-bench %s: device %s, %u CPUs, loop %s, mimeod %s\n", bench,
			target->device, report_n_cpus(), target->loop, target->version);
}

static bool has_one_floor(const struct report *report)
{
	for (uint32_t i = 1; i < report->n_rows; i++) {
		if (strcmp(report->rows[i].floor_name, report->rows[0].floor_name) != 0)
			return false;
	}
	return true;
}

/* What the floors are, and each note once. */
static void print_notes(const struct report *report)
{
	if (has_one_floor(report))
		printf("floor: %s\n", report->rows[0].floor_name);
	else
		for (uint32_t i = 0; i < report->n_rows; i++)
			printf("floor of \"%s\": %s\n", report->rows[i].name,
				report->rows[i].floor_name);
	for (uint32_t i = 0; i < report->n_rows; i++) {
		const char *note = report->rows[i].note;
		bool said = !note;

		for (uint32_t j = 0; j < i && !said; j++)
			said = report->rows[j].note && strcmp(report->rows[j].note, note) == 0;
		if (!said)
			printf("note: %s\n", note);
	}
}

int report_table(const struct table *table, bool json)
{
	int r = table_print(table, stdout, json ? TABLE_AS_JSON : TABLE_AS_TEXT);

	if (r < 0)
		fprintf(stderr, "mimeo-bench: writing the table: %s\n", strerror(-r));
	return r;
}

int report_whole(struct table *table, const char *bench, const struct target *target, bool json)
{
	if (!json)
		report_heading(bench, target);
	int r = report_table(table, json);
	table_free(table);
	return r;
}

int report_costs(const struct report_costs *report, bool json)
{
	struct target target;
	struct table *table;
	int r = table_new(&table, report->columns, report->n_columns, 0);

	if (r < 0)
		return r;
	target_none(&target, report->device);
	for (uint32_t i = 0; i < report->n_rows; i++)
		report->fill(table, &target, report->userdata, i);
	if (!json)
		report_heading(report->bench, &target);
	if (!json && report->line)
		printf("%s\n", report->line);
	r = report_table(table, json);
	table_free(table);
	if (r < 0 || json)
		return r;
	report_rates(report->floor, report->rates);
	if (report->note)
		printf("note: %s\n", report->note);
	return 0;
}

int report_outcome(const char *what, int rc, const char *why)
{
	if (rc)
		fprintf(stderr, "mimeo-bench: %s: %s\n", what, *why ? why : device_strerror(rc));
	return rc != 0;
}

int report_print(const struct report *report, const struct target *target)
{
	struct table *table;
	int r = table_new(&table, columns, sizeof(columns) / sizeof(columns[0]), 0);

	if (r < 0) {
		fprintf(stderr, "mimeo-bench: %s\n", strerror(-r));
		return r;
	}
	for (uint32_t i = 0; i < report->n_rows; i++)
		fill(table, report, &report->rows[i], target);
	r = report_whole(table, report->bench, target, report->json);
	if (r == 0 && !report->json)
		print_notes(report);
	return r;
}
