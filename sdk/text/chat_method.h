/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_METHOD_H
#define MIMEO_SDK_TEXT_CHAT_METHOD_H

/*
 * Methods of Python's strings, lists, tuples and dicts, without those that would change their
 * object.
 */

#include "sdk/text/chat_builtin.h"

/* NULL: its type has no such method. One that is not supported fails when it is called. */
const struct chat_builtin *chat_find_method(
	struct chat_value object, const struct chat_string *name);
/* Whether it is a method that would change its object: the sandbox hides these. */
bool chat_is_mutator(struct chat_value object, const struct chat_string *name);

/* The table of str, and what filters share with it. */
extern const struct chat_builtin chat_string_methods[];
extern const size_t chat_n_string_methods;

/* Without the characters of `set` (NULL: white space) at the beginning and the end. */
struct chat_value chat_strip(struct chat_context *context, struct chat_value string,
	const struct chat_string *set, bool at_begin, bool at_end);
/* The first `count` (-1: all) occurrences of `old` replaced. */
struct chat_value chat_replace(struct chat_context *context, const struct chat_string *string,
	const struct chat_string *old, const struct chat_string *new, int64_t count);
/* Lines; with their ends if `keep_ends`. */
struct chat_value chat_split_lines(
	struct chat_context *context, struct chat_value string, bool keep_ends);

#endif
