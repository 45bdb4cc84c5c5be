/* SPDX-License-Identifier: MIT */
#include "ipc/msg.h"

#include <float.h>

#include <mimeo/types.h>

#include "ipc/msg_table.h"
#include "ipc/region.h"

/* clang-format off */
#define U32(name, type, member, least, most)                                                       \
	{.field = (name), .kind = MSG_KIND_U32, .offset = offsetof(type, member), .min = (least),  \
		.max = (most)}
#define U64(name, type, member)                                                                    \
	{.field = (name), .kind = MSG_KIND_U64, .offset = offsetof(type, member)}
#define TEXT(name, type, member)                                                                   \
	{.field = (name), .kind = MSG_KIND_TEXT, .offset = offsetof(type, member),                 \
		.capacity = sizeof(((type *)0)->member)}

static const struct msg_entry hello_entries[] = {
	U32(MSG_VERSION, struct msg_hello, version, 0, UINT32_MAX),
	{.field = MSG_FEATURES, .kind = MSG_KIND_FLAGS,
		.offset = offsetof(struct msg_hello, features), .max = 0},
	U32(MSG_ENTRIES, struct msg_hello, entries, RING_ENTRIES_MIN, RING_ENTRIES_MAX),
	U64(MSG_ARENA_BYTES, struct msg_hello, arena_bytes),
	TEXT(MSG_NAME, struct msg_hello, name),
};
static const struct msg_table hello_table = MSG_TABLE(struct msg_hello, hello_entries);

static const struct msg_entry model_entries[] = {
	TEXT(MSG_NAME, struct mimeo_model_info, name),
	U32(MSG_VOCAB_SIZE, struct mimeo_model_info, vocab_size, 1, INT32_MAX),
	U32(MSG_HIDDEN_SIZE, struct mimeo_model_info, hidden_size, 1, INT32_MAX),
	U32(MSG_MAX_SEQ_LEN, struct mimeo_model_info, max_seq_len, 1, INT32_MAX),
	U32(MSG_PAGE_TOKENS, struct mimeo_model_info, page_tokens, 1, INT32_MAX),
	{.field = MSG_EOS, .kind = MSG_KIND_IDS, .offset = offsetof(struct mimeo_model_info, eos),
		.n_offset = offsetof(struct mimeo_model_info, n_eos), .capacity = MIMEO_STOP_MAX},
	{.field = MSG_BOS, .kind = MSG_KIND_I32, .offset = offsetof(struct mimeo_model_info, bos),
		.min = -1, .max = INT32_MAX},
	MSG_SAMPLING_ENTRIES(offsetof(struct mimeo_model_info, sampling)),
	U32(MSG_ACTIVATION, struct mimeo_model_info, activation, 0, MIMEO_ACTIVATION_F16),
	U32(MSG_MASKS, struct mimeo_model_info, masks, 0, 1),
	MSG_MASK_ENTRIES(offsetof(struct mimeo_model_info, mask), MIMEO_MASK_PREFIX),
	U32(MSG_MAX_BATCH_TOKENS, struct mimeo_model_info, max_batch_tokens, 1, INT32_MAX),
	U32(MSG_DRAFT_TOKENS, struct mimeo_model_info, draft_tokens, 0, MIMEO_DRAFT_MAX),
};
static const struct msg_table model_table = MSG_TABLE(struct mimeo_model_info, model_entries);

static const struct msg_entry welcome_entries[] = {
	{.field = MSG_STATUS, .kind = MSG_KIND_I32, .offset = offsetof(struct msg_welcome, status),
		.min = -299, .max = 0},
	TEXT(MSG_TEXT, struct msg_welcome, text),
	U32(MSG_VERSION, struct msg_welcome, version, 0, UINT32_MAX),
	{.field = MSG_FEATURES, .kind = MSG_KIND_FLAGS,
		.offset = offsetof(struct msg_welcome, features), .max = 0},
	U64(MSG_NONCE, struct msg_welcome, nonce),
	U32(MSG_SESSION, struct msg_welcome, session, 0, UINT32_MAX),
	U32(MSG_MAX_SEQUENCES, struct msg_welcome, max_sequences, 0, UINT32_MAX),
	U32(MSG_ENTRIES, struct msg_welcome, entries, RING_ENTRIES_MIN, RING_ENTRIES_MAX),
	U64(MSG_ARENA_BYTES, struct msg_welcome, arena_bytes),
	{.field = MSG_MODELS, .kind = MSG_KIND_LIST, .offset = offsetof(struct msg_welcome, models),
		.n_offset = offsetof(struct msg_welcome, n_models), .capacity = MSG_MODELS_MAX,
		.element = &model_table},
};
static const struct msg_table welcome_table = MSG_TABLE(struct msg_welcome, welcome_entries);
/* clang-format on */

