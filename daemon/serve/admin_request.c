/* SPDX-License-Identifier: MIT */
#include "daemon/serve/admin_request.h"

#include <msgpack.h>
#include <string.h>

#include "daemon/serve/admin_wire.h"
#include "ipc/cleanup.h"
#include "ipc/wire_check.h"

static bool admin_request_key_is(const msgpack_object *key, const char *name)
{
	return key->type == MSGPACK_OBJECT_STR && key->via.str.size == strlen(name) &&
		memcmp(key->via.str.ptr, name, key->via.str.size) == 0;
}

/* Copy a string into text[size], with its terminator. False if it is none or too long. */
static bool admin_request_take_text(const msgpack_object *value, char *text, size_t size)
{
	if (value->type != MSGPACK_OBJECT_STR || value->via.str.size >= size)
		return false;
	memcpy(text, value->via.str.ptr, value->via.str.size);
	text[value->via.str.size] = '\0';
	return true;
}

static bool admin_request_fill(struct admin_request *request, const msgpack_object *object)
{
	if (object->type != MSGPACK_OBJECT_MAP)
		return false;
	for (uint32_t i = 0; i < object->via.map.size; i++) {
		const msgpack_object *key = &object->via.map.ptr[i].key;
		const msgpack_object *value = &object->via.map.ptr[i].val;

		if (admin_request_key_is(key, ADMIN_SESSION) && value->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
			request->session = value->via.u64;
			request->has_session = true;
		} else if (admin_request_key_is(key, ADMIN_REQUEST) &&
			value->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
			request->request = value->via.u64;
			request->has_request = true;
		} else if (!(admin_request_key_is(key, ADMIN_OP) &&
				   admin_request_take_text(value, request->op, sizeof(request->op))) &&
			!(admin_request_key_is(key, ADMIN_MODEL) &&
				admin_request_take_text(value, request->model, sizeof(request->model))) &&
			!(admin_request_key_is(key, ADMIN_SETTING) &&
				admin_request_take_text(value, request->setting, sizeof(request->setting))) &&
			!(admin_request_key_is(key, ADMIN_GRAPH) &&
				admin_request_take_text(value, request->graph, sizeof(request->graph))) &&
			!(admin_request_key_is(key, ADMIN_PATH) &&
				admin_request_take_text(value, request->path, sizeof(request->path))) &&
			!(admin_request_key_is(key, ADMIN_SETTINGS) &&
				admin_request_take_text(value, request->settings, sizeof(request->settings)))) {
			return false;
		}
	}
	return request->op[0] != '\0';
}

bool admin_request_parse(struct admin_request *ret, const void *data, size_t size)
{
	CLEANUP(msgpack_unpacked_destroy) msgpack_unpacked unpacked;
	size_t offset = 0;

	*ret = (struct admin_request){0};
	msgpack_unpacked_init(&unpacked);
	if (wire_check(data, size, &offset) != WIRE_OK)
		return false;
	offset = 0;
	return msgpack_unpack_next(&unpacked, data, size, &offset) == MSGPACK_UNPACK_SUCCESS &&
		admin_request_fill(ret, &unpacked.data);
}
