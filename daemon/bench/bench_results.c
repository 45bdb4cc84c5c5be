/* SPDX-License-Identifier: MIT */
#include "daemon/bench/bench_results.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "build-config.h"
#include "daemon/bench/fail.h"

#define ROWS_MAX 2048u
#define COLUMNS_MAX 64u
#define LINES_MAX 32u
#define TEXT_MAX (1u << 20)

struct result_cell {
	enum { CELL_NONE, CELL_EMPTY, CELL_TEXT, CELL_VALUE } kind;
	uint32_t text; /* offset */
	double value;
};

struct result_row {
	uint32_t floor, note; /* texts' offsets; 0: none */
	struct result_cell cells[COLUMNS_MAX];
};

struct results {
	const char *bench, *model;
	char device[128], loop[16], version[32], date[32];
	bool in_process;
	struct {
		const char *key, *title;
		enum table_unit unit;
	} columns[COLUMNS_MAX];
	uint32_t n_columns, n_rows;
	struct lines {
		uint32_t n, text[LINES_MAX];
	} heads, floors, lines, notes; /* each once */
	uint32_t n_text;
	char text[TEXT_MAX]; /* from 1 on; 0 is no text */
	struct result_row rows[ROWS_MAX];
};

int results_new(struct results **ret, const char *bench, const char *model)
{
	struct results *results = mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	time_t now = time(NULL);
	struct tm utc;

	if (results == MAP_FAILED)
		return -ENOMEM;
	results->bench = bench;
	results->model = model;
	results->n_text = 1;
	results->in_process = true;
	strftime(results->date, sizeof(results->date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
	results_machine(results, "?", NULL, NULL);
	*ret = results;
	return 0;
}

void results_free(struct results *results)
{
	if (results)
		munmap(results, sizeof(*results));
}

/* "cpu" alone does not identify a machine: the processor's own name does. */
static void results_add_cpu_name(struct results *results)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[256], name[96];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "model name : %95[^\n]", name) == 1) {
			snprintf(results->device, sizeof(results->device), "cpu (%s)", name);
			break;
		}
	}
	if (file)
		fclose(file);
}

void results_machine(
	struct results *results, const char *device, const char *loop, const char *version)
{
	snprintf(results->device, sizeof(results->device), "%s", device);
	snprintf(results->loop, sizeof(results->loop), "%s", loop ? loop : "none");
	snprintf(results->version, sizeof(results->version), "%s",
		version ? version : MIMEO_VERSION);
	results->in_process = !loop;
	if (strcmp(device, "cpu") == 0)
		results_add_cpu_name(results);
}

const char *results_device(const struct results *results)
{
	return results->device;
}

bool results_on_cpu(const struct results *results)
{
	return strncmp(results->device, "cpu", 3) == 0;
}

unsigned results_n_cpus(void)
{
	cpu_set_t cpus;

	return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (unsigned)CPU_COUNT(&cpus) : 1;
}

/* ---- filling ---- */

static uint32_t results_keep(struct results *results, const char *text)
{
	size_t length = strlen(text) + 1;
	uint32_t at = results->n_text;

	assert(length <= TEXT_MAX - at);
	memcpy(results->text + at, text, length);
	results->n_text += (uint32_t)length;
	return at;
}

void results_row(struct results *results)
{
	assert(results->n_rows < ROWS_MAX);
	results->n_rows++;
}

static struct result_row *results_last(struct results *results)
{
	assert(results->n_rows > 0);
	return &results->rows[results->n_rows - 1];
}

static struct result_cell *results_cell(
	struct results *results, const char *key, const char *title, enum table_unit unit)
{
	uint32_t i = 0;

	while (i < results->n_columns && strcmp(results->columns[i].key, key) != 0)
		i++;
	if (i == results->n_columns) {
		assert(i < COLUMNS_MAX);
		results->columns[i].key = key;
		results->columns[i].title = title;
		results->columns[i].unit = unit;
		results->n_columns++;
	}
	assert(results->columns[i].unit == unit);
	return &results_last(results)->cells[i];
}

void results_text(struct results *results, const char *key, const char *title, const char *text)
{
	struct result_cell *cell = results_cell(results, key, title, TABLE_TEXT);

	*cell = (struct result_cell){.kind = text ? CELL_TEXT : CELL_EMPTY,
		.text = text ? results_keep(results, text) : 0};
}

