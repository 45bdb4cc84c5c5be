/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_H
#define MIMEO_DAEMON_STARTUP_H

/*
 * From a configuration to a serving daemon. What can be refused cheaply comes first: the locks of the
 * sockets, the device, the config, attention and graph mode of every model, and the memory budget; then
 * weights are read, graphs are captured and the engine is started.
 */

#include "daemon/config/config.h"
#include "daemon/startup/startup_error.h"

/* Exit statuses of mimeod. */
#define MIMEOD_EXIT_DONE 0        /* drained: every request has finished */
#define MIMEOD_EXIT_ERROR 1       /* could not start, or was ended before it had drained */
#define MIMEOD_EXIT_USAGE 2       /* the command line or the configuration is wrong */
#define MIMEOD_EXIT_CUT_OFF 3     /* the drain timeout ended requests */
#define MIMEOD_EXIT_DEVICE_LOST 70 /* the device failed: start again */

struct startup;

/* Everything up to a started engine. config must outlive *ret. 0, or -errno with *error filled in. */
int startup_new(const struct config *config, struct startup **ret, struct startup_error *error);
/* While it serves, the configuration may be read again: these are mimeod's arguments, and the file without --config,
 * which outlive *startup. */
void startup_allow_reload(struct startup *startup, int argc, char **argv, const char *default_config);
/* Serve until the daemon ends; returns an exit status. Disarms interrupt.h once the serving loop handles
 * the signals. *ret_abandoned: the engine still uses sessions; exit without startup_free. */
int startup_serve(struct startup *startup, bool *ret_abandoned);
/* Stops the engine and releases everything. NULL is allowed. */
void startup_free(struct startup *startup);

#endif
