/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_MODULE_PATTERN_H
#define MIMEO_DAEMON_MODEL_MODULE_PATTERN_H

/*
 * Regular expressions of an untrusted file, matched against names of modules as Python's re.match
 * does: from the first character on, to any. A pattern becomes steps, of which a match follows all
 * that can be reached, a character at a time: memory grows with the pattern's length, time with the
 * product of both lengths. (regcomp of glibc copies what has a + behind it, so that nested ones
 * take all memory.)
 *
 * Known are . [] [^] \d \w \s \D \W \S, escaped punctuation, ^ $ | (...) (?:...) * + ? and these
 * three with a ? behind them. Back references, bounds, look-around and flags are not.
 */

#include <stdbool.h>

#define MODULE_PATTERN_MAX 256u /* characters */

struct module_pattern;

/* 0, -ENOMEM, or -ENOTSUP: it is too long or has what is not known. *ret is the caller's. */
int module_pattern_new(const char *text, struct module_pattern **ret);
/* NULL is allowed. */
void module_pattern_free(struct module_pattern *pattern);
bool module_pattern_matches(const struct module_pattern *pattern, const char *name);

#endif
