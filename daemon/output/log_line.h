/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_LOG_LINE_H
#define MIMEO_DAEMON_LOG_LINE_H

/*
 * The forms of a message of the log; levels and escapes, which log.h declares. All forms escape control characters and
 * broken UTF-8 (log_escape), and leave out what has no space: the end of the text, or whole fields.
 *
 *	TEXT      2026-01-31 12:00:00.000 info: text name=value name="two words"
 *	PRIORITY  <6>text name=value
 *	JSON      {"time":"2026-01-31T12:00:00.000Z","level":"info","message":"text","name":1}
 *	JOURNAL   PRIORITY=6, MESSAGE=text name=value, MIMEO_NAME=value, each on a line (systemd's native protocol)
 */

#include "daemon/output/log.h"

enum log_line_form { LOG_LINE_TEXT, LOG_LINE_PRIORITY, LOG_LINE_JSON, LOG_LINE_JOURNAL };

/* Into line[size], of LOG_LINE_MAX bytes or more, with a newline and without terminator. The number of bytes. */
size_t log_line_write(enum log_line_form form, enum log_level level, const char *text, size_t length,
	const struct log_field *fields, size_t n_fields, char *line, size_t size);

#endif
