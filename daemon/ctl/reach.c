/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/reach.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define REACH_TIMEOUT_MS 5000u

/* Is it the path of an operators' socket, "x-admin.sock" or "x-admin"? */
static bool reach_names_admin(const char *path)
{
	static const char *const tails[] = {"-admin.sock", "-admin"};
	size_t length = strlen(path);

	for (int i = 0; i < 2; i++) {
		size_t tail = strlen(tails[i]);

		if (length > tail && strcmp(path + length - tail, tails[i]) == 0)
			return true;
	}
	return false;
}

int reach_paths(const char *socket, char client[static SOCKET_PATH_MAX], char admin[static SOCKET_PATH_MAX])
{
	int rc = socket_path(client, socket);

	if (rc < 0)
		return rc;
	return client[0] ? socket_admin_path(admin, client) : -EINVAL;
}

int reach_quietly(const char *socket, char admin[static SOCKET_PATH_MAX])
{
	char client[SOCKET_PATH_MAX];

	int rc = reach_paths(socket, client, admin);
	if (rc < 0)
		return rc;
	int fd = socket_connect(admin, REACH_TIMEOUT_MS);
	if (fd == -ENOENT && reach_names_admin(client)) {
		strcpy(admin, client);
		fd = socket_connect(admin, REACH_TIMEOUT_MS);
	}
	return fd;
}

int reach_daemon(const char *socket)
{
	char client[SOCKET_PATH_MAX], admin[SOCKET_PATH_MAX];

	int rc = reach_paths(socket, client, admin);
	if (rc < 0) {
		fprintf(stderr, "mimeoctl: the socket's path must be 1 to %d bytes with -admin, this one has %zu\n",
			SOCKET_PATH_MAX - 1, socket_path_bytes(socket));
		return rc;
	}
	int fd = reach_quietly(socket, admin);
	if (fd == -EACCES)
		fprintf(stderr, "mimeoctl: %s: permission denied: be root or the user that mimeod runs as\n", admin);
	else if (fd < 0)
		fprintf(stderr,
			"mimeoctl: no daemon answers on %s (%s): start mimeod, or name its socket with --socket\n",
			admin, strerror(-fd));
	return fd;
}
