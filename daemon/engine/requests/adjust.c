/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/adjust.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "daemon/engine/models/runner.h"
#include "daemon/engine/requests/completion.h"

_Static_assert(sizeof(struct mimeo_bias) == sizeof(struct token_bias) &&
	offsetof(struct mimeo_bias, bias) == offsetof(struct token_bias, bias), "one layout");
_Static_assert(MIMEO_BIAS_MAX == SLOT_BIAS_MAX && MIMEO_TOP_LOGPROBS_MAX == LOGPROBS_TOP_MAX, "limits");
_Static_assert(2 * MIMEO_STOP_MAX == SLOT_ENDS_MAX, "end tokens and stop ids");

/* ---- ends ---- */

static void adjust_add_end(struct slot_adjust *adjust, int32_t token)
{
	for (uint32_t i = 0; i < adjust->n_ends; i++) {
		if (adjust->ends[i] == token)
			return;
	}
	assert(adjust->n_ends < SLOT_ENDS_MAX);
	adjust->ends[adjust->n_ends++] = token;
}

/* Every token that ends the request. */
static void adjust_add_ends(struct request *request)
{
	const struct model_config *c = &request->runner->model->config;

	for (uint32_t i = 0; i < c->n_eos && !request->ignore_eos; i++)
		adjust_add_end(&request->adjust, c->eos[i]);
	for (uint32_t i = 0; i < request->n_stop; i++)
		adjust_add_end(&request->adjust, request->stop[i]);
}

/* ---- is any token left? ---- */

static bool adjust_allows(const struct request *request, int32_t token)
{
	const uint32_t *allowed = request->allowed;

	if ((uint32_t)token >= request->runner->model->config.vocab_size)
		return false;
	return !allowed || (allowed[token / 32] >> token % 32 & 1);
}

static bool adjust_biases_away(const struct request *request, int32_t token)
{
	for (uint32_t i = 0; i < request->adjust.n_bias; i++) {
		if (request->bias[i].token == token)
			return request->bias[i].bias == -INFINITY;
	}
	return false;
}

static uint32_t adjust_count_allowed(const struct request *request)
{
	const uint32_t vocab = request->runner->model->config.vocab_size;
	uint32_t n = 0;

	if (!request->allowed)
		return vocab;
	for (uint32_t i = 0; i < vocab / 32; i++)
		n += (uint32_t)__builtin_popcount(request->allowed[i]);
	if (vocab % 32)
		n += (uint32_t)__builtin_popcount(request->allowed[vocab / 32] & ((1u << vocab % 32) - 1));
	return n;
}

/* Tokens that the first one may be. */
static uint32_t adjust_count_left(const struct request *request)
{
	uint32_t n = adjust_count_allowed(request);

	for (uint32_t i = 0; i < request->adjust.n_bias; i++)
		n -= request->bias[i].bias == -INFINITY && adjust_allows(request, request->bias[i].token);
	for (uint32_t i = 0; i < request->adjust.n_ends && request->min_tokens; i++) {
		const int32_t end = request->adjust.ends[i];

		n -= adjust_allows(request, end) && !adjust_biases_away(request, end);
	}
	return n;
}

/* ---- taking ---- */

static bool adjust_bans(const struct request *request)
{
	bool bans = request->allowed || request->min_tokens;

	for (uint32_t i = 0; i < request->adjust.n_bias && !bans; i++)
		bans = request->bias[i].bias == -INFINITY;
	return bans;
}

static int adjust_refuse(struct msg_detail *ret_detail, int status, struct msg_detail detail)
{
	*ret_detail = detail;
	return status;
}

int adjust_take(struct request *request, const struct msg_generate *msg, const uint8_t *payload,
	struct msg_detail *ret_detail)
{
	const uint32_t vocab = request->runner->model->config.vocab_size;
	const void *bias = payload, *allowed = payload + msg->n_bias * sizeof(*request->bias);

	request->adjust = (struct slot_adjust){
		.repetition = msg->repetition_penalty > 0 ? msg->repetition_penalty : 1,
		.presence = msg->presence_penalty,
		.frequency = msg->frequency_penalty,
		.n_bias = msg->n_bias,
		.masked = msg->n_allowed > 0,
		.n_top = msg->top_logprobs,
	};
	request->bias = bias;
	if (msg_bias_check(bias, msg->n_bias, vocab, ret_detail))
		return MIMEO_E_INVALID;
	if (msg->n_allowed && msg->n_allowed != msg_allowed_words(vocab))
		return adjust_refuse(ret_detail, MIMEO_E_INVALID,
			DETAIL(RING_DETAIL_ALLOWED, msg->n_allowed, msg_allowed_words(vocab)));
	request->allowed = msg->n_allowed ? allowed : NULL;
	request->min_tokens = msg->min_tokens;
	request->penalty_start = msg->penalty_start;
	if (msg->min_tokens)
		adjust_add_ends(request);
	request->counts = request->adjust.repetition != 1 || request->adjust.presence != 0 ||
		request->adjust.frequency != 0;
	request->bans = adjust_bans(request);
	request->adjusts = request->counts || request->bans || msg->n_bias;
	if (request->bans && !adjust_count_left(request))
		return adjust_refuse(ret_detail, MIMEO_E_NO_TOKEN, DETAIL(RING_DETAIL_NO_TOKEN));
	return 0;
}
