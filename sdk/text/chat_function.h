/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_FUNCTION_H
#define MIMEO_SDK_TEXT_CHAT_FUNCTION_H

/* The functions that every template has: range, dict, namespace, raise_exception, strftime_now. */

#include "sdk/text/chat_builtin.h"

const struct chat_builtin *chat_find_function(const struct chat_string *name);

#endif
