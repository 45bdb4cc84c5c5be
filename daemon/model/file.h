/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_FILE_H
#define MIMEO_DAEMON_MODEL_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/error.h"

/* A descriptor of the directory, or -errno with a sentence. */
int file_open_directory(const char *directory, struct model_error *error);
/* Open `name` in a directory for reading, following links; anything but a regular file is refused,
 * without blocking on a FIFO. 0, -ENOENT (no sentence is written), or another -errno. */
int file_open(int directory_fd, const char *path, const char *name, int *ret_fd, uint64_t *ret_size,
	struct model_error *error);
/* Read exactly [offset, offset + bytes). `path` names the file in errors. */
int file_read(int fd, const char *path, uint64_t offset, void *buffer, size_t bytes,
	struct model_error *error);
/* A whole small file of at most `limit` bytes; the caller frees it. -ENOENT as above. */
int file_load(int directory_fd, const char *path, const char *name, size_t limit, char **ret,
	size_t *ret_bytes, struct model_error *error);

#endif
