/* SPDX-License-Identifier: MIT */
/* Sentences about error events. */
#include <stdio.h>
#include <string.h>

#include <mimeo/mimeo.h>

#include "build-config.h"
#include "ipc/msg.h"
#include "ipc/text.h"

const char *mimeo_version(void)
{
	return MIMEO_VERSION;
}

/* Values have 32 bits; a larger one is sent as the largest. */
static const char *message_at_least(int32_t value)
{
	return value == INT32_MAX ? "at least " : "";
}

static int message_without_detail(const struct mimeo_event *event, char *buffer, size_t size)
{
	if (event->kind == MIMEO_EVENT_SEQUENCE)
		return snprintf(buffer, size, "sequence %u: %s", event->sequence,
			mimeo_strerror(event->status));
	return snprintf(buffer, size, "%s", mimeo_strerror(event->status));
}

/* [mask, 12 bytes of the attention backend's name] */
static int message_of_mask(const int32_t *v, char *buffer, size_t size)
{
	char attention[3 * sizeof(*v) + 1] = "";

	memcpy(attention, &v[1], sizeof(attention) - 1);
	if (!text_is_clean(attention, strlen(attention)))
		attention[0] = '\0';
	return snprintf(buffer, size,
		"mask %s: the model's attention backend%s%s%s knows the causal mask alone; the operator "
		"gives a model masks by --attention flex, unless its attention is latent",
		msg_mask_name((unsigned)v[0]), attention[0] ? " (" : "", attention,
		attention[0] ? ")" : "");
}

/* [row, tokens, most possible, mask]; the status says which limit. */
static int message_of_mask_tokens(const struct mimeo_event *event, char *buffer, size_t size)
{
	const int32_t *v = event->detail_values;

	if (v[3] == MIMEO_MASK_TREE)
		return snprintf(buffer, size,
			"row %d: its %d tokens are more than the %d of a tree (MIMEO_TREE_MAX)", v[0],
			v[1], v[2]);
	if (event->status == MIMEO_E_TOO_LONG)
		return snprintf(buffer, size,
			"row %d: its prefix of %d tokens has to fit one step, and the daemon's "
			"max_batch_tokens is %d", v[0], v[1], v[2]);
	return snprintf(buffer, size, "row %d: mask_prefix %d is more than its %d token%s", v[0], v[1],
		v[2], v[2] == 1 ? "" : "s");
}

/* [enum msg_field, milliseconds] */
static int message_of_deadline(const int32_t *v, char *buffer, size_t size)
{
	return snprintf(buffer, size,
		v[0] == MSG_FIRST_TOKEN_MS ? "first_token_ms: no token came within %s%d ms of the submission"
					   : "deadline_ms: the request had not ended %s%d ms after its submission",
		message_at_least(v[1]), v[1]);
}

/* [id, reason] */
static int message_of_continue(const int32_t *v, char *buffer, size_t size)
{
	return snprintf(buffer, size,
		v[1] ? "n_tokens is 0, and the last token of sequence %d cannot be computed once more: it came as an "
		       "embedding or under a mask of its request"
		     : "n_tokens is 0, and sequence %d has no tokens to go on with", v[0]);
}

