/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_COMPLETE_H
#define MIMEO_DAEMON_CTL_COMPLETE_H

#include <stddef.h>
#include <stdio.h>

struct command_option;

/*
 * What may stand in place of the last of the words of an unfinished command line (without the program's name; the
 * last word may be ""). One candidate a line, a tab, and a description: for the shells' completions. Names of what the
 * daemon has are asked from it; if none answers, there are none. Prints nothing where a path is expected.
 */
void complete_print(char **words, int n_words, const struct command_option *options, size_t n_options, FILE *out);

#endif
