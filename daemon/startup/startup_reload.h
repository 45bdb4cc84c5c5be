/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_RELOAD_H
#define MIMEO_DAEMON_STARTUP_RELOAD_H

/*
 * The configuration read again while the daemon serves. Settings that are live (struct config_key) are applied; of
 * others the difference to what is in force is told. If anything is wrong, nothing is applied.
 */

#include <stdio.h>

#include "daemon/config/config.h"
#include "daemon/serve/serve.h"

struct reload {
	int argc;
	char **argv;
	const char *default_config; /* as found at the start: a file that appears in /etc later must not replace the user's */
	struct config in_force; /* as configured; its models' directories are the caller's */
	struct engine *engine;
};

/* serve_options.reload; userdata is a struct reload. */
int startup_reload(void *userdata, struct serve_options *options, FILE *out);
/* The limits of clients. */
void startup_set_limits(const struct config *config, const struct weights *weights, struct serve_options *ret);

#endif
