/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_ACTIVATION_H
#define MIMEO_DAEMON_STARTUP_ACTIVATION_H

/* Sockets that a service manager made and passed to the daemon (sd_listen_fds(3)). */

#include "daemon/serve/listener.h"
#include "daemon/startup/startup_error.h"

/*
 * The listening sockets that were passed, by their paths; fd -1: not passed, and the caller binds it. They stay where
 * they are when the daemon ends: serve_listener_remove does not know them. A descriptor that is neither is refused. 0,
 * or -errno with *error filled in.
 */
int activation_take(const char *clients_path, const char *operators_path, struct serve_listener *ret_clients,
	struct serve_listener *ret_operators, struct startup_error *error);

#endif
