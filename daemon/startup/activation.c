/* SPDX-License-Identifier: MIT */
#include "daemon/startup/activation.h"

#include "build-config.h"

#if HAVE_SYSTEMD

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include "ipc/socket.h"

/* Take it if it listens there. 1, 0 or -errno. */
static int activation_try(int fd, const char *path, struct serve_listener *ret)
{
	int rc = ret->fd < 0 ? sd_is_socket_unix(fd, SOCK_STREAM, 1, path, 0) : 0;

	if (rc <= 0)
		return rc;
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
		return -errno;
	socket_pass_rights(fd, false);
	ret->fd = fd;
	ret->passed = true;
	return 1;
}

int activation_take(const char *clients_path, const char *operators_path, struct serve_listener *ret_clients,
	struct serve_listener *ret_operators, struct startup_error *error)
{
	struct serve_listener clients = {.fd = -1}, operators = {.fd = -1};
	int n = sd_listen_fds(0);

	for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + n; fd++) {
		int rc = activation_try(fd, clients_path, &clients);

		if (rc == 0)
			rc = activation_try(fd, operators_path, &operators);
		if (rc == 0)
			return startup_refuse(error, -EINVAL,
				"descriptor %d of the service manager is not a socket that listens at %s or %s: "
				"correct ListenStream= of the socket unit, or --socket",
				fd, clients_path, operators_path);
		if (rc < 0)
			return startup_refuse(error, rc, "descriptor %d of the service manager: %s", fd, strerror(-rc));
	}
	*ret_clients = clients;
	*ret_operators = operators;
	return 0;
}

#else

int activation_take(const char *clients_path, const char *operators_path, struct serve_listener *ret_clients,
	struct serve_listener *ret_operators, struct startup_error *error)
{
	*ret_clients = *ret_operators = (struct serve_listener){.fd = -1};
	return 0;
}

#endif