void results_value(struct results *results, const char *key, const char *title,
	enum table_unit unit, double value)
{
	assert(unit != TABLE_TEXT);
	*results_cell(results, key, title, unit) =
		(struct result_cell){.kind = isfinite(value) ? CELL_VALUE : CELL_EMPTY, .value = value};
}

void results_samples(struct results *results, struct samples *result, struct samples *floor)
{
	double median = samples_quantile(result, 0.5), least = samples_quantile(floor, 0.5);

	results_count(results, "samples", "SAMPLES", result->n);
	results_seconds(results, "median_s", "MEDIAN", median);
	results_seconds(results, "p99_s", "P99", samples_quantile(result, 0.99));
	results_seconds(results, "floor_median_s", "FLOOR", least);
	results_seconds(results, "floor_p99_s", "FLOOR P99", samples_quantile(floor, 0.99));
	results_number(results, "ratio", "RATIO", median / least);
}

void results_cost(
	struct results *results, const struct rates *rates, const struct results_cost *cost)
{
	double floor = fmax(cost->bytes / rates->copy, cost->flop / rates->product);

	results_seconds(results, "seconds", "TIME", cost->seconds);
	results_number(results, "tb_per_s", "TB/S", cost->bytes / cost->seconds * 1e-12);
	results_number(results, "tflop_per_s", "TFLOP/S", cost->flop / cost->seconds * 1e-12);
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", cost->seconds / floor);
	results_value(results, "bytes", NULL, TABLE_COUNT, cost->bytes);
	results_number(results, "copy_bytes_per_s", NULL, rates->copy);
	results_number(results, "product_flop_per_s", NULL, rates->product);
}

static const char *results_verdict(double value, double most, bool judged)
{
	return !judged || !isfinite(value) ? NULL : value <= most ? "yes" : "no";
}

void results_target(struct results *results, const char *target, const char *met)
{
	results_text(results, "target", "TARGET", target);
	results_text(results, "met", "MET", met);
}

void results_target_ratio(struct results *results, double ratio, double most, bool judged)
{
	char text[64];

	snprintf(text, sizeof(text), "ratio <= %g", most);
	results_target(results, text, results_verdict(ratio, most, judged));
	results_number(results, "target_ratio", NULL, most);
}

void results_target_seconds(struct results *results, double seconds, double most, bool judged)
{
	char text[64], limit[TABLE_FORMAT_MAX];

	snprintf(text, sizeof(text), "<= %s", table_format_seconds(limit, most));
	results_target(results, text, results_verdict(seconds, most, judged));
	results_number(results, "target_s", NULL, most);
}

/* The text of a line that is printed once; its offset. */
static uint32_t results_add(struct results *results, struct lines *lines, const char *text)
{
	for (uint32_t i = 0; i < lines->n; i++) {
		if (strcmp(results->text + lines->text[i], text) == 0)
			return lines->text[i];
	}
	assert(lines->n < LINES_MAX);
	return lines->text[lines->n++] = results_keep(results, text);
}

void results_floor(struct results *results, const char *floor)
{
	results_last(results)->floor = floor ? results_add(results, &results->floors, floor) : 0;
}

void results_note(struct results *results, const char *note)
{
	results_last(results)->note = note ? results_add(results, &results->notes, note) : 0;
}

static void results_line(
	struct results *results, struct lines *lines, const char *format, va_list arguments)
{
	char line[512];

	vsnprintf(line, sizeof(line), format, arguments);
	results_add(results, lines, line);
}

void results_head(struct results *results, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	results_line(results, &results->heads, format, arguments);
	va_end(arguments);
}

void results_explain(struct results *results, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	results_line(results, &results->lines, format, arguments);
	va_end(arguments);
}

double results_get(const struct results *results, uint32_t row, const char *key)
{
	assert(row < results->n_rows);
	for (uint32_t i = 0; i < results->n_columns; i++) {
		const struct result_cell *cell = &results->rows[row].cells[i];

		if (strcmp(results->columns[i].key, key) == 0)
			return cell->kind == CELL_VALUE ? cell->value : NAN;
	}
	return NAN;
}

uint32_t results_n_rows(const struct results *results)
{
	return results->n_rows;
}

/* ---- printing ---- */

