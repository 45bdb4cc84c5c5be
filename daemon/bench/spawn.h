/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SPAWN_H
#define MIMEO_DAEMON_BENCH_SPAWN_H

/*
 * The daemon that is measured: one that runs already, or a private one in a folder of its own,
 * which is started, waited for, ended with SIGTERM and cleaned up after.
 */

#include <stdbool.h>

#include "daemon/bench/bench.h"
#include "daemon/bench/child.h"
#include "daemon/ctl/ask.h"
#include "ipc/socket.h"

struct spawn_needs {
	const char *spin_us; /* for a private daemon; NULL: its default */
	uint32_t kv_pages;   /* that it needs at least */
	uint32_t max_requests; /* 0: its default */
	const char *graph_mode; /* NULL: its default */
	const char *draft;      /* folder; NULL: none */
	uint32_t draft_tokens;  /* of that */
};

struct target {
	char socket[SOCKET_PATH_MAX];
	bool is_private;
	bool is_none; /* there is no daemon: what is measured is in this process */
	int admin; /* connection to the admin socket; -1: a running daemon that does not let us */
	char device[128], loop[16], version[32]; /* "?" where they are not known */
	/* of a private one */
	char folder[64], log[80];
	struct child child;
};

/* 0, or -errno with a sentence on standard error. *ret is to be closed even then. */
int target_open(
	const struct bench_options *options, const struct spawn_needs *needs, struct target *ret);
void target_close(struct target *target);
/* For what is measured in this process: no daemon, and a device by its name. */
void target_none(struct target *ret, const char *device);

/* Ask the daemon over its admin socket. 0 or -errno, -EACCES without such a connection. */
int target_ask(const struct target *target, const char *op, struct answer **ret);
/* A counter without labels of an answer to "metrics"; 0 if there is none of that name. */
uint64_t answer_metric(const struct answer *answer, const char *name);
/* Counters without labels, 0 where there is none of that name: 0 or -errno. */
int target_metrics(
	const struct target *target, const char *const *names, uint32_t n, uint64_t *ret);
/* The same since `from` was taken, which becomes the difference. */
int target_metrics_since(
	const struct target *target, const char *const *names, uint32_t n, uint64_t *from);
/* Tell results where they were measured. */
void target_machine(const struct target *target, struct results *results);
/* A number that may have a fraction; 0 if it is not there. */
double answer_number(const struct answer *answer, size_t row, const char *key);

/* Where a private daemon's program and model are, seen from the program that runs; path is returned
 * if there is such a file. */
const char *spawn_find_mimeod(char *path, size_t size);
const char *spawn_find_model(const char *name, char *path, size_t size);
const char *spawn_find_make_checkpoint(char *path, size_t size);
/* Where it was looked for, with commas between, cut to size. */
void spawn_model_places(const char *name, char *ret, size_t size);

/* A folder and the files in it; none is fine. */
void spawn_remove_folder(const char *path);

#endif
