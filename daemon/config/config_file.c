/* SPDX-License-Identifier: MIT */

/*
 * mimeod.conf through inih. inih reports key and value without their line, cuts long section names and
 * lines silently, does not report sections without keys, and knows neither a comment behind a # in a line nor quotes.
 * So the reader that feeds it lines counts them, removes comments, refuses what would be cut, and takes values in quotes
 * and the section's name itself. It hands a line that it refuses over as an empty one, so that the lines behind are
 * checked, too.
 */
#include "daemon/config/config.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/cleanup.h"

#define FILE_BYTES_MAX (1u << 20)
#define QUOTED_MAX 512
#define FILE_SPACES " \t\r\v\f\xef\xbb\xbf" /* and a byte order mark */

struct config_file {
	struct config_settings *settings;
	const char *name;
	const char *text;
	size_t left;
	unsigned line;
	bool in_section;
	bool skips; /* the section was refused */
	const char *model; /* NULL: in [mimeod] */
	bool is_quoted; /* the line's value is in `quoted`: inih knows no quotes */
	char quoted[QUOTED_MAX];
	int rc; /* -ENOMEM, or of the first line that was refused */
	struct config_error *error;
};

static void config_file_note(struct config_file *file, int rc)
{
	if (rc < 0 && file->rc != -ENOMEM)
		file->rc = rc;
}

/* Refuse the line. */
#define config_file_refuse(file, format, ...)                                                      \
	config_file_note((file), config_refuse((file)->error, "%.200s:%u: " format, (file)->name,  \
					 (file)->line, ##__VA_ARGS__))

/* `line` begins with '['. */
static void config_file_enter_section(struct config_file *file, const char *line)
{
	int length = (int)strcspn(line + 1, "]\n");
	struct config_model_settings *model;
	char name[CONFIG_NAME_MAX + 8], where[sizeof(name) + 256];

	file->in_section = file->skips = true;
	file->model = NULL;
	if (line[1 + length] != ']') {
		config_file_refuse(file, "neither \"key = value\" nor \"[section]\"");
		return;
	}
	snprintf(name, sizeof(name), "%.*s", length, line + 1);
	file->skips = false;
	if (strcmp(name, "mimeod") == 0)
		return;
	file->skips = true;
	if (strncmp(name, "model ", 6) != 0) {
		config_file_refuse(
			file, "unknown section [%s]: known are [mimeod] and [model NAME]", name);
		return;
	}
	snprintf(where, sizeof(where), "%.200s:%u: [%s]", file->name, file->line, name);
	int rc = config_declare(file->settings, name + 6, where, &model, file->error);
	config_file_note(file, rc);
	file->skips = rc < 0;
	if (rc == 0)
		file->model = model->name;
}

/* The bytes before a comment, and spaces before those: of a # or ; that begins the line or follows a space. */
static size_t config_file_trim(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if ((text[i] == '#' || text[i] == ';') && (i == 0 || strchr(" \t", text[i - 1])))
			length = i;
	}
	while (length > 0 && strchr(" \t\r\n\v\f", text[length - 1]))
		length--;
	return length;
}

/* Bytes before a value in quotes, or `length`: the line has none. */
static size_t config_file_find_quote(const char *text, size_t length)
{
	size_t at = 0;

	if (length == 0 || strchr("[#;", text[0]))
		return length;
	while (at < length && !strchr("=:", text[at]))
		at++;
	at += at < length;
	while (at < length && strchr(" \t", text[at]))
		at++;
	return at < length && text[at] == '"' ? at : length;
}

/* Take the value in quotes that begins at text[at]; two quotes in it are one. False: it does not end, or something else
 * than a comment follows it. */
static bool config_file_take_quoted(struct config_file *file, const char *text, size_t at, size_t length)
{
	size_t n = 0;

	for (at++; at < length && n < sizeof(file->quoted); at++) {
		if (text[at] == '"' && (++at == length || text[at] != '"')) {
			file->quoted[n] = '\0';
			file->is_quoted = true;
			return config_file_trim(text + at, length - at) == 0;
		}
		file->quoted[n++] = text[at];
	}
	return false;
}

/* The line as inih is to see it; empty if it is refused. */
static void config_file_take_line(struct config_file *file, const char *text, size_t length, char *line, size_t size)
{
	size_t spaces = 0;

	while (spaces < length && strchr(FILE_SPACES, text[spaces]))
		spaces++;
	line[0] = '\0';
	if (memchr(text, '\0', length)) {
		config_file_refuse(file, "a zero byte");
		return;
	}
	text += spaces;
	length -= spaces;
	file->is_quoted = false;
	const size_t quote = config_file_find_quote(text, length);
	if (quote < length && !config_file_take_quoted(file, text, quote, length)) {
		config_file_refuse(file,
			"a value in quotes has at most %d bytes, ends with a quote, and only a comment follows",
			QUOTED_MAX - 1);
		return;
	}
	length = config_file_trim(text, quote);
	if (length + 2 > size) {
		config_file_refuse(file, "a line of more than %zu bytes", size - 2);
		return;
	}
	if (length == 0)
		return;
	if (text[0] != '[' && !memchr(text, '=', length) && !memchr(text, ':', length)) {
		config_file_refuse(file, "neither \"key = value\" nor \"[section]\"");
		return;
	}
	memcpy(line, text, length);
	line[length] = '\0';
	if (line[0] == '[')
		config_file_enter_section(file, line);
	if (line[0] == '[' && file->skips)
		line[0] = '\0';
}

static char *config_file_read_line(char *line, int size, void *stream)
{
	struct config_file *file = stream;

	if (file->left == 0 || file->rc == -ENOMEM)
		return NULL;
	file->line++;
	const char *text = file->text, *end = memchr(text, '\n', file->left);
	size_t length = end ? (size_t)(end - text) + 1 : file->left;
	assert(length > 0 && length <= file->left && size > 2);
	file->text += length;
	file->left -= length;
	config_file_take_line(file, text, length, line, (size_t)size);
	strcat(line, "\n");
	return line;
}

static int config_file_take_pair(void *user, const char *section, const char *key, const char *value)
{
	struct config_file *file = user;
	char where[CONFIG_WHERE_MAX];

	if (!file->in_section) {
		config_file_refuse(
			file, "a key before the first section: begin with [mimeod] or [model NAME]");
	} else if (!file->skips) {
		snprintf(where, sizeof(where), "%.200s:%u: %.60s", file->name, file->line, key);
		config_file_note(file, config_set(file->settings, file->model, key,
			file->is_quoted ? file->quoted : value ? value : "", where,
			CONFIG_FILE, file->error));
	}
	return 1;
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

	settings->n_files++;
	int bad_line = ini_parse_stream(config_file_read_line, &file, config_file_take_pair, &file);
	if (bad_line < 0) {
		config_refuse(error, "%.200s: out of memory", name);
		return -ENOMEM;
	}
	file.line = (unsigned)bad_line;
	if (bad_line > 0 && file.rc == 0)
		config_file_refuse(&file, "neither \"key = value\" nor \"[section]\"");
	return file.rc;
}

DEFINE_CLEANUP(file, FILE, fclose)

/* A reload reads on the thread that serves, which nothing may block: neither a pipe, which could be read once only,
 * nor a terminal, whose read fails with EAGAIN. */
static int config_file_open(const char *path)
{
	struct stat status;

	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISCHR(status.st_mode)))
		return fd;
	close(fd);
	return S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL;
}

