/* SPDX-License-Identifier: MIT */

/*
 * mimeod.conf through inih. inih hands over pairs, not where they stood, cuts long section names
 * and lines without a word, and never mentions a section without keys. So the reader that feeds it
 * its lines counts them, refuses what would be cut, and takes the section's name itself.
 */
#include "daemon/config/config.h"

#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_BYTES_MAX (1u << 20)

struct reading {
	struct config_settings *settings;
	const char *name;
	const char *text;
	size_t left;
	unsigned line;
	bool in_section;
	char model[CONFIG_NAME_MAX]; /* "": in [mimeod] */
	int result;
	struct config_error *error;
};

static void fail_here(struct reading *reading, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void fail_here(struct reading *reading, const char *format, ...)
{
	va_list arguments;
	int n = snprintf(reading->error->text, sizeof(reading->error->text), "%.200s:%u: ",
		reading->name, reading->line);

	va_start(arguments, format);
	vsnprintf(reading->error->text + n, sizeof(reading->error->text) - (size_t)n, format,
		arguments);
	va_end(arguments);
	reading->result = -EINVAL;
}

/* `line` begins with '['. */
static void enter_section(struct reading *reading, const char *line)
{
	size_t length = strcspn(line + 1, "]\n");
	char name[CONFIG_NAME_MAX + 8];

	if (line[1 + length] != ']')
		return; /* inih says so */
	reading->in_section = true;
	reading->model[0] = '\0';
	snprintf(name, sizeof(name), "%.*s",
		length < sizeof(name) ? (int)length : (int)sizeof(name) - 1, line + 1);
	if (strcmp(name, "mimeod") == 0)
		return;
	if (strncmp(name, "model ", 6) != 0) {
		fail_here(
			reading, "unknown section [%s]: known are [mimeod] and [model NAME]", name);
		return;
	}
	if (strlen(name + 6) == 0 || strlen(name + 6) >= CONFIG_NAME_MAX) {
		fail_here(reading, "\"%s\" is not a model name: 1 to %d of A-Z a-z 0-9 . _ -",
			name + 6, CONFIG_NAME_MAX - 1);
		return;
	}
	strcpy(reading->model, name + 6);
	char where[sizeof(name) + 256];
	snprintf(where, sizeof(where), "%.200s:%u: [%s]", reading->name, reading->line, name);
	reading->result = config_declare(reading->settings, reading->model, where, reading->error);
}

static char *read_line(char *line, int size, void *stream)
{
	struct reading *reading = stream;
	const char *end;
	size_t length;

	if (reading->left == 0 || reading->result < 0)
		return NULL;
	reading->line++;
	end = memchr(reading->text, '\n', reading->left);
	length = end ? (size_t)(end - reading->text) + 1 : reading->left;
	if (length >= (size_t)size) {
		fail_here(reading, "a line of more than %d bytes", size - 2);
		return NULL;
	}
	if (memchr(reading->text, '\0', length)) {
		fail_here(reading, "a zero byte");
		return NULL;
	}
	memcpy(line, reading->text, length);
	line[length] = '\0';
	reading->text += length;
	reading->left -= length;
	if (line[strspn(line, " \t\r\v\f\xef\xbb\xbf")] == '[')
		enter_section(reading, line + strspn(line, " \t\r\v\f\xef\xbb\xbf"));
	return reading->result < 0 ? NULL : line;
}

static int take_pair(void *user, const char *section, const char *key, const char *value)
{
	struct reading *reading = user;
	char where[320];

	if (reading->result < 0)
		return 0;
	if (!reading->in_section) {
		fail_here(reading,
			"a key before the first section: begin with [mimeod] or [model NAME]");
		return 0;
	}
	snprintf(where, sizeof(where), "%.200s:%u: %.60s", reading->name, reading->line, key);
	reading->result = config_set(reading->settings, reading->model[0] ? reading->model : NULL,
		key, value ? value : "", where, false, reading->error);
	return reading->result == 0;
}

int config_parse_memory(struct config_settings *settings, const char *name, const char *text,
	size_t length, struct config_error *error)
{
	struct reading reading = {
		.settings = settings,
		.name = name,
		.text = text,
		.left = length,
		.error = error,
	};
	int bad_line = ini_parse_stream(read_line, &reading, take_pair, &reading);

	if (reading.result < 0)
		return reading.result;
	if (bad_line > 0) {
		reading.line = (unsigned)bad_line;
		fail_here(&reading, "neither \"key = value\" nor \"[section]\"");
	} else if (bad_line < 0) {
		snprintf(error->text, sizeof(error->text), "%.200s: out of memory", name);
		return -ENOMEM;
	}
	return reading.result;
}

static int read_all(FILE *file, char **ret_text, size_t *ret_length)
{
	struct stat status;
	char *text;

	if (fstat(fileno(file), &status) == 0 && S_ISDIR(status.st_mode))
		return -EISDIR;
	text = malloc(FILE_BYTES_MAX + 1);
	if (!text)
		return -ENOMEM;
	*ret_length = fread(text, 1, FILE_BYTES_MAX + 1, file);
	if (ferror(file) || *ret_length > FILE_BYTES_MAX) {
		int r = ferror(file) ? -EIO : -EFBIG;

		free(text);
		return r;
	}
	*ret_text = text;
	return 0;
}

int config_parse_file(struct config_settings *settings, const char *path,
	struct config_error *error)
{
	FILE *file = fopen(path, "re");
	size_t length = 0;
	char *text = NULL;
	int r;

	r = file ? read_all(file, &text, &length) : -errno;
	if (file)
		fclose(file);
	if (r < 0) {
		snprintf(error->text, sizeof(error->text), "%.300s: %s", path, strerror(-r));
		return r;
	}
	r = config_parse_memory(settings, path, text, length, error);
	free(text);
	return r;
}
