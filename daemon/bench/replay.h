/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_REPLAY_H
#define MIMEO_DAEMON_BENCH_REPLAY_H

/*
 * A loop that runs a model's decode steps in this process, with the engine's runner but without engine and
 * rings: the speed of the lane without clients. It is the floor of a daemon and the result of `decode`. It is
 * OPENED for a set of runs, and each is then MEASURED, with two steps in flight as on the daemon's lane.
 */

#include "daemon/bench/bench.h"
#include "daemon/bench/probe.h"
#include "daemon/engine/models/runner.h"

#define REPLAY_ROWS_MAX 512u /* of a step */
#define REPLAY_WARM_UPS 8u   /* steps that are not timed */

struct replay_run {
	enum graph_mode mode; /* FULL, PIECEWISE, or NONE: eager */
	uint32_t n_rows;
	uint32_t first;   /* position of the first step */
	uint32_t n_steps; /* that are timed */
	/* The time from one step's end to the next one's, the device's time of each step and its idle
	 * time before it, and the host's time to launch it; NULL before replay_run_alloc. */
	struct samples *steps, *lanes, *gaps, *launches;
};

/* The run number `index` over batches (first) and contexts, of options->count steps; the context is the
 * length that the middle step attends to. */
struct replay_run replay_run_at(
	const struct bench_options *options, uint32_t index, enum graph_mode mode);
/* Allocate its samples, in memory that children share. 0 or -ENOMEM; must be deinitialised even if it fails. */
int replay_run_alloc(struct replay_run *run);
void replay_run_deinit(struct replay_run *run);
/* The length that the middle step attends to. */
uint32_t replay_run_middle(const struct replay_run *run);

struct replay {
	struct probe probe;
	struct engine_options limits;
	struct runner runner;
	struct event *done[INPUTS_SLOTS]; /* of the cpu device, where the host should not spin */
};

/* Open the device, measure its copy rate, and load the model for all batches and contexts. The KV cache has
 * as many pages as they need or the device holds, filled with random numbers. 0, or a device's condition or
 * -errno, with a sentence in *error if it says more. Must be closed even if it fails. */
int replay_open_all(struct replay *ret, const struct bench_options *options,
	struct results *results, struct model_error *error);
void replay_close(struct replay *replay);
/* The graph for a decode of n_rows rows, captured at first use; NULL for mode NONE. -ERANGE: no graph is
 * large enough. */
int replay_graph(struct replay *replay, uint32_t n_rows, enum graph_mode mode,
	struct graph_entry **ret);
/* 0, -ENOSPC if the cache has too few pages, or the error. */
int replay_measure(struct replay *replay, struct replay_run *run);

/* Measure all runs in a child, as the floor of served runs. 0, or -errno with a sentence on standard error. */
int replay_floors(const struct bench_options *options, struct replay_run *runs, uint32_t n_runs);

#endif
