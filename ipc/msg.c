/* SPDX-License-Identifier: MIT */
#include "ipc/msg.h"

#include <errno.h>
#include <float.h>

#include <mimeo/types.h>

#include "ipc/msg_table.h"

const char *msg_field_name(unsigned field)
{
	switch ((enum msg_field)field) {
	case MSG_MODEL:
		return "model";
	case MSG_SEQUENCE:
		return "sequence";
	case MSG_MAX_TOKENS:
		return "max_tokens";
	case MSG_TEMPERATURE:
		return "temperature";
	case MSG_TOP_K:
		return "top_k";
	case MSG_TOP_P:
		return "top_p";
	case MSG_MIN_P:
		return "min_p";
	case MSG_SEED:
		return "seed";
	case MSG_SAMPLING_FLAGS:
		return "sampling_flags";
	case MSG_STOP:
		return "stop";
	case MSG_FLAGS:
		return "flags";
	case MSG_DEADLINE_MS:
		return "deadline_ms";
	case MSG_OUTPUTS:
		return "outputs";
	case MSG_N_ROWS:
		return "n_rows";
	case MSG_N_TOKENS:
		return "n_tokens";
	case MSG_LOGITS_BUFFER:
		return "logits_buffer";
	case MSG_LOGITS_OFFSET:
		return "logits_offset";
	case MSG_HIDDEN_BUFFER:
		return "hidden_buffer";
	case MSG_HIDDEN_OFFSET:
		return "hidden_offset";
	case MSG_EMBEDDINGS_BUFFER:
		return "embeddings_buffer";
	case MSG_EMBEDDINGS_OFFSET:
		return "embeddings_offset";
	case MSG_MASK:
		return "mask";
	case MSG_MASK_WINDOW:
		return "mask_window";
	case MSG_MASK_SINKS:
		return "mask_sinks";
	case MSG_MASK_PREFIX:
		return "mask_prefix";
	case MSG_DRAFT_TOKENS:
		return "draft_tokens";
	case MSG_VERSION:
		return "version";
	case MSG_FEATURES:
		return "features";
	case MSG_ENTRIES:
		return "entries";
	case MSG_ARENA_BYTES:
		return "arena_bytes";
	case MSG_NAME:
		return "name";
	case MSG_NONCE:
		return "nonce";
	case MSG_MAX_SEQUENCES:
		return "max_sequences";
	case MSG_SESSION:
		return "session";
	case MSG_MODELS:
		return "models";
	case MSG_STATUS:
		return "status";
	case MSG_TEXT:
		return "text";
	case MSG_VOCAB_SIZE:
		return "vocab_size";
	case MSG_HIDDEN_SIZE:
		return "hidden_size";
	case MSG_MAX_SEQ_LEN:
		return "max_seq_len";
	case MSG_EOS:
		return "eos";
	case MSG_BOS:
		return "bos";
	case MSG_PAGE_TOKENS:
		return "page_tokens";
	case MSG_ACTIVATION:
		return "activation";
	case MSG_MASKS:
		return "masks";
	case MSG_MAX_BATCH_TOKENS:
		return "max_batch_tokens";
	case MSG_CALL:
		return "call";
	case MSG_BUFFER:
		return "buffer";
	case MSG_KIND:
		return "kind";
	case MSG_BYTES:
		return "bytes";
	case MSG_HANDLE:
		return "handle";
	case MSG_REQUEST:
		return "request";
	}
	return "?";
}

const char *msg_mask_name(unsigned kind)
{
	switch (kind) {
	case MIMEO_MASK_DEFAULT:
		return "default";
	case MIMEO_MASK_WINDOW:
		return "window";
	case MIMEO_MASK_PREFIX:
		return "prefix";
	case MIMEO_MASK_DOCUMENTS:
		return "documents";
	case MIMEO_MASK_TREE:
		return "tree";
	}
	return "?";
}

/* clang-format off */
#define U32(name, type, member, least)                                                             \
	{.field = (name), .kind = MSG_KIND_U32, .offset = offsetof(type, member), .min = (least),  \
		.max = UINT32_MAX}

