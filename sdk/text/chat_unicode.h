/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_UNICODE_H
#define MIMEO_SDK_TEXT_CHAT_UNICODE_H

/* Characters as Python's str methods class and map them. */

#include "sdk/text/chat_string.h"

bool chat_is_space(int32_t character);
bool chat_is_line_end(int32_t character); /* of splitlines() */
bool chat_is_printable(int32_t character);
bool chat_is_alpha(int32_t character);
bool chat_is_digit(int32_t character);   /* with a decimal value */
bool chat_is_numeric(int32_t character); /* with any value */

enum chat_case {
	CHAT_UPPER,
	CHAT_LOWER,
	CHAT_CAPITALIZE, /* the first character in title case, the others lower */
	CHAT_TITLE, /* Python: the first letter of each run of letters in title case, the others
		       lower */
	CHAT_WORDS, /* Jinja: what stands behind white space, a hyphen or an opening bracket upper,
		       the rest lower */
};

struct chat_value chat_change_case(
	struct chat_context *context, const struct chat_string *string, enum chat_case to);

/* islower(), isupper(): at least one character has case, and all that do have this one. */
bool chat_has_case(const struct chat_string *string, bool upper);

#endif
