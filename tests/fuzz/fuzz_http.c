/* SPDX-License-Identifier: MIT */

/*
 * What mimeo-http reads: the JSON of a request (first byte even), or an answer that may have tool calls (odd), which
 * comes in pieces of up to 16 bytes. Every refusal must be a status with a JSON object; text without calls is passed on
 * unchanged.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http/generation_params.h"
#include "daemon/http/messages.h"
#include "daemon/http/models.h"
#include "daemon/http/params.h"
#include "daemon/http/token_ids.h"
#include "daemon/http/tool_calls.h"

static const struct mimeo_model_info fuzz_info = {.name = "tiny", .vocab_size = 256, .max_seq_len = 2048};
static const struct upstream_model fuzz_model = {.info = &fuzz_info, .text_message = "no tokenizer"};

/* In place of models.c, which needs a daemon. */
const struct upstream_model *models_of(const struct http *http, const json_t *object, struct api_error *error)
{
	const char *name = NULL;

	return params_string(object, "model", &name, error) ? &fuzz_model : NULL;
}

const struct mimeo_text *models_text(const struct upstream_model *model, struct api_error *error)
{
	api_error_set(error, 400, "unsupported", NULL, "%s", model->text_message);
	return NULL;
}

/* Not called: the model has no tokenizer. */
int mimeo_text_encode(const struct mimeo_text *text, const char *utf8, size_t length, uint32_t flags, int32_t **ret_ids,
	size_t *ret_n)
{
	abort();
}

int mimeo_text_chat(const struct mimeo_text *text, const char *json, size_t length, int32_t **ret_ids, size_t *ret_n,
	char *message, size_t message_size)
{
	abort();
}

static void check_result(bool done, const struct api_error *error)
{
	json_t *json = error->status != 0 ? api_error_json(error) : NULL;

	if (done == (error->status != 0) || (!done && !json))
		abort();
	json_decref(json);
}

static void read_body(const char *body, size_t n)
{
	static const struct http_options options = {.max_tokens = 1000, .max_choices = 16};
	static const struct http http = {.options = &options};
	static const char *const refused[] = {"suffix", "echo", NULL};
	static struct generation_params params;
	struct token_ids ids = {NULL, 0};
	struct api_error error = {0};
	json_t *object = params_parse(body, n, &error), *chat;

	check_result(object, &error);
	if (!object)
		return;
	check_result(generation_params_read(&params, object, &http, &error) &&
			generation_params_limit(&params, object, "max_tokens", 16, &http, &error) &&
			params_refuse(object, refused, &error), &error);
	error = (struct api_error){0};
	check_result(token_ids_of_list(&ids, params_get(object, "prompt"), &fuzz_model, "prompt", &error), &error);
	token_ids_deinit(&ids);
	error = (struct api_error){0};
	chat = messages_chat(object, true, &error);
	check_result(chat, &error);
	if (chat) {
		error = (struct api_error){0};
		check_result(token_ids_of_chat(&ids, chat, &fuzz_model, &error), &error);
	}
	json_decref(chat);
	json_decref(object);
}

static void read_answer(const char *answer, size_t n)
{
	json_t *tools = json_pack("[{s:{s:s}}, {s:{s:s}}]", "function", "name", "f", "function", "name", "get_weather");
	struct tool_calls calls = {.tools = tools};
	struct bytes text = {0};
	json_t *list;

	if (!tools)
		return;
	for (size_t at = 0, piece; at < n; at += piece) {
		piece = (unsigned char)answer[at] % 16 + 1u;
		piece = piece < n - at ? piece : n - at;
		if (tool_calls_push(&calls, answer + at, piece, &text) < 0)
			abort();
	}
	if (tool_calls_end(&calls, &text, &list) < 0)
		abort();
	if (text.n > n || (!list && text.n != n) || (text.n > 0 && memcmp(text.data, answer, text.n) != 0))
		abort();
	json_decref(list);
	tool_calls_deinit(&calls);
	bytes_deinit(&text);
	json_decref(tools);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 0 && data[0] % 2 == 0)
		read_body((const char *)data + 1, size - 1);
	else if (size > 0)
		read_answer((const char *)data + 1, size - 1);
	return 0;
}
