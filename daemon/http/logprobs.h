/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_LOGPROBS_H
#define MIMEO_DAEMON_HTTP_LOGPROBS_H

/* Log-probabilities of tokens, as OpenAI's chat and completions endpoints write them. */

#include "daemon/http/upstream.h"

#include <jansson.h>

/* {"token", "logprob", "bytes", "top_logprobs": [...]} of a token's own entry and n_top others. NULL: no
 * memory. */
json_t *logprobs_json(const struct upstream_model *model, const struct mimeo_logprob *entries, uint32_t n_top);
/* A list of these in the form of completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, with
 * *offset the characters ahead of the first token, which moves behind the last one. */
json_t *logprobs_legacy(const json_t *list, json_int_t *offset);

#endif
