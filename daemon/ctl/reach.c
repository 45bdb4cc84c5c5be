/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/reach.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Who may not be an operator: neither root nor the socket's owner. */
static bool reach_is_stranger(const char *admin)
{
	struct stat st;

	return geteuid() != 0 && (stat(admin, &st) < 0 || st.st_uid != geteuid());
}

int reach_quietly(const char *socket, char admin[static SOCKET_PATH_MAX])
{
	char client[SOCKET_PATH_MAX], monitor[SOCKET_PATH_MAX];

	int rc = reach_paths(socket, client, admin);
	if (rc < 0)
		return rc;
	if (reach_is_stranger(admin) && socket_monitor_path(monitor, client) == 0) {
		int fd = socket_connect(monitor, REACH_TIMEOUT_MS);

		if (fd >= 0) {
			strcpy(admin, monitor);
			return fd;
		}
	}
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
		fprintf(stderr, "mimeoctl: %s: permission denied: be root, the user that mimeod runs as, or in its "
			"monitor_group\n", admin);
	else if (fd < 0)
		fprintf(stderr,
			"mimeoctl: no daemon answers on %s (%s): start mimeod, or name its socket with --socket\n",
			admin, strerror(-fd));
	return fd;
}
