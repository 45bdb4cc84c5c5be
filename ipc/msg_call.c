/* SPDX-License-Identifier: MIT */
/* Calls on a session's socket, and their replies. */
#include "ipc/msg.h"

#include <mimeo/types.h>

#include "ipc/msg_table.h"

/* clang-format off */
#define U32(name, member, least, most)                                                             \
	{.field = (name), .kind = MSG_KIND_U32, .offset = offsetof(struct msg_call, member),       \
		.min = (least), .max = (most)}

static const struct msg_entry call_entries[] = {
	U32(MSG_CALL, call, MSG_CALL_BUFFER_ALLOC, MSG_CALL_FENCE),
	U32(MSG_BUFFER, buffer, 1, UINT32_MAX),
	U32(MSG_KIND, kind, MIMEO_HANDLE_MEMFD, MIMEO_HANDLE_CUDA_IPC),
	U32(MSG_REQUEST, request, 0, RING_ENTRIES_MAX - 1),
	{.field = MSG_BYTES, .kind = MSG_KIND_U64, .offset = offsetof(struct msg_call, bytes)},
	{.field = MSG_HANDLE, .kind = MSG_KIND_BYTES, .offset = offsetof(struct msg_call, handle),
		.capacity = HANDLE_WIRE_BYTES},
};
static const struct msg_table call_table = MSG_TABLE(struct msg_call, call_entries);

static const struct msg_entry reply_entries[] = {
	{.field = MSG_STATUS, .kind = MSG_KIND_I32, .offset = offsetof(struct msg_reply, status),
		.min = -299, .max = 0},
	{.field = MSG_TEXT, .kind = MSG_KIND_TEXT, .offset = offsetof(struct msg_reply, text),
		.capacity = MSG_TEXT_MAX},
	{.field = MSG_BUFFER, .kind = MSG_KIND_U32, .offset = offsetof(struct msg_reply, buffer),
		.max = UINT32_MAX},
	{.field = MSG_HANDLE, .kind = MSG_KIND_BYTES, .offset = offsetof(struct msg_reply, handle),
		.capacity = HANDLE_WIRE_BYTES},
};
static const struct msg_table reply_table = MSG_TABLE(struct msg_reply, reply_entries);
/* clang-format on */

int msg_call_encode(const struct msg_call *msg, void *buffer, size_t size)
{
	return msg_table_encode(&call_table, msg, buffer, size);
}

int msg_reply_encode(const struct msg_reply *msg, void *buffer, size_t size)
{
	return msg_table_encode(&reply_table, msg, buffer, size);
}

/* A call says what it needs; what else it says is in range and of no use. */
static int call_check(const struct msg_call *msg, struct msg_detail *ret_detail)
{
	switch ((enum msg_call_kind)msg->call) {
	case MSG_CALL_BUFFER_ALLOC:
		return msg->bytes == 0 ? msg_refuse_field(ret_detail, MSG_BYTES) : 0;
	case MSG_CALL_BUFFER_CLOSE:
		return msg->buffer == 0 ? msg_refuse_field(ret_detail, MSG_BUFFER) : 0;
	case MSG_CALL_BUFFER_IMPORT:
	case MSG_CALL_FENCE:
		return 0;
	}
	return msg_refuse_field(ret_detail, MSG_CALL);
}

int msg_call_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_call *ret,
	struct msg_detail *ret_detail)
{
	msgpack_object object;
	struct msg_call msg;

	if (msg_codec_parse(codec, data, size, MSG_CALL_MAX, &object, ret_detail) < 0)
		return MIMEO_E_PROTOCOL;
	int r = msg_table_decode(&call_table, &object, &msg, ret_detail);
	msg_codec_reset(codec);
	if (r == 0)
		r = call_check(&msg, ret_detail);
	if (r == 0)
		*ret = msg;
	return r;
}

int msg_reply_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_reply *ret,
	struct msg_detail *ret_detail)
{
	msgpack_object object;
	struct msg_reply msg;

	if (msg_codec_parse(codec, data, size, MSG_SOCKET_MAX, &object, ret_detail) < 0)
		return MIMEO_E_PROTOCOL;
	int r = msg_table_decode(&reply_table, &object, &msg, ret_detail);
	msg_codec_reset(codec);
	if (r < 0)
		return MIMEO_E_PROTOCOL;
	*ret = msg;
	return 0;
}
