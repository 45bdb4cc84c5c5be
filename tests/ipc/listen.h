/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_IPC_LISTEN_H
#define MIMEO_TESTS_IPC_LISTEN_H

#include <unistd.h>

#include "ipc/socket.h"

/* Lock, bind and listen. The listening fd, or -errno and no lock. */
static inline int socket_listen(const char *path, int *ret_lock_fd)
{
	int lock_fd, rc = socket_lock(path, &lock_fd);

	if (rc < 0)
		return rc;
	int fd = socket_bind(path);
	if (fd < 0)
		close(lock_fd);
	else
		*ret_lock_fd = lock_fd;
	return fd;
}

#endif
