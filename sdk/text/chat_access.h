/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_ACCESS_H
#define MIMEO_SDK_TEXT_CHAT_ACCESS_H

/*
 * object.name and object[key], by the rules of Jinja's sandbox: either one tries what Python's does
 * first and then the other. What does not exist, and what the sandbox hides, is undefined.
 */

#include "sdk/text/chat_value.h"

struct chat_value chat_get_attribute(
	struct chat_context *context, struct chat_value object, struct chat_value name);
struct chat_value chat_get_item(
	struct chat_context *context, struct chat_value object, struct chat_value key);

#endif