#define PLACE(buffer_name, offset_name, type, member)                                              \
	U32(buffer_name, type, member.buffer, 0),                                                  \
		{.field = (offset_name), .kind = MSG_KIND_U64,                                     \
			.offset = offsetof(type, member.offset)}

/* The least n_tokens and n_rows is checked afterwards: RING_DETAIL_EMPTY says it better. */
static const struct msg_entry generate_entries[] = {
	U32(MSG_MODEL, struct msg_generate, model, 0),
	U32(MSG_SEQUENCE, struct msg_generate, sequence, 0),
	U32(MSG_N_TOKENS, struct msg_generate, n_tokens, 0),
	U32(MSG_MAX_TOKENS, struct msg_generate, max_tokens, 1),
	MSG_SAMPLING_ENTRIES(offsetof(struct msg_generate, sampling)),
	{.field = MSG_STOP, .kind = MSG_KIND_IDS, .offset = offsetof(struct msg_generate, stop),
		.n_offset = offsetof(struct msg_generate, n_stop), .capacity = MIMEO_STOP_MAX},
	{.field = MSG_FLAGS, .kind = MSG_KIND_FLAGS, .offset = offsetof(struct msg_generate, flags),
		.max = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS |
			MIMEO_GENERATE_FENCE},
	U32(MSG_DEADLINE_MS, struct msg_generate, deadline_ms, 0),
	PLACE(MSG_LOGITS_BUFFER, MSG_LOGITS_OFFSET, struct msg_generate, logits),
	MSG_MASK_ENTRIES(offsetof(struct msg_generate, mask), MIMEO_MASK_DOCUMENTS),
	U32(MSG_DRAFT_TOKENS, struct msg_generate, draft_tokens, 0),
};
static const struct msg_table generate_table = MSG_TABLE(struct msg_generate, generate_entries);

static const struct msg_entry step_entries[] = {
	U32(MSG_MODEL, struct msg_step, model, 0),
	U32(MSG_N_ROWS, struct msg_step, n_rows, 0),
	{.field = MSG_OUTPUTS, .kind = MSG_KIND_FLAGS, .offset = offsetof(struct msg_step, outputs),
		.max = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN},
	U32(MSG_DEADLINE_MS, struct msg_step, deadline_ms, 0),
	MSG_SAMPLING_ENTRIES(offsetof(struct msg_step, sampling)),
	PLACE(MSG_LOGITS_BUFFER, MSG_LOGITS_OFFSET, struct msg_step, logits),
	PLACE(MSG_HIDDEN_BUFFER, MSG_HIDDEN_OFFSET, struct msg_step, hidden),
	PLACE(MSG_EMBEDDINGS_BUFFER, MSG_EMBEDDINGS_OFFSET, struct msg_step, embeddings),
	{.field = MSG_FLAGS, .kind = MSG_KIND_FLAGS, .offset = offsetof(struct msg_step, flags),
		.max = MIMEO_STEP_FENCE},
	MSG_MASK_ENTRIES(offsetof(struct msg_step, mask), MIMEO_MASK_TREE),
};
static const struct msg_table step_table = MSG_TABLE(struct msg_step, step_entries);
/* clang-format on */

/* With the model's own sampling the rest but the seed is ignored: it need not even be valid. */
static struct mimeo_sampling meaningful(const struct mimeo_sampling *sampling)
{
	if (!(sampling->flags & MIMEO_SAMPLING_MODEL))
		return *sampling;
	return (struct mimeo_sampling){.seed = sampling->seed, .flags = sampling->flags};
}

int msg_generate_encode(const struct msg_generate *msg, void *buffer, size_t size)
{
	struct msg_generate copy = *msg;

	copy.sampling = meaningful(&msg->sampling);
	return msg_table_encode(&generate_table, &copy, buffer, size);
}

int msg_step_encode(const struct msg_step *msg, void *buffer, size_t size)
{
	struct msg_step copy = *msg;

	copy.sampling = meaningful(&msg->sampling);
	return msg_table_encode(&step_table, &copy, buffer, size);
}

