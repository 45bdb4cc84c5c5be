/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SPAWN_H
#define MIMEO_DAEMON_BENCH_SPAWN_H

/*
 * The daemon that is measured: a running one, or a private one in its own directory, which is started,
 * awaited, ended with SIGTERM, and removed with the directory.
 */

#include <stdbool.h>

#include "daemon/bench/bench.h"
#include "daemon/bench/child.h"
#include "daemon/ctl/ask.h"
#include "ipc/socket.h"

#define SPAWN_DIRECTORY_MAX 56 /* leaves space for the socket's name within the limit of socket paths */

/* Settings of a private daemon. */
struct spawn_needs {
	const char *spin_us;    /* NULL: its default */
	uint32_t kv_pages;      /* that it needs at least */
	const char *graph_mode, *prefix_sharing, *token_us; /* NULL: its default */
	const char *weights;    /* of users who may all attach clients; NULL: only this one does */
	uint32_t max_requests;  /* 0: its default */
	const char *draft;      /* directory; NULL: none */
	uint32_t draft_tokens;  /* of that */
};

struct target {
	char socket[SOCKET_PATH_MAX];
	bool is_private;
	int admin; /* connection to the operators' socket; -1: refused by a running daemon */
	/* of a private one */
	char directory[SPAWN_DIRECTORY_MAX], log[SPAWN_DIRECTORY_MAX + 8];
	struct child child;
};

/* Records the daemon's device, loop and version in the results. 0, or -errno with a sentence on standard
 * error. *ret must be closed even if it fails. */
int target_open(const struct bench_options *options, const struct spawn_needs *needs,
	struct results *results, struct target *ret);
void target_close(struct target *target);

/* The argument of a child of target_run. */
struct target_work {
	const struct bench_options *options;
	struct results *results;
	const struct target *target;
	const void *what; /* the bench's own */
};
/* Run a child against a daemon, for at most options->timeout_s. 0, or -errno with a sentence on standard
 * error. */
int target_run(const struct bench_options *options, const struct spawn_needs *needs,
	struct results *results, const char *name, int (*child)(void *arg, int fd), const void *what);

/* Ask the daemon over its operators' socket. 0, or -errno and *ret is not written; -EACCES without such a
 * connection. */
int target_ask(const struct target *target, const char *op, struct answer **ret);
/* A counter in the answer to "metrics", summed over models and over all labels, or only for the value
 * `label`. */
double answer_metric(const struct answer *metrics, const char *name, const char *label);
/* A number, possibly with a fraction; 0 if it is missing. */
double answer_number(const struct answer *answer, size_t row, const char *key);

#define SPAWN_PATH_MAX 600

enum spawn_kind { SPAWN_MIMEOD, SPAWN_MAKE_CHECKPOINT, SPAWN_MODEL, SPAWN_TEXT };
/* The path of a file of that kind and name, searched from the directory of this program; NULL with a sentence
 * on standard error that lists the places. */
const char *spawn_find(enum spawn_kind kind, const char *name, char path[SPAWN_PATH_MAX]);

/* Make a directory below TMPDIR: 0, or -errno with a sentence on standard error and ret "". Remove one with
 * its contents; accepts "". */
int spawn_make_directory(char ret[SPAWN_DIRECTORY_MAX]);
void spawn_remove_directory(const char *path);

/* Make a model of the options' shape with the program make-checkpoint, as `name` in the directory; ret is its
 * path. family NULL: that of the shape. 0, or -errno with a sentence on standard error. */
int spawn_make_model(const struct bench_options *options, const char *directory, const char *name,
	const char *family, bool config_only, char ret[SPAWN_DIRECTORY_MAX + 8]);

#endif
