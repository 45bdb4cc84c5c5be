/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_REPLAY_H
#define MIMEO_DAEMON_BENCH_REPLAY_H

/*
 * A bare loop that runs a model's decode steps in this process, on the engine's own runner but without
 * the engine and rings: what the lane could do if no client had to be served. It is the floor of what a
 * daemon does and the result of `decode`. It is OPENED for runs, and each is then MEASURED, two steps in
 * flight, as on the daemon's lane.
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

/* The run of options->count steps for batch and context number `index`, batches first; the context is
 * what the middle step sees. */
struct replay_run replay_run_at(
	const struct bench_options *options, uint32_t index, enum graph_mode mode);
/* Allocate its samples, in memory that children share: 0 or -ENOMEM, to be deinitialised even then. */
int replay_run_alloc(struct replay_run *run);
void replay_run_deinit(struct replay_run *run);
/* What the middle step sees. */
uint32_t replay_run_middle(const struct replay_run *run);

struct replay {
	struct probe probe;
	struct engine_options limits;
	struct runner runner;
	struct event *done[INPUTS_SLOTS]; /* of the cpu device, where the host should not spin */
};

/* Opens the device, whose copy rate is measured, and reads the model, for the runs of all batches and
 * contexts; the KV cache, as many pages as they need or the device holds, is full of random numbers. 0,
 * or a device's condition or -errno with a sentence in *error where there is more to say. To be closed
 * even then. */
int replay_open_all(struct replay *ret, const struct bench_options *options,
	struct results *results, struct model_error *error);
void replay_close(struct replay *replay);
/* The graph for a decode of so many rows, captured at first use; of NONE it is NULL. -ERANGE: none is so
 * wide. */
int replay_graph(struct replay *replay, uint32_t n_rows, enum graph_mode mode,
	struct graph_entry **ret);
/* 0, -ENOSPC if the cache's pages do not suffice, or what went wrong. */
int replay_measure(struct replay *replay, struct replay_run *run);

/* The floor of what is served: all runs in a child. 0, or -errno with a sentence on standard error. */
int replay_floors(const struct bench_options *options, struct replay_run *runs, uint32_t n_runs);

#endif
