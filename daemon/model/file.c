/* SPDX-License-Identifier: MIT */
#include "daemon/model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/model/error.h"
#include "ipc/cleanup.h"

int file_open_directory(const char *directory, struct model_error *error)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 ? fd
		       : model_fail(error, -errno, "%s: cannot be opened as a directory: %s",
				 directory, strerror(errno));
}

int file_open(int directory_fd, const char *path, const char *name, int *ret_fd, uint64_t *ret_size,
	struct model_error *error)
{
	CLEANUP(cleanup_close) int fd =
		openat(directory_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0 && errno == ENOENT)
		return -ENOENT;
	if (fd < 0)
		return model_fail(error, -errno, "%s: cannot be opened: %s", path, strerror(errno));
	/* O_NONBLOCK is for the opening, which would wait for a FIFO's writer. Left set, io_uring
	 * answers EAGAIN to reads that wait for the disk. */
	if (fstat(fd, &st) < 0 || fcntl(fd, F_SETFL, 0) < 0)
		return model_fail(
			error, -errno, "%s: cannot be examined: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return model_fail(error, -EINVAL, "%s: is not a regular file", path);
	*ret_fd = STEAL_FD(fd);
	*ret_size = (uint64_t)st.st_size;
	return 0;
}

int file_read(int fd, const char *path, uint64_t offset, void *buffer, size_t bytes,
	struct model_error *error)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, (char *)buffer + done, bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return model_fail(
				error, -errno, "%s: cannot be read: %s", path, strerror(errno));
		if (n == 0)
			return model_fail(error, -EIO,
				"%s: ends at byte %" PRIu64 ", it was longer before", path,
				offset + done);
		done += (size_t)n;
	}
	return 0;
}

int file_load(int directory_fd, const char *path, const char *name, size_t limit, char **ret,
	size_t *ret_bytes, struct model_error *error)
{
	CLEANUP(cleanup_close) int fd = -1;
	CLEANUP(cleanup_free) char *text = NULL;
	uint64_t size;
	int rc = file_open(directory_fd, path, name, &fd, &size, error);

	if (rc)
		return rc;
	if (size > limit)
		return model_fail(error, -EFBIG, "%s: %" PRIu64 " bytes exceed the limit of %zu",
			path, size, limit);
	text = malloc(size ? size : 1);
	if (!text)
		return model_fail(
			error, -ENOMEM, "%s: no memory for %" PRIu64 " bytes", path, size);
	rc = file_read(fd, path, 0, text, size, error);
	if (rc)
		return rc;
	*ret = STEAL(text);
	*ret_bytes = size;
	return 0;
}
