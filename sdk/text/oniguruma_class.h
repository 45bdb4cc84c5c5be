/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_ONIGURUMA_CLASS_H
#define MIMEO_SDK_TEXT_ONIGURUMA_CLASS_H

/* Character classes and properties of Oniguruma, and escapes that mean one character. */

#include <stdbool.h>
#include <stdint.h>

#include "sdk/text/buffer.h"

struct oniguruma_source {
	const char *at, *end;
	const char *reason; /* NULL, or why the pattern is refused: the first reason counts */
	bool caseless;
	uint32_t n_caseless; /* characters of ranges whose case is ignored */
};

static inline bool oniguruma_refuse(struct oniguruma_source *source, const char *reason)
{
	if (!source->reason)
		source->reason = reason;
	source->at = source->end;
	return false;
}

/* <ctype.h> depends on the locale. */
static inline char oniguruma_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

static inline bool oniguruma_is_alnum(char c)
{
	char lower = oniguruma_lower(c);

	return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9');
}

/* Behind a backslash: a character. False: it is another kind of escape, and nothing was read. */
bool oniguruma_read_character(struct oniguruma_source *source, uint32_t *ret_character);
/*
 * Behind a backslash: a class such as \s or \p{L}. Adds the items that stand for it within [ ];
 * *ret_negated: their complement is meant. False: it is another kind of escape, and nothing was
 * read.
 */
bool oniguruma_read_shorthand(
	struct oniguruma_source *source, struct bytes *items, bool *ret_negated);
/* Behind [: the rest of a class, as an expression of one character. */
void oniguruma_read_class(struct oniguruma_source *source, struct bytes *out);
/* As an item of [ ]. */
void oniguruma_put_character(struct bytes *out, uint32_t character);

/* PCRE2 does not match such characters if case is ignored. */
bool oniguruma_folds_to_several(uint32_t character);

#endif
