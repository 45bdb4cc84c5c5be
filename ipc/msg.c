/* SPDX-License-Identifier: MIT */
/* Headers of requests, and the layout of their results. */
#include "ipc/msg.h"

#include <errno.h>
#include <math.h>

#include "ipc/msg_table.h"

#define PENALTY_LEAST 0.01f /* of repetition, if it is not 0 */
#define PENALTY_MOST 100.0f

static int msg_refuse_mask(struct msg_detail *ret_detail, unsigned field, uint32_t value, uint32_t kind)
{
	*ret_detail = (struct msg_detail){.detail = RING_DETAIL_RANGE,
		.values = {(int32_t)field, value > INT32_MAX ? INT32_MAX : (int32_t)value, (int32_t)kind}};
	return MIMEO_E_INVALID;
}

int msg_mask_check(const struct mimeo_mask *mask, struct msg_detail *ret_detail)
{
	bool window = mask->kind == MIMEO_MASK_WINDOW;
	bool prefix = mask->kind == MIMEO_MASK_PREFIX;

	if (window != (mask->window != 0))
		return msg_refuse_mask(ret_detail, MSG_MASK_WINDOW, mask->window, mask->kind);
	if (!window && mask->sinks != 0)
		return msg_refuse_mask(ret_detail, MSG_MASK_SINKS, mask->sinks, mask->kind);
	if (prefix != (mask->prefix != 0))
		return msg_refuse_mask(ret_detail, MSG_MASK_PREFIX, mask->prefix, mask->kind);
	return 0;
}

int msg_bias_check(
	const struct mimeo_bias *bias, uint32_t n, uint32_t vocab, struct msg_detail *ret_detail)
{
	for (uint32_t i = 0; i < n; i++) {
		const float number = bias[i].bias;
		const bool valid = number == -INFINITY || fabsf(number) <= MIMEO_BIAS_RANGE;

		if (valid && (uint32_t)bias[i].token < vocab && (i == 0 || bias[i].token > bias[i - 1].token))
			continue;
		*ret_detail = (struct msg_detail){.detail = RING_DETAIL_BIAS,
			.values = {(int32_t)i, bias[i].token, (int32_t)vocab}};
		return MIMEO_E_INVALID;
	}
	return 0;
}

/* What adjusts the logits. */
static int msg_check_adjustment(const struct msg_generate *msg, struct msg_detail *ret_detail)
{
	const uint32_t logprobs = MIMEO_GENERATE_LOGPROBS | MIMEO_GENERATE_PROMPT_LOGPROBS;

	if (msg->repetition_penalty != 0 && msg->repetition_penalty < PENALTY_LEAST)
		return msg_refuse_field(ret_detail, MSG_REPETITION_PENALTY);
	if (msg->max_tokens && msg->min_tokens > msg->max_tokens)
		return msg_refuse_field(ret_detail, MSG_MIN_TOKENS);
	if (msg->top_logprobs && !(msg->flags & logprobs))
		return msg_refuse_field(ret_detail, MSG_TOP_LOGPROBS);
	return 0;
}

/* n_tokens 0 goes on with a sequence as it is. */
static int msg_check_generate(const void *message, struct msg_detail *ret_detail)
{
	const struct msg_generate *msg = message;

	if (msg->n_tokens == 0 && msg->sequence == 0) {
		*ret_detail = (struct msg_detail){.detail = RING_DETAIL_EMPTY};
		return MIMEO_E_INVALID;
	}
	if (msg->logits.buffer != 0 && !(msg->flags & MIMEO_GENERATE_PROMPT_LOGITS))
		return msg_refuse_field(ret_detail, MSG_LOGITS_BUFFER);
	if (msg->draft_tokens > MIMEO_DRAFT_MAX && msg->draft_tokens != MIMEO_DRAFT_NONE)
		return msg_refuse_field(ret_detail, MSG_DRAFT_TOKENS);
	if (msg_check_adjustment(msg, ret_detail) < 0)
		return MIMEO_E_INVALID;
	return msg_mask_check(&msg->mask, ret_detail);
}

#define MSG_REQUEST_STATUSES                                                                       \
	.limit = MSG_HEADER_MAX, .malformed = MIMEO_E_INVALID, .refused = MIMEO_E_INVALID

