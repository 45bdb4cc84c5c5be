/* SPDX-License-Identifier: MIT */
#include "sdk/text/text_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/cleanup.h"

/* A file that is no regular one is refused when it is read; opening it does not wait for a writer.
 */
#define TEXT_FILES_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

static int text_files_fail(const struct fault *fault, const char *path, const char *name, int error)
{
	return fault_set(fault, error == ENOMEM ? MIMEO_E_NO_MEMORY : MIMEO_E_INVALID, "%s%s%s: %s",
		path, name[0] ? "/" : "", name, strerror(error));
}

/* A file of a folder; without it, *ret_fd is -1. */
static int text_files_open_optional(
	int folder, const char *path, const char *name, int *ret_fd, const struct fault *fault)
{
	*ret_fd = openat(folder, name, TEXT_FILES_FLAGS);
	if (*ret_fd < 0 && errno != ENOENT)
		return text_files_fail(fault, path, name, errno);
	return 0;
}

int text_files_open(struct mimeo_model_files *ret, const char *path, const struct fault *fault)
{
	CLEANUP(cleanup_close) int fd = open(path, TEXT_FILES_FLAGS);
	struct stat status;
	int rc;

	*ret = (struct mimeo_model_files)MIMEO_MODEL_FILES_INIT;
	if (fd < 0 || fstat(fd, &status) < 0)
		return text_files_fail(fault, path, "", errno);
	if (!S_ISDIR(status.st_mode)) {
		ret->tokenizer = STEAL_FD(fd);
		return 0;
	}
	ret->tokenizer = openat(fd, TEXT_FILES_TOKENIZER, TEXT_FILES_FLAGS);
	if (ret->tokenizer < 0)
		return text_files_fail(fault, path, TEXT_FILES_TOKENIZER, errno);
	rc = text_files_open_optional(fd, path, TEXT_FILES_CONFIG, &ret->config, fault);
	if (rc == 0)
		rc = text_files_open_optional(
			fd, path, TEXT_FILES_CHAT_TEMPLATE, &ret->chat_template, fault);
	return rc;
}

void text_files_close(struct mimeo_model_files *files)
{
	cleanup_close(&files->tokenizer);
	cleanup_close(&files->config);
	cleanup_close(&files->chat_template);
	*files = (struct mimeo_model_files)MIMEO_MODEL_FILES_INIT;
}

int text_files_read(
	int fd, const char *name, size_t most, struct bytes *out, const struct fault *fault)
{
	struct stat status;

	if (fstat(fd, &status) < 0)
		return text_files_fail(fault, name, "", errno);
	if (!S_ISREG(status.st_mode))
		return fault_set(fault, MIMEO_E_INVALID, "%s: not a regular file", name);
	if (status.st_size < 0 || (uint64_t)status.st_size > most)
		return fault_set(fault, MIMEO_E_INVALID, "%s: %lld bytes; the limit is %zu", name,
			(long long)status.st_size, most);
	if (bytes_reserve(out, (size_t)status.st_size + 1) < 0)
		return fault_set(fault, out->rc, "%s: out of memory", name);
	/* The file may grow meanwhile; what it had is read. */
	while (out->length < (size_t)status.st_size) {
		ssize_t n = pread(fd, out->data + out->length, (size_t)status.st_size - out->length,
			(off_t)out->length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return text_files_fail(fault, name, "", errno);
		if (n == 0)
			break;
		out->length += (size_t)n;
	}
	return 0;
}