static int decode(struct msg_codec *codec, const struct msg_table *table, const void *data,
	size_t size, void *ret, struct msg_detail *ret_detail)
{
	msgpack_object object;

	int r = msg_codec_parse(codec, data, size, MSG_HEADER_MAX, &object, ret_detail);
	if (r < 0)
		return r;
	r = msg_table_decode(table, &object, ret, ret_detail);
	msg_codec_reset(codec);
	return r;
}

static int refuse_empty(struct msg_detail *ret_detail)
{
	*ret_detail = (struct msg_detail){.detail = RING_DETAIL_EMPTY};
	return MIMEO_E_INVALID;
}

static int refuse_mask(struct msg_detail *ret_detail, unsigned field, uint32_t value, uint32_t kind)
{
	*ret_detail = (struct msg_detail){.detail = RING_DETAIL_RANGE,
		.values = {(int32_t)field, (int32_t)value, (int32_t)kind}};
	return MIMEO_E_INVALID;
}

int msg_mask_check(const struct mimeo_mask *mask, struct msg_detail *ret_detail)
{
	bool window = mask->kind == MIMEO_MASK_WINDOW;
	bool prefix = mask->kind == MIMEO_MASK_PREFIX;

	if (window != (mask->window != 0))
		return refuse_mask(ret_detail, MSG_MASK_WINDOW, mask->window, mask->kind);
	if (!window && mask->sinks != 0)
		return refuse_mask(ret_detail, MSG_MASK_SINKS, mask->sinks, mask->kind);
	if (prefix != (mask->prefix != 0))
		return refuse_mask(ret_detail, MSG_MASK_PREFIX, mask->prefix, mask->kind);
	return 0;
}

int msg_generate_decode(struct msg_codec *codec, const void *data, size_t size,
	struct msg_generate *ret, struct msg_detail *ret_detail)
{
	struct msg_generate msg;

	int r = decode(codec, &generate_table, data, size, &msg, ret_detail);
	if (r < 0)
		return r;
	if (msg.n_tokens == 0)
		return refuse_empty(ret_detail);
	if (msg.max_tokens == 0)
		return msg_refuse_field(ret_detail, MSG_MAX_TOKENS);
	if (msg.logits.buffer != 0 && !(msg.flags & MIMEO_GENERATE_PROMPT_LOGITS))
		return msg_refuse_field(ret_detail, MSG_LOGITS_BUFFER);
	if (msg.draft_tokens > MIMEO_DRAFT_MAX && msg.draft_tokens != MIMEO_DRAFT_NONE)
		return msg_refuse_field(ret_detail, MSG_DRAFT_TOKENS);
	r = msg_mask_check(&msg.mask, ret_detail);
	if (r < 0)
		return r;
	*ret = msg;
	return 0;
}

int msg_step_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_step *ret,
	struct msg_detail *ret_detail)
{
	struct msg_step msg;

	int r = decode(codec, &step_table, data, size, &msg, ret_detail);
	if (r < 0)
		return r;
	if (msg.n_rows == 0)
		return refuse_empty(ret_detail);
	if (msg.outputs == 0)
		return msg_refuse_field(ret_detail, MSG_OUTPUTS);
	if (msg.logits.buffer != 0 && !(msg.outputs & MIMEO_STEP_LOGITS))
		return msg_refuse_field(ret_detail, MSG_LOGITS_BUFFER);
	if (msg.hidden.buffer != 0 && !(msg.outputs & MIMEO_STEP_HIDDEN))
		return msg_refuse_field(ret_detail, MSG_HIDDEN_BUFFER);
	r = msg_mask_check(&msg.mask, ret_detail);
	if (r < 0)
		return r;
	*ret = msg;
	return 0;
}

/* ---- where results lie ---- */

static bool part_end(uint64_t start, uint64_t n, uint64_t width, uint64_t *ret)
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

	if (!part_end(0, n_tokens, 1, &output.logits) ||
		!part_end(output.logits, n_logits, vocab, &output.hidden) ||
		!part_end(output.hidden, n_hidden, hidden, &output.bytes))
		output.bytes = UINT64_MAX;
	return output;
}