int msg_hello_encode(const struct msg_hello *msg, void *buffer, size_t size)
{
	return msg_table_encode(&hello_table, msg, buffer, size);
}

int msg_welcome_encode(const struct msg_welcome *msg, void *buffer, size_t size)
{
	return msg_table_encode(&welcome_table, msg, buffer, size);
}

/* Another version may have fields that this one lacks: so the version is looked at first. */
static int version_check(const msgpack_object *object, struct msg_detail *ret_detail)
{
	uint64_t version = 0;

	for (uint32_t i = 0; i < object->via.map.size; i++) {
		const msgpack_object_kv *kv = &object->via.map.ptr[i];

		if (kv->key.type == MSGPACK_OBJECT_POSITIVE_INTEGER &&
			kv->key.via.u64 == MSG_VERSION &&
			kv->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER)
			version = kv->val.via.u64;
	}
	if (version == MSG_PROTOCOL_VERSION)
		return 0;
	*ret_detail = (struct msg_detail){
		.detail = RING_DETAIL_RANGE,
		.values = {MSG_VERSION, version > INT32_MAX ? INT32_MAX : (int32_t)version},
	};
	return MIMEO_E_VERSION;
}

static int decode(struct msg_codec *codec, const struct msg_table *table, const void *data,
	size_t size, void *ret, struct msg_detail *ret_detail)
{
	msgpack_object object;

	if (msg_codec_parse(codec, data, size, MSG_SOCKET_MAX, &object, ret_detail) < 0)
		return MIMEO_E_PROTOCOL;
	int r = version_check(&object, ret_detail);
	if (r == 0)
		r = msg_table_decode(table, &object, ret, ret_detail);
	msg_codec_reset(codec);
	return r;
}

/* 0, or E_INVALID with the field. */
static int sizes_check(uint32_t entries, uint64_t arena_bytes, struct msg_detail *ret_detail)
{
	if (entries < RING_ENTRIES_MIN || (entries & (entries - 1)) != 0)
		return msg_refuse_field(ret_detail, MSG_ENTRIES);
	if (arena_bytes < REGION_ARENA_MIN || arena_bytes > REGION_ARENA_MAX ||
		(arena_bytes & (arena_bytes - 1)) != 0)
		return msg_refuse_field(ret_detail, MSG_ARENA_BYTES);
	return 0;
}

int msg_hello_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_hello *ret,
	struct msg_detail *ret_detail)
{
	struct msg_hello msg;

	int r = decode(codec, &hello_table, data, size, &msg, ret_detail);
	if (r < 0)
		return r;
	r = sizes_check(msg.entries, msg.arena_bytes, ret_detail);
	if (r < 0)
		return r;
	*ret = msg;
	return 0;
}

static int model_check(const struct mimeo_model_info *model, struct msg_detail *ret_detail)
{
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
	return msg_mask_check(&model->mask, ret_detail);
}

/* What a session needs; a refusal carries status and text only. */
static int welcome_check(const struct msg_welcome *msg, struct msg_detail *ret_detail)
{
	int r = sizes_check(msg->entries, msg->arena_bytes, ret_detail);

	for (uint32_t i = 0; r == 0 && i < msg->n_models; i++)
		r = model_check(&msg->models[i], ret_detail);
	return r;
}

int msg_welcome_decode(struct msg_codec *codec, const void *data, size_t size,
	struct msg_welcome *ret, struct msg_detail *ret_detail)
{
	struct msg_welcome msg;

	int r = decode(codec, &welcome_table, data, size, &msg, ret_detail);
	if (r == 0 && msg.status == 0)
		r = welcome_check(&msg, ret_detail);
	if (r < 0)
		return r == MIMEO_E_VERSION ? r : MIMEO_E_PROTOCOL;
	*ret = msg;
	return 0;
}
