/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_REPORT_H
#define MIMEO_DAEMON_BENCH_REPORT_H

/*
 * What was measured, beside its floor: a heading, a table, and below it what the floors are and
 * what to keep in mind; or with --json an array of rows that carry all of that.
 */

#include "daemon/bench/probe.h"
#include "daemon/bench/spawn.h"
#include "daemon/bench/stats.h"
#include "daemon/output/table.h"

#define REPORT_ROWS_MAX 32
/* In place of the floor's name, where a bench went without. */
#define REPORT_NO_FLOOR                                                                            \
	"not measured, so there is no ratio, and no verdict on one; --model tells where the model is"

struct measure {
	const char *name;
	struct samples *result, *floor;
	const char *floor_name;
	double target_ratio;   /* of the medians; 0: none */
	double target_seconds; /* of the median; 0: none */
	const char *note;      /* NULL: none */
	bool unfit;            /* this machine cannot show it: the target is not judged */
};

struct report {
	const char *bench;
	bool json;
	struct measure rows[REPORT_ROWS_MAX];
	uint32_t n_rows;
};

/* CPUs that this process may use. */
unsigned report_n_cpus(void);
/* "yes", "no", or NULL where it is not judged. */
const char *report_verdict(double value, double most, bool judged);

void report_add(struct report *report, const struct measure *measure);
/* To standard output. 0, or -errno with a sentence on standard error. */
int report_print(const struct report *report, const struct target *target);

/* ---- the parts of it that a bench with a table of its own uses ---- */

void report_heading(const char *bench, const struct target *target);
int report_table(const struct table *table, bool json);
/* Heading and table; the table is freed. */
int report_whole(struct table *table, const char *bench, const struct target *target, bool json);
/* What a child that measures ends with: 0, or 1 and a sentence on standard error, which is why, or
 * if that is empty what rc says. */
int report_outcome(const char *what, int rc, const char *why);
/* The last columns of each, and their cells in the last row; note NULL: none. */
#define REPORT_COLUMNS                                                                             \
	{"floor", NULL, TABLE_TEXT}, {"device", NULL, TABLE_TEXT}, {"n_cpus", NULL, TABLE_COUNT},  \
		{"loop", NULL, TABLE_TEXT}, {"version", NULL, TABLE_TEXT},                         \
		{"note", NULL, TABLE_TEXT}
void report_common(struct table *table, const struct target *target, const char *floor,
	const char *note);
/* Left empty where it is no number. */
void report_number(struct table *table, const char *key, double value);
/* Durations beside their floor's: the columns, in this order, and their cells in the last row. */
#define REPORT_SAMPLES_COLUMNS                                                                     \
	{"samples", "SAMPLES", TABLE_COUNT}, {"median_s", "MEDIAN", TABLE_SECONDS},                \
		{"p99_s", "P99", TABLE_SECONDS}, {"floor_median_s", "FLOOR", TABLE_SECONDS},       \
		{"floor_p99_s", "FLOOR P99", TABLE_SECONDS}, {"ratio", "RATIO", TABLE_NUMBER}
void report_samples(struct table *table, struct samples *result, struct samples *floor);

/* The model that an in-process bench is about. */
void report_model(struct table *table, const struct bench_options *options);

/*
 * Something with a floor by the device's rates: the time that its bytes or its operations take at
 * them, whichever takes longer. The columns, in this order, and their cells in the last row;
 * seconds NAN: not measured.
 */
#define REPORT_COST_COLUMNS                                                                        \
	{"seconds", "TIME", TABLE_SECONDS}, {"tb_per_s", "TB/S", TABLE_NUMBER},                    \
		{"tflop_per_s", "TFLOP/S", TABLE_NUMBER}, {"floor_s", "FLOOR", TABLE_SECONDS},     \
		{"ratio", "RATIO", TABLE_NUMBER}, {"bytes", NULL, TABLE_COUNT},                    \
		{"copy_bytes_per_s", NULL, TABLE_NUMBER},                                          \
		{"product_flop_per_s", NULL, TABLE_NUMBER}
struct report_cost {
	uint64_t bytes;
	double flop, seconds;
};
void report_cost(
	struct table *table, const struct rates *rates, const struct report_cost *cost);
/* What the floor is, with its rates. */
void report_rates(const char *floor, const struct rates *rates);

/* A whole report of such rows. */
struct report_costs {
	const char *bench, *device, *floor;
	const char *line; /* below the heading; NULL: none */
	const char *note; /* below the table; NULL: none */
	const struct rates *rates;
	const struct table_column *columns;
	size_t n_columns;
	uint32_t n_rows;
	/* One row, from its table_row on. */
	void (*fill)(struct table *table, const struct target *target, const void *userdata,
		uint32_t row);
	const void *userdata;
};
/* To standard output. 0, or -errno. */
int report_costs(const struct report_costs *report, bool json);

#endif
