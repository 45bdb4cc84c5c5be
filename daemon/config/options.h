/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_OPTIONS_H
#define MIMEO_DAEMON_OPTIONS_H

/* mimeod's command line and environment, and through them its configuration files. */

#include <stdio.h>

#include "daemon/config/config.h"

#define OPTIONS_DEFAULT_CONFIG "/etc/mimeo/mimeod.conf"
#define OPTIONS_USER_CONFIG "mimeo/mimeod.conf" /* in $XDG_CONFIG_HOME, else in ~/.config */
#define OPTIONS_DONE 1  /* --help or --version was asked for and written */
#define OPTIONS_CHECK 2 /* --check-config: the configuration is right and was written */

/* The file without --config: `system` if it or its folder of fragments exists, or for root; else the user's, written to
 * `ret`. */
const char *options_find_config(const char *system, bool root, char ret[static CONFIG_FOLDER_MAX]);

/*
 * Parse, read the files (config_parse_files: --config, else default_config; NULL: none) and the environment,
 * resolve. 0: *ret is the caller's to config_deinit; so it is with OPTIONS_CHECK. OPTIONS_DONE. -EINVAL and other
 * -errno: error says all that is wrong. `out` takes help and version. Not thread-safe (getopt).
 */
int options_parse(int argc, char **argv, const char *default_config, FILE *out, struct config *ret,
	struct config_error *error);

/* Unset the variables that options_parse reads, except that of one key: for a program that starts a daemon with
 * settings of its own. */
void options_clear_environment(const char *except);

#endif
