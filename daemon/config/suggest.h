/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SUGGEST_H
#define MIMEO_DAEMON_SUGGEST_H

#include <stddef.h>

/* The name that the word was probably meant to be, or NULL: the only one that begins with the word; or else the one with
 * the fewest errors (a character more, less, other, or two exchanged), if they are at most a third of its length. */
const char *suggest(const char *word, const char *const *names, size_t n);

#endif
