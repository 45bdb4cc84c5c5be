/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SPAWN_H
#define MIMEO_DAEMON_BENCH_SPAWN_H

/*
 * The daemon that is measured: one that runs already, or a private one in a directory of its own,
 * which is started, waited for, ended with SIGTERM and removed afterwards.
 */

#include <stdbool.h>

#include "daemon/bench/bench.h"
#include "daemon/bench/child.h"
#include "daemon/ctl/ask.h"
#include "ipc/socket.h"

#define SPAWN_DIRECTORY_MAX 56 /* a socket's path is short, and so is what is in front of it */

/* Settings of a private daemon. */
struct spawn_needs {
	const char *spin_us;    /* NULL: its default */
	uint32_t kv_pages;      /* that it needs at least */
	const char *graph_mode; /* NULL: its default */
	const char *draft;      /* directory; NULL: none */
	uint32_t draft_tokens;  /* of that */
};

struct target {
	char socket[SOCKET_PATH_MAX];
	bool is_private;
	int admin; /* connection to the admin socket; -1: a running daemon that refuses us */
	/* of a private one */
	char directory[SPAWN_DIRECTORY_MAX], log[SPAWN_DIRECTORY_MAX + 8];
	struct child child;
};

/* The results get the daemon's device, loop and version. 0, or -errno with a sentence on standard
 * error. *ret is to be closed even then. */
int target_open(const struct bench_options *options, const struct spawn_needs *needs,
	struct results *results, struct target *ret);
void target_close(struct target *target);

/* What a child of target_run works with. */
struct target_work {
	const struct bench_options *options;
	struct results *results;
	const struct target *target;
	const void *what; /* the bench's own */
};
/* Run a bench's child with a daemon, for options->timeout_s at most; its argument is a struct target_work.
 * 0, or -errno with a sentence on standard error. */
int target_run(const struct bench_options *options, const struct spawn_needs *needs,
	struct results *results, const char *name, int (*child)(void *arg, int fd), const void *what);

/* Ask the daemon over its admin socket. 0, or -errno and *ret untouched, -EACCES without such a
 * connection. */
int target_ask(const struct target *target, const char *op, struct answer **ret);
/* A counter in the answer to "metrics", of all models; of this value of a label alone, NULL: any. */
uint64_t answer_metric(const struct answer *metrics, const char *name, const char *label);
/* A number that may have a fraction; 0 if it is not there. */
double answer_number(const struct answer *answer, size_t row, const char *key);

#define SPAWN_PATH_MAX 600

enum spawn_kind { SPAWN_MIMEOD, SPAWN_MAKE_CHECKPOINT, SPAWN_MODEL };
/* Where the first of that kind and name is, looked for from the directory of this program; NULL with a
 * sentence on standard error that has each place. */
const char *spawn_find(enum spawn_kind kind, const char *name, char path[SPAWN_PATH_MAX]);

/* A directory below TMPDIR: 0, or -errno with a sentence on standard error and ret "". And to remove
 * one with all that is in it; none is fine. */
int spawn_make_directory(char ret[SPAWN_DIRECTORY_MAX]);
void spawn_remove_directory(const char *path);

/* A model of the options' shape, made for this run by the program make-checkpoint as `name` in the
 * directory; ret is its path. family NULL: the shape's own. 0, or -errno with a sentence on standard
 * error. */
int spawn_make_model(const struct bench_options *options, const char *directory, const char *name,
	const char *family, bool config_only, char ret[SPAWN_DIRECTORY_MAX + 8]);

#endif
