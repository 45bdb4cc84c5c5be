/* SPDX-License-Identifier: MIT */
#include "daemon/output/log_line.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ipc/text.h"

#define LINE_VALUE_MAX 256 /* of a field's text, escaped */

/* ---- levels ---- */

static const struct {
	const char *name;
	int priority; /* syslog's */
} log_levels[] = {
	[LOG_LEVEL_ERROR] = { "error", 3 },
	[LOG_LEVEL_WARN] = { "warn", 4 },
	[LOG_LEVEL_INFO] = { "info", 6 },
	[LOG_LEVEL_DEBUG] = { "debug", 7 },
};

enum { N_LEVELS = sizeof(log_levels) / sizeof(log_levels[0]) };

const char *log_level_name(enum log_level level)
{
	return log_levels[level].name;
}

int log_level_priority(enum log_level level)
{
	return log_levels[level].priority;
}

int log_level_parse(const char *text, enum log_level *ret)
{
	for (int i = 0; i < N_LEVELS; i++) {
		if (strcmp(text, log_levels[i].name) == 0) {
			*ret = (enum log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* ---- escaping ---- */

size_t log_escape(const char *text, size_t length, char *ret, size_t size)
{
	size_t used = 0;

	if (size == 0)
		return 0;
	for (size_t i = 0; i < length;) {
		size_t n = text_step(text + i, length - i);
		char escaped[5];
		const char *piece = text + i;
		size_t piece_length = n;

		if (n == 0) {
			unsigned char byte = (unsigned char)text[i];
			const char *letter = strchr("\nn\tt\rr", byte);

			if (byte && byte < 0x20 && letter)
				snprintf(escaped, sizeof(escaped), "\\%c", letter[1]);
			else
				snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
			piece = escaped;
			piece_length = strlen(escaped);
			n = 1;
		}
		assert(n <= length - i);
		if (used + piece_length >= size)
			break;
		memcpy(ret + used, piece, piece_length);
		used += piece_length;
		i += n;
	}
	ret[used] = '\0';
	return used;
}

/* ---- forms ---- */

struct log_line {
	char *bytes;
	size_t size, used; /* used < size */
	bool cut; /* something had no space */
};

__attribute__((format(printf, 2, 3))) static void log_line_put(struct log_line *line, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	int n = vsnprintf(line->bytes + line->used, line->size - line->used, format, arguments);
	va_end(arguments);
	if (n < 0 || (size_t)n >= line->size - line->used)
		line->cut = true;
	else
		line->used += (size_t)n;
}

/* What log_escape has left, with quotes and backslashes escaped; cut to fit in `most` bytes. */
static void log_line_put_quoted(struct log_line *line, const char *text, size_t most)
{
	log_line_put(line, "\"");
	for (const char *end = text + most; *text && text < end; text++) {
		/* whole characters: 4 bytes, a backslash, the quote, the terminator */
		if (line->size - line->used <= 7 && (*text & 0xc0) != 0x80)
			break;
		if (*text == '"' || *text == '\\')
			line->bytes[line->used++] = '\\';
		line->bytes[line->used++] = *text;
	}
	log_line_put(line, "\"");
}

static bool log_line_is_word(const char *text)
{
	return *text && !text[strcspn(text, " \t\"=\\")];
}

static void log_line_put_value(struct log_line *line, const struct log_field *field, bool json)
{
	char text[LINE_VALUE_MAX];

	switch (field->kind) {
	case LOG_FIELD_COUNT:
		log_line_put(line, "%" PRIu64, field->count);
		return;
	case LOG_FIELD_SECONDS:
		log_line_put(line, "%.6f", field->seconds);
		return;
	case LOG_FIELD_TEXT:
		break;
	}
	log_escape(field->text, strlen(field->text), text, sizeof(text));
	if (json || !log_line_is_word(text))
		log_line_put_quoted(line, text, sizeof(text));
	else
		log_line_put(line, "%s", text);
}

/* Fields as they are, or not at all. */
static void log_line_put_fields(struct log_line *line, const struct log_field *fields, size_t n_fields, bool json)
{
	for (size_t i = 0; i < n_fields; i++) {
		size_t before = line->used;

		line->cut = false;
		log_line_put(line, json ? ",\"%s\":" : " %s=", fields[i].name);
		log_line_put_value(line, &fields[i], json);
		if (line->cut)
			line->used = before;
	}
}

static void log_line_put_text(struct log_line *line, const char *text, size_t length)
{
	line->used += log_escape(text, length, line->bytes + line->used, line->size - line->used);
}

static void log_line_put_time(struct log_line *line, bool utc)
{
	struct timespec now;
	struct tm parts;

	clock_gettime(CLOCK_REALTIME, &now);
	if (utc)
		gmtime_r(&now.tv_sec, &parts);
	else
		localtime_r(&now.tv_sec, &parts);
	line->used += strftime(line->bytes + line->used, line->size - line->used,
		utc ? "%Y-%m-%dT%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &parts);
	log_line_put(line, ".%03ld%s", now.tv_nsec / 1000000, utc ? "Z" : "");
}

static void log_line_put_json(struct log_line *line, enum log_level level, const char *text, size_t length,
	const struct log_field *fields, size_t n_fields)
{
	char escaped[LOG_LINE_MAX];

	line->size--; /* for the brace */
	log_line_put(line, "{\"time\":\"");
	log_line_put_time(line, true);
	log_line_put(line, "\",\"level\":\"%s\",\"message\":", log_level_name(level));
	log_escape(text, length, escaped, sizeof(escaped));
	log_line_put_quoted(line, escaped, sizeof(escaped));
	log_line_put_fields(line, fields, n_fields, true);
	line->size++;
	log_line_put(line, "}");
}

static void log_line_put_journal(struct log_line *line, enum log_level level, const char *text, size_t length,
	const struct log_field *fields, size_t n_fields)
{
	log_line_put(line, "PRIORITY=%d\nSYSLOG_IDENTIFIER=mimeod\nMESSAGE=", log_level_priority(level));
	log_line_put_text(line, text, length);
	log_line_put_fields(line, fields, n_fields, false);
	for (size_t i = 0; i < n_fields; i++) {
		struct log_field field = fields[i];
		size_t before = line->used;
		char value[LINE_VALUE_MAX];

		line->cut = false;
		log_line_put(line, "\nMIMEO_");
		for (const char *at = field.name; *at; at++)
			log_line_put(line, "%c", toupper((unsigned char)*at));
		log_line_put(line, "=");
		if (field.kind == LOG_FIELD_TEXT) {
			log_escape(field.text, strlen(field.text), value, sizeof(value));
			log_line_put(line, "%s", value);
		} else {
			log_line_put_value(line, &field, false);
		}
		if (line->cut)
			line->used = before;
	}
}

size_t log_line_write(enum log_line_form form, enum log_level level, const char *text, size_t length,
	const struct log_field *fields, size_t n_fields, char *bytes, size_t size)
{
	struct log_line line = {.bytes = bytes, .size = size};

	assert(size >= LOG_LINE_MAX);
	switch (form) {
	case LOG_LINE_JSON:
		log_line_put_json(&line, level, text, length, fields, n_fields);
		break;
	case LOG_LINE_JOURNAL:
		log_line_put_journal(&line, level, text, length, fields, n_fields);
		break;
	case LOG_LINE_PRIORITY:
		log_line_put(&line, "<%d>", log_level_priority(level));
		log_line_put_text(&line, text, length);
		log_line_put_fields(&line, fields, n_fields, false);
		break;
	case LOG_LINE_TEXT:
		log_line_put_time(&line, false);
		log_line_put(&line, " %s: ", log_level_name(level));
		log_line_put_text(&line, text, length);
		log_line_put_fields(&line, fields, n_fields, false);
		break;
	}
	assert(line.used < size);
	bytes[line.used++] = '\n'; /* in the terminator's place */
	return line.used;
}
