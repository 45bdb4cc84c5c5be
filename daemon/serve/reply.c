/* SPDX-License-Identifier: MIT */
#include "daemon/serve/reply.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/admin_wire.h"
#include "ipc/cleanup.h"

/* At least as much as the map, its keys and the numbers around text and rows take. */
#define ENVELOPE_BYTES 64u
#define TEXT_MAX (ADMIN_REPLY_MAX / 2) /* of one message */

void reply_init(struct reply *reply)
{
	*reply = (struct reply){0};
	msgpack_sbuffer_init(&reply->out);
	msgpack_sbuffer_init(&reply->rows);
}

void reply_deinit(struct reply *reply)
{
	msgpack_sbuffer_destroy(&reply->out);
	msgpack_sbuffer_destroy(&reply->rows);
	free(reply->text);
	reply->text = NULL;
}

static const char *reply_text(const struct reply *reply)
{
	return reply->text ? reply->text : "";
}

static int reply_pack_text(msgpack_packer *packer, const char *text)
{
	size_t length = strlen(text);
	int rc = msgpack_pack_str(packer, length);

	return rc < 0 ? rc : msgpack_pack_str_body(packer, text, length);
}

static int reply_pack_cell(msgpack_packer *packer, const struct reply_cell *cell)
{
	int rc = reply_pack_text(packer, cell->key);

	if (rc < 0)
		return rc;
	switch (cell->kind) {
	case REPLY_TEXT:
		return reply_pack_text(packer, cell->text ? cell->text : "");
	case REPLY_COUNT:
		return msgpack_pack_uint64(packer, cell->count);
	case REPLY_NUMBER:
		break;
	}
	return msgpack_pack_double(packer, cell->number);
}

/* Finish the message with the rows that were added. */
static int reply_end_message(struct reply *reply, bool more)
{
	msgpack_packer packer;
	uint32_t length = 0;
	size_t start = reply->out.size;

	int rc = msgpack_sbuffer_write(&reply->out, (const char *)&length, sizeof(length));
	msgpack_packer_init(&packer, &reply->out, msgpack_sbuffer_write);
	rc |= msgpack_pack_map(&packer, 4);
	rc |= reply_pack_text(&packer, ADMIN_STATUS);
	rc |= msgpack_pack_int(&packer, reply->status);
	rc |= reply_pack_text(&packer, ADMIN_TEXT);
	rc |= reply_pack_text(&packer, reply_text(reply));
	rc |= reply_pack_text(&packer, ADMIN_MORE);
	rc |= more ? msgpack_pack_true(&packer) : msgpack_pack_false(&packer);
	rc |= reply_pack_text(&packer, ADMIN_ROWS);
	rc |= msgpack_pack_array(&packer, reply->n_rows);
	if (reply->rows.size > 0)
		rc |= msgpack_sbuffer_write(&reply->out, reply->rows.data, reply->rows.size);
	if (rc != 0)
		return -ENOMEM;

	size_t bytes = reply->out.size - start - sizeof(length);
	if (bytes > ADMIN_REPLY_MAX)
		return -EMSGSIZE;
	length = htole32((uint32_t)bytes);
	memcpy(reply->out.data + start, &length, sizeof(length));
	msgpack_sbuffer_clear(&reply->rows);
	reply->n_rows = 0;
	free(reply->text);
	reply->text = NULL;
	return 0;
}

/* The row's bytes; -ENOMEM. */
static int reply_pack_row(msgpack_sbuffer *row, const struct reply_cell *cells, size_t n_cells)
{
	msgpack_packer packer;

	msgpack_packer_init(&packer, row, msgpack_sbuffer_write);
	int rc = msgpack_pack_map(&packer, n_cells);
	for (size_t i = 0; i < n_cells && rc == 0; i++)
		rc = reply_pack_cell(&packer, &cells[i]);
	return rc == 0 ? 0 : -ENOMEM;
}

static int reply_add_row(struct reply *reply, const struct reply_cell *cells, size_t n_cells)
{
	CLEANUP(msgpack_sbuffer_destroy) msgpack_sbuffer row;

	msgpack_sbuffer_init(&row);
	int rc = reply_pack_row(&row, cells, n_cells);
	if (rc < 0)
		return rc;
	if (ENVELOPE_BYTES + strlen(reply_text(reply)) + reply->rows.size + row.size >
		ADMIN_REPLY_MAX) {
		rc = reply_end_message(reply, true);
		if (rc < 0)
			return rc;
	}
	reply->n_rows++;
	return msgpack_sbuffer_write(&reply->rows, row.data, row.size) == 0 ? 0 : -ENOMEM;
}

void reply_row(struct reply *reply, const struct reply_cell *cells, size_t n_cells)
{
	assert(n_cells > 0);
	if (reply->error == 0)
		reply->error = reply_add_row(reply, cells, n_cells);
}

static int reply_set_text(struct reply *reply, const char *text, size_t length)
{
	free(reply->text);
	reply->text = strndup(text, length);
	return reply->text ? 0 : -ENOMEM;
}

static int reply_add_text(struct reply *reply, const char *text)
{
	size_t left = strlen(text);

	assert(reply->n_rows == 0);
	for (; left > TEXT_MAX; left -= TEXT_MAX, text += TEXT_MAX) {
		int rc = reply_set_text(reply, text, TEXT_MAX);

		if (rc < 0)
			return rc;
		rc = reply_end_message(reply, true);
		if (rc < 0)
			return rc;
	}
	return reply_set_text(reply, text, left);
}

void reply_say(struct reply *reply, int status, const char *text)
{
	reply->status = status;
	if (reply->error == 0)
		reply->error = reply_add_text(reply, text);
}

void reply_sayf(struct reply *reply, int status, const char *format, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	reply_say(reply, status, text);
}

int reply_end(struct reply *reply)
{
	if (reply->error == 0)
		reply->error = reply_end_message(reply, false);
	return reply->error;
}
