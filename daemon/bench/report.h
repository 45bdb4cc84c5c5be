/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_REPORT_H
#define MIMEO_DAEMON_BENCH_REPORT_H

/*
 * What was measured, beside its floor: a heading, a table, and below it what the floors are and
 * what to keep in mind; or with --json an array of rows that carry all of that.
 */

#include "daemon/bench/spawn.h"
#include "daemon/bench/stats.h"
#include "daemon/table.h"

#define REPORT_ROWS_MAX 32

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

/* The parts of it that a bench with a table of its own uses. */
void report_heading(const char *bench, const struct target *target);
int report_table(const struct table *table, bool json);

#endif
