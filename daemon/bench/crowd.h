/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_CROWD_H
#define MIMEO_DAEMON_BENCH_CROWD_H

/*
 * N processes with a sequence each, started together: each attaches, waits for the start, submits
 * one prompt, or several, each when the answer to the one before is whole, and takes its tokens as
 * they come.
 */

#include "daemon/bench/spawn.h"
#include "daemon/bench/stats.h"

struct crowd_request {
	uint32_t prompt, tokens;
};

struct crowd {
	uint32_t n, tokens; /* tokens: of a process in all, at most */
	/* [n, n_requests] the caller's, process by process; NULL: one each, as the options say */
	const struct crowd_request *requests;
	uint32_t n_requests;
	struct samples *at[BENCH_PROCESSES_MAX];   /* when each token came, of a process */
	struct samples *each[BENCH_PROCESSES_MAX]; /* times from token to token of a request; tokens
						      that come together share the time since
						      the last */
	uint64_t ns;                               /* from the start to the last process's end */
};

/* 0 or -ENOMEM; to be deinitialised even then. */
int crowd_init(struct crowd *crowd, uint32_t n, uint32_t tokens);
void crowd_deinit(struct crowd *crowd);
/* The daemon for a crowd of each number of processes that is asked for; as target_open. */
int crowd_target(const struct bench_options *options, struct target *ret);
/* 0, or -errno with a sentence on standard error. */
int crowd_run(
	struct crowd *crowd, const struct bench_options *options, const struct target *target);
/* Tokens a second of all of them, from when the last one has its first token until the first one
 * has its last; NAN if there is no such time. */
double crowd_steady_rate(const struct crowd *crowd);

#endif
