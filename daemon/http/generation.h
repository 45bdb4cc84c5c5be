/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_GENERATION_H
#define MIMEO_DAEMON_HTTP_GENERATION_H

/*
 * The answers to one HTTP request: a generate request at mimeod for each CHOICE, n of them for each prompt.
 *
 * The endpoint that began it says in its FORMAT how choices are written. A stream begins with the first event of a
 * choice, so that a refusal before it is a plain HTTP error. If the client is gone, or one choice fails, the others
 * are cancelled. A generation lives until the final events of all its choices.
 */

#include "daemon/http/exchange.h"
#include "daemon/http/generation_params.h"
#include "daemon/http/token_ids.h"
#include "daemon/http/tool_calls.h"

struct generation;

struct choice {
	struct upstream_call call; /* first */
	struct generation *generation;
	uint32_t index;
	struct mimeo_text_stream *text;
	struct bytes content;   /* of a whole reply: all of it; of a stream: what is not sent */
	json_t *logprobs;       /* likewise; a list; NULL: none wanted */
	json_int_t text_offset; /* characters of the tokens whose logprobs were written */
	struct tool_calls tools; /* if the request has some */
	json_t *calls;           /* of the answer, once it has ended; NULL: none */
	bool live;    /* at mimeod */
	bool stopped; /* by a stop string: what comes later is ignored */
	const char *finish; /* "stop", "length", "tool_calls"; NULL: it goes on */
	uint32_t n_tokens, n_cached;
};

struct generation_format {
	const char *prefix; /* of ids */
	const char *object, *chunk_object;
	/* A choice in a whole reply. NULL: no memory. */
	json_t *(*whole)(struct choice *choice);
	/* A choice in a chunk of a stream: with `text` and the log-probabilities that are new, or with its
	 * finish. */
	json_t *(*chunk)(struct choice *choice, const char *text, size_t n);
	/* The first chunk of a choice; NULL: there is none. */
	json_t *(*first)(struct choice *choice);
};

struct generation {
	struct exchange *exchange; /* NULL: replied, or gone */
	struct http *http;
	const struct generation_format *format;
	struct generation_params params;
	uint32_t request_class;
	char model[MIMEO_NAME_MAX], id[48];
	time_t created;
	const json_t *request; /* for tools; owned */
	const json_t *tools;   /* of the request, NULL: none */
	bool started, timed;
	uint32_t n_choices, n_live;
	uint32_t n_prompt; /* tokens of all prompts */
	struct choice choices[];
};

/*
 * Begin: each of the prompts is asked params->n times. The exchange waits afterwards. `request` is kept as long as
 * it is needed; `tools` is its list of tools or NULL. False after an error, and nothing has begun.
 */
bool generation_begin(struct exchange *exchange, struct http *http, const struct generation_format *format,
	const struct generation_params *params, const struct token_ids *prompts, uint32_t n_prompts,
	json_t *request, const json_t *tools, struct api_error *error);

/* The list of log-probabilities that are new, to be released by json_decref; NULL: none are wanted. */
json_t *choice_take_logprobs(struct choice *choice);

#endif
