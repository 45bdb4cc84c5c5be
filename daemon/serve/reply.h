/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_REPLY_H
#define MIMEO_DAEMON_SERVE_REPLY_H

/*
 * A reply on the operators' socket while it is made: rows are packed as they are added, and cut into
 * messages of ADMIN_REPLY_MAX bytes (daemon/serve/admin_wire.h). Errors are sticky until reply_end.
 */

#include <msgpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reply_cell {
	const char *key;
	enum { REPLY_TEXT, REPLY_COUNT, REPLY_NUMBER } kind;
	const char *text;
	uint64_t count;
	double number;
};
#define CELL_TEXT(k, v) {.key = (k), .kind = REPLY_TEXT, .text = (v)}
#define CELL_COUNT(k, v) {.key = (k), .kind = REPLY_COUNT, .count = (v)}
#define CELL_NUMBER(k, v) {.key = (k), .kind = REPLY_NUMBER, .number = (v)}

struct reply {
	int status;
	char *text;          /* owned; goes with the next message */
	msgpack_sbuffer out; /* finished messages with their lengths */
	msgpack_sbuffer rows; /* of the message being made */
	uint32_t n_rows;
	int error;
};

void reply_init(struct reply *reply);
void reply_deinit(struct reply *reply);
/* Set status and text (default: 0, none) before the first row. `text` is copied; a long text is split over
 * messages ahead of the rows. */
void reply_say(struct reply *reply, int status, const char *text);
/* The same, formatted; cut at 255 bytes. */
void reply_sayf(struct reply *reply, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void reply_row(struct reply *reply, const struct reply_cell *cells, size_t n_cells);
#define REPLY_ROW(reply, ...)                                                                      \
	reply_row((reply), (const struct reply_cell[]){__VA_ARGS__},                               \
		sizeof((const struct reply_cell[]){__VA_ARGS__}) / sizeof(struct reply_cell))
/* The bytes to send are in reply->out. 0, -ENOMEM, or -EMSGSIZE (a row larger than a message). */
int reply_end(struct reply *reply);

#endif
