/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_TOP_ROWS_H
#define MIMEO_DAEMON_CTL_TOP_ROWS_H

/*
 * What mimeoctl top shows: rows of the device, models, users, sessions and requests, made from two readings of the
 * daemon's counters, and their tables.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/ctl/ask.h"
#include "daemon/output/table.h"

enum top_kind { TOP_DEVICE, TOP_MODEL, TOP_USER, TOP_SESSION, TOP_REQUEST, N_TOP_KINDS };

enum top_field {
	/* texts */
	TOP_F_KIND,
	TOP_F_NAME, /* of a device, model or client */
	TOP_F_OWNER, /* the user */
	TOP_F_STATE,
	N_TOP_TEXTS,
	/* numbers */
	TOP_F_ID = N_TOP_TEXTS,
	TOP_F_PID,
	TOP_F_SESSION,
	TOP_F_SESSIONS,
	TOP_F_BUSY,   /* part of the time in which the device runs steps */
	TOP_F_MEMORY, /* of the device, in use */
	TOP_F_TOKENS_S,
	TOP_F_PROMPT_S, /* prompt tokens computed a second */
	TOP_F_STEPS_S,
	TOP_F_BATCH,  /* rows of a step */
	TOP_F_GRAPHS, /* part of the steps that replay a graph */
	TOP_F_FIRST,  /* seconds from submission to first token */
	TOP_F_TOKEN,  /* seconds from token to token */
	TOP_F_RUNNING,
	TOP_F_WAITING,
	TOP_F_PAGES,
	TOP_F_CACHED, /* part of the prompt tokens that the prefix cache had */
	TOP_F_TOKENS,
	TOP_F_AGE,
	N_TOP_FIELDS,
};

/* Fields without a value are "" or NaN. */
struct top_row {
	enum top_kind kind;
	char texts[N_TOP_TEXTS][64];
	double numbers[N_TOP_FIELDS]; /* by field, from N_TOP_TEXTS on */
	double n_firsts, n_others;    /* of a user: tokens that its averages are of */
};

struct top_rows {
	struct top_row *rows; /* [n] owned */
	size_t n, capacity;
};

/* The answers of one moment. */
struct top_reading {
	uint64_t ns;
	struct answer *status, *models, *sessions, *requests;
};

/* Ask the daemon. 0; -EOPNOTSUPP: it is of a version that does not know top's questions; -EPROTO: it refused one; other
 * -errno. Then top_reading_deinit, in any case. */
int top_read(int fd, struct top_reading *ret);
void top_reading_deinit(struct top_reading *reading);

/* Rates are those between the two readings. 0 or -ENOMEM; then top_rows_deinit, in any case. */
int top_rows_make(struct top_rows *ret, const struct top_reading *before, const struct top_reading *now);
void top_rows_deinit(struct top_rows *rows);
/* Rows of each kind by that field: numbers with the largest first, texts in order of the alphabet. */
void top_rows_sort(struct top_rows *rows, enum top_field field);
/* Keep sessions and requests whose name, user, state or id has the text in it, and all other rows. */
void top_rows_filter(struct top_rows *rows, const char *text);

/* The table of the rows of that kind; nothing if there are none. 0 or -errno. */
int top_rows_print(const struct top_rows *rows, enum top_kind kind, FILE *file, enum table_form form);
/* All rows as one array. */
int top_rows_print_json(const struct top_rows *rows, FILE *file);
/* "tokens_s" ...; N_TOP_FIELDS: there is none of that name. */
enum top_field top_field_find(const char *name);
const char *top_field_name(enum top_field field);
/* The next field by which rows of that kind can be sorted. */
enum top_field top_field_next(enum top_kind kind, enum top_field field);

#endif
