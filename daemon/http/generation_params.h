/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_GENERATION_PARAMS_H
#define MIMEO_DAEMON_HTTP_GENERATION_PARAMS_H

/* The fields that completions and chats have in common. */

#include "daemon/http/api_error.h"
#include "daemon/http/http.h"

struct generation_params {
	const struct upstream_model *model;
	uint32_t n;          /* choices of a prompt */
	bool stream, include_usage;
	uint32_t max_tokens; /* of a choice; 0: as many as the sequence holds */
	bool has_limit;      /* the request names it: otherwise it is less where the sequence holds no more */
	uint32_t min_tokens;
	bool ignore_eos;
	struct mimeo_sampling sampling;
	float repetition_penalty, presence_penalty, frequency_penalty;
	struct mimeo_bias bias[MIMEO_BIAS_MAX]; /* by ascending token */
	uint32_t n_bias;
	const char *stop[MIMEO_TEXT_STOP_MAX]; /* in the request's object */
	uint32_t n_stop;
	int32_t stop_ids[MIMEO_STOP_MAX];
	uint32_t n_stop_ids;
	bool one_call; /* at most one tool call is returned */
	bool logprobs;
	uint32_t top_logprobs;
};

/* Read them. `max_tokens` and `logprobs` differ between the endpoints: they are the callers'. False after an
 * error. */
bool generation_params_read(struct generation_params *ret, const json_t *object, const struct http *http,
	struct api_error *error);
/* The limit of a field of that name; where it is absent, `otherwise` (0: none), or the operator's limit if that
 * is less. */
bool generation_params_limit(struct generation_params *params, const json_t *object, const char *name,
	uint32_t otherwise, const struct http *http, struct api_error *error);

#endif
