/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_WATCHDOG_H
#define MIMEO_DAEMON_SERVE_WATCHDOG_H

/*
 * The service manager's watchdog, sd_watchdog_enabled(3): a daemon that does not report in time is killed and started
 * again. The loop thread reports only after the engine's thread has taken a turn since the last report, so that
 * neither of them can hang unnoticed.
 */

#include "daemon/serve/serve_state.h"

/* Starts the timer if the service manager wants reports. 0 or -errno. */
int watchdog_start(struct serve *serve);

#endif