/* msg_check_generate and msg_check_step refuse what is zero and must not be: absent fields have no range. */
static const struct msg_entry generate_entries[] = {
	MSG_ENTRY_U32(MSG_MODEL, struct msg_generate, model, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_SEQUENCE, struct msg_generate, sequence, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_N_TOKENS, struct msg_generate, n_tokens, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_MAX_TOKENS, struct msg_generate, max_tokens, 0, UINT32_MAX),
	MSG_ENTRIES_SAMPLING(struct msg_generate, sampling),
	MSG_ENTRY_IDS(MSG_STOP, struct msg_generate, stop, n_stop),
	MSG_ENTRY_FLAGS(MSG_FLAGS, struct msg_generate, flags,
		MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_FENCE |
			MIMEO_GENERATE_DETERMINISTIC | MIMEO_GENERATE_LOGPROBS |
			MIMEO_GENERATE_PROMPT_LOGPROBS),
	MSG_ENTRY_U32(MSG_DEADLINE_MS, struct msg_generate, deadline_ms, 0, UINT32_MAX),
	MSG_ENTRIES_PLACE(MSG_LOGITS_BUFFER, MSG_LOGITS_OFFSET, struct msg_generate, logits),
	MSG_ENTRIES_MASK(struct msg_generate, mask, MIMEO_MASK_DOCUMENTS),
	MSG_ENTRY_U32(MSG_DRAFT_TOKENS, struct msg_generate, draft_tokens, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_FIRST_TOKEN_MS, struct msg_generate, first_token_ms, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_REQUEST_CLASS, struct msg_generate, request_class, 0, MIMEO_CLASS_BATCH),
	MSG_ENTRY_F32(MSG_REPETITION_PENALTY, struct msg_generate, repetition_penalty, PENALTY_MOST),
	MSG_ENTRY_F32_FROM(MSG_PRESENCE_PENALTY, struct msg_generate, presence_penalty, -MIMEO_PENALTY_RANGE,
		MIMEO_PENALTY_RANGE),
	MSG_ENTRY_F32_FROM(MSG_FREQUENCY_PENALTY, struct msg_generate, frequency_penalty, -MIMEO_PENALTY_RANGE,
		MIMEO_PENALTY_RANGE),
	MSG_ENTRY_U32(MSG_PENALTY_START, struct msg_generate, penalty_start, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_N_BIAS, struct msg_generate, n_bias, 0, MIMEO_BIAS_MAX),
	MSG_ENTRY_U32(MSG_N_ALLOWED, struct msg_generate, n_allowed, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_MIN_TOKENS, struct msg_generate, min_tokens, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_TOP_LOGPROBS, struct msg_generate, top_logprobs, 0, MIMEO_TOP_LOGPROBS_MAX),
};
const struct msg_table msg_generate_table =
	MSG_TABLE(struct msg_generate, generate_entries, msg_check_generate, MSG_REQUEST_STATUSES);

static bool msg_has_one(uint32_t flags)
{
	return (flags & (flags - 1)) == 0;
}

static int msg_check_outputs(const struct msg_step *msg, struct msg_detail *ret_detail)
{
	const bool logprobs = msg->outputs & MIMEO_STEP_LOGPROBS;

	if (msg->outputs == 0 || !msg_has_one(msg->outputs & MSG_STEP_LOGITS) ||
		!msg_has_one(msg->outputs & MSG_STEP_HIDDEN))
		return msg_refuse_field(ret_detail, MSG_OUTPUTS);
	/* Those of tokens that no one gave, and of tokens whose successor is not the next. */
	if (logprobs && (msg->embeddings.buffer != 0 || msg->mask.kind == MIMEO_MASK_TREE))
		return msg_refuse_field(ret_detail, MSG_OUTPUTS);
	return msg->top_logprobs && !logprobs ? msg_refuse_field(ret_detail, MSG_TOP_LOGPROBS) : 0;
}

static int msg_check_step(const void *message, struct msg_detail *ret_detail)
{
	const struct msg_step *msg = message;

	if (msg->n_rows == 0) {
		*ret_detail = (struct msg_detail){.detail = RING_DETAIL_EMPTY};
		return MIMEO_E_INVALID;
	}
	if (msg_check_outputs(msg, ret_detail) < 0)
		return MIMEO_E_INVALID;
	if (msg->logits.buffer != 0 && !(msg->outputs & MSG_STEP_LOGITS))
		return msg_refuse_field(ret_detail, MSG_LOGITS_BUFFER);
	if (msg->hidden.buffer != 0 && !(msg->outputs & MSG_STEP_HIDDEN))
		return msg_refuse_field(ret_detail, MSG_HIDDEN_BUFFER);
	return msg_mask_check(&msg->mask, ret_detail);
}

