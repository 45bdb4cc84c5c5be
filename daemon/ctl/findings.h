/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_FINDINGS_H
#define MIMEO_DAEMON_CTL_FINDINGS_H

/* What mimeoctl doctor found: collected by doctor_host.c, doctor_gpu.c and doctor_daemon.c, then printed. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "daemon/output/table.h"

#define FINDINGS_MAX 64
#define FINDINGS_TEXT_MAX 224

enum finding_state {
	FINDING_OK,
	FINDING_NOTE, /* may be meant so, or matters to some only */
	FINDING_WARN, /* costs speed or features */
};

struct finding {
	const char *check;
	enum finding_state state;
	char found[FINDINGS_TEXT_MAX], costs[FINDINGS_TEXT_MAX], todo[FINDINGS_TEXT_MAX]; /* "": nothing */
};

struct doctor {
	const char *root;   /* ahead of /proc and /sys; "" but for tests */
	const char *socket; /* what --socket says, or NULL */
	pid_t daemon;       /* 0: none answers, or it is in another PID namespace */
	bool answers, gpu;  /* a daemon answers; there is a GPU with a driver */
	struct finding findings[FINDINGS_MAX];
	size_t n;
};

/* Add a finding that is right; `found` is formatted. */
void findings_ok(struct doctor *doctor, const char *check, const char *found, ...)
	__attribute__((format(printf, 3, 4)));
/* Add another one, whose costs and remedy findings_explain sets. */
void findings_add(struct doctor *doctor, enum finding_state state, const char *check, const char *found, ...)
	__attribute__((format(printf, 4, 5)));
/* Of the last finding. */
void findings_explain(struct doctor *doctor, const char *costs, const char *todo);
/* The first line of a file below the root, without its end. False: it cannot be read, or is empty. */
bool findings_read(const struct doctor *doctor, const char *path, char *ret, size_t size);
/* The value of the line "KEY: value" or "KEY value" in such a file. */
bool findings_read_key(const struct doctor *doctor, const char *path, const char *key, char *ret, size_t size);

/* 0: nothing is wrong; 1: something costs speed or features. */
int findings_status(const struct doctor *doctor);
/* 0 or -errno. */
int findings_print(const struct doctor *doctor, FILE *file, enum table_form form);

#endif
