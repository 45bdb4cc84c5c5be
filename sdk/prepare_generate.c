/* SPDX-License-Identifier: MIT */
#include "sdk/prepare.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* ---- checks that need no daemon ---- */

static int prepare_generate_check_stop(struct mimeo_request *request, const struct mimeo_generate *generate)
{
	uint32_t vocab = request->m->models[generate->model].vocab_size;

	if (generate->n_stop > MIMEO_STOP_MAX)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"n_stop is %u: at most %d stop ids are possible", generate->n_stop,
			MIMEO_STOP_MAX);
	if (generate->n_stop > 0 && !generate->stop)
		return prepare_refuse(request, MIMEO_E_INVALID, "stop is NULL, and n_stop is %u",
			generate->n_stop);
	for (uint32_t i = 0; i < generate->n_stop; i++) {
		if ((uint32_t)generate->stop[i] >= vocab)
			return prepare_refuse(request, MIMEO_E_INVALID,
				"stop id %u is %d, outside the vocabulary of %u", i,
				generate->stop[i], vocab);
	}
	return 0;
}

/* What changes the logits, as far as the header does not say. */
static int prepare_generate_check_adjustment(struct mimeo_request *request, const struct mimeo_generate *generate)
{
	const uint32_t vocab = request->m->models[generate->model].vocab_size, n = generate->n_allowed;
	struct msg_detail detail;

	if ((generate->n_bias > 0) != (generate->bias != NULL) || (n > 0) != (generate->allowed != NULL))
		return prepare_refuse(request, MIMEO_E_INVALID,
			"bias and n_bias, and allowed and n_allowed, are set together or not at all");
	if (msg_bias_check(generate->bias, generate->n_bias, vocab, &detail) < 0)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"bias %d is %g, of token %d: it must be from -%d to %d, or -infinity, and tokens ascend below "
			"the vocabulary of %u", detail.values[0], (double)generate->bias[detail.values[0]].bias,
			detail.values[1], MIMEO_BIAS_RANGE, MIMEO_BIAS_RANGE, vocab);
	if (n > 0 && n != msg_allowed_words(vocab))
		return prepare_refuse(request, MIMEO_E_INVALID,
			"n_allowed is %u: the vocabulary of %u needs %u words", n, vocab, msg_allowed_words(vocab));
	return 0;
}

/* The tokens that it may generate: without a limit as many as its sequence, were it empty, has space for. */
static uint32_t prepare_generate_max_tokens(const struct mimeo_request *request, const struct mimeo_generate *generate)
{
	return generate->max_tokens ? generate->max_tokens
				    : request->m->models[generate->model].max_seq_len - generate->n_tokens;
}

/* What the header does not say of a generate request. */
static int prepare_generate_check(
	struct mimeo_request *request, const struct mimeo_generate *generate)
{
	uint32_t most = request->m->models[generate->model].max_seq_len;
	int rc;

	if ((rc = prepare_check_reserved(request, "sampling.reserved", generate->sampling.reserved)) < 0)
		return rc;
	if ((rc = prepare_check_place(request, "logits", &generate->logits)) < 0)
		return rc;
	if ((rc = prepare_check_words(request, &generate->mask)) < 0)
		return rc;
	if ((rc = prepare_check_mask_row(request, &generate->mask, 0, generate->n_tokens)) < 0)
		return rc;
	if ((rc = prepare_generate_check_adjustment(request, generate)) < 0)
		return rc;
	if ((uint64_t)generate->n_tokens + (generate->max_tokens ? generate->max_tokens : 1) > most)
		return prepare_refuse(request, MIMEO_E_TOO_LONG,
			"%u token%s and max_tokens %u: the model's sequences have at most %u",
			generate->n_tokens, generate->n_tokens == 1 ? "" : "s",
			generate->max_tokens, most);
	return generate->sequence == 0
		       ? 0 : prepare_check_sequence(request, generate->sequence, generate->model);
}

/* ---- prepare ---- */

/* The header's bytes, or INVALID: a value that the daemon would refuse. */
static int prepare_generate_header(struct mimeo_request *request,
	const struct mimeo_generate *generate, uint8_t header[static MSG_HEADER_MAX])
{
	struct msg_generate msg = {
		.model = (uint32_t)request->m->model_ids[generate->model],
		.sequence = generate->sequence,
		.n_tokens = generate->n_tokens,
		.max_tokens = generate->max_tokens,
		.sampling = generate->sampling,
		.n_stop = generate->n_stop,
		.flags = generate->flags,
		.deadline_ms = generate->deadline_ms,
		.logits = generate->logits,
		.mask = generate->mask,
		.draft_tokens = generate->draft_tokens,
		.first_token_ms = generate->first_token_ms,
		.request_class = generate->request_class,
		.repetition_penalty = generate->repetition_penalty,
		.presence_penalty = generate->presence_penalty,
		.frequency_penalty = generate->frequency_penalty,
		.penalty_start = generate->penalty_start,
		.n_bias = generate->n_bias,
		.n_allowed = generate->n_allowed,
		.min_tokens = generate->min_tokens,
		.top_logprobs = generate->top_logprobs,
	};
	char text[MSG_TEXT_MAX];
	struct msg_detail detail;

	assert(generate->n_stop <= MIMEO_STOP_MAX);
	for (uint32_t i = 0; i < generate->n_stop; i++)
		msg.stop[i] = generate->stop[i];
	int n = msg_generate_encode(&msg, header, MSG_HEADER_MAX);
	if (n > 0)
		return n;
	assert(n == -EINVAL);
	msg_generate_explain(&msg, &detail, text);
	return prepare_refuse(request, MIMEO_E_INVALID, "%s", text);
}