/* Behind the bench's own columns, in JSON alone. */
static const struct table_column common[] = {
	{"floor", NULL, TABLE_TEXT},
	{"note", NULL, TABLE_TEXT},
	{"model", NULL, TABLE_TEXT},
	{"device", NULL, TABLE_TEXT},
	{"date", NULL, TABLE_TEXT},
	{"n_cpus", NULL, TABLE_COUNT},
	{"loop", NULL, TABLE_TEXT},
	{"version", NULL, TABLE_TEXT},
};
#define N_COMMON (sizeof(common) / sizeof(common[0]))

static const char *results_at(const struct results *results, uint32_t text)
{
	assert(text < results->n_text);
	return text ? results->text + text : NULL;
}

static void results_fill(
	const struct results *results, const struct result_row *row, struct table *table)
{
	table_row(table);
	table_set_text(table, "bench", results->bench);
	for (uint32_t i = 0; i < results->n_columns; i++) {
		const struct result_cell *cell = &row->cells[i];
		const char *key = results->columns[i].key;
		bool whole = results->columns[i].unit == TABLE_COUNT ||
			     results->columns[i].unit == TABLE_BYTES;

		if (cell->kind == CELL_TEXT)
			table_set_text(table, key, results_at(results, cell->text));
		else if (cell->kind == CELL_VALUE && whole)
			table_set_count(table, key, (uint64_t)cell->value);
		else if (cell->kind == CELL_VALUE)
			table_set_number(table, key, cell->value);
	}
	if (row->floor)
		table_set_text(table, "floor", results_at(results, row->floor));
	if (row->note)
		table_set_text(table, "note", results_at(results, row->note));
	if (results->model)
		table_set_text(table, "model", results->model);
	table_set_text(table, "device", results->device);
	table_set_text(table, "date", results->date);
	table_set_count(table, "n_cpus", results_n_cpus());
	table_set_text(table, "loop", results->loop);
	table_set_text(table, "version", results->version);
}

static int results_table(const struct results *results, bool json)
{
	struct table_column columns[1 + COLUMNS_MAX + N_COMMON] = {{"bench", NULL, TABLE_TEXT}};
	size_t n = 1;
	struct table *table;

	for (uint32_t i = 0; i < results->n_columns; i++)
		columns[n++] = (struct table_column){results->columns[i].key,
			results->columns[i].title, results->columns[i].unit};
	memcpy(columns + n, common, sizeof(common));
	int rc = table_new(&table, columns, n + N_COMMON, 0);
	if (rc < 0)
		return bench_fail(rc, "%s", strerror(-rc));
	for (uint32_t i = 0; i < results->n_rows; i++)
		results_fill(results, &results->rows[i], table);
	rc = table_print(table, stdout, json ? TABLE_AS_JSON : TABLE_AS_TEXT);
	table_free(table);
	return rc < 0 ? bench_fail(rc, "writing the table: %s", strerror(-rc)) : 0;
}

/* The first row with this floor, by its first text that the table shows. */
static const char *results_label(const struct results *results, uint32_t floor)
{
	uint32_t row = 0;

	while (row < results->n_rows && results->rows[row].floor != floor)
		row++;
	for (uint32_t i = 0; i < results->n_columns && row < results->n_rows; i++) {
		const struct result_cell *cell = &results->rows[row].cells[i];

		if (cell->kind == CELL_TEXT && results->columns[i].title)
			return results_at(results, cell->text);
	}
	return "a row";
}

static void results_print_lines(
	const struct results *results, const struct lines *lines, const char *prefix)
{
	for (uint32_t i = 0; i < lines->n; i++)
		printf("%s%s\n", prefix, results_at(results, lines->text[i]));
}

int results_print(const struct results *results, bool json)
{
	if (json)
		return results_table(results, true);
	printf("%s %s: device %s, %u CPUs, ", program_invocation_short_name, results->bench,
		results->device, results_n_cpus());
	if (results->in_process)
		printf("in process, version %s\n", results->version);
	else
		printf("loop %s, mimeod %s\n", results->loop, results->version);
	results_print_lines(results, &results->heads, "");
	int rc = results_table(results, false);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < results->floors.n && results->floors.n > 1; i++)
		printf("floor of \"%s\": %s\n", results_label(results, results->floors.text[i]),
			results_at(results, results->floors.text[i]));
	if (results->floors.n == 1)
		results_print_lines(results, &results->floors, "floor: ");
	results_print_lines(results, &results->lines, "");
	results_print_lines(results, &results->notes, "note: ");
	return 0;
}
