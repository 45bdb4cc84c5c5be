/* SPDX-License-Identifier: MIT */
/* POST /tokenize and POST /detokenize. */
#include "daemon/http/endpoints.h"
#include "daemon/http/messages.h"
#include "daemon/http/models.h"
#include "daemon/http/params.h"
#include "daemon/http/token_ids.h"
#include "ipc/cleanup.h"

DEFINE_CLEANUP(json, json_t, json_decref)

/* A chat where there are messages, else the text of "prompt", or of "content" as llama.cpp's server calls it. */
static bool tokenize_ids(const struct http *http, const json_t *object, const struct upstream_model *model,
	struct token_ids *ret, struct api_error *error)
{
	const json_t *text = params_get(object, "prompt") ? params_get(object, "prompt") : params_get(object, "content");
	bool special = true;

	if (params_get(object, "messages")) {
		CLEANUP(cleanup_json) json_t *chat = messages_chat(object, true, error);
		return chat && token_ids_of_chat(ret, chat, model, error);
	}
	if (!json_is_string(text))
		return api_error_set(error, 400, NULL, "prompt", "prompt must be a string");
	if (!params_bool(object, "add_special_tokens", &special, error))
		return false;
	return token_ids_of_text(ret, text, model, special ? MIMEO_TEXT_SPECIAL : 0, error);
}

static json_t *tokenize_json(const struct upstream_model *model, const struct token_ids *ids)
{
	json_t *tokens = json_array();

	for (size_t i = 0; i < ids->n; i++)
		json_array_append_new(tokens, json_integer(ids->ids[i]));
	return json_pack("{s:I, s:I, s:o}", "count", (json_int_t)ids->n, "max_model_len",
		(json_int_t)model->info->max_seq_len, "tokens", tokens);
}

void tokenize_serve(struct exchange *exchange, struct http *http)
{
	CLEANUP(token_ids_deinit) struct token_ids ids = {NULL, 0};
	struct api_error error = {0};
	CLEANUP(cleanup_json) json_t *object = params_parse(exchange->body.data, exchange->body.n, &error);
	const struct upstream_model *model = object ? models_of(http, object, &error) : NULL;

	if (model && tokenize_ids(http, object, model, &ids, &error))
		exchange_reply_json(exchange, 200, tokenize_json(model, &ids));
	else
		exchange_reply_error(exchange, &error);
}

static bool detokenize_text(const json_t *object, const struct upstream_model *model, char **ret, size_t *ret_n,
	struct api_error *error)
{
	CLEANUP(token_ids_deinit) struct token_ids ids = {NULL, 0};
	const json_t *tokens = params_get(object, "tokens");

	if (!json_is_array(tokens))
		return api_error_set(error, 400, NULL, "tokens", "tokens must be a list of token ids");
	if (!token_ids_of_list(&ids, tokens, model, "tokens", error) || !models_text(model, error))
		return false;
	int rc = mimeo_text_decode(model->text, ids.ids, ids.n, 0, ret, ret_n);
	return rc < 0 ? api_error_set_status(error, rc, "") : true;
}

void detokenize_serve(struct exchange *exchange, struct http *http)
{
	struct api_error error = {0};
	CLEANUP(cleanup_json) json_t *object = params_parse(exchange->body.data, exchange->body.n, &error);
	const struct upstream_model *model = object ? models_of(http, object, &error) : NULL;
	CLEANUP(cleanup_free) char *text = NULL;
	size_t n = 0;

	if (model && detokenize_text(object, model, &text, &n, &error))
		exchange_reply_json(exchange, 200, json_pack("{s:s%}", "prompt", text, n));
	else
		exchange_reply_error(exchange, &error);
}
