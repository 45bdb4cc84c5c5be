/* SPDX-License-Identifier: MIT */
/* HELLO and WELCOME. */
#include "ipc/msg.h"

#include "ipc/msg_table.h"
#include "ipc/region.h"

static int msg_handshake_check_sizes(
	uint32_t entries, uint64_t arena_bytes, struct msg_detail *ret_detail)
{
	if (entries < RING_ENTRIES_MIN || (entries & (entries - 1)) != 0)
		return msg_refuse_field(ret_detail, MSG_ENTRIES);
	if (arena_bytes < REGION_ARENA_MIN || arena_bytes > REGION_ARENA_MAX ||
		(arena_bytes & (arena_bytes - 1)) != 0)
		return msg_refuse_field(ret_detail, MSG_ARENA_BYTES);
	return 0;
}

static int msg_handshake_check_hello(const void *message, struct msg_detail *ret_detail)
{
	const struct msg_hello *msg = message;

	return msg_handshake_check_sizes(msg->entries, msg->arena_bytes, ret_detail);
}

static const struct msg_entry hello_entries[] = {
	MSG_ENTRY_U32(MSG_VERSION, struct msg_hello, version, 0, UINT32_MAX),
	MSG_ENTRY_FLAGS(MSG_FEATURES, struct msg_hello, features, 0),
	MSG_ENTRY_U32(MSG_ENTRIES, struct msg_hello, entries, RING_ENTRIES_MIN, RING_ENTRIES_MAX),
	MSG_ENTRY_U64(MSG_ARENA_BYTES, struct msg_hello, arena_bytes),
	MSG_ENTRY_U32(MSG_WAIT_MS, struct msg_hello, wait_ms, 0, UINT32_MAX),
	MSG_ENTRY_TEXT(MSG_NAME, struct msg_hello, name),
};
const struct msg_table msg_hello_table = MSG_TABLE(struct msg_hello, hello_entries,
	msg_handshake_check_hello, .limit = MSG_SOCKET_MAX, .malformed = MIMEO_E_PROTOCOL,
	.refused = MIMEO_E_INVALID, .versioned = true);

static int msg_handshake_check_model(const void *message, struct msg_detail *ret_detail)
{
	const struct mimeo_model_info *model = message;

	if (model->name[0] == '\0')
		return msg_refuse_field(ret_detail, MSG_NAME);
	if (model->vocab_size == 0)
		return msg_refuse_field(ret_detail, MSG_VOCAB_SIZE);
	if (model->hidden_size == 0)
		return msg_refuse_field(ret_detail, MSG_HIDDEN_SIZE);
	if (model->max_seq_len == 0)
		return msg_refuse_field(ret_detail, MSG_MAX_SEQ_LEN);
	if (model->page_tokens == 0)
		return msg_refuse_field(ret_detail, MSG_PAGE_TOKENS);
	if (model->max_batch_tokens == 0)
		return msg_refuse_field(ret_detail, MSG_MAX_BATCH_TOKENS);
	if (model->max_rows == 0)
		return msg_refuse_field(ret_detail, MSG_MAX_ROWS);
	return msg_mask_check(&model->mask, ret_detail);
}

