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
	uint32_t max_requests;  /* 0: its default */
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

/* Ask the daemon over its admin socket. 0 or -errno, -EACCES without such a connection. */
int target_ask(const struct target *target, const char *op, struct answer **ret);
/* Counters without labels, 0 where there is none of that name: 0 or -errno. */
int target_metrics(
	const struct target *target, const char *const *names, uint32_t n, uint64_t *ret);
/* The same since `from` was taken, which becomes the difference. */
int target_metrics_since(
	const struct target *target, const char *const *names, uint32_t n, uint64_t *from);
/* A number that may have a fraction; 0 if it is not there. */
double answer_number(const struct answer *answer, size_t row, const char *key);

/* Programs and models, looked for from the directory of this program; the path that exists, or
 * NULL. */
const char *spawn_find_mimeod(char *path, size_t size);
const char *spawn_find_make_checkpoint(char *path, size_t size);
const char *spawn_find_model(const char *name, char *path, size_t size);
/* Where a model was looked for, with commas between, cut to size. */
void spawn_model_places(const char *name, char *ret, size_t size);

/* A directory below TMPDIR: 0, or -errno with a sentence on standard error and ret "". And to remove
 * one with the files in it; none is fine. */
int spawn_make_directory(char ret[SPAWN_DIRECTORY_MAX]);
void spawn_remove_directory(const char *path);

/* A model of the options' shape, made for this run by the program make-checkpoint as `name` in the
 * directory; ret is its path. family NULL: the shape's own. 0, or -errno with a sentence on standard
 * error. */
int spawn_make_model(const struct bench_options *options, const char *directory, const char *name,
	const char *family, bool config_only, char ret[SPAWN_DIRECTORY_MAX + 8]);

#endif
