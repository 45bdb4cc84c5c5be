/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_MONITOR_H
#define MIMEO_DAEMON_STARTUP_MONITOR_H

#include "daemon/config/config.h"
#include "daemon/serve/serve.h"
#include "daemon/startup/startup_error.h"

/* Look monitor_group up, which is set. 0, or -errno with *error filled in. Not thread-safe (getgrnam). */
int startup_monitor_find(const struct config *config, gid_t *ret, struct startup_error *error);
/*
 * Who may look at the daemon: monitor_group and metrics_port. Sets `monitored`, `monitor_gid` and `metrics_fd`, which
 * listens from now on and which the caller closes unless serve_new takes it over. socket: the clients'. 0, or -errno
 * with *error filled in. Not thread-safe.
 */
int startup_monitor(const struct config *config, const char *socket, struct serve_options *ret,
	struct startup_error *error);

#endif
