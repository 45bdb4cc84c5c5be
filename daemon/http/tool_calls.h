/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_TOOL_CALLS_H
#define MIMEO_DAEMON_HTTP_TOOL_CALLS_H

/*
 * Tool calls in the text of an answer, in the formats of widely used models:
 *
 *	Hermes, Qwen   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them
 *	Mistral        [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]NAME[ARGS]{...}
 *	Llama 3        {"name": ..., "parameters": {...}}, alone or behind <|python_tag|>, several with ; between
 *
 * Only what is whole and names one of the request's tools is a call; anything else stays text.
 */

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "daemon/http/bytes.h"

struct tool_calls {
	const json_t *tools; /* of the request; the caller's */
	struct bytes held;   /* text that may be, or belong to, a call */
	bool began;          /* text that is no call has come */
	bool calling;        /* `held` begins with a marker: it is kept until the end */
};

/* Add text, and append to *ret_text what is certainly no call. 0 or -ENOMEM. */
int tool_calls_push(struct tool_calls *calls, const char *text, size_t n, struct bytes *ret_text);
/* No more text comes. *ret_calls: a list as of OpenAI's interface, to be released by json_decref; NULL if there
 * are none, and then the rest of the text is appended to *ret_text. 0 or -ENOMEM. */
int tool_calls_end(struct tool_calls *calls, struct bytes *ret_text, json_t **ret_calls);
void tool_calls_deinit(struct tool_calls *calls);

#endif
