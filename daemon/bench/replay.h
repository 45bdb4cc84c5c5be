/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_REPLAY_H
#define MIMEO_DAEMON_BENCH_REPLAY_H

/*
 * A bare loop that runs a model's decode steps in this process, without engine and rings: what the
 * lane could do if no client had to be served. It is the floor of what a daemon does and the result
 * of `decode`.
 */

#include <stdint.h>

#include "daemon/bench/bench.h"
#include "daemon/bench/decoder.h"
#include "daemon/bench/stats.h"

#define REPLAY_WARM_UPS 8u

struct replay_run {
	enum graph_mode mode; /* FULL, PIECEWISE, or NONE: eager */
	uint32_t n_rows;
	uint32_t first;        /* position of the first step; REPLAY_WARM_UPS are not timed */
	uint32_t n_steps;      /* that are timed */
	struct samples *steps; /* takes the time from one step's end to the next one's */
	/* NULL, or take: the device's time of each step and its idle time before it, and the host's
	 * time to launch it */
	struct samples *lanes, *gaps, *launches;
};

/* The run of options->count steps for batch and context number `index`, batches first; the context
 * is what the middle step sees. Without samples. */
struct replay_run replay_at(
	const struct bench_options *options, uint32_t index, enum graph_mode mode);
/* The position of the middle step. */
uint32_t replay_middle(const struct replay_run *run);
/* Open a lane for the runs of all batches and contexts; as decoder_open. */
int replay_open(
	struct decoder *decoder, const struct bench_options *options, struct model_error *error);
/* On an open decoder. 0, -ENOSPC if its pages do not suffice, or what went wrong. */
int replay_run(struct decoder *decoder, const struct replay_run *run);

/* The floor of each number of processes: as many rows in a child, on a lane of its own;
 * runs[options->processes.n] have the samples, the rest is filled in. 0, or -errno with a sentence
 * on standard error. */
int replay_floors(const struct bench_options *options, struct replay_run *runs);

#endif
