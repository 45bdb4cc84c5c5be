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

#include "bench_commit.h"
#include "build-config.h"
#include "daemon/bench/fail.h"

#define ROWS_MAX 2048u
#define COLUMNS_MAX 64u
#define EXPLANATIONS_MAX 4096u
#define TEXT_MAX (1u << 20)

struct result_cell {
	const char *text; /* owned; NULL: the cell is a number or empty */
	double value;
	bool has_value;
};

struct results {
	const char *bench, *model, *head_dtype, *kv_dtype;
	char device[128], loop[16], version[32], date[32];
	bool in_process;
	struct table_column columns[COLUMNS_MAX];
	uint32_t n_columns, n_rows;
	char explanations[EXPLANATIONS_MAX]; /* lines */
	uint32_t n_text;
	char text[TEXT_MAX]; /* of cells */
	struct result_cell rows[ROWS_MAX][COLUMNS_MAX];
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

/* "cpu" does not identify a machine: add the processor's name. */
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

void results_dtypes(struct results *results, const char *head, const char *kv)
{
	results->head_dtype = head;
	results->kv_dtype = kv;
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

/* n_columns: there is no such column. */
static uint32_t results_column(const struct results *results, const char *key)
{
	uint32_t i = 0;

	while (i < results->n_columns && strcmp(results->columns[i].key, key) != 0)
		i++;
	return i;
}

static struct result_cell *results_cell(
	struct results *results, const char *key, const char *title, enum table_unit unit)
{
	uint32_t i = results_column(results, key);

	assert(results->n_rows > 0 && i < COLUMNS_MAX);
	if (i == results->n_columns)
		results->columns[results->n_columns++] = (struct table_column){key, title, unit};
	assert(results->columns[i].unit == unit);
	return &results->rows[results->n_rows - 1][i];
}

/* Children and their parent have the memory at the same address. */
void results_text(struct results *results, const char *key, const char *title, const char *text)
{
	struct result_cell *cell = results_cell(results, key, title, TABLE_TEXT);
	size_t length = text ? strlen(text) + 1 : 0;

	assert(length <= TEXT_MAX - results->n_text);
	cell->text = text ? memcpy(results->text + results->n_text, text, length) : NULL;
	results->n_text += (uint32_t)length;
}

void results_value(struct results *results, const char *key, const char *title,
	enum table_unit unit, double value)
{
	assert(unit != TABLE_TEXT);
	*results_cell(results, key, title, unit) =
		(struct result_cell){.has_value = isfinite(value), .value = value};
}

void results_row(struct results *results)
{
	assert(results->n_rows < ROWS_MAX);
	results->n_rows++;
	results_cell(results, "bench", NULL, TABLE_TEXT)->text = results->bench;
	results_cell(results, "model", NULL, TABLE_TEXT)->text = results->model;
	results_cell(results, "head_dtype", NULL, TABLE_TEXT)->text = results->head_dtype;
	results_cell(results, "kv_dtype", NULL, TABLE_TEXT)->text = results->kv_dtype;
	results_cell(results, "device", NULL, TABLE_TEXT)->text = results->device;
	results_cell(results, "date", NULL, TABLE_TEXT)->text = results->date;
	results_cell(results, "loop", NULL, TABLE_TEXT)->text = results->loop;
	results_cell(results, "version", NULL, TABLE_TEXT)->text = results->version;
	results_cell(results, "commit", NULL, TABLE_TEXT)->text = BENCH_COMMIT;
	results_count(results, "n_cpus", NULL, results_n_cpus());
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

void results_target(
	struct results *results, enum table_unit unit, double value, double most, bool judged)
{
	bool seconds = unit == TABLE_SECONDS;
	char text[64], limit[TABLE_FORMAT_MAX];

	if (seconds)
		snprintf(text, sizeof(text), "<= %s", table_format_seconds(limit, most));
	else
		snprintf(text, sizeof(text), "ratio <= %g", most);
	results_text(results, "target", "TARGET", text);
	results_text(results, "met", "MET",
		!judged || !isfinite(value) ? NULL : value <= most ? "yes" : "no");
	results_number(results, seconds ? "target_s" : "target_ratio", NULL, most);
}

void results_floor(struct results *results, const char *floor)
{
	results_text(results, "floor", NULL, floor);
}

void results_note(struct results *results, const char *note)
{
	results_text(results, "note", NULL, note);
}

void results_explain(struct results *results, const char *format, ...)
{
	size_t used = strlen(results->explanations);
	va_list arguments;
	char line[512];

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	if (!strstr(results->explanations, line))
		snprintf(results->explanations + used, sizeof(results->explanations) - used, "%s\n",
			line);
}

double results_get(const struct results *results, uint32_t row, const char *key)
{
	uint32_t i = results_column(results, key);

	assert(row < results->n_rows);
	return i < results->n_columns && results->rows[row][i].has_value ? results->rows[row][i].value
									 : NAN;
}

uint32_t results_n_rows(const struct results *results)
{
	return results->n_rows;
}

/* ---- printing ---- */

static int results_table(const struct results *results, bool json)
{
	struct table *table;
	int rc = table_new(&table, results->columns, results->n_columns, 0);

	if (rc < 0)
		return bench_fail(rc, "%s", strerror(-rc));
	for (uint32_t i = 0; i < results->n_rows; i++) {
		table_row(table);
		for (uint32_t j = 0; j < results->n_columns; j++) {
			const struct result_cell *cell = &results->rows[i][j];
			const struct table_column *column = &results->columns[j];

			if (cell->text)
				table_set_text(table, column->key, cell->text);
			else if (cell->has_value && column->unit <= TABLE_BYTES)
				table_set_count(table, column->key, (uint64_t)cell->value);
			else if (cell->has_value)
				table_set_number(table, column->key, cell->value);
		}
	}
	rc = table_print(table, stdout, json ? TABLE_AS_JSON : TABLE_AS_TEXT);
	table_free(table);
	return rc < 0 ? bench_fail(rc, "writing the table: %s", strerror(-rc)) : 0;
}

/* Each text of the column, once. */
static void results_print_texts(const struct results *results, const char *key)
{
	uint32_t column = results_column(results, key);

	for (uint32_t i = 0; i < results->n_rows && column < results->n_columns; i++) {
		const char *text = results->rows[i][column].text;
		bool seen = !text;

		for (uint32_t j = 0; j < i && !seen; j++) {
			const char *before = results->rows[j][column].text;

			seen = before && strcmp(before, text) == 0;
		}
		if (!seen)
			printf("%s: %s\n", key, text);
	}
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
	int rc = results_table(results, false);
	if (rc < 0)
		return rc;
	results_print_texts(results, "floor");
	fputs(results->explanations, stdout);
	results_print_texts(results, "note");
	return 0;
}
