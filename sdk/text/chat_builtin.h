/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_BUILTIN_H
#define MIMEO_SDK_TEXT_CHAT_BUILTIN_H

/*
 * Functions that templates call and C implements: filters, tests, methods and global functions. A
 * table of them gives each its name and parameters; chat_call_builtin binds the arguments as Python
 * does.
 */

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_string.h"

#define CHAT_PARAMETERS_MAX 5

struct chat_call {
	struct chat_context *context;
	const struct chat_builtin *builtin; /* the one that is called */
	struct chat_value self;             /* what is filtered or tested; a method's object */
	struct chat_value arguments[CHAT_PARAMETERS_MAX]; /* by parameter; MISSING: not given */
	/* as they were given, for builtins of any number of arguments */
	const struct chat_list *positional;
	const struct chat_dict *keywords;
};

struct chat_builtin {
	const char *name;
	struct chat_value (*call)(const struct chat_call *call);
	const char *parameters; /* "a, b": names, the required ones first; NULL: any arguments */
	uint8_t n_required;
	uint32_t option; /* distinguishes builtins that share a function */
};

struct chat_value chat_call_builtin(struct chat_context *context,
	const struct chat_builtin *builtin, struct chat_value self,
	const struct chat_list *positional, const struct chat_dict *keywords);

/* NULL: there is none of that name. */
const struct chat_builtin *chat_find_builtin(
	const struct chat_builtin *table, size_t n, const struct chat_string *name);

/* Arguments of a call, with the value that stands for a missing one. */
bool chat_argument_bool(const struct chat_call *call, size_t i, bool missing);
int64_t chat_argument_integer(const struct chat_call *call, size_t i, int64_t missing);
/* NULL if it is missing or none; anything but a string is a TypeError. */
const struct chat_string *chat_argument_string(const struct chat_call *call, size_t i);

#endif
