/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SPECULATION_H
#define MIMEO_DAEMON_BENCH_SPECULATION_H

/*
 * The parts of `speculation`: the same load under a daemon without the draft and under one with it,
 * and the bytes that a step of each has to read.
 */

#include "daemon/bench/crowd.h"

#define SPECULATION_DAEMONS 2u /* without the draft, with it */
#define SPECULATION_DRAFTS_MAX 8u

/* The daemon's counters, or differences of two looks at them. */
struct speculation_counters {
	uint64_t steps, lane_ns, gaps, gap_ns, work_ns;
	uint64_t verified_rows, verified_tokens, draft_steps, draft_ns;
	uint64_t offered[SPECULATION_DRAFTS_MAX], accepted[SPECULATION_DRAFTS_MAX];
};

/* Nodes of the graphs that a decode step of these rows replays; 0: there is no such graph. */
struct speculation_nodes {
	uint64_t target, draft_prefill, draft_decode;
};

/* One number of processes. */
struct speculation_run {
	struct crowd crowd;
	struct speculation_counters counters;
	struct speculation_nodes nodes;
};

struct speculation_daemon {
	uint32_t n_drafts; /* tokens that the draft guesses a step; 0: it has none */
	struct speculation_run runs[BENCH_RUNS_MAX]; /* [options->n_processes] */
};

/* Start a daemon without the draft and one with it, and have both serve each number of processes:
 * daemons[SPECULATION_DAEMONS], zeroed, to be freed even if it fails. *ret_target is the last one,
 * closed. 0, or -errno with a sentence on standard error. */
int speculation_load(const struct bench_options *options, struct speculation_daemon *daemons,
	struct target *ret_target);
void speculation_load_free(struct speculation_daemon *daemons);

/* What a step has to read, and how fast this device reads. */
struct speculation_floor {
	double copy_rate;
	uint64_t target_bytes, draft_bytes; /* weights of a step of the target; of a pass of the draft */
	uint64_t once_bytes;                /* weights that the draft's first pass alone reads */
	uint64_t target_token_bytes, draft_token_bytes; /* keys and values of a token */
};

/* In a child, when no daemon has the device's memory. 0, or -errno with a sentence on standard
 * error. */
int speculation_floor(const struct bench_options *options, struct speculation_floor *ret);
/* Seconds of a step of so many rows that see so many tokens each. */
double speculation_floor_seconds(const struct speculation_floor *floor, uint32_t n_drafts,
	uint32_t n_rows, uint32_t seen);

#endif
