/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_BENCH_H
#define MIMEO_DAEMON_BENCH_BENCH_H

/*
 * A program of benches, each of which measures one thing and its lower bound, the floor, in the same run.
 *
 * The process that the user started measures nothing itself. It STARTS a private daemon, if the bench needs
 * one and none was named, forks CHILDREN that measure into shared samples and results, waits for them with a
 * deadline and for signals, and PRINTS the results. Therefore no child or daemon that hangs can block the
 * bench, and the children and the daemon's directory are removed however it ends.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/bench/fail.h"
#include "daemon/bench/bench_results.h"

#define BENCH_PROCESSES_MAX 64u /* most clients of a run and rows of a step */
#define BENCH_LIST_MAX 16u      /* most values of a list of processes, batches, contexts or prompts */

#define EXIT_FAILED 1
#define EXIT_USAGE 2

struct bench_list {
	uint32_t n, at[BENCH_LIST_MAX];
};

/* Words are NULL and numbers 0 if neither the command line nor the bench's defaults set them. */
struct bench_options {
	const char *socket;    /* of a running daemon; NULL: start one */
	const char *mimeod;    /* the program to start */
	const char *model_dir; /* to be served by a private daemon; NULL with a running one unless given */
	const char *device;    /* for the daemon to start, and for floors */
	const char *model_name; /* which model of a running daemon; NULL: its first */
	const char *shape;      /* of a random model that is made for the run */
	const char *spin_us;    /* for the daemon to start */
	const char *graph_mode; /* for the daemon to start */
	const char *prefix_sharing; /* for the daemon to start */
	const char *token_us;   /* for the daemon to start */
	const char *attention;  /* backend, for the daemon to start or in process */
	const char *head_dtype; /* "model" or "fp8", for the daemon to start or in process */
	const char *kv_dtype;   /* likewise */
	const char *draft;      /* directory of the draft model */
	const char *text;       /* replaces the fixed prompt: one token per byte; or names a file */
	const char *plot;       /* file for an SVG chart */
	bool deterministic; /* model, to serve or in process */
	bool json;
	uint32_t count;         /* round trips of a round, attaches, kills, steps */
	uint32_t timeout_s;     /* for one child's work */
	uint32_t seconds;       /* in which tokens are counted */
	uint32_t prompt, prompt_least; /* tokens of a prompt; prompt_least: lower end of a range */
	uint32_t tokens, tokens_least; /* that a request generates */
	uint32_t flood, flood_least;   /* tokens of a prompt of the user who floods */
	uint32_t prefix;        /* first tokens that all prompts share */
	uint32_t in_flight, requests; /* of each process: concurrent requests, and all requests */
	uint32_t seed;
	uint32_t query;         /* tokens of a row whose attention is measured */
	uint32_t draft_tokens;  /* draft tokens per row and step */
	struct bench_list processes, batches, contexts, prompts, sides, packed;
};

enum bench_flag {
	BENCH_IN_PROCESS = 1,  /* needs no daemon: it runs in a child process */
	BENCH_CONFIG_ONLY = 2, /* reads only the config.json of a model */
	BENCH_DRAFT = 4,       /* needs a draft model */
	BENCH_RANGES = 8,      /* --prompt and --tokens may be ranges */
	BENCH_LANE = 16,       /* --batches are rows of one step */
	BENCH_WINDOWS = 32,    /* --contexts are windows: two tokens at least */
};

/* Options of a bench that measures a private daemon or, with --socket, a running one. */
#define BENCH_STARTS " mimeod attention deterministic head-dtype kv-dtype"
#define BENCH_FINDS BENCH_STARTS " socket name"

/* A panel of a chart: the values of `keys` over those of `x`, with a line for each key and each value of
 * `group`. */
struct bench_panel {
	const char *title, *x, *group; /* group NULL: none */
	const char *keys[4], *labels[4];
};

struct bench {
	const char *name, *help;
	/* 0, or -errno with one sentence on standard error; -EINTR if a signal ended it. */
	int (*run)(const struct bench_options *options, struct results *results);
	unsigned flags;
	const char *options;  /* that it takes besides the common ones, separated by spaces */
	const char *defaults; /* "NAME=VALUE ..." */
	const struct bench_panel *panels; /* ended by one without a title; NULL: no --plot */
	const char *model;    /* name of the shipped model that it measures by default; NULL: tinycalc */
};

struct program {
	const char *purpose;
	const struct bench *benches;
	size_t n_benches;
};

/* The whole main function; its exit status. */
int program_main(const struct program *program, int argc, char **argv);

/* bench_options.c: read the command line. 0, EXIT_USAGE with a sentence on standard error, or -1 after --help
 * and --version. */
int bench_options_read(const struct program *program, int argc, char **argv, struct bench_options *ret,
	const struct bench **ret_bench);

/* plot.c: write an SVG chart of the results with one panel below the other, leaving out panels without
 * values. 0, or -errno with a sentence on standard error. */
int plot_write(const char *path, const struct results *results, const struct bench_panel *panels,
	const char *heading);

#endif
