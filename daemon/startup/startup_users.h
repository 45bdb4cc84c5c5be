/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_USERS_H
#define MIMEO_DAEMON_STARTUP_USERS_H

#include "daemon/config/config.h"
#include "daemon/serve/weights.h"
#include "daemon/startup/startup_error.h"

/* Look the users and groups of `weights` up. 0, or -errno with *error filled in. Not thread-safe (getpwnam). */
int startup_find_users(const struct config *config, struct weights *ret, struct startup_error *error);

#endif
