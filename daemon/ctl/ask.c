/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/ask.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/admin_wire.h"
#include "ipc/cleanup.h"
#include "ipc/socket.h"
#include "ipc/wire_check.h"

static void ask_pack_text(msgpack_packer *packer, const char *text)
{
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

static void ask_pack_pair(msgpack_packer *packer, const char *key, const char *text)
{
	if (!text)
		return;
	ask_pack_text(packer, key);
	ask_pack_text(packer, text);
}

int ask_send(int fd, const struct ask *ask)
{
	CLEANUP(msgpack_sbuffer_destroy) msgpack_sbuffer buffer;
	msgpack_packer packer;

	msgpack_sbuffer_init(&buffer);
	msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 1 + ask->has_session + ask->has_request + !!ask->model + !!ask->graph +
		!!ask->setting + !!ask->path + !!ask->settings);
	ask_pack_pair(&packer, ADMIN_OP, ask->op);
	ask_pack_pair(&packer, ADMIN_MODEL, ask->model);
	ask_pack_pair(&packer, ADMIN_GRAPH, ask->graph);
	ask_pack_pair(&packer, ADMIN_SETTING, ask->setting);
	ask_pack_pair(&packer, ADMIN_PATH, ask->path);
	ask_pack_pair(&packer, ADMIN_SETTINGS, ask->settings);
	if (ask->has_session) {
		ask_pack_text(&packer, ADMIN_SESSION);
		msgpack_pack_uint64(&packer, ask->session);
	}
	if (ask->has_request) {
		ask_pack_text(&packer, ADMIN_REQUEST);
		msgpack_pack_uint64(&packer, ask->request);
	}
	return socket_send(fd, buffer.data, buffer.size, NULL, 0);
}

/* ---- reading maps ---- */

static bool ask_text_is(const msgpack_object *object, const char *text)
{
	size_t length = strlen(text);

	return object->type == MSGPACK_OBJECT_STR && object->via.str.size == length &&
		memcmp(object->via.str.ptr, text, length) == 0;
}

/* The value of a key, or NULL. */
static const msgpack_object *ask_map_find(const msgpack_object *map, const char *key)
{
	if (map->type != MSGPACK_OBJECT_MAP)
		return NULL;
	for (uint32_t i = 0; i < map->via.map.size; i++) {
		if (ask_text_is(&map->via.map.ptr[i].key, key))
			return &map->via.map.ptr[i].val;
	}
	return NULL;
}

const msgpack_object *answer_cell(const struct answer *answer, size_t row, const char *key)
{
	return row < answer->n_rows ? ask_map_find(answer->rows[row], key) : NULL;
}

uint64_t answer_count(const struct answer *answer, size_t row, const char *key, uint64_t otherwise)
{
	const msgpack_object *cell = answer_cell(answer, row, key);

	if (!cell || cell->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
		return otherwise;
	return cell->via.u64;
}

const char *answer_text(
	const struct answer *answer, size_t row, const char *key, char *buffer, size_t size)
{
	const msgpack_object *cell = answer_cell(answer, row, key);
	size_t length = cell && cell->type == MSGPACK_OBJECT_STR ? cell->via.str.size : 0;

	assert(size > 0);
	if (length >= size)
		length = size - 1;
	if (length > 0)
		memcpy(buffer, cell->via.str.ptr, length);
	buffer[length] = '\0';
	return buffer;
}

/* ---- receiving ---- */

static int ask_take_rows(struct answer *answer, const msgpack_object_array *list)
{
	const msgpack_object **rows =
		reallocarray(answer->rows, answer->n_rows + list->size + 1, sizeof(*rows));

	if (!rows)
		return -ENOMEM;
	answer->rows = rows;
	for (size_t i = 0; i < list->size; i++) {
		if (list->ptr[i].type != MSGPACK_OBJECT_MAP)
			return -EPROTO;
		rows[answer->n_rows++] = &list->ptr[i];
	}
	return 0;
}

static int ask_take_text(struct answer *answer, const msgpack_object_str *text)
{
	char *longer = realloc(answer->text, answer->n_text + text->size + 1);

	if (!longer)
		return -ENOMEM;
	memcpy(longer + answer->n_text, text->ptr, text->size);
	answer->text = longer;
	answer->n_text += text->size;
	answer->text[answer->n_text] = '\0';
	return 0;
}

/* 1 if more messages follow, 0 if not, or -errno. */
static int ask_take_message(struct answer *answer, const msgpack_object *map)
{
	const msgpack_object *status = ask_map_find(map, ADMIN_STATUS);
	const msgpack_object *text = ask_map_find(map, ADMIN_TEXT);
	const msgpack_object *more = ask_map_find(map, ADMIN_MORE);
	const msgpack_object *rows = ask_map_find(map, ADMIN_ROWS);

	if (!status || !text || text->type != MSGPACK_OBJECT_STR || !more ||
		more->type != MSGPACK_OBJECT_BOOLEAN || !rows ||
		rows->type != MSGPACK_OBJECT_ARRAY)
		return -EPROTO;
	if (status->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
		answer->status = (int)status->via.i64;
	else if (status->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
		return -EPROTO;
	int rc = ask_take_text(answer, &text->via.str);
	if (rc < 0)
		return rc;
	rc = ask_take_rows(answer, &rows->via.array);
	return rc < 0 ? rc : more->via.boolean;
}

static int ask_receive_message(int fd, struct answer *answer, char *buffer)
{
	size_t offset = 0;

	ssize_t n = socket_receive(fd, buffer, ADMIN_REPLY_MAX, NULL, 0, NULL, ASK_TIMEOUT_MS);
	if (n < 0)
		return (int)n;
	if (answer->n_messages == ASK_MESSAGES_MAX ||
		wire_check(buffer, (size_t)n, &offset) != WIRE_OK)
		return -EPROTO;

	/* Objects point into the copy of the buffer, which the message's zone owns. */
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
	return ask_take_message(answer, &message->data);
}

int ask_receive(int fd, struct answer **ret)
{
	CLEANUP(cleanup_answer) struct answer *answer = calloc(1, sizeof(*answer));
	CLEANUP(cleanup_free) char *buffer = malloc(ADMIN_REPLY_MAX);
	int rc;

	if (!answer || !buffer)
		return -ENOMEM;
	answer->messages = calloc(ASK_MESSAGES_MAX, sizeof(*answer->messages));
	if (!answer->messages)
		return -ENOMEM;
	do {
		rc = ask_receive_message(fd, answer, buffer);
	} while (rc > 0);
	if (rc == 0)
		*ret = STEAL(answer);
	return rc;
}

int ask_once(int fd, const struct ask *ask, struct answer **ret)
{
	int rc = ask_send(fd, ask);

	/* A daemon that refuses the connection closes it before it reads: its reply has arrived. */
	if (rc < 0 && rc != -EPIPE)
		return rc;
	return ask_receive(fd, ret);
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