/* By detail; the values are the arguments, in their order. */
static const char *const message_formats[] = {
	[RING_DETAIL_TOKEN] = "token %d is %d, outside the vocabulary of %d",
	[RING_DETAIL_LENGTH] = "%d tokens in all, with the sequence's and max_tokens: the model's "
			       "sequences have at most %d",
	[RING_DETAIL_EMPTY] = "the request has no tokens",
	[RING_DETAIL_MODEL] = "no model of this session has the number %d: they are below %d",
	[RING_DETAIL_UNLOADED] = "an operator of the daemon unloaded the model",
	[RING_DETAIL_SEQUENCE] = "sequence %d is not open",
	[RING_DETAIL_HEADER] = "the header is malformed at byte %d",
	[RING_DETAIL_EXTENT] = "offset %u and length %u do not lie in the arena of %u bytes",
	[RING_DETAIL_OUTPUT] = "the output area has %u bytes and needs %u",
	[RING_DETAIL_OP] = "operation %d is unknown",
	[RING_DETAIL_PAGES] = "KV pages needed: %d, free: %d; mimeod --kv-pages sets how many there are",
	[RING_DETAIL_KEEP] = "tokens to keep: %d, and the sequence has %d",
	[RING_DETAIL_OPEN_TWICE] = "sequence %d is open already",
	[RING_DETAIL_ROW_TWICE] = "row %d names sequence %d a second time",
	[RING_DETAIL_ROW_MODEL] = "row %d: sequence %d is another model's",
	[RING_DETAIL_PAYLOAD] = "the payload has %u bytes and needs %u",
	[RING_DETAIL_REQUESTS] = "%d rows asked, at most %d are possible",
	[RING_DETAIL_BUFFER] = "device buffer %u is not open",
	[RING_DETAIL_FENCE] = "the request has no fence: mimeo_request_fence was not called for it",
	[RING_DETAIL_MASK_TOKENS] = NULL,
	[RING_DETAIL_DETERMINISTIC] = "deterministic results are asked for, and the model's may depend on what else "
				      "runs; the operator makes a model deterministic by --deterministic yes",
	[RING_DETAIL_PAYLOAD_MOST] = "the step's rows and tokens have %u bytes, and the daemon takes at most %u at once: "
				     "divide the rows among several steps",
	[RING_DETAIL_BIAS] = "bias %d, of token %d: it must be from -100 to 100, or -infinity, and tokens ascend below "
			     "the vocabulary of %d",
	[RING_DETAIL_ALLOWED] = "allowed has %u words, and the vocabulary needs %u",
	[RING_DETAIL_POSITIONS] = "row %d: results of its %d tokens that see one another, which one step computes, are "
				  "more than the %d that go into an event: name a device buffer for them",
	[RING_DETAIL_HEAD] = "the model's files have no head: it gives hidden states (embeddings) alone, no tokens, "
			     "logits or log-probabilities",
	[RING_DETAIL_OPERATOR] = "an operator of the daemon cancelled the request",
	[RING_DETAIL_DRAIN] = "the daemon is shutting down, and its drain timeout ended the request",
	[RING_DETAIL_NO_TOKEN] = "allowed, bias and min_tokens ban every token of the vocabulary",
};

int mimeo_event_message(const struct mimeo_event *event, char *buffer, size_t size)
{
	const int32_t *v = event->detail_values;
	const uint32_t detail = event->detail;

	if (detail == RING_DETAIL_RANGE)
		return msg_range_explain(v, buffer, size);
	if (detail == RING_DETAIL_BUFFER_RANGE)
		return snprintf(buffer, size,
			"device buffer %u: offset %s%u and %s%u bytes exceed its %s%u bytes",
			(unsigned)v[0], message_at_least(v[1]), (unsigned)v[1], message_at_least(v[2]),
			(unsigned)v[2], message_at_least(v[3]), (unsigned)v[3]);
	if (detail == RING_DETAIL_BUFFER_OFFSET)
		return snprintf(buffer, size, "device buffer %u: offset %s%u is no multiple of %u",
			(unsigned)v[0], message_at_least(v[1]), (unsigned)v[1], (unsigned)v[2]);
	if (detail == RING_DETAIL_MASK)
		return message_of_mask(v, buffer, size);
	if (detail == RING_DETAIL_MASK_TOKENS)
		return message_of_mask_tokens(event, buffer, size);
	if (detail == RING_DETAIL_CONTINUE)
		return message_of_continue(v, buffer, size);
	if (detail == RING_DETAIL_DEADLINE)
		return message_of_deadline(v, buffer, size);
	if (detail == RING_DETAIL_BUDGET)
		return msg_budget_explain(v, buffer, size);
	if (detail < sizeof(message_formats) / sizeof(message_formats[0]) && message_formats[detail])
		return snprintf(buffer, size, message_formats[detail], v[0], v[1], v[2]);
	return message_without_detail(event, buffer, size);
}
