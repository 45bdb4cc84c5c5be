/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_CLIENTS_H
#define MIMEO_DAEMON_BENCH_CLIENTS_H

/*
 * The load of the options on a daemon: N processes that start together. Each attaches, waits for the start, keeps
 * requests in flight until all of its requests have ended, and records when tokens come. If several tokens come at
 * once, the time since the request's last tokens is divided among them.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/bench/bench.h"
#include "daemon/bench/child.h"
#include "daemon/bench/spawn.h"
#include "daemon/bench/stats.h"

struct clients_request {
	uint32_t prompt, tokens;
};

struct clients {
	uint32_t n, n_requests, in_flight; /* processes; of each: all requests, and concurrent ones */
	uint32_t round;                    /* the prompts of another round differ */
	uid_t uid;                         /* of the processes; 0: of this one */
	bool endless;                      /* begin again after the last request, until clients_stop */
	struct clients_request *requests;  /* [n, n_requests] */
	uint64_t n_tokens, n_prompt_tokens;           /* of all requests */
	struct samples *at[BENCH_PROCESSES_MAX];      /* when each token came, of a process */
	struct samples *first;   /* from submission to a request's first token */
	struct samples *between; /* from token to token of a request */
	struct child children[BENCH_PROCESSES_MAX];
	uint64_t start_ns, ns;   /* when they started; from then until the last process has ended */
};

/* Make the requests of n processes, with random lengths from the seed: the same lengths for every number of
 * processes and in every run. 0 or -ENOMEM; must be deinitialised even if it fails. */
int clients_init(struct clients *ret, const struct bench_options *options, uint32_t n);
void clients_deinit(struct clients *clients);
/* Concurrent requests of a process. */
uint32_t clients_in_flight(const struct bench_options *options);

/* Start the processes and let them run, for options->timeout_s at most, until the last one has ended. 0, or -errno
 * with a sentence on standard error. */
int clients_run(struct clients *clients, const struct bench_options *options, const struct target *target);
/* The same in parts. Start: all attach before the first one starts. The options and the target must live until
 * clients_stop, which must be called if it succeeds. */
int clients_start(struct clients *clients, const struct bench_options *options, const struct target *target);
/* Let endless clients run for that long. */
int clients_let(struct clients *clients, double seconds);
void clients_stop(struct clients *clients);
/* Remove the samples before another run. */
void clients_clear(struct clients *clients);

/* Tokens per second of all clients: while all of them get tokens (from when the last one has its first token
 * until the first one has its last; NAN if that time is empty), and over the whole run. */
double clients_steady_rate(const struct clients *clients);
double clients_rate(const struct clients *clients);

#endif
