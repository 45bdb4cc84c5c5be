/* SPDX-License-Identifier: MIT */

/*
 * mimeod.conf through inih. inih reports key and value without their line, cuts long section names and
 * lines silently, and does not report sections without keys. So the reader that feeds it lines counts
 * them, refuses what would be cut, and takes the section's name itself.
 */
#include "daemon/config/config.h"

#include <assert.h>
#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ipc/cleanup.h"

#define FILE_BYTES_MAX (1u << 20)
#define FILE_SPACES " \t\r\v\f\xef\xbb\xbf" /* and a byte order mark */

struct config_file {
	struct config_settings *settings;
	const char *name;
	const char *text;
	size_t left;
	unsigned line;
	bool in_section;
	const char *model; /* NULL: in [mimeod] */
	int rc;
	struct config_error *error;
};

/* Refuse the line. */
#define config_file_refuse(file, format, ...)                                                      \
	((file)->rc = config_refuse((file)->error, "%.200s:%u: " format, (file)->name,             \
		 (file)->line, ##__VA_ARGS__))

/* `line` begins with '['. */
static void config_file_enter_section(struct config_file *file, const char *line)
{
	int length = (int)strcspn(line + 1, "]\n");
	struct config_model_settings *model;
	char name[CONFIG_NAME_MAX + 8], where[sizeof(name) + 256];

	if (line[1 + length] != ']')
		return; /* inih reports it */
	file->in_section = true;
	file->model = NULL;
	snprintf(name, sizeof(name), "%.*s", length, line + 1);
	if (strcmp(name, "mimeod") == 0)
		return;
	if (strncmp(name, "model ", 6) != 0) {
		config_file_refuse(
			file, "unknown section [%s]: known are [mimeod] and [model NAME]", name);
		return;
	}
	snprintf(where, sizeof(where), "%.200s:%u: [%s]", file->name, file->line, name);
	file->rc = config_declare(file->settings, name + 6, where, &model, file->error);
	if (file->rc == 0)
		file->model = model->name;
}

static char *config_file_read_line(char *line, int size, void *stream)
{
	struct config_file *file = stream;

	if (file->left == 0 || file->rc < 0)
		return NULL;
	file->line++;
	const char *end = memchr(file->text, '\n', file->left);
	size_t length = end ? (size_t)(end - file->text) + 1 : file->left;
	if (length >= (size_t)size) {
		config_file_refuse(file, "a line of more than %d bytes", size - 2);
		return NULL;
	}
	if (memchr(file->text, '\0', length)) {
		config_file_refuse(file, "a zero byte");
		return NULL;
	}
	assert(length > 0 && length <= file->left);
	memcpy(line, file->text, length);
	line[length] = '\0';
	file->text += length;
	file->left -= length;
	if (line[strspn(line, FILE_SPACES)] == '[')
		config_file_enter_section(file, line + strspn(line, FILE_SPACES));
	return file->rc < 0 ? NULL : line;
}

static int config_file_take_pair(void *user, const char *section, const char *key, const char *value)
{
	struct config_file *file = user;
	char where[320];

	if (file->rc < 0)
		return 0;
	if (!file->in_section) {
		config_file_refuse(
			file, "a key before the first section: begin with [mimeod] or [model NAME]");
		return 0;
	}
	snprintf(where, sizeof(where), "%.200s:%u: %.60s", file->name, file->line, key);
	file->rc = config_set(file->settings, file->model, key, value ? value : "", where,
		CONFIG_FILE, file->error);
	return file->rc == 0;
}

int config_parse_memory(struct config_settings *settings, const char *name, const char *text,
	size_t length, struct config_error *error)
{
	struct config_file file = {
		.settings = settings,
		.name = name,
		.text = text,
		.left = length,
		.error = error,
	};
	int bad_line = ini_parse_stream(config_file_read_line, &file, config_file_take_pair, &file);

	if (file.rc < 0)
		return file.rc;
	if (bad_line < 0) {
		config_refuse(error, "%.200s: out of memory", name);
		return -ENOMEM;
	}
	file.line = (unsigned)bad_line;
	if (bad_line > 0)
		config_file_refuse(&file, "neither \"key = value\" nor \"[section]\"");
	return file.rc;
}

DEFINE_CLEANUP(file, FILE, fclose)

/* The length, or -errno. */
static ssize_t config_file_read(const char *path, char text[static FILE_BYTES_MAX + 1])
{
	CLEANUP(cleanup_file) FILE *file = fopen(path, "re");
	struct stat status;

	if (!file)
		return -errno;
	if (fstat(fileno(file), &status) == 0 && S_ISDIR(status.st_mode))
		return -EISDIR;
	size_t length = fread(text, 1, FILE_BYTES_MAX + 1, file);
	if (ferror(file))
		return -EIO;
	return length > FILE_BYTES_MAX ? -EFBIG : (ssize_t)length;
}

int config_parse_file(struct config_settings *settings, const char *path,
	struct config_error *error)
{
	CLEANUP(cleanup_free) char *text = malloc(FILE_BYTES_MAX + 1);

	ssize_t length = text ? config_file_read(path, text) : -ENOMEM;
	if (length < 0) {
		config_refuse(error, "%.300s: %s", path, strerror((int)-length));
		return (int)length;
	}
	return config_parse_memory(settings, path, text, (size_t)length, error);
}
