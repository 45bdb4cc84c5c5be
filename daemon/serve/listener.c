/* SPDX-License-Identifier: MIT */
#include "daemon/serve/listener.h"

#include <errno.h>
#include <unistd.h>

#include "ipc/socket.h"

int serve_listener_bind(struct serve_listener *listener, const char *path)
{
	int fd = socket_bind(path);

	if (fd < 0)
		return fd;
	listener->fd = fd;
	return lstat(path, &listener->file) < 0 ? -errno : 0;
}

void serve_listener_remove(const struct serve_listener *listener, const char *path)
{
	struct stat there;

	if (listener->fd >= 0 && lstat(path, &there) == 0 && there.st_dev == listener->file.st_dev &&
		there.st_ino == listener->file.st_ino)
		unlink(path);
}
