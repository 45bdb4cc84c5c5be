/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_LOG_H
#define MIMEO_DAEMON_LOG_H

/*
 * The daemon's log: one line a message, on standard error, written by one write(2), from any
 * thread. Under systemd's journal a line begins with its priority (sd-daemon(3)), elsewhere with
 * the time and the level; or it is a JSON object. A message with fields goes to the journal's own socket, with
 * fields of the journal.
 *
 * A pipe or socket that has no space blocks no thread: the line is lost and counted, and the count is
 * logged when it has space again.
 *
 * Levels: error: cannot go on; warn: unexpected, going on; info: lifecycle; debug: objects. Control characters and broken UTF-8 in the finished line are escaped (\n, \x1b), so a
 * client's string cannot forge a line or drive a terminal. Lines are cut at LOG_LINE_MAX bytes.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOG_LINE_MAX 2048

enum log_level {
	LOG_LEVEL_ERROR,
	LOG_LEVEL_WARN,
	LOG_LEVEL_INFO,
	LOG_LEVEL_DEBUG,
};

const char *log_level_name(enum log_level level);
/* "error", "warn", "info", "debug"; -EINVAL. */
int log_level_parse(const char *text, enum log_level *ret);

/* Write to fd (the caller's; standard error until then) and choose the form of a line by
 * $JOURNAL_STREAM. Before threads start. */
void log_open(int fd);
/* Info until then. From any thread. */
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);

/* syslog's number of the level. */
int log_level_priority(enum log_level level);

enum log_format { LOG_FORMAT_AUTO, LOG_FORMAT_JSON, LOG_FORMAT_TEXT };
/* "auto", "json", "text"; -EINVAL. */
int log_format_parse(const char *text, enum log_format *ret);
/* Auto until then: what suits standard error. Before threads start. */
void log_set_format(enum log_format format);
/* The journal's socket, of that path: before threads start; NULL: none. For tests: log_open finds the right one. */
void log_set_journal(const char *path);

struct log_field {
	const char *name; /* lower case, a-z and '_' */
	enum { LOG_FIELD_TEXT, LOG_FIELD_COUNT, LOG_FIELD_SECONDS } kind;
	const char *text;
	uint64_t count;
	double seconds;
};
/* A message with fields: name=value behind a text, keys of JSON, or fields of the journal. */
void log_write_fields(enum log_level level, const char *text, const struct log_field *fields, size_t n_fields);

/* Keeps errno. */
void log_write(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#define log_at(level, ...)                                                                         \
	do {                                                                                       \
		if (log_enabled(level))                                                            \
			log_write(level, __VA_ARGS__);                                             \
	} while (0)
#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* The text with everything escaped that the log escapes; cut to fit, always terminated. The length
 * without terminator. */
size_t log_escape(const char *text, size_t length, char *ret, size_t size);

/* ---- messages that a client can provoke ---- */

/* At most per_second in any second that begins with the first of them; the first message after such
 * a second is preceded by one line that says how many were dropped. */
struct log_limit {
	uint32_t per_second;
	_Atomic uint64_t began_ns; /* 0: never */
	_Atomic uint32_t n_written, n_dropped;
};
#define LOG_LIMIT(n) { .per_second = (n) }

/* Whether a message may be written at now_ns (CLOCK_MONOTONIC), and how many were dropped since the last
 * report. */
bool log_limit_take(struct log_limit *limit, uint64_t now_ns, uint32_t *ret_dropped);

void log_limited_write(struct log_limit *limit, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
#define log_limited(limit, level, ...)                                                             \
	do {                                                                                       \
		if (log_enabled(level))                                                            \
			log_limited_write(limit, level, __VA_ARGS__);                              \
	} while (0)

#endif
