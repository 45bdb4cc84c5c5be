/* SPDX-License-Identifier: MIT */
/* Calls on a session's socket, and their replies. */
#include "ipc/msg.h"

#include "ipc/msg_table.h"

/* Each call has what it needs; other fields are in range and ignored. */
static int msg_call_check(const void *message, struct msg_detail *ret_detail)
{
	const struct msg_call *msg = message;

	switch ((enum msg_call_kind)msg->call) {
	case MSG_CALL_BUFFER_ALLOC:
		return msg->bytes == 0 ? msg_refuse_field(ret_detail, MSG_BYTES) : 0;
	case MSG_CALL_BUFFER_CLOSE:
		return msg->buffer == 0 ? msg_refuse_field(ret_detail, MSG_BUFFER) : 0;
	case MSG_CALL_BUFFER_IMPORT:
	case MSG_CALL_FENCE:
	case MSG_CALL_MODEL_FILES:
		return 0;
	}
	return msg_refuse_field(ret_detail, MSG_CALL);
}

static const struct msg_entry call_entries[] = {
	MSG_ENTRY_U32(
		MSG_CALL, struct msg_call, call, MSG_CALL_BUFFER_ALLOC, MSG_CALL_MODEL_FILES),
	MSG_ENTRY_U32(MSG_BUFFER, struct msg_call, buffer, 1, UINT32_MAX),
	MSG_ENTRY_U32(MSG_KIND, struct msg_call, kind, MIMEO_HANDLE_MEMFD, MIMEO_HANDLE_CUDA_IPC),
	MSG_ENTRY_U32(MSG_REQUEST, struct msg_call, request, 0, RING_ENTRIES_MAX - 1),
	MSG_ENTRY_U32(MSG_MODEL, struct msg_call, model, 0, UINT32_MAX),
	MSG_ENTRY_U64(MSG_BYTES, struct msg_call, bytes),
	MSG_ENTRY_BYTES(MSG_HANDLE, struct msg_call, handle),
};
const struct msg_table msg_call_table = MSG_TABLE(struct msg_call, call_entries, msg_call_check,
	.limit = MSG_CALL_MAX, .malformed = MIMEO_E_PROTOCOL, .refused = MIMEO_E_INVALID);

static const struct msg_entry reply_entries[] = {
	MSG_ENTRY_I32(MSG_STATUS, struct msg_reply, status, -299, 0),
	MSG_ENTRY_TEXT(MSG_TEXT, struct msg_reply, text),
	MSG_ENTRY_U32(MSG_BUFFER, struct msg_reply, buffer, 0, UINT32_MAX),
	MSG_ENTRY_FLAGS(MSG_FILES, struct msg_reply, files,
		MSG_FILE_TOKENIZER | MSG_FILE_CONFIG | MSG_FILE_CHAT_TEMPLATE),
	MSG_ENTRY_BYTES(MSG_HANDLE, struct msg_reply, handle),
};
const struct msg_table msg_reply_table = MSG_TABLE(struct msg_reply, reply_entries, NULL,
	.limit = MSG_SOCKET_MAX, .malformed = MIMEO_E_PROTOCOL, .refused = MIMEO_E_PROTOCOL);

int msg_call_encode(const struct msg_call *msg, void *buffer, size_t size)
{
	return msg_table_encode(&msg_call_table, msg, buffer, size);
}

int msg_reply_encode(const struct msg_reply *msg, void *buffer, size_t size)
{
	return msg_table_encode(&msg_reply_table, msg, buffer, size);
}

int msg_call_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_call *ret,
	struct msg_detail *ret_detail)
{
	return msg_codec_decode(codec, &msg_call_table, data, size, ret, ret_detail);
}

int msg_reply_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_reply *ret,
	struct msg_detail *ret_detail)
{
	return msg_codec_decode(codec, &msg_reply_table, data, size, ret, ret_detail);
}
