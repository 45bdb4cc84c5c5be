/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_MODES_H
#define MIMEO_TESTS_BENCH_MODES_H

/*
 * The parts of `modes`: a serving load under a daemon of each graph mode, and decode steps of one
 * lane in this process, each as one graph, in pieces and without a graph.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/bench/crowd.h"
#include "daemon/bench/probe.h"
#include "daemon/graph/mode.h"

/* ---- the load ---- */

#define MODES_N 5u        /* NONE ... FULL_AND_PIECEWISE, in the order of the table */
#define MODES_REQUESTS 4u /* of each process, one behind the other */

/* One number of processes under one mode; differences of the daemon's counters. */
struct modes_load {
	struct crowd crowd;
	struct samples *tokens; /* times from token to token, of all processes */
	uint64_t n_tokens;      /* generated */
	uint64_t steps, tokens_in, padded_rows, lane_ns, eager[N_EAGER_REASONS];
};

struct modes_daemon {
	enum graph_mode mode; /* configured */
	bool measured;        /* false: it becomes what another row shows, or is refused */
	char resolved[24], reason[256];
	double startup_seconds, capture_seconds;
	uint64_t capture_bytes, n_graphs;
	struct modes_load loads[BENCH_RUNS_MAX]; /* [options->n_processes] */
};

/* What n processes ask for, requests[n, MODES_REQUESTS]: the same in every run. By turns a prompt
 * of options->prompt tokens, or down to half as many, with a short answer, and a prompt of an
 * eighth at most with an answer of options->tokens, or down to half as many. */
void modes_requests(
	const struct bench_options *options, uint32_t n, struct crowd_request *requests);
/* Start a daemon of each mode and have it serve: daemons[MODES_N], zeroed, to be freed even if it
 * fails. *ret_target is the last one, closed. 0, or -errno with a sentence on standard error. */
int modes_load(const struct bench_options *options, struct modes_daemon *daemons,
	struct target *ret_target);
void modes_load_free(struct modes_daemon *daemons);

/* ---- decode steps ---- */

#define MODES_CONCRETE 3u /* NONE, PIECEWISE, FULL */

struct modes_batch {
	uint32_t batch, context;
	struct samples *steps[MODES_CONCRETE], *launches[MODES_CONCRETE]; /* by enum graph_mode */
	uint64_t kv_bytes;
	uint32_t n_breaks; /* in the graph that is in pieces */
	bool no_room;      /* in the KV cache */
};

/* Of the device and the model in this process; shared with the child that fills it. */
struct modes_lane {
	struct probe_rates rates;
	uint64_t weight_bytes;
	double token_flop;
	struct modes_batch batches[BENCH_RUNS_MAX * BENCH_RUNS_MAX];
	uint32_t n_batches;
};

/* NULL: no memory. */
struct modes_lane *modes_lane_new(const struct bench_options *options);
void modes_lane_free(struct modes_lane *lane);
/* 0, or -errno with a sentence on standard error. */
int modes_lane_run(const struct bench_options *options, struct modes_lane *lane);

#endif
