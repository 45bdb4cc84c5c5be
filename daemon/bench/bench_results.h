/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_BENCH_RESULTS_H
#define MIMEO_DAEMON_BENCH_BENCH_RESULTS_H

/*
 * The results of a bench: rows of named values with their floors, printed as a table with a heading and
 * explanations, or as a JSON array in which every row has all of that.
 *
 * A column exists from the first value with its key; a title of NULL keeps it out of the text. The
 * memory is shared: a forked child adds rows and its parent prints them, one process at a time.
 * Names, keys and titles are not copied: they have to be literals. Texts are copied.
 */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/bench/stats.h"
#include "daemon/output/table.h"
#include "ipc/cleanup.h"

struct results;

/* Texts that several benches use. */
#define RESULTS_ON_CPU "on the cpu device only ratios are meaningful"
#define RESULTS_NO_FLOOR                                                                           \
	"not measured, so there is no ratio and nothing is judged; --model names the model's directory"

/* model: its directory, shape or name; NULL: a running daemon's first. 0 or -ENOMEM. */
int results_new(struct results **ret, const char *bench, const char *model);
void results_free(struct results *results);
DEFINE_CLEANUP(results, struct results, results_free)

/* Where the following rows are measured: a daemon's device, event loop and version; in this process: loop and
 * version NULL. */
void results_machine(
	struct results *results, const char *device, const char *loop, const char *version);
/* How the model of the following rows has its head, keys and values ("model" or "fp8"); NULL, as before the call:
 * not known. Not copied. */
void results_dtypes(struct results *results, const char *head, const char *kv);
const char *results_device(const struct results *results);
/* Is it the cpu device? Then only ratios are meaningful. */
bool results_on_cpu(const struct results *results);
/* CPUs that this process may use. */
unsigned results_n_cpus(void);

/* Begin a row; the setters below set its values. */
void results_row(struct results *results);
void results_text(
	struct results *results, const char *key, const char *title, const char *text);
/* NAN: the column exists, and the row has no value in it. */
void results_value(struct results *results, const char *key, const char *title,
	enum table_unit unit, double value);

static inline void results_seconds(
	struct results *results, const char *key, const char *title, double seconds)
{
	results_value(results, key, title, TABLE_SECONDS, seconds);
}

static inline void results_number(
	struct results *results, const char *key, const char *title, double value)
{
	results_value(results, key, title, TABLE_NUMBER, value);
}

static inline void results_count(
	struct results *results, const char *key, const char *title, uint64_t count)
{
	results_value(results, key, title, TABLE_COUNT, (double)count);
}

/* Set the medians and 99th percentiles of a result and its floor, and the ratio of the medians. */
void results_samples(struct results *results, struct samples *result, struct samples *floor);

/* Set a target for this value of the row, in seconds or as a ratio, and whether it is met, if that is judged.
 * */
void results_target(
	struct results *results, enum table_unit unit, double value, double most, bool judged);

/* Describe the row's floor, and add a note; each text is printed once. NULL: none. */
void results_floor(struct results *results, const char *floor);
void results_note(struct results *results, const char *note);
/* A line below the table, once. */
void __attribute__((format(printf, 2, 3))) results_explain(
	struct results *results, const char *format, ...);

/* The value of a row, NAN: it has none; its number of rows. */
double results_get(const struct results *results, uint32_t row, const char *key);
uint32_t results_n_rows(const struct results *results);

/* To standard output. 0, or -errno with a sentence on standard error. */
int results_print(const struct results *results, bool json);

#endif
