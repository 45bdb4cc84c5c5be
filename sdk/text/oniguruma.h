/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_ONIGURUMA_H
#define MIMEO_SDK_TEXT_ONIGURUMA_H

/*
 * Regular expressions of tokenizer.json are in Oniguruma's syntax (ONIG_SYNTAX_ONIGURUMA, UTF-8).
 * PCRE2's differs: in the meaning of \h, \v, \w, \b, {n}+, (?m), of an option within a group; in
 * classes that hold classes or have &&; in names of properties. What has no counterpart, or none
 * that is worth its code, is refused: back references, calls of groups, absent expressions, \X-like
 * segmentation, ASCII options, extended layout, and letters whose case folds to two characters.
 */

#include <stddef.h>

#include "sdk/text/buffer.h"

#define ONIGURUMA_PATTERN_MAX 16384 /* bytes */

/*
 * Translate pattern[length] to PCRE2's syntax with the options UTF, UCP and MULTILINE; `out` is
 * empty. *ret_run: the pattern is something like \s+X, and the first so many bytes of `out` are
 * what matches one character of the run; else 0. 0, or UNSUPPORTED with a reason in static storage,
 * or NO_MEMORY.
 */
int oniguruma_translate(const char *pattern, size_t length, struct bytes *out, size_t *ret_run,
	const char **ret_reason);

#endif
