/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/ask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/admin_wire.h"
#include "ipc/socket.h"
#include "ipc/wire_check.h"

static void pack_text(msgpack_packer *packer, const char *text)
{
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

static void pack_pair(msgpack_packer *packer, const char *key, const char *text)
{
	if (!text)
		return;
	pack_text(packer, key);
	pack_text(packer, text);
}

int ask_send(int fd, const struct ask *ask)
{
	msgpack_sbuffer buffer;
	msgpack_packer packer;

	msgpack_sbuffer_init(&buffer);
	msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 1 + ask->has_session + !!ask->model + !!ask->graph);
	pack_pair(&packer, ADMIN_OP, ask->op);
	pack_pair(&packer, ADMIN_MODEL, ask->model);
	pack_pair(&packer, ADMIN_GRAPH, ask->graph);
	if (ask->has_session) {
		pack_text(&packer, ADMIN_SESSION);
		msgpack_pack_uint64(&packer, ask->session);
	}
	int r = socket_send(fd, buffer.data, buffer.size, NULL, 0);
	msgpack_sbuffer_destroy(&buffer);
	return r;
}

/* ---- looking into maps ---- */

static bool text_is(const msgpack_object *object, const char *text)
{
	size_t length = strlen(text);

	return object->type == MSGPACK_OBJECT_STR && object->via.str.size == length &&
		memcmp(object->via.str.ptr, text, length) == 0;
}

static const msgpack_object *map_find(
	const msgpack_object *map, const char *key, msgpack_object_type type)
{
	if (map->type != MSGPACK_OBJECT_MAP)
		return NULL;
	for (uint32_t i = 0; i < map->via.map.size; i++) {
		const msgpack_object_kv *kv = &map->via.map.ptr[i];

		if (text_is(&kv->key, key))
			return type == MSGPACK_OBJECT_NIL || kv->val.type == type ? &kv->val : NULL;
	}
	return NULL;
}

const msgpack_object *answer_cell(const struct answer *answer, size_t row, const char *key)
{
	return row < answer->n_rows ? map_find(answer->rows[row], key, MSGPACK_OBJECT_NIL) : NULL;
}

uint64_t answer_count(const struct answer *answer, size_t row, const char *key, uint64_t otherwise)
{
	const msgpack_object *cell = answer_cell(answer, row, key);

	if (!cell || cell->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
		return otherwise;
	return cell->via.u64;
}

static const char *text_copy(const msgpack_object *object, char *buffer, size_t size)
{
	size_t length = object->via.str.size < size ? object->via.str.size : size - 1;

	memcpy(buffer, object->via.str.ptr, length);
	buffer[length] = '\0';
	return buffer;
}

const char *answer_text(
	const struct answer *answer, size_t row, const char *key, char *buffer, size_t size)
{
	const msgpack_object *cell = answer_cell(answer, row, key);

	buffer[0] = '\0';
	if (cell && cell->type == MSGPACK_OBJECT_STR)
		text_copy(cell, buffer, size);
	return buffer;
}

/* ---- receiving ---- */

static int rows_take(struct answer *answer, const msgpack_object *list)
{
	size_t n = list->via.array.size;

	if (n == 0)
		return 0;
	const msgpack_object **rows =
		reallocarray(answer->rows, answer->n_rows + n, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	answer->rows = rows;
	for (size_t i = 0; i < n; i++) {
		if (list->via.array.ptr[i].type != MSGPACK_OBJECT_MAP)
			return -EPROTO;
		rows[answer->n_rows++] = &list->via.array.ptr[i];
	}
	return 0;
}

static int text_take(struct answer *answer, const msgpack_object *text)
{
	size_t length = text->via.str.size;
	char *longer = realloc(answer->text, answer->n_text + length + 1);

	if (!longer)
		return -ENOMEM;
	memcpy(longer + answer->n_text, text->via.str.ptr, length);
	answer->text = longer;
	answer->n_text += length;
	answer->text[answer->n_text] = '\0';
	return 0;
}

/* 1 if more messages follow, 0 if not, or -errno. */
static int message_take(struct answer *answer, const msgpack_object *map)
{
	const msgpack_object *positive =
		map_find(map, ADMIN_STATUS, MSGPACK_OBJECT_POSITIVE_INTEGER);
	const msgpack_object *negative =
		map_find(map, ADMIN_STATUS, MSGPACK_OBJECT_NEGATIVE_INTEGER);
	const msgpack_object *text = map_find(map, ADMIN_TEXT, MSGPACK_OBJECT_STR);
	const msgpack_object *more = map_find(map, ADMIN_MORE, MSGPACK_OBJECT_BOOLEAN);
	const msgpack_object *rows = map_find(map, ADMIN_ROWS, MSGPACK_OBJECT_ARRAY);

	if ((!positive && !negative) || !text || !more || !rows)
		return -EPROTO;
	if (negative)
		answer->status = (int)negative->via.i64;
	int r = text_take(answer, text);
	if (r == 0)
		r = rows_take(answer, rows);
	return r < 0 ? r : more->via.boolean;
}

static int message_receive(int fd, struct answer *answer, char *buffer)
{
	size_t offset = 0;

	ssize_t n = socket_receive(fd, buffer, ADMIN_REPLY_MAX, NULL, 0, NULL, ASK_TIMEOUT_MS);
	if (n < 0)
		return (int)n;
	if (answer->n_messages == ASK_MESSAGES_MAX ||
		wire_check(buffer, (size_t)n, &offset) != WIRE_OK)
		return -EPROTO;

	/* Objects point into the buffer's copy that the unpacker's zone holds. */
	msgpack_unpacked *message = &answer->messages[answer->n_messages++];
	msgpack_unpacked_init(message);
	message->zone = msgpack_zone_new(MSGPACK_ZONE_CHUNK_SIZE);
	char *copy = message->zone ? msgpack_zone_malloc(message->zone, (size_t)n) : NULL;
	if (!copy)
		return -ENOMEM;
	memcpy(copy, buffer, (size_t)n);
	offset = 0;
	if (msgpack_unpack(copy, (size_t)n, &offset, message->zone, &message->data) !=
		MSGPACK_UNPACK_SUCCESS)
		return -EPROTO;
	return message_take(answer, &message->data);
}

int ask_receive(int fd, struct answer **ret)
{
	struct answer *answer = calloc(1, sizeof(*answer));
	char *buffer = malloc(ADMIN_REPLY_MAX);
	int r = -ENOMEM;

	if (!answer || !buffer)
		goto out;
	answer->messages = calloc(ASK_MESSAGES_MAX, sizeof(*answer->messages));
	if (!answer->messages)
		goto out;
	do {
		r = message_receive(fd, answer, buffer);
	} while (r > 0);
	if (r == 0) {
		*ret = answer;
		answer = NULL;
	}
out:
	answer_free(answer);
	free(buffer);
	return r;
}

void answer_free(struct answer *answer)
{
	if (!answer)
		return;
	for (size_t i = 0; i < answer->n_messages; i++)
		msgpack_unpacked_destroy(&answer->messages[i]);
	free(answer->messages);
	free(answer->rows);
	free(answer->text);
	free(answer);
}