static const struct msg_entry model_entries[] = {
	MSG_ENTRY_TEXT(MSG_NAME, struct mimeo_model_info, name),
	MSG_ENTRY_U32(MSG_VOCAB_SIZE, struct mimeo_model_info, vocab_size, 1, INT32_MAX),
	MSG_ENTRY_U32(MSG_HIDDEN_SIZE, struct mimeo_model_info, hidden_size, 1, INT32_MAX),
	MSG_ENTRY_U32(MSG_MAX_SEQ_LEN, struct mimeo_model_info, max_seq_len, 1, INT32_MAX),
	MSG_ENTRY_U32(MSG_PAGE_TOKENS, struct mimeo_model_info, page_tokens, 1, INT32_MAX),
	MSG_ENTRY_IDS(MSG_EOS, struct mimeo_model_info, eos, n_eos),
	MSG_ENTRY_I32(MSG_BOS, struct mimeo_model_info, bos, -1, INT32_MAX),
	MSG_ENTRIES_SAMPLING(struct mimeo_model_info, sampling),
	MSG_ENTRY_U32(MSG_ACTIVATION, struct mimeo_model_info, activation, 0, MIMEO_ACTIVATION_F16),
	MSG_ENTRY_U32(MSG_MASKS, struct mimeo_model_info, masks, 0, 1),
	MSG_ENTRIES_MASK(struct mimeo_model_info, mask, MIMEO_MASK_PREFIX),
	MSG_ENTRY_U32(MSG_MAX_BATCH_TOKENS, struct mimeo_model_info, max_batch_tokens, 1, INT32_MAX),
	MSG_ENTRY_U32(MSG_DRAFT_TOKENS, struct mimeo_model_info, draft_tokens, 0, MIMEO_DRAFT_MAX),
	MSG_ENTRY_U32(MSG_DETERMINISTIC, struct mimeo_model_info, deterministic, 0, 1),
	MSG_ENTRY_U32(MSG_MAX_ROWS, struct mimeo_model_info, max_rows, 1, INT32_MAX),
};
static const struct msg_table model_table =
	MSG_TABLE(struct mimeo_model_info, model_entries, msg_handshake_check_model, .limit = 0);

/* A refusal has status and text only. */
static int msg_handshake_check_welcome(const void *message, struct msg_detail *ret_detail)
{
	const struct msg_welcome *msg = message;

	if (msg->n_model_ids != msg->n_models)
		return msg_refuse_field(ret_detail, MSG_MODEL_IDS);
	return msg->status < 0 ? 0 : msg_handshake_check_sizes(msg->entries, msg->arena_bytes, ret_detail);
}

static const struct msg_entry welcome_entries[] = {
	MSG_ENTRY_I32(MSG_STATUS, struct msg_welcome, status, -299, 0),
	MSG_ENTRY_TEXT(MSG_TEXT, struct msg_welcome, text),
	MSG_ENTRY_U32(MSG_VERSION, struct msg_welcome, version, 0, UINT32_MAX),
	MSG_ENTRY_FLAGS(MSG_FEATURES, struct msg_welcome, features, 0),
	MSG_ENTRY_U64(MSG_NONCE, struct msg_welcome, nonce),
	MSG_ENTRY_U32(MSG_SESSION, struct msg_welcome, session, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_MAX_SEQUENCES, struct msg_welcome, max_sequences, 0, UINT32_MAX),
	MSG_ENTRY_U32(MSG_ENTRIES, struct msg_welcome, entries, RING_ENTRIES_MIN, RING_ENTRIES_MAX),
	MSG_ENTRY_U64(MSG_ARENA_BYTES, struct msg_welcome, arena_bytes),
	{.field = MSG_MODELS, .kind = MSG_KIND_LIST, .offset = offsetof(struct msg_welcome, models),
		.n_offset = offsetof(struct msg_welcome, n_models), .capacity = MSG_MODELS_MAX,
		.element = &model_table},
	{.field = MSG_MODEL_IDS, .kind = MSG_KIND_IDS, .offset = offsetof(struct msg_welcome, model_ids),
		.n_offset = offsetof(struct msg_welcome, n_model_ids), .capacity = MSG_MODELS_MAX},
};
const struct msg_table msg_welcome_table = MSG_TABLE(struct msg_welcome, welcome_entries,
	msg_handshake_check_welcome, .limit = MSG_SOCKET_MAX, .malformed = MIMEO_E_PROTOCOL,
	.refused = MIMEO_E_PROTOCOL, .versioned = true);

int msg_hello_encode(const struct msg_hello *msg, void *buffer, size_t size)
{
	return msg_table_encode(&msg_hello_table, msg, buffer, size);
}

int msg_welcome_encode(const struct msg_welcome *msg, void *buffer, size_t size)
{
	return msg_table_encode(&msg_welcome_table, msg, buffer, size);
}

int msg_hello_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_hello *ret,
	struct msg_detail *ret_detail)
{
	return msg_codec_decode(codec, &msg_hello_table, data, size, ret, ret_detail);
}

int msg_welcome_decode(struct msg_codec *codec, const void *data, size_t size,
	struct msg_welcome *ret, struct msg_detail *ret_detail)
{
	return msg_codec_decode(codec, &msg_welcome_table, data, size, ret, ret_detail);
}
