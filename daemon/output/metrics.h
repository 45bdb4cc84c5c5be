/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_METRICS_H
#define MIMEO_DAEMON_METRICS_H

/*
 * Samples in a list of fixed capacity, and their text in Prometheus' exposition format. Samples of
 * one metric are added one after another. Names, helps, types and labels' names are static strings;
 * a label's value lives as long as the list is used, and may have any bytes: the text escapes them.
 */

#include <stddef.h>
#include <stdint.h>

/* 32 models have 17 samples each, and 25 more where they have a draft of 8 tokens; the daemon itself
 * has 44: 1388. One more for each model does not fit. */
#define METRICS_MAX 1408
#define METRIC_LABELS_MAX 2

enum metric_type { METRIC_COUNTER, METRIC_GAUGE };

struct metric_label {
	const char *name, *value;
};

struct metric {
	const char *name, *help;
	enum metric_type type;
	struct metric_label labels[METRIC_LABELS_MAX]; /* name NULL: no label, nor any after it */
	double value;
};

struct metrics {
	struct metric samples[METRICS_MAX];
	uint32_t n_samples;
	uint32_t n_dropped; /* for lack of capacity */
};

void metrics_add(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, double value);
/* The labels are copied, and what they point to is not. */
void metrics_add_labelled(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, const struct metric_label labels[static METRIC_LABELS_MAX], double value);
/* The text into buffer[size], with terminator; its length, or -ENOSPC. */
int metrics_render(const struct metrics *metrics, char *buffer, size_t size);

#endif