/* Its event has logits. */
static bool prepare_generate_has_logits(const struct mimeo_generate *generate)
{
	return (generate->flags & MIMEO_GENERATE_PROMPT_LOGITS) && generate->logits.buffer == 0;
}

static struct msg_output prepare_generate_output(
	const struct mimeo_request *request, const struct mimeo_generate *generate)
{
	const uint32_t max_tokens = prepare_generate_max_tokens(request, generate);
	struct msg_output output = msg_output_layout(max_tokens, prepare_generate_has_logits(generate),
		request->m->models[generate->model].vocab_size, 0, 0);

	msg_output_add_logprobs(&output, generate->flags & MIMEO_GENERATE_LOGPROBS ? max_tokens : 0,
		generate->flags & MIMEO_GENERATE_PROMPT_LOGPROBS ? generate->n_tokens : 0,
		generate->top_logprobs);
	return output;
}

static uint64_t prepare_generate_payload_bytes(const struct mimeo_generate *generate)
{
	return (uint64_t)generate->n_tokens * sizeof(*generate->tokens) +
	       prepare_words_bytes(&generate->mask, generate->n_tokens) +
	       (uint64_t)generate->n_bias * sizeof(*generate->bias) +
	       (uint64_t)generate->n_allowed * sizeof(*generate->allowed);
}

/* Copy `bytes` of a part that may be empty; where the next one goes. */
static uint8_t *prepare_generate_put(uint8_t *to, const void *from, uint64_t bytes)
{
	if (bytes > 0)
		memcpy(to, from, bytes);
	return to + bytes;
}

static void prepare_generate_payload(uint8_t *payload, const struct mimeo_generate *generate)
{
	payload = prepare_generate_put(payload, generate->tokens, (uint64_t)generate->n_tokens * sizeof(*generate->tokens));
	payload = prepare_generate_put(
		payload, generate->mask.words, prepare_words_bytes(&generate->mask, generate->n_tokens));
	payload = prepare_generate_put(payload, generate->bias, (uint64_t)generate->n_bias * sizeof(*generate->bias));
	prepare_generate_put(payload, generate->allowed, (uint64_t)generate->n_allowed * sizeof(*generate->allowed));
}

int mimeo_request_prep_generate(
	struct mimeo_request *request, const struct mimeo_generate *given)
{
	uint8_t header[MSG_HEADER_MAX], *payload;
	struct mimeo_generate generate;

	int rc = prepare_begin(request);
	if (rc < 0)
		return rc;
	rc = prepare_read(request, &generate, sizeof(generate), given,
		offsetof(struct mimeo_generate, logits), "MIMEO_GENERATE_INIT");
	if (rc < 0)
		return rc;
	rc = prepare_check_model(request, generate.model);
	if (rc < 0)
		return rc;
	if (generate.n_tokens == 0 && generate.sequence == 0)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"the request has no tokens: n_tokens is 0, and sequence, too");
	if (!generate.tokens && generate.n_tokens > 0)
		return prepare_refuse(request, MIMEO_E_INVALID, "tokens is NULL");
	rc = prepare_generate_check_stop(request, &generate);
	if (rc < 0)
		return rc;
	int n = prepare_generate_header(request, &generate, header);
	if (n < 0)
		return n;
	rc = prepare_generate_check(request, &generate);
	if (rc < 0)
		return rc;

	struct msg_output output = prepare_generate_output(request, &generate);
	rc = prepare_place(request, header, (size_t)n, prepare_generate_payload_bytes(&generate), &output, &payload);
	if (rc < 0)
		return rc;
	prepare_generate_payload(payload, &generate);
	request->sqe.op = RING_OP_GENERATE;
	request->sqe.sequence = generate.sequence;
	request->capacity = prepare_generate_max_tokens(request, &generate);
	request->fenced = generate.flags & MIMEO_GENERATE_FENCE;
	request->timed = generate.deadline_ms || generate.first_token_ms;
	request->n_rows = prepare_generate_has_logits(&generate);
	request->n_positions = generate.n_tokens;
	request->n_logprobs = 1 + generate.top_logprobs;
	request->hidden = NULL;
	if (request->n_rows == 0)
		request->logits = NULL;
	if (!(generate.flags & MIMEO_GENERATE_LOGPROBS))
		request->logprobs = NULL;
	if (!(generate.flags & MIMEO_GENERATE_PROMPT_LOGPROBS))
		request->prompt_logprobs = NULL;
	request_prepare(request);
	return 0;
}