/* The length, or -errno. */
static ssize_t config_file_read(const char *path, char text[static FILE_BYTES_MAX + 1])
{
	int fd = config_file_open(path);

	if (fd < 0)
		return fd;
	CLEANUP(cleanup_file) FILE *file = fdopen(fd, "r");
	if (!file) {
		close(fd);
		return -ENOMEM;
	}
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
		config_refuse(error, "%.300s: %s", path,
			length == -EINVAL ? "neither a file nor a character device" : strerror((int)-length));
		return (int)length;
	}
	return config_parse_memory(settings, path, text, (size_t)length, error);
}

/* ---- fragments ---- */

static int config_file_is_fragment(const struct dirent *entry)
{
	size_t length = strlen(entry->d_name);

	return entry->d_name[0] != '.' && length > 5 && strcmp(entry->d_name + length - 5, ".conf") == 0;
}

/* Not alphasort, whose order depends on the locale. */
static int config_file_compare(const struct dirent **one, const struct dirent **other)
{
	return strcmp((*one)->d_name, (*other)->d_name);
}

static int config_file_read_fragment(struct config_settings *settings, const char *folder, const char *name,
	struct config_error *error)
{
	CLEANUP(cleanup_free) char *path = NULL;

	if (asprintf(&path, "%s/%s", folder, name) < 0)
		return config_out_of_memory(error);
	return config_parse_file(settings, path, error);
}

static int config_file_read_fragments(struct config_settings *settings, const char *path, struct config_error *error)
{
	CLEANUP(cleanup_free) char *folder = NULL;
	struct dirent **entries;
	int ret = 0;

	if (asprintf(&folder, "%s.d", path) < 0)
		return config_out_of_memory(error);
	int n = scandir(folder, &entries, config_file_is_fragment, config_file_compare);
	if (n < 0 && errno == ENOENT)
		return 0;
	if (n < 0) {
		ret = -errno;
		config_refuse(error, "%.300s: %s", folder, strerror(-ret));
		return ret;
	}
	for (int i = 0; i < n; i++) {
		if (ret != -ENOMEM) {
			int rc = config_file_read_fragment(settings, folder, entries[i]->d_name, error);

			ret = rc < 0 ? rc : ret;
		}
		free(entries[i]);
	}
	free(entries);
	return ret;
}

int config_parse_files(struct config_settings *settings, const char *path, bool required, struct config_error *error)
{
	int ret = required || access(path, F_OK) == 0 ? config_parse_file(settings, path, error) : 0;
	int rc = ret == -ENOMEM ? ret : config_file_read_fragments(settings, path, error);

	return rc < 0 ? rc : ret;
}
