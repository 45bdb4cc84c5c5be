/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_BENCH_H
#define MIMEO_DAEMON_BENCH_BENCH_H

/*
 * mimeo-bench: what a thing costs, beside the floor measured in the same run.
 *
 * The process that the user started measures nothing itself. It STARTS a daemon of its own, if the
 * bench needs one and it was not given one, forks CHILDREN that measure into shared SAMPLES, waits
 * for them with a deadline and an eye on signals, and REPORTS. So nothing that hangs hangs the
 * bench, and whatever ends it, the children and the folder of its daemon go.
 */

#include <stdbool.h>
#include <stdint.h>

#define BENCH_PROCESSES_MAX 64 /* clients of one run, and so rows of one step */
#define BENCH_RUNS_MAX 16      /* numbers of processes, batches, contexts, prompts to try */

struct bench_options {
	const char *socket;     /* of a daemon that runs; NULL: start one */
	const char *mimeod;     /* the program to start */
	const char *model_dir;  /* for the daemon to start; with a running one NULL if not given */
	const char *device;     /* for the daemon to start */
	const char *model_name; /* which model of a running daemon; NULL: its first */
	const char *shape;      /* of a model to make for the run; NULL: none */
	const char *make_checkpoint; /* the program that makes it; NULL: find it */
	const char *spin_us;    /* for the daemon to start; NULL: its default */
	const char *attention;  /* backend, for the daemon to start or in process */
	const char *mask;       /* that attention is measured under; NULL: causal */
	const char *draft;      /* that speculates for the model; NULL: `speculation` finds or makes one */
	const char *text;       /* in place of the fixed prompt: a token a byte; NULL: none */
	bool json;
	uint32_t count; /* round trips of a round, attaches, kills, steps; 0: the bench's default */
	uint32_t seconds;   /* the most to spend on one row of `ring` */
	uint32_t timeout_s; /* for one child's work */
	uint32_t heads, rank, rope; /* of latent attention; 0: the model's that is named, or the usual */
	bool model_named;           /* by --model or --shape */
	uint32_t tokens;    /* that each process generates */
	uint32_t prompt;    /* tokens that each process begins with */
	uint32_t draft_tokens; /* that the draft guesses a step */
	uint32_t processes[BENCH_RUNS_MAX], n_processes;
	uint32_t batches[BENCH_RUNS_MAX], n_batches;
	uint32_t contexts[BENCH_RUNS_MAX], n_contexts;
	uint32_t prompts[BENCH_RUNS_MAX], n_prompts; /* whole ones, for attention */
};

/* 0; or -errno with one sentence written to standard error, and -EINTR when a signal ended it. */
int bench_ring(const struct bench_options *options);
int bench_attach(const struct bench_options *options);
int bench_share(const struct bench_options *options);
int bench_decode(const struct bench_options *options);
int bench_speculation(const struct bench_options *options);

#endif