static const struct msg_entry step_entries[] = {
	MSG_ENTRY_U32(MSG_MODEL, struct msg_step, model, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_N_ROWS, struct msg_step, n_rows, 0, UINT32_MAX),
	MSG_ENTRY_FLAGS(MSG_OUTPUTS, struct msg_step, outputs,
		MIMEO_STEP_TOKENS | MIMEO_STEP_LOGPROBS | MSG_STEP_LOGITS | MSG_STEP_HIDDEN),
	MSG_ENTRY_U32(MSG_DEADLINE_MS, struct msg_step, deadline_ms, 0, UINT32_MAX),
	MSG_ENTRIES_SAMPLING(struct msg_step, sampling),
	MSG_ENTRIES_PLACE(MSG_LOGITS_BUFFER, MSG_LOGITS_OFFSET, struct msg_step, logits),
	MSG_ENTRIES_PLACE(MSG_HIDDEN_BUFFER, MSG_HIDDEN_OFFSET, struct msg_step, hidden),
	MSG_ENTRIES_PLACE(MSG_EMBEDDINGS_BUFFER, MSG_EMBEDDINGS_OFFSET, struct msg_step, embeddings),
	MSG_ENTRY_FLAGS(MSG_FLAGS, struct msg_step, flags, MIMEO_STEP_FENCE | MIMEO_STEP_DETERMINISTIC),
	MSG_ENTRIES_MASK(struct msg_step, mask, MIMEO_MASK_TREE),
	MSG_ENTRY_U32(MSG_REQUEST_CLASS, struct msg_step, request_class, 0, MIMEO_CLASS_BATCH),
	MSG_ENTRY_U32(MSG_TOP_LOGPROBS, struct msg_step, top_logprobs, 0, MIMEO_TOP_LOGPROBS_MAX),
};
const struct msg_table msg_step_table =
	MSG_TABLE(struct msg_step, step_entries, msg_check_step, MSG_REQUEST_STATUSES);

/* With the model's own sampling the rest but the seed is ignored: it need not even be valid. */
static struct mimeo_sampling msg_sampling(const struct mimeo_sampling *sampling)
{
	if (!(sampling->flags & MIMEO_SAMPLING_MODEL))
		return *sampling;
	return (struct mimeo_sampling){.seed = sampling->seed, .flags = sampling->flags};
}

int msg_generate_encode(const struct msg_generate *msg, void *buffer, size_t size)
{
	struct msg_generate copy = *msg;

	copy.sampling = msg_sampling(&msg->sampling);
	return msg_table_encode(&msg_generate_table, &copy, buffer, size);
}

int msg_step_encode(const struct msg_step *msg, void *buffer, size_t size)
{
	struct msg_step copy = *msg;

	copy.sampling = msg_sampling(&msg->sampling);
	return msg_table_encode(&msg_step_table, &copy, buffer, size);
}

void msg_generate_explain(const struct msg_generate *msg, struct msg_detail *ret_detail,
	char ret_text[static MSG_TEXT_MAX])
{
	struct msg_generate copy = *msg;

	copy.sampling = msg_sampling(&msg->sampling);
	msg_table_check(&msg_generate_table, &copy, ret_detail);
	msg_table_explain(&msg_generate_table, &copy, ret_detail, ret_text);
}

void msg_step_explain(const struct msg_step *msg, struct msg_detail *ret_detail,
	char ret_text[static MSG_TEXT_MAX])
{
	struct msg_step copy = *msg;

	copy.sampling = msg_sampling(&msg->sampling);
	msg_table_check(&msg_step_table, &copy, ret_detail);
	msg_table_explain(&msg_step_table, &copy, ret_detail, ret_text);
}

int msg_generate_decode(struct msg_codec *codec, const void *data, size_t size,
	struct msg_generate *ret, struct msg_detail *ret_detail)
{
	return msg_codec_decode(codec, &msg_generate_table, data, size, ret, ret_detail);
}

int msg_step_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_step *ret,
	struct msg_detail *ret_detail)
{
	return msg_codec_decode(codec, &msg_step_table, data, size, ret, ret_detail);
}

/* ---- where results lie ---- */

static bool msg_part_end(uint64_t start, uint64_t n, uint64_t width, uint64_t *ret)
{
	uint64_t bytes, end;

	if (__builtin_mul_overflow(n, width, &bytes) || __builtin_mul_overflow(bytes, 4u, &bytes) ||
		__builtin_add_overflow(start, bytes, &end) ||
		__builtin_add_overflow(end, 63u, &end))
		return false;
	*ret = end & ~(uint64_t)63;
	return true;
}

struct msg_output msg_output_layout(
	uint64_t n_tokens, uint64_t n_logits, uint32_t vocab, uint64_t n_hidden, uint32_t hidden)
{
	struct msg_output output = {0};

	if (!msg_part_end(0, n_tokens, 1, &output.logits) ||
		!msg_part_end(output.logits, n_logits, vocab, &output.hidden) ||
		!msg_part_end(output.hidden, n_hidden, hidden, &output.bytes))
		output.bytes = UINT64_MAX;
	return output;
}

void msg_output_add_logprobs(
	struct msg_output *output, uint64_t n_generated, uint64_t n_given, uint32_t top_logprobs)
{
	const uint64_t words = (1 + (uint64_t)top_logprobs) * (sizeof(struct mimeo_logprob) / 4);

	if (output->bytes == UINT64_MAX)
		return;
	output->logprobs = output->bytes;
	if (!msg_part_end(output->logprobs, n_generated, words, &output->prompt_logprobs) ||
		!msg_part_end(output->prompt_logprobs, n_given, words, &output->bytes))
		output->bytes = UINT64_MAX;
}
