/* SPDX-License-Identifier: MIT */
#include "daemon/http/tool_calls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "ipc/cleanup.h"

DEFINE_CLEANUP(json, json_t, json_decref)

/* 15 digits: 19.99 stays what the model wrote. */
#define TOOL_CALLS_JSON (JSON_COMPACT | JSON_REAL_PRECISION(15))
#define HERMES "<tool_call>"
#define HERMES_END "</tool_call>"
#define MISTRAL "[TOOL_CALLS]"
#define MISTRAL_ARGUMENTS "[ARGS]"
#define LLAMA "<|python_tag|>"

static const char *const markers[] = {HERMES, MISTRAL, LLAMA};
#define N_MARKERS (sizeof(markers) / sizeof(markers[0]))

/* ---- one call ---- */

static bool tool_calls_is_tool(const struct tool_calls *calls, const char *name)
{
	const json_t *tool;
	size_t i;

	json_array_foreach (calls->tools, i, tool) {
		const char *own = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));

		if (own && strcmp(own, name) == 0)
			return true;
	}
	return false;
}

/* Append {"id", "type", "function"}. False if it names no tool. */
static bool tool_calls_add(
	const struct tool_calls *calls, json_t *list, const char *name, const json_t *arguments)
{
	uint64_t random = 0;
	char id[32];

	if (!name || !tool_calls_is_tool(calls, name) || !json_is_object(arguments))
		return false;
	CLEANUP(cleanup_free) char *text = json_dumps(arguments, TOOL_CALLS_JSON);
	if (!text || getrandom(&random, sizeof(random), 0) < 0)
		return false;
	snprintf(id, sizeof(id), "call_%016" PRIx64, random);
	return json_array_append_new(list, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function",
		"function", "name", name, "arguments", text)) == 0;
}

/* {"name": ..., "arguments" or "parameters": {...}} */
static bool tool_calls_add_object(const struct tool_calls *calls, json_t *list, const json_t *object)
{
	const json_t *arguments = json_object_get(object, "arguments");

	return tool_calls_add(calls, list, json_string_value(json_object_get(object, "name")),
		arguments ? arguments : json_object_get(object, "parameters"));
}

/* ---- texts: `at` is terminated ---- */

static const char *tool_calls_skip_space(const char *at)
{
	return at + strspn(at, " \t\r\n");
}

/* The JSON value at *at, which moves behind it; NULL. */
static json_t *tool_calls_take_json(const char **at)
{
	json_error_t error;
	json_t *value = json_loads(*at, JSON_DISABLE_EOF_CHECK, &error);

	if (value)
		*at += error.position;
	return value;
}

static bool tool_calls_take_object(const struct tool_calls *calls, json_t *list, const char **at)
{
	CLEANUP(cleanup_json) json_t *object = tool_calls_take_json(at);

	return object && tool_calls_add_object(calls, list, object);
}

/* A model that stops at the end of its last call leaves out the end mark. */
static bool tool_calls_parse_hermes(const struct tool_calls *calls, json_t *list, const char *at)
{
	while (strncmp(at, HERMES, strlen(HERMES)) == 0) {
		at += strlen(HERMES);
		if (!tool_calls_take_object(calls, list, &at))
			return false;
		at = tool_calls_skip_space(at);
		if (strncmp(at, HERMES_END, strlen(HERMES_END)) == 0)
			at = tool_calls_skip_space(at + strlen(HERMES_END));
		else if (*at)
			return false;
	}
	return !*at;
}

static bool tool_calls_parse_mistral_named(const struct tool_calls *calls, json_t *list, const char *at)
{
	while (*at) {
		size_t length = strcspn(at, "[{");
		CLEANUP(cleanup_free) char *name = strndup(at, length);

		at += length;
		if (strncmp(at, MISTRAL_ARGUMENTS, strlen(MISTRAL_ARGUMENTS)) == 0)
			at += strlen(MISTRAL_ARGUMENTS);
		CLEANUP(cleanup_json) json_t *arguments = tool_calls_take_json(&at);
		if (!arguments || !tool_calls_add(calls, list, name, arguments))
			return false;
		at = tool_calls_skip_space(at);
		if (strncmp(at, MISTRAL, strlen(MISTRAL)) == 0)
			at += strlen(MISTRAL);
	}
	return true;
}

