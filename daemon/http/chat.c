/* SPDX-License-Identifier: MIT */
/* POST /v1/chat/completions. */
#include <stdlib.h>
#include <string.h>

#include "daemon/http/endpoints.h"
#include "daemon/http/generation.h"
#include "daemon/http/messages.h"
#include "daemon/http/params.h"
#include "ipc/cleanup.h"

DEFINE_CLEANUP(json, json_t, json_decref)

/* ---- the reply ---- */

static json_t *chat_logprobs(struct choice *choice)
{
	json_t *list = choice_take_logprobs(choice);

	return list ? json_pack("{s:o, s:n}", "content", list, "refusal") : json_null();
}

/* Null where there are tool calls and nothing else. */
static json_t *chat_content(const struct choice *choice)
{
	if (choice->content.n == 0)
		return choice->calls ? json_null() : json_string("");
	return json_stringn(choice->content.data, choice->content.n);
}

static json_t *chat_whole(struct choice *choice)
{
	json_t *message = json_pack(
		"{s:s, s:o, s:n}", "role", "assistant", "content", chat_content(choice), "refusal");

	if (choice->calls)
		json_object_set(message, "tool_calls", choice->calls);
	return json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)choice->index, "message", message, "logprobs",
		chat_logprobs(choice), "finish_reason", choice->finish);
}

static json_t *chat_first(struct choice *choice)
{
	return json_pack("{s:I, s:{s:s, s:s}, s:n, s:n}", "index", (json_int_t)choice->index, "delta", "role",
		"assistant", "content", "", "logprobs", "finish_reason");
}

/* In a stream each call has its index, too. */
static json_t *chat_delta_calls(const struct choice *choice)
{
	json_t *calls = json_deep_copy(choice->calls), *call;
	size_t i;

	json_array_foreach (calls, i, call)
		json_object_set_new(call, "index", json_integer((json_int_t)i));
	return json_pack("{s:o}", "tool_calls", calls);
}

static json_t *chat_chunk(struct choice *choice, const char *text, size_t n)
{
	if (!text)
		return json_pack("{s:I, s:o, s:n, s:s}", "index", (json_int_t)choice->index, "delta",
			choice->calls ? chat_delta_calls(choice) : json_object(), "logprobs", "finish_reason",
			choice->finish);
	return json_pack("{s:I, s:{s:s%}, s:o, s:n}", "index", (json_int_t)choice->index, "delta", "content", text, n,
		"logprobs", chat_logprobs(choice), "finish_reason");
}

static const struct generation_format chat_format = {
	.prefix = "chatcmpl-",
	.object = "chat.completion",
	.chunk_object = "chat.completion.chunk",
	.whole = chat_whole,
	.chunk = chat_chunk,
	.first = chat_first,
};

/* ---- the request ---- */

/* *ret: whether the tools are shown to the model. What would force it to call one is not there. */
static bool chat_read_tool_choice(const json_t *object, bool *ret, struct api_error *error)
{
	const json_t *choice = params_get(object, "tool_choice");
	const char *name = json_string_value(choice);

	*ret = true;
	if (!choice || (name && strcmp(name, "auto") == 0))
		return true;
	*ret = false;
	if (name && strcmp(name, "none") == 0)
		return true;
	return api_error_set(error, 400, "unsupported", "tool_choice",
		"tool_choice: only \"auto\" and \"none\" are supported: no call can be forced");
}

static bool chat_read_logprobs(struct generation_params *params, const json_t *object, struct api_error *error)
{
	int64_t top = 0;

	if (!params_bool(object, "logprobs", &params->logprobs, error) ||
		!params_integer(object, "top_logprobs", 0, MIMEO_TOP_LOGPROBS_MAX, &top, error))
		return false;
	if (top > 0 && !params->logprobs)
		return api_error_set(error, 400, NULL, "top_logprobs", "top_logprobs needs logprobs to be true");
	params->top_logprobs = (uint32_t)top;
	return true;
}

static bool chat_read(struct generation_params *params, const json_t *object, const struct http *http,
	struct api_error *error)
{
	static const char *const unsupported[] = {"functions", "function_call", "audio", "prediction",
		"web_search_options", "continue_final_message", "guided_json", "guided_regex", "guided_choice",
		"guided_grammar", "structured_outputs", "prompt_logprobs", NULL};
	const json_t *modalities = params_get(object, "modalities");
	bool parallel = true;
	const char *limit = params_get(object, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";

	if (modalities && (json_array_size(modalities) != 1 ||
			!json_is_string(json_array_get(modalities, 0)) ||
			strcmp(json_string_value(json_array_get(modalities, 0)), "text") != 0))
		return api_error_set(error, 400, "unsupported", "modalities", "modalities: only text is supported");
	if (!generation_params_read(params, object, http, error) ||
		!params_bool(object, "parallel_tool_calls", &parallel, error))
		return false;
	params->one_call = !parallel;
	return generation_params_limit(params, object, limit, 0, http, error) &&
		params_refuse(object, unsupported, error) && chat_read_logprobs(params, object, error);
}

static bool chat_begin(struct exchange *exchange, struct http *http, struct api_error *error)
{
	CLEANUP(token_ids_deinit) struct token_ids ids = {NULL, 0};
	CLEANUP(cleanup_free) struct generation_params *params = malloc(sizeof(*params));
	CLEANUP(cleanup_json) json_t *object = params_parse(exchange->body.data, exchange->body.n, error);
	CLEANUP(cleanup_json) json_t *chat = NULL;
	bool with_tools;

	if (!object)
		return false;
	if (!params)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	if (!chat_read(params, object, http, error) || !chat_read_tool_choice(object, &with_tools, error))
		return false;
	chat = messages_chat(object, with_tools, error);
	if (!chat || !token_ids_of_chat(&ids, chat, params->model, error))
		return false;
	return generation_begin(exchange, http, &chat_format, params, &ids, 1, object,
		json_object_get(chat, "tools"), error);
}

void chat_serve(struct exchange *exchange, struct http *http)
{
	struct api_error error = {0};

	if (!chat_begin(exchange, http, &error))
		exchange_reply_error(exchange, &error);
}
