/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SERVED_H
#define MIMEO_DAEMON_BENCH_SERVED_H

/*
 * Runs the load of the options against a daemon, for each number of processes, and reads the daemon's
 * counters; and the floor: a loop in one process that replays the same graph for as many rows.
 *
 * The clients are N processes that start together: each attaches, waits for the start, keeps requests in
 * flight until all of its requests have ended, and records when tokens come. If several tokens come at once,
 * the time since the request's last tokens is divided among them.
 */

#include "daemon/bench/replay.h"
#include "daemon/bench/spawn.h"
#include "daemon/bench/stats.h"

struct clients_request {
	uint32_t prompt, tokens;
};

struct clients {
	uint32_t n, n_requests, in_flight; /* processes; of each: all requests, and concurrent ones */
	uint32_t round;                    /* 0: warm-up, 1: measured; their prompts differ */
	struct clients_request *requests;  /* [n, n_requests] */
	uint64_t n_tokens, n_prompt_tokens;           /* of all requests */
	struct samples *at[BENCH_PROCESSES_MAX];      /* when each token came, of a process */
	struct samples *first;   /* from submission to a request's first token */
	struct samples *between; /* from token to token of a request */
	uint64_t ns;                                  /* from the start until the last process has ended */
};

/* Tokens per second of all clients: while all of them get tokens (from when the last one has its first token
 * until the first one has its last; NAN if that time is empty), and over the whole run. */
double clients_steady_rate(const struct clients *clients);
double clients_rate(const struct clients *clients);

struct served {
	struct clients clients;
	/* The daemon's metrics before and after the run, and its other answers after it; NULL without access
	 * to its operators' socket. */
	struct answer *before, *metrics, *status, *models;
};

/* Measure ret[options->processes.n] with a daemon with the draft model (NULL: without); each load runs once
 * before it is measured. Must be freed even if it fails. 0, or -errno with a sentence on standard error. */
int served_measure(const struct bench_options *options, const char *draft, struct results *results,
	struct served *ret);
void served_free(const struct bench_options *options, struct served *runs);

/* How much a counter grew in the run, summed over models and over all labels, or only for the value `label`.
 * NAN: unknown. */
double served_count(const struct served *run, const char *name, const char *label);

/* Measure the floors of all runs; without the model's directory they have no samples. Errors as of
 * served_measure. */
int served_floors(const struct bench_options *options, struct replay_run *ret);
void served_floors_free(const struct bench_options *options, struct replay_run *floors);

#endif
