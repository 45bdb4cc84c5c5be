/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_METRICS_H
#define MIMEO_DAEMON_METRICS_H

/*
 * Samples in a list of fixed capacity, and their text in Prometheus' exposition format. Samples of
 * one metric are added one after another. Names, helps and types are static strings; a label's
 * value lives as long as the list is used.
 */

#include <stddef.h>
#include <stdint.h>

#define METRICS_MAX 640

enum metric_type { METRIC_COUNTER, METRIC_GAUGE };

struct metric {
	const char *name, *help;
	enum metric_type type;
	const char *label, *label_value; /* NULL: none */
	double value;
};

struct metrics {
	struct metric samples[METRICS_MAX];
	uint32_t n_samples;
	uint32_t n_dropped; /* found no room */
};

void metrics_add(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, double value);
void metrics_add_labelled(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, const char *label, const char *label_value, double value);
/* The text into buffer[size], with terminator; its length, or -ENOSPC. */
int metrics_render(const struct metrics *metrics, char *buffer, size_t size);

#endif
