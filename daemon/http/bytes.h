/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_BYTES_H
#define MIMEO_DAEMON_HTTP_BYTES_H

/* Bytes that grow. A zeroed struct is empty. */

#include <stdbool.h>
#include <stddef.h>

struct bytes {
	char *data; /* [n], with a terminator behind them unless NULL */
	size_t n, capacity;
};

/* 0 or -ENOMEM, and nothing is added. */
int bytes_append(struct bytes *bytes, const void *data, size_t n);
int bytes_append_text(struct bytes *bytes, const char *text);
/* Leave out the first n. */
void bytes_drop(struct bytes *bytes, size_t n);
void bytes_deinit(struct bytes *bytes);

#endif
