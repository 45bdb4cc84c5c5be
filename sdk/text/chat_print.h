/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_PRINT_H
#define MIMEO_SDK_TEXT_CHAT_PRINT_H

/* Values as text: Python's str(), repr() and json.dumps(). */

#include "sdk/text/chat_string.h"

void chat_print(struct chat_text *text, struct chat_value value);
void chat_print_repr(struct chat_text *text, struct chat_value value);
/* str() as a string; a string is returned as it is, without its mark. */
struct chat_value chat_str(struct chat_context *context, struct chat_value value);
/* The same, but Markup stays Markup (MarkupSafe's soft_str). */
struct chat_value chat_soft_str(struct chat_context *context, struct chat_value value);

#define CHAT_FLOAT_MAX 40 /* bytes of repr() of a float, with the terminator */
void chat_float_repr(double real, char text[CHAT_FLOAT_MAX]);

/* The arguments of json.dumps(). */
struct chat_json_style {
	bool ensure_ascii, sort_keys, is_indented;
	struct chat_value indent;                        /* one level, a string, if is_indented */
	struct chat_value item_separator, key_separator; /* strings */
};
void chat_print_json(
	struct chat_text *text, struct chat_value value, const struct chat_json_style *style);

#endif
