/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_PLOT_H
#define MIMEO_DAEMON_BENCH_PLOT_H

#include "daemon/bench/bench.h"

/* Write an SVG chart of the results, a panel below the other; without the panels that no row has
 * values for. 0, or -errno with a sentence on standard error. */
int plot_write(const char *path, const struct results *results, const struct bench_panel *panels,
	const char *heading);

#endif
