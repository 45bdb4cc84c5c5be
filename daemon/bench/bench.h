/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_BENCH_H
#define MIMEO_DAEMON_BENCH_BENCH_H

/*
 * A program made of benches, each of which measures one thing beside its floor in the same run.
 *
 * The process that the user started measures nothing itself. It STARTS a daemon of its own, if the
 * bench needs one and none was named, forks CHILDREN that measure into shared samples and results,
 * waits for them with a deadline and for signals, and PRINTS the results. So nothing that hangs
 * hangs the bench, and whatever ends it, the children and the daemon's directory go.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/bench/fail.h"
#include "daemon/bench/bench_results.h"

#define BENCH_PROCESSES_MAX 64u /* clients of one run, and rows of one step */
#define BENCH_LIST_MAX 16u      /* values of a list: processes, batches, contexts, prompts */

#define EXIT_FAILED 1
#define EXIT_USAGE 2

struct bench_list {
	uint32_t n, at[BENCH_LIST_MAX];
};

/* Words are NULL and numbers 0 where neither the command line nor the bench's defaults say. */
struct bench_options {
	const char *socket;    /* of a running daemon; NULL: start one */
	const char *mimeod;    /* the program to start */
	const char *model_dir; /* for the daemon to start; with a running one NULL if not given */
	const char *device;    /* for the daemon to start, and for floors */
	const char *model_name; /* which model of a running daemon; NULL: its first */
	const char *shape;      /* of a model to make for the run */
	const char *spin_us;    /* for the daemon to start */
	const char *graph_mode; /* for the daemon to start */
	const char *attention;  /* backend, for the daemon to start or in process */
	const char *draft;      /* directory of the draft model */
	const char *text;       /* in place of the fixed prompt: a token a byte */
	const char *plot;       /* file for an SVG chart */
	bool deterministic; /* model, to serve or in process */
	bool json;
	uint32_t count;         /* round trips of a round, attaches, kills, steps */
	uint32_t timeout_s;     /* for one child's work */
	uint32_t prompt, prompt_least; /* tokens that a request begins with; least: of a range */
	uint32_t tokens, tokens_least; /* that a request generates */
	uint32_t prefix;        /* tokens at the head of all prompts that are the same */
	uint32_t in_flight, requests; /* of a process: at once, and in all */
	uint32_t seed;
	uint32_t query;         /* tokens of a row whose attention is measured */
	uint32_t draft_tokens;  /* that the draft model proposes a step */
	struct bench_list processes, batches, contexts, prompts, sides;
};

enum bench_flag {
	BENCH_IN_PROCESS = 1,  /* needs no daemon: all of it runs in a child */
	BENCH_CONFIG_ONLY = 2, /* reads config.json of a model and nothing else */
	BENCH_DRAFT = 4,       /* needs a draft model */
	BENCH_RANGES = 8,      /* --prompt and --tokens may be ranges */
	BENCH_LANE = 16,       /* --batches are rows of one step */
};

/* Options of a bench that measures a daemon, which it starts or, with --socket, finds. */
#define BENCH_STARTS " mimeod attention deterministic"
#define BENCH_FINDS BENCH_STARTS " socket name"

/* A panel of a chart: the values of some keys over those of one, a line for each key and for each
 * value of `group`. */
struct bench_panel {
	const char *title, *x, *group; /* group NULL: none */
	const char *keys[4], *labels[4];
};

struct bench {
	const char *name, *help;
	/* 0, or -errno with one sentence on standard error, -EINTR when a signal ended it. */
	int (*run)(const struct bench_options *options, struct results *results);
	unsigned flags;
	const char *options;  /* that it takes besides the common ones, separated by blanks */
	const char *defaults; /* "NAME=VALUE ..." */
	const struct bench_panel *panels; /* ended by one without a title; NULL: no --plot */
	const char *model;    /* the shipped one that it measures by default; NULL: tinycalc */
};

struct program {
	const char *purpose;
	const struct bench *benches;
	size_t n_benches;
};

/* The whole main function; its exit status. */
int program_main(const struct program *program, int argc, char **argv);

/* bench_options.c: read the command line. 0, EXIT_USAGE with a sentence on standard error, or -1: it was
 * answered. */
int bench_options_read(const struct program *program, int argc, char **argv, struct bench_options *ret,
	const struct bench **ret_bench);

/* plot.c: write an SVG chart of the results, a panel below the other; without the panels that no row has
 * values for. 0, or -errno with a sentence on standard error. */
int plot_write(const char *path, const struct results *results, const struct bench_panel *panels,
	const char *heading);

#endif
