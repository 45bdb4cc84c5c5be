/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_TEST_H
#define MIMEO_SDK_TEXT_CHAT_TEST_H

/* Jinja's tests, as in "x is defined". Their result is true or false by chat_truth. */

#include "sdk/text/chat_builtin.h"

const struct chat_builtin *chat_find_test(const struct chat_string *name);

#endif
