/* SPDX-License-Identifier: MIT */
#include "examples/make-checkpoint/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

int fail(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "make-checkpoint: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	return -1;
}

int file_create(const char *directory, const char *name)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	return fd < 0 ? fail("%s: %s", path, strerror(errno)) : fd;
}

int file_write_text(const char *directory, const char *name,
	void (*print)(const void *arg, FILE *file), const void *arg)
{
	int fd = file_create(directory, name);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");

	if (!file) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	print(arg, file);
	if (ferror(file) | fclose(file))
		return fail("%s/%s: %s", directory, name, strerror(errno));
	return 0;
}

int file_write_all(int fd, const void *data, uint64_t bytes, uint64_t offset)
{
	while (bytes > 0) {
		ssize_t n = pwrite(fd, data, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? errno : EIO;
		data = (const char *)data + n;
		bytes -= (uint64_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}