static bool tool_calls_parse_mistral(const struct tool_calls *calls, json_t *list, const char *at)
{
	const json_t *object;
	size_t i;

	at = tool_calls_skip_space(at + strlen(MISTRAL));
	if (*at != '[')
		return tool_calls_parse_mistral_named(calls, list, at);
	CLEANUP(cleanup_json) json_t *objects = tool_calls_take_json(&at);
	if (!json_is_array(objects) || *tool_calls_skip_space(at))
		return false;
	json_array_foreach (objects, i, object) {
		if (!tool_calls_add_object(calls, list, object))
			return false;
	}
	return true;
}

static bool tool_calls_parse_llama(const struct tool_calls *calls, json_t *list, const char *at)
{
	if (strncmp(at, LLAMA, strlen(LLAMA)) == 0)
		at = tool_calls_skip_space(at + strlen(LLAMA));
	while (*at) {
		if (!tool_calls_take_object(calls, list, &at))
			return false;
		at = tool_calls_skip_space(at);
		if (*at == ';')
			at = tool_calls_skip_space(at + 1);
		else if (*at)
			return false;
	}
	return true;
}

/* ---- the answer as it comes ---- */

/* Where a marker begins, or the end of the text could be the beginning of one; n: nowhere. */
static size_t tool_calls_find(const char *text, size_t n, bool *ret_whole)
{
	*ret_whole = false;
	for (size_t at = 0; at < n; at++) {
		for (size_t i = 0; i < N_MARKERS; i++) {
			size_t length = strlen(markers[i]);

			if (strncmp(text + at, markers[i], n - at < length ? n - at : length) != 0)
				continue;
			*ret_whole = n - at >= length;
			return at;
		}
	}
	return n;
}

int tool_calls_push(struct tool_calls *calls, const char *text, size_t n, struct bytes *ret_text)
{
	if (bytes_append(&calls->held, text, n) < 0)
		return -ENOMEM;
	if (calls->calling)
		return 0;
	const char *first = tool_calls_skip_space(calls->held.data);
	/* An answer that is JSON from its first character may be a call of Llama 3's. */
	if (!calls->began && (*first == '{' || !*first)) {
		calls->calling = *first == '{';
		return 0;
	}
	size_t sure = tool_calls_find(calls->held.data, calls->held.n, &calls->calling);
	if (bytes_append(ret_text, calls->held.data, sure) < 0)
		return -ENOMEM;
	calls->began |= sure > 0;
	bytes_drop(&calls->held, sure);
	return 0;
}

static bool tool_calls_parse(const struct tool_calls *calls, json_t *list)
{
	const char *at = calls->held.data ? tool_calls_skip_space(calls->held.data) : "";

	if (!calls->calling || strlen(calls->held.data) != calls->held.n)
		return false;
	if (strncmp(at, HERMES, strlen(HERMES)) == 0)
		return tool_calls_parse_hermes(calls, list, at);
	if (strncmp(at, MISTRAL, strlen(MISTRAL)) == 0)
		return tool_calls_parse_mistral(calls, list, at);
	return tool_calls_parse_llama(calls, list, at);
}

int tool_calls_end(struct tool_calls *calls, struct bytes *ret_text, json_t **ret_calls)
{
	CLEANUP(cleanup_json) json_t *list = json_array();

	*ret_calls = NULL;
	if (!list)
		return -ENOMEM;
	if (tool_calls_parse(calls, list) && json_array_size(list) > 0) {
		*ret_calls = STEAL(list);
		return 0;
	}
	return calls->held.n > 0 ? bytes_append(ret_text, calls->held.data, calls->held.n) : 0;
}

void tool_calls_deinit(struct tool_calls *calls)
{
	bytes_deinit(&calls->held);
}
