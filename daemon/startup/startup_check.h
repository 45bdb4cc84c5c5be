/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_CHECK_H
#define MIMEO_DAEMON_STARTUP_CHECK_H

/* What a configuration names on this machine: users, groups, models. Neither the device nor a weight is looked at. */

#include <stdio.h>

#include "daemon/config/config.h"

/* Writes a line to `out` for each thing that would keep a daemon from starting. Their number. */
uint32_t startup_check(const struct config *config, FILE *out);

#endif
