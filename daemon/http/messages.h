/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_MESSAGES_H
#define MIMEO_DAEMON_HTTP_MESSAGES_H

/*
 * A request's messages and tools as a chat template expects them: OpenAI's interface allows a content in parts,
 * and has the arguments of tool calls as text.
 */

#include "daemon/http/api_error.h"

/* The object for mimeo_text_chat: messages, tools unless with_tools is false, and the members of
 * chat_template_kwargs. To be released by json_decref; NULL after an error. */
json_t *messages_chat(const json_t *request, bool with_tools, struct api_error *error);

#endif
