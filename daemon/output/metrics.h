/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_METRICS_H
#define MIMEO_DAEMON_METRICS_H

/*
 * Samples in a list of fixed capacity, and their text in Prometheus' exposition format. Samples of
 * one metric are added one after another. A help is one sentence. Names, helps, types and labels' names are static
 * strings; a label's value lives as long as the list is used, and may have any bytes: the text escapes them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define METRICS_MAX 7424
#define METRIC_LABELS_MAX 2

/* SECONDS: a counter of time, which is no whole number. */
enum metric_type { METRIC_COUNTER, METRIC_SECONDS, METRIC_GAUGE, METRIC_HISTOGRAM };

struct metric_label {
	const char *name, *value;
};

struct metric {
	const char *name, *help;
	const char *suffix; /* of the name, of a histogram's samples; else "" */
	enum metric_type type;
	struct metric_label labels[METRIC_LABELS_MAX]; /* name NULL: no label, nor any after it */
	double value;
};

struct metrics {
	struct metric samples[METRICS_MAX];
	uint32_t n_samples;
	uint32_t n_dropped; /* for lack of capacity */
};

/* "counter", "gauge", "histogram" */
const char *metric_type_name(enum metric_type type);
void metrics_add(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, double value);
/* The labels are copied, and what they point to is not. */
void metrics_add_labelled(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, const struct metric_label labels[static METRIC_LABELS_MAX], double value);
/* A histogram with the label, or, if its name is NULL, without. bounds[n] are the values of the buckets' label "le",
 * static strings; counts[n + 1] are of each bucket alone, the last one of values above all bounds. */
struct metric_histogram {
	const char *const *bounds;
	const uint64_t *counts;
	unsigned n;
	double sum;
};
void metrics_add_histogram(struct metrics *metrics, const char *name, const char *help,
	struct metric_label label, const struct metric_histogram *histogram);
/* Is the sample's value always a whole number? */
bool metric_is_whole(const struct metric *metric);
/* The text into buffer[size], with terminator; its length, or -ENOSPC. */
int metrics_render(const struct metrics *metrics, char *buffer, size_t size);

#endif
