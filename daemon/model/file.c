/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/model/error.h"
#include "daemon/model/file.h"

int file_open(int directory_fd, const char *path, const char *name, int *ret_fd, uint64_t *ret_size,
	struct model_error *error)
{
	struct stat st;
	int rc, fd = openat(directory_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0 && errno == ENOENT)
		return -ENOENT;
	if (fd < 0)
		return model_fail(error, -errno, "%s: cannot be opened: %s", path, strerror(errno));
	/* O_NONBLOCK is for the opening, lest a pipe hangs it. Left set, io_uring takes it for a
	 * wish to be told EAGAIN where the file's disk would have to be waited for. */
	if (fstat(fd, &st) < 0 || fcntl(fd, F_SETFL, 0) < 0) {
		rc = model_fail(
			error, -errno, "%s: cannot be looked at: %s", path, strerror(errno));
		close(fd);
		return rc;
	}
	if (!S_ISREG(st.st_mode)) {
		close(fd);
		return model_fail(error, -EINVAL, "%s: is not a regular file", path);
	}
	*ret_fd = fd;
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
	uint64_t size;
	char *text = NULL;
	int fd, rc;

	rc = file_open(directory_fd, path, name, &fd, &size, error);
	if (rc)
		return rc;
	if (size > limit) {
		rc = model_fail(error, -EFBIG, "%s: %" PRIu64 " bytes exceed the limit of %zu",
			path, size, limit);
		goto out;
	}
	text = malloc(size ? size : 1);
	if (!text) {
		rc = model_fail(error, -ENOMEM, "%s: no memory for %" PRIu64 " bytes", path, size);
		goto out;
	}
	rc = file_read(fd, path, 0, text, size, error);
	if (rc)
		goto out;
	*ret = text;
	*ret_bytes = size;
	text = NULL;
out:
	free(text);
	close(fd);
	return rc;
}
