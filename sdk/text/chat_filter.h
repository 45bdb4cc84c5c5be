/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_FILTER_H
#define MIMEO_SDK_TEXT_CHAT_FILTER_H

/* Jinja's filters, as in "x | trim", with transformers' tojson. */

#include "sdk/text/chat_builtin.h"

const struct chat_builtin *chat_find_filter(const struct chat_string *name);

/* What it searches beside its own table. */
extern const struct chat_builtin chat_text_filters[];
extern const size_t chat_n_text_filters;
extern const struct chat_builtin chat_sequence_filters[];
extern const size_t chat_n_sequence_filters;

/*
 * The item of a sequence by which a filter works: the attribute "a.b.0" (a string or an integer),
 * or the item itself if `attribute` is MISSING or none. Where an attribute is undefined, `absent`
 * stands for it unless it is MISSING.
 */
struct chat_value chat_filter_key(struct chat_context *context, struct chat_value item,
	struct chat_value attribute, struct chat_value absent);

#endif
