/* SPDX-License-Identifier: MIT */
#include "daemon/http/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/cleanup.h"

struct key {
	uint8_t text[KEY_MAX + 1]; /* zero after the key */
};

struct keys {
	uint32_t n;
	struct key own[KEYS_MAX];
};

__attribute__((format(printf, 4, 5)))
static int keys_fail(int rc, char *message, size_t size, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message, size, format, arguments);
	va_end(arguments);
	return rc;
}

/* Why the file cannot be trusted, or NULL. */
static const char *keys_distrust(const struct stat *st)
{
	if (!S_ISREG(st->st_mode))
		return "is not a regular file";
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return "belongs to another user than root and the one that mimeo-http runs as";
	if (st->st_mode & S_IRWXO)
		return "is accessible to others: chmod o= it";
	if (st->st_mode & S_IWGRP)
		return "can be written by its group: chmod g-w it";
	return NULL;
}

static int keys_open(const char *path, FILE **ret, char *message, size_t size)
{
	CLEANUP(cleanup_close) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return keys_fail(-errno, message, size, "%s: %s", path, strerror(errno));
	const char *why = keys_distrust(&st);
	if (why)
		return keys_fail(-EPERM, message, size, "%s: %s", path, why);
	FILE *file = fdopen(fd, "r");
	if (!file)
		return keys_fail(-errno, message, size, "%s: %s", path, strerror(errno));
	fd = -1; /* the file's */
	*ret = file;
	return 0;
}

/* Characters that a header can carry. */
static bool keys_is_printable(const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (text[i] <= ' ' || text[i] > '~')
			return false;
	}
	return true;
}

/* One line, without its end. NULL, or why it is refused. */
static const char *keys_take_line(struct keys *keys, const char *line)
{
	size_t length = strcspn(line, " \t");

	if (line[0] == '\0' || line[0] == '#')
		return NULL;
	if (length < KEY_LEAST || length > KEY_MAX)
		return "a key has 16 to 255 characters";
	if (!keys_is_printable(line, length))
		return "a key has printable ASCII characters only";
	if (keys->n == KEYS_MAX)
		return "there are more than 256 keys";
	memcpy(keys->own[keys->n++].text, line, length);
	return NULL;
}

static int keys_read(FILE *file, const char *path, struct keys *keys, char *message, size_t size)
{
	CLEANUP(cleanup_free) char *line = NULL;
	size_t capacity = 0;
	ssize_t n;

	for (uint32_t number = 1; (n = getline(&line, &capacity, file)) >= 0; number++) {
		while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
			line[--n] = '\0';
		const char *why = strlen(line) == (size_t)n ? keys_take_line(keys, line) : "it has a zero byte";
		if (why)
			return keys_fail(-EINVAL, message, size, "%s: line %u: %s", path, number, why);
	}
	if (ferror(file))
		return keys_fail(-EIO, message, size, "%s: cannot be read", path);
	if (keys->n == 0)
		return keys_fail(-EINVAL, message, size, "%s: has no key", path);
	return 0;
}

int keys_load(const char *path, struct keys **ret, char *message, size_t size)
{
	FILE *file = NULL;
	int rc = keys_open(path, &file, message, size);
	if (rc < 0)
		return rc;
	struct keys *keys = calloc(1, sizeof(*keys));
	rc = keys ? keys_read(file, path, keys, message, size)
		: keys_fail(-ENOMEM, message, size, "%s: no memory", path);
	fclose(file);
	if (rc < 0) {
		keys_free(keys);
		return rc;
	}
	*ret = keys;
	return 0;
}

void keys_free(struct keys *keys)
{
	if (!keys)
		return;
	explicit_bzero(keys, sizeof(*keys));
	free(keys);
}

/* All bytes of both are looked at, whatever they are. */
static bool keys_are_equal(const uint8_t a[static KEY_MAX + 1], const uint8_t b[static KEY_MAX + 1])
{
	volatile uint8_t different = 0;

	for (size_t i = 0; i <= KEY_MAX; i++)
		different |= a[i] ^ b[i];
	return different == 0;
}

bool keys_have(const struct keys *keys, const char *authorization)
{
	static const char scheme[] = "Bearer ";
	uint8_t given[KEY_MAX + 1] = {0};
	bool found = false;

	if (!authorization || strncasecmp(authorization, scheme, sizeof(scheme) - 1) != 0)
		return false;
	const char *text = authorization + sizeof(scheme) - 1;
	size_t length = strlen(text);
	if (length < KEY_LEAST || length > KEY_MAX)
		return false;
	memcpy(given, text, length);
	/* Every key is compared, so that the time does not tell which one it was like. */
	for (uint32_t i = 0; i < keys->n; i++)
		found |= keys_are_equal(keys->own[i].text, given);
	return found;
}
