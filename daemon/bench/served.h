/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SERVED_H
#define MIMEO_DAEMON_BENCH_SERVED_H

/*
 * The load of the options, for each number of processes, served by a daemon, with the daemon's own counts;
 * and its floor: a bare loop in one process that replays the same graph for as many rows.
 *
 * The clients are N processes that are started together: each attaches, waits for the start, keeps
 * requests in flight until it has had all of its own, and notes when tokens come. Tokens that a client
 * finds waiting together share the time since the request's last ones.
 */

#include "daemon/bench/replay.h"
#include "daemon/bench/spawn.h"
#include "daemon/bench/stats.h"

struct clients_request {
	uint32_t prompt, tokens;
};

struct clients {
	uint32_t n, n_requests, in_flight; /* processes; requests of each, in all and at once */
	struct clients_request *requests;  /* [n, n_requests] */
	uint64_t n_tokens, n_prompt_tokens;           /* of all requests */
	struct samples *at[BENCH_PROCESSES_MAX];      /* when each token came, of a process */
	struct samples *first;   /* from submission to a request's first token */
	struct samples *between; /* from token to token of a request */
	uint64_t ns;                                  /* from the start to the last process's end */
};

/* Tokens a second of all of them, from when the last one has its first token until the first one
 * has its last; NAN if there is no such time. And over the whole run. */
double clients_steady_rate(const struct clients *clients);
double clients_rate(const struct clients *clients);

struct served {
	struct clients clients;
	/* The daemon's metrics before and after the run, and its other answers after it; NULL: not known,
	 * they come over its admin socket. */
	struct answer *before, *metrics, *status, *models;
};

/* Serve ret[options->processes.n], each load once before it is measured, by a daemon with the draft
 * model, NULL: without. To be freed even if it fails. 0, or -errno with a sentence on standard error. */
int served_measure(const struct bench_options *options, const char *draft, struct results *results,
	struct served *ret);
void served_free(const struct bench_options *options, struct served *runs);

/* How much a counter grew in the run, of all models; label: of this value of a label alone, NULL: any.
 * NAN: not known. */
double served_count(const struct served *run, const char *name, const char *label);

/* The floors of all runs, which need the model's directory: without it they have no samples.
 * As served_measure. */
int served_floors(const struct bench_options *options, struct replay_run *ret);
void served_floors_free(const struct bench_options *options, struct replay_run *floors);

#endif
