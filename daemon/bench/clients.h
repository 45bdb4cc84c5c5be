/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_CLIENTS_H
#define MIMEO_DAEMON_BENCH_CLIENTS_H

/*
 * N processes that are started together: each attaches, waits for the start, keeps requests in
 * flight until it has had all of its own, and notes when tokens come. Tokens that a client finds
 * waiting together share the time since the request's last ones.
 */

#include "daemon/bench/spawn.h"
#include "daemon/bench/stats.h"

struct clients_request {
	uint32_t prompt, tokens;
};

struct clients {
	uint32_t n, n_requests, in_flight; /* processes; requests of each, in all and at once */
	struct clients_request *requests;  /* [n, n_requests] */
	uint64_t seed;                     /* of the prompts' tokens; 0: all have the fixed prompt */
	struct samples *at[BENCH_PROCESSES_MAX];      /* when each token came, of a process */
	struct samples *first[BENCH_PROCESSES_MAX];   /* from submission to a request's first token */
	struct samples *between[BENCH_PROCESSES_MAX]; /* from token to token of a request */
	uint64_t ns;                                  /* from the start to the last process's end */
};

/* Requests of the length that the options say, one in flight each; the caller may change lengths,
 * in_flight and seed before the run, within n_tokens of each process. 0 or -ENOMEM; to be
 * deinitialised even then. */
int clients_init(struct clients *ret, const struct bench_options *options, uint32_t n,
	uint32_t n_requests);
void clients_deinit(struct clients *clients);
/* 0, or -errno with a sentence on standard error. */
int clients_run(
	struct clients *clients, const struct bench_options *options, const struct target *target);
/* The same load without samples: a device's first uses of each size are behind it then. */
int clients_warm_up(const struct clients *clients, const struct bench_options *options,
	const struct target *target);

/* Tokens and prompt tokens that all of them asked for. */
uint64_t clients_tokens(const struct clients *clients);
uint64_t clients_prompt_tokens(const struct clients *clients);
/* The samples of all processes, first[] or between[]; NULL: no memory. */
struct samples *clients_all(const struct clients *clients, struct samples *const *each);
/* Tokens a second of all of them, from when the last one has its first token until the first one
 * has its last; NAN if there is no such time. And over the whole run. */
double clients_steady_rate(const struct clients *clients);
double clients_rate(const struct clients *clients);

/* The most processes that the options name. */
uint32_t clients_most(const struct bench_options *options);

#endif
