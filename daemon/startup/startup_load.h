/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_LOAD_H
#define MIMEO_DAEMON_STARTUP_LOAD_H

/*
 * One more model while the daemon serves, as at the start: examined, its memory planned, its weights read. Its settings
 * are those that a start with the present configuration would give it, and those of the order; what all models share
 * (steps, slots, pages) stays as it is.
 */

#include "daemon/config/config.h"
#include "daemon/serve/serve.h"

struct startup_loader {
	const struct config *config; /* in force, with what the device decided */
	int argc; /* mimeod's arguments, which outlive this; argv NULL: there is no configuration to read */
	char **argv;
	const char *default_config; /* as of struct reload */
	struct engine *engine;
	struct device *device;
	const struct engine_options *engine_options;
};

/* serve_loader.begin and .run; userdata is a struct startup_loader. */
int startup_load_begin(void *userdata, const char *name, const char *path, const char *settings, void **ret_job,
	char *text, size_t size);
int startup_load_run(void *userdata, void *job, struct runner **ret, char *text, size_t size);

#endif
