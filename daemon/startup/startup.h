/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_H
#define MIMEO_DAEMON_STARTUP_H

/*
 * From a configuration to a serving daemon, in the order in which things can be refused cheaply:
 * the sockets' locks, the device, every model's config, attention and graph mode, the memory
 * budget; only then are weights read, graphs captured, and the engine started.
 */

#include "daemon/config/config.h"
#include "daemon/startup/startup_error.h"

/* Exit statuses of mimeod. */
#define MIMEOD_EXIT_DONE 0        /* drained: everything that ran has finished */
#define MIMEOD_EXIT_ERROR 1       /* could not start, or requests were cut off at the end */
#define MIMEOD_EXIT_USAGE 2       /* the command line or the configuration is wrong */
#define MIMEOD_EXIT_DEVICE_LOST 70 /* the device failed: start again */

struct startup;

/* Everything up to a started engine. `config` outlives *ret. 0, or -errno with the error said. */
int startup_new(const struct config *config, struct startup **ret, struct startup_error *error);
/* Serve until the end; an exit status. Disarms interrupt.h once the serving loop has the signals. *ret_abandoned: sessions are still in the engine's hands,
 * and the process has to end without startup_free. */
int startup_serve(struct startup *startup, bool *ret_abandoned);
/* Stops the engine and gives everything back. */
void startup_free(struct startup *startup);

#endif
