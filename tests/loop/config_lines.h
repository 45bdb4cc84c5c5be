/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_LOOP_CONFIG_LINES_H
#define MIMEO_TESTS_LOOP_CONFIG_LINES_H

/* Command lines and configuration files as text. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/config/config.h"
#include "daemon/config/options.h"

extern struct config_error error; /* of the last that was parsed */

/* A group's setup: the variables of settings that the tests themselves run with, such as MIMEO_LOOP, are unset. */
int without_environment(void **state);
/* A command line in one string, words apart by spaces. */
int parse_with(const char *line, const char *file, FILE *out, struct config *ret);
int parse(const char *line, struct config *ret);
/* `text` as the default configuration file. */
int parse_file(const char *text, const char *line, struct config *ret);
const struct config_key *key_named(const char *name);

#endif
