/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_REPLAY_H
#define MIMEO_DAEMON_BENCH_REPLAY_H

/*
 * A bare loop that replays a model's decode graph in this process: what the lane could do if nobody
 * had to be served. It is the floor of `share` and `gap`, and the result of `decode`; `modes` also
 * has it run a graph in pieces, and none.
 */

#include <stdint.h>

#include "daemon/bench/bench.h"
#include "daemon/bench/lane.h"
#include "daemon/bench/stats.h"

#define REPLAY_WARM_UPS 8u

struct replay_run {
	enum graph_mode mode; /* FULL, PIECEWISE, or NONE: eager */
	uint32_t n_rows;
	uint32_t first;        /* position of the first step, which is not timed yet */
	uint32_t n_steps;      /* that are timed */
	struct samples *steps; /* takes the time from one step's end to the next one's */
	/* NULL, or take the lane's idle time ahead of each, and what the host needs to launch each
	 */
	struct samples *gaps, *launches;
};

/* Positions that a row of the run takes. */
uint32_t replay_positions(const struct replay_run *run);
/* On an open lane. 0, -ENOSPC if its pages do not suffice, or what went wrong. */
int replay_run(struct lane *lane, const struct replay_run *run);

/* Widen the options of a lane so that it holds the run. */
void replay_needs(const struct replay_run *run, struct lane_options *options);

/* The floor of each number of processes asked for: as many rows in a child, on a lane of its own;
 * runs[options->n_processes] say what takes the times, the rest is filled in. 0, or -errno with a
 * sentence on standard error. */
int replay_floors(const struct bench_options *options, struct replay_run *runs);

#endif
