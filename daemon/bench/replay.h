/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_REPLAY_H
#define MIMEO_DAEMON_BENCH_REPLAY_H

/*
 * The floor of `share`: a bare loop that replays a model's decode graph in this process, for as
 * many rows as there would be clients. No ring, no engine, no scheduling: prepare, replay, outbox,
 * two steps in flight as in the engine.
 */

#include <stddef.h>
#include <stdint.h>

#include "daemon/bench/stats.h"

struct replay_run {
	uint32_t n_rows;
	struct samples *steps; /* takes the time from one step's end to the next one's */
};

struct replay_options {
	const char *device, *model_dir;
	uint32_t n_prompt; /* the first step's position */
	uint32_t n_steps;  /* that are timed */
	const struct replay_run *runs;
	uint32_t n_runs;
};

/* 0, or a negative number with one sentence in why[size]. Opens the device and reads the model: for
 * a process that ends soon after. */
int floor_replay(const struct replay_options *options, char *why, size_t size);

#endif
