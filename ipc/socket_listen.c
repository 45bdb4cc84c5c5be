/* SPDX-License-Identifier: MIT */
/* The daemon's sockets: their lock files, and their names. */
#include "ipc/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/cleanup.h"
#include "ipc/socket_address.h"

/* Is fd the file of that name? */
static bool socket_is_named(int fd, const char *name)
{
	struct stat ours, there;

	return fstat(fd, &ours) == 0 && lstat(name, &there) == 0 && ours.st_dev == there.st_dev &&
		ours.st_ino == there.st_ino;
}

/*
 * A daemon that ends removes the file while it holds the lock. A process that had opened the file before
 * then gets the lock of a file without a name, which excludes no other: it opens the new file.
 */
static int socket_lock_take(const char *path)
{
	char name[SOCKET_PATH_MAX + sizeof(SOCKET_LOCK_SUFFIX)];

	snprintf(name, sizeof(name), "%s%s", path, SOCKET_LOCK_SUFFIX);
	for (;;) {
		CLEANUP(cleanup_close) int fd =
			open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX | LOCK_NB) < 0)
			return errno == EWOULDBLOCK ? -EADDRINUSE : -errno;
		if (!socket_is_named(fd, name))
			continue;
		/* Only for messages: if it fails, the daemon's pid is unknown. */
		if (ftruncate(fd, 0) == 0)
			dprintf(fd, "%d\n", (int)getpid());
		return STEAL_FD(fd);
	}
}

pid_t socket_lock_owner(const char *path)
{
	char name[SOCKET_PATH_MAX + sizeof(SOCKET_LOCK_SUFFIX)], text[16] = "";

	snprintf(name, sizeof(name), "%s%s", path, SOCKET_LOCK_SUFFIX);
	CLEANUP(cleanup_close) int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return 0;
	long pid = strtol(text, NULL, 10);
	return pid > 0 && pid <= INT_MAX ? (pid_t)pid : 0;
}

void socket_unlock(const char *path, int lock_fd)
{
	char name[SOCKET_PATH_MAX + sizeof(SOCKET_LOCK_SUFFIX)];

	if (lock_fd < 0)
		return;
	snprintf(name, sizeof(name), "%s%s", path, SOCKET_LOCK_SUFFIX);
	if (socket_is_named(lock_fd, name))
		unlink(name);
	close(lock_fd);
}

/* After a process with io_uring is killed, its sockets stay open until the kernel has released the ring:
 * milliseconds, more on a busy machine. So a socket that accepts connections is tried again for this long
 * before it counts as in use; a live daemon would hold the lock. */
#define LEFTOVER_MS 5000
#define LEFTOVER_PAUSE_MS 2

/* Remove a dead daemon's socket. Called with the lock held. */
static int socket_remove_leftover(const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -ENOTSOCK;

	int fd = socket_connect(path, 0);
	for (unsigned ms = 0; fd >= 0 && ms < LEFTOVER_MS; ms += LEFTOVER_PAUSE_MS) {
		close(fd);
		usleep(1000 * LEFTOVER_PAUSE_MS);
		fd = socket_connect(path, 0);
	}
	if (fd >= 0) {
		close(fd);
		return -EADDRINUSE;
	}
	if (fd == -ETIMEDOUT || fd == -EPROTOTYPE)
		return -EADDRINUSE;
	if (fd != -ECONNREFUSED)
		return fd;
	if (unlink(path) < 0 && errno != ENOENT)
		return -errno;
	return 0;
}

static int socket_bind_and_listen(int fd, const char *path, const struct sockaddr_un *address)
{
	if (bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0)
		return -errno;
	/* No client can connect before listen, so none sees the mode of the umask or can send descriptors. */
	socket_pass_rights(fd, false);
	if (chmod(path, 0660) < 0 || listen(fd, SOMAXCONN) < 0) {
		int rc = -errno;

		unlink(path);
		return rc;
	}
	return 0;
}

int socket_lock_passed(const char *path, int *ret_lock_fd)
{
	*ret_lock_fd = socket_lock_take(path);
	return *ret_lock_fd < 0 ? *ret_lock_fd : 0;
}

int socket_lock(const char *path, int *ret_lock_fd)
{
	struct sockaddr_un address;

	int rc = socket_address(&address, path);
	if (rc < 0)
		return rc;
	CLEANUP(cleanup_close) int lock_fd = socket_lock_take(path);
	if (lock_fd < 0)
		return lock_fd;
	rc = socket_remove_leftover(path);
	if (rc < 0)
		return rc;
	*ret_lock_fd = STEAL_FD(lock_fd);
	return 0;
}

int socket_bind(const char *path)
{
	struct sockaddr_un address;

	int rc = socket_address(&address, path);
	if (rc < 0)
		return rc;
	rc = socket_remove_leftover(path);
	if (rc < 0)
		return rc;
	CLEANUP(cleanup_close) int fd =
		socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	rc = socket_bind_and_listen(fd, path, &address);
	if (rc < 0)
		return rc;
	return STEAL_FD(fd);
}
