/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_REQUEST_H
#define MIMEO_SDK_TEXT_CHAT_REQUEST_H

/* A request to render a chat, checked and completed as transformers' apply_chat_template does. */

#include <jansson.h>

/*
 * *ret_chat, the caller's, has the template's variables: "messages" without the members that are
 * null, and with a message's reasoning under each name that templates read; "tools" and
 * "documents", null if they are not given; "add_generation_prompt". 0, or INVALID, UNSUPPORTED,
 * NO_MEMORY with a sentence in message[size].
 */
int chat_request_new(
	json_t **ret_chat, const char *json, size_t length, char *message, size_t size);

#endif
