/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_FORMAT_H
#define MIMEO_SDK_TEXT_CHAT_FORMAT_H

/* Python's two ways to format: "%s" % value and "{}".format(value). */

#include "sdk/text/chat_value.h"

/* `values` is a tuple of values, a dict of named ones, or one value. */
struct chat_value chat_format_percent(
	struct chat_context *context, struct chat_value format, struct chat_value values);

/*
 * Fields are {}, {0} and {name}, with !r or !s and a format specification; none with attributes or
 * items.
 */
struct chat_value chat_format_braces(struct chat_context *context, const struct chat_string *format,
	const struct chat_list *positional, const struct chat_dict *keywords);

#endif
