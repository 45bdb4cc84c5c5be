/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_NOTIFY_H
#define MIMEO_DAEMON_SERVE_NOTIFY_H

/* systemd's readiness protocol; without systemd these do nothing. */

#include <stdint.h>

void notify_ready(const char *status);
/* The configuration is being read again; notify_ready follows. */
void notify_reloading(void);
void notify_status(const char *status);
void notify_stopping(void);
/* How often notify_alive has to be called at least; 0: it need not. */
uint64_t notify_watchdog_us(void);
void notify_alive(void);

#endif
