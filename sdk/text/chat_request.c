/* SPDX-License-Identifier: MIT */
#include <string.h>

#include <mimeo/types.h>

#include "ipc/cleanup.h"
#include "sdk/text/chat_context.h"
#include "sdk/text/chat_request.h"

DEFINE_CLEANUP(json, json_t, json_decref)

/* Set a member; 0 or NO_MEMORY. */
static int request_set(json_t *object, const char *name, const json_t *value)
{
	return json_object_set(object, name, (json_t *)(uintptr_t)value) ? MIMEO_E_NO_MEMORY : 0;
}

/*
 * A copy of a message. Templates read its reasoning under the first or the second name; clients
 * send any of the three.
 */
static int request_copy_message(json_t **ret_message, const json_t *message)
{
	static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
	CLEANUP(cleanup_json) json_t *copy = json_copy((json_t *)(uintptr_t)message);
	const json_t *reasoning = NULL;

	if (!copy)
		return MIMEO_E_NO_MEMORY;
	for (size_t i = 0; i < 3 && (!reasoning || json_is_null(reasoning)); i++)
		reasoning = json_object_get(copy, names[i]);
	for (size_t i = 0; i < 2 && reasoning && !json_is_null(reasoning); i++) {
		const json_t *value = json_object_get(copy, names[i]);

		if ((!value || json_is_null(value)) && request_set(copy, names[i], reasoning))
			return MIMEO_E_NO_MEMORY;
	}
	*ret_message = STEAL(copy);
	return 0;
}

static int request_set_messages(json_t *chat, char *message, size_t size)
{
	const json_t *messages = json_object_get(chat, "messages");
	CLEANUP(cleanup_json) json_t *copies = json_array();
	size_t i;
	const json_t *item;

	if (!copies)
		return MIMEO_E_NO_MEMORY;
	if (!json_is_array(messages) || !json_array_size(messages)) {
		chat_message(message, size, "\"messages\" is not an array of at least one message");
		return MIMEO_E_INVALID;
	}
	json_array_foreach((json_t *)(uintptr_t)messages, i, item)
	{
		json_t *copy;
		int rc;

		if (!json_is_object(item)) {
			chat_message(message, size, "message %zu is not an object", i);
			return MIMEO_E_INVALID;
		}
		rc = request_copy_message(&copy, item);
		if (rc)
			return rc;
		if (json_array_append_new(copies, copy))
			return MIMEO_E_NO_MEMORY;
	}
	return request_set(chat, "messages", copies);
}

/* Null, or an array of objects; null if it is absent. */
static int request_set_objects(json_t *chat, const char *name, char *message, size_t size)
{
	const json_t *array = json_object_get(chat, name), *item;
	size_t i;

	if (!array || json_is_null(array))
		return json_object_set_new(chat, name, json_null()) ? MIMEO_E_NO_MEMORY : 0;
	if (!json_is_array(array)) {
		chat_message(message, size, "\"%s\" is not an array", name);
		return MIMEO_E_INVALID;
	}
	json_array_foreach((json_t *)(uintptr_t)array, i, item)
	{
		if (!json_is_object(item)) {
			chat_message(message, size, "\"%s\": item %zu is not an object", name, i);
			return MIMEO_E_INVALID;
		}
	}
	return 0;
}

static int request_complete(json_t *chat, char *message, size_t size)
{
	const json_t *goes_on = json_object_get(chat, "continue_final_message");
	int rc;

	if (goes_on && !json_is_null(goes_on) && !json_is_false(goes_on)) {
		chat_message(message, size, "\"continue_final_message\" is not supported");
		return MIMEO_E_UNSUPPORTED;
	}
	rc = request_set_messages(chat, message, size);
	if (!rc)
		rc = request_set_objects(chat, "tools", message, size);
	if (!rc)
		rc = request_set_objects(chat, "documents", message, size);
	if (!rc && !json_object_get(chat, "add_generation_prompt"))
		rc = json_object_set_new(chat, "add_generation_prompt", json_true())
			     ? MIMEO_E_NO_MEMORY
			     : 0;
	return rc;
}

static void request_refuse(const char *json, size_t length, const json_error_t *error, char *message, size_t size)
{
	static const char what[] = "the chat is not a JSON object with \"messages\"";
	size_t n = 0;

	while (n < length && memchr(" \t\r\n", json[n], 4))
		n++;
	if (n == length)
		chat_message(message, size, "%s: it is empty", what);
	else if (json[n] != '{')
		chat_message(message, size, "%s: it does not begin with '{'", what);
	else
		chat_message(message, size, "%s: line %d, column %d: %s", what, error->line, error->column, error->text);
}

int chat_request_new(json_t **ret_chat, const char *json, size_t length, char *message, size_t size)
{
	json_error_t error = {0};
	CLEANUP(cleanup_json) json_t *chat = json_loadb(json, length, JSON_ALLOW_NUL, &error);
	int rc;

	if (!chat && (json_error_code(&error) == json_error_out_of_memory || !error.text[0])) {
		chat_message(message, size, "no memory for the request");
		return MIMEO_E_NO_MEMORY;
	}
	if (!json_is_object(chat)) {
		request_refuse(json, length, &error, message, size);
		return MIMEO_E_INVALID;
	}
	rc = request_complete(chat, message, size);
	if (rc == MIMEO_E_NO_MEMORY)
		chat_message(message, size, "no memory for the request");
	if (rc)
		return rc;
	*ret_chat = STEAL(chat);
	return 0;
}
