/* SPDX-License-Identifier: MIT */
#include "daemon/http/messages.h"

#include <stdio.h>
#include <string.h>

#include <mimeo/types.h>

#include "daemon/http/bytes.h"
#include "daemon/http/params.h"
#include "ipc/cleanup.h"

DEFINE_CLEANUP(json, json_t, json_decref)

#define FIELD_MAX 64 /* "messages[12].content[3]" */

/* ---- contents ---- */

static bool messages_append_part(struct bytes *text, const json_t *part, const char *field, struct api_error *error)
{
	const char *type = json_string_value(json_object_get(part, "type"));
	const json_t *own;

	if (!type)
		return api_error_set(error, 400, NULL, field, "%s must have parts with a type", field);
	own = strcmp(type, "refusal") == 0 ? json_object_get(part, "refusal") : json_object_get(part, "text");
	if (strcmp(type, "text") != 0 && strcmp(type, "refusal") != 0)
		return api_error_set(error, 400, "unsupported", field, "%s: parts of type %.32s are not supported",
			field, type);
	if (!json_is_string(own))
		return api_error_set(error, 400, NULL, field, "%s: a part has no text", field);
	if (bytes_append(text, json_string_value(own), json_string_length(own)) < 0)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	return true;
}

/* Parts become one text, which every template understands. */
static bool messages_join_content(json_t *message, size_t index, struct api_error *error)
{
	CLEANUP(bytes_deinit) struct bytes text = {0};
	const json_t *content = params_get(message, "content"), *part;
	char field[FIELD_MAX];
	size_t i;

	if (json_is_string(content))
		return true;
	/* Beside tool calls. Most templates append it to a text unseen. */
	if (!content)
		return json_object_set_new(message, "content", json_string("")) == 0 ||
			api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	snprintf(field, sizeof(field), "messages[%zu].content", index);
	if (!json_is_array(content))
		return api_error_set(error, 400, NULL, field, "%s must be a string or a list of parts", field);
	json_array_foreach (content, i, part) {
		if (!messages_append_part(&text, part, field, error))
			return false;
	}
	if (json_object_set_new(message, "content", json_stringn(text.data ? text.data : "", text.n)) < 0)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	return true;
}

/* ---- tool calls of earlier answers ---- */

/* Templates write the arguments as JSON: as text they would be quoted once more. */
static void messages_parse_arguments(json_t *call)
{
	json_t *function = json_object_get(call, "function");
	const json_t *arguments = json_object_get(function, "arguments");

	if (!json_is_string(arguments))
		return;
	json_t *parsed = json_loadb(
		json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL, NULL);
	if (json_is_object(parsed))
		json_object_set_new(function, "arguments", parsed);
	else
		json_decref(parsed);
}

static bool messages_parse_calls(json_t *message, size_t index, struct api_error *error)
{
	json_t *calls = params_get(message, "tool_calls"), *call;
	char field[FIELD_MAX];
	size_t i;

	if (!calls)
		return true;
	snprintf(field, sizeof(field), "messages[%zu].tool_calls", index);
	if (!json_is_array(calls))
		return api_error_set(error, 400, NULL, field, "%s must be a list", field);
	json_array_foreach (calls, i, call) {
		if (!json_is_string(json_object_get(json_object_get(call, "function"), "name")))
			return api_error_set(error, 400, NULL, field, "%s must have functions with a name", field);
		messages_parse_arguments(call);
	}
	return true;
}

/* ---- the chat ---- */

/* Templates ask whether a member is there, and not what it is. */
static void messages_drop_nulls(json_t *message)
{
	const char *name;
	json_t *value;
	void *next;

	json_object_foreach_safe (message, next, name, value) {
		if (json_is_null(value))
			json_object_del(message, name);
	}
}

static bool messages_normalise(json_t *message, size_t index, struct api_error *error)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	char field[FIELD_MAX];

	if (!role) {
		snprintf(field, sizeof(field), "messages[%zu]", index);
		return api_error_set(error, 400, NULL, field, "%s must be an object with a role", field);
	}
	messages_drop_nulls(message);
	/* What system messages are called for newer models, and no template knows. */
	if (strcmp(role, "developer") == 0 && json_object_set_new(message, "role", json_string("system")) < 0)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	return messages_join_content(message, index, error) && messages_parse_calls(message, index, error);
}

static bool messages_check_tools(const json_t *tools, struct api_error *error)
{
	const json_t *tool;
	size_t i;

	if (!json_is_array(tools))
		return api_error_set(error, 400, NULL, "tools", "tools must be a list");
	json_array_foreach (tools, i, tool) {
		if (!json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
			return api_error_set(
				error, 400, NULL, "tools", "tools[%zu] must have a function with a name", i);
	}
	return true;
}

static bool messages_add_variables(json_t *chat, const json_t *request, struct api_error *error)
{
	const json_t *variables = params_get(request, "chat_template_kwargs");
	json_t *effort = params_get(request, "reasoning_effort");

	if (effort && json_object_set(chat, "reasoning_effort", effort) < 0)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	if (!variables)
		return true;
	if (!json_is_object(variables))
		return api_error_set(
			error, 400, NULL, "chat_template_kwargs", "chat_template_kwargs must be an object");
	/* Its messages and tools are not replaced. */
	if (json_object_update_missing(chat, (json_t *)(uintptr_t)variables) < 0)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	return true;
}

static bool messages_fill(json_t *chat, const json_t *request, bool with_tools, struct api_error *error)
{
	const json_t *messages = params_get(request, "messages");
	json_t *tools = with_tools ? params_get(request, "tools") : NULL, *message;
	json_t *copy = json_deep_copy(messages);
	size_t i;

	if (json_object_set_new(chat, "messages", copy) < 0)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	json_array_foreach (copy, i, message) {
		if (!messages_normalise(message, i, error))
			return false;
	}
	if (tools && !messages_check_tools(tools, error))
		return false;
	if (tools && json_array_size(tools) > 0 && json_object_set(chat, "tools", tools) < 0)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	return messages_add_variables(chat, request, error);
}

json_t *messages_chat(const json_t *request, bool with_tools, struct api_error *error)
{
	const json_t *messages = params_get(request, "messages");

	if (!json_is_array(messages) || json_array_size(messages) == 0) {
		api_error_set(error, 400, NULL, "messages", "messages must be a list of at least one message");
		return NULL;
	}
	CLEANUP(cleanup_json) json_t *chat = json_object();
	if (!chat) {
		api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
		return NULL;
	}
	return messages_fill(chat, request, with_tools, error) ? STEAL(chat) : NULL;
}
