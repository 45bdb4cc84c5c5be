/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_monitor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "build-config.h"
#include "daemon/config/account.h"
#include "ipc/cleanup.h"
#include "ipc/socket.h"

#define MONITOR_GROUPS_MAX 1024

/* A process may give a file to its own groups alone, unless it is root's. */
static bool monitor_may_give_to(gid_t gid)
{
	gid_t groups[MONITOR_GROUPS_MAX];
	int n = getgroups(MONITOR_GROUPS_MAX, groups);

	if (geteuid() == 0 || getegid() == gid)
		return true;
	for (int i = 0; i < n; i++) {
		if (groups[i] == gid)
			return true;
	}
	return false;
}

int startup_monitor_find(const struct config *config, gid_t *ret, struct startup_error *error)
{
	const char *name = config->monitor_group;
	id_t gid;

	int rc = account_find(name, true, &gid);
	if (rc == -ENOENT)
		return startup_refuse(error, rc, "monitor_group: there is no group %s", name);
	if (rc < 0)
		return startup_refuse(
			error, rc, "monitor_group: group %s cannot be looked up: %s", name, strerror(-rc));
	*ret = gid;
	return 0;
}

static int monitor_choose_group(const struct config *config, const char *socket, struct serve_options *ret,
	struct startup_error *error)
{
	const char *name = config->monitor_group;
	char path[SOCKET_PATH_MAX];
	gid_t gid;

	int rc = startup_monitor_find(config, &gid, error);
	if (rc < 0)
		return rc;
	if (!monitor_may_give_to(gid))
		return startup_refuse(error, -EPERM,
			"monitor_group: user %u, who runs the daemon, is not in group %s: add it to the group",
			(unsigned)geteuid(), name);
	rc = socket_monitor_path(path, socket);
	if (rc < 0)
		return startup_refuse(error, rc, "%s: too long for a socket: at most %d bytes with -monitor", socket,
			SOCKET_PATH_MAX - 1);
	ret->monitored = true;
	ret->monitor_gid = gid;
	return 0;
}

/* The listening socket, or -errno. */
static int monitor_listen(uint16_t port)
{
	const struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const int on = 1;

	CLEANUP(cleanup_close) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
		bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, SOMAXCONN) < 0)
		return -errno;
	return STEAL_FD(fd);
}

int startup_monitor(const struct config *config, const char *socket, struct serve_options *ret,
	struct startup_error *error)
{
	if (config->monitor_group[0]) {
		int rc = monitor_choose_group(config, socket, ret, error);
		if (rc < 0)
			return rc;
	}
	if (!config->metrics_port)
		return 0;
	if (!HAVE_MICROHTTPD)
		return startup_refuse(error, -ENOTSUP, "metrics_port: this build has no libmicrohttpd: build with it, "
			"or leave metrics_port out");
	int fd = monitor_listen((uint16_t)config->metrics_port);
	if (fd < 0)
		return startup_refuse(error, fd, "metrics_port: cannot listen on 127.0.0.1:%u: %s",
			(unsigned)config->metrics_port, strerror(-fd));
	ret->metrics_fd = fd;
	return 0;
}
