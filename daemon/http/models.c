/* SPDX-License-Identifier: MIT */
/* GET /v1/models and GET /v1/models/NAME; models by name for the other endpoints. */
#include "daemon/http/models.h"

#include "daemon/http/endpoints.h"
#include "daemon/http/params.h"

struct mimeo *models_session(const struct http *http, struct api_error *error)
{
	struct mimeo *m = upstream_session(http->upstream);

	if (!m)
		api_error_set_status(error, MIMEO_E_UNREACHABLE, upstream_message(http->upstream));
	return m;
}

const struct upstream_model *models_find(const struct http *http, const char *name, struct api_error *error)
{
	const struct upstream_model *model;

	if (!models_session(http, error))
		return NULL;
	model = upstream_model_find(http->upstream, name);
	if (!model)
		api_error_set(error, 404, "model_not_found", "model", "there is no model '%.64s'", name);
	return model;
}

const struct upstream_model *models_of(const struct http *http, const json_t *object, struct api_error *error)
{
	const char *name = NULL;

	if (!params_string(object, "model", &name, error) || !models_session(http, error))
		return NULL;
	if (name)
		return models_find(http, name, error);
	if (upstream_n_models(http->upstream) == 1)
		return upstream_model_at(http->upstream, 0);
	api_error_set(error, 400, NULL, "model", "model is missing");
	return NULL;
}

const struct mimeo_text *models_text(const struct upstream_model *model, struct api_error *error)
{
	if (!model->text)
		api_error_set(error, 400, "unsupported", NULL, "%s", model->text_message);
	return model->text;
}

/* ---- the endpoints ---- */

static json_t *models_json(const struct http *http, const struct upstream_model *model)
{
	return json_pack("{s:s, s:s, s:I, s:s, s:I}", "id", model->info->name, "object", "model", "created",
		(json_int_t)http->started, "owned_by", "mimeo", "max_model_len",
		(json_int_t)model->info->max_seq_len);
}

void models_serve(struct exchange *exchange, struct http *http)
{
	struct api_error error;

	if (!models_session(http, &error)) {
		exchange_reply_error(exchange, &error);
		return;
	}
	json_t *list = json_array();
	for (uint32_t i = 0; i < upstream_n_models(http->upstream); i++)
		json_array_append_new(list, models_json(http, upstream_model_at(http->upstream, i)));
	exchange_reply_json(exchange, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

void model_serve(struct exchange *exchange, struct http *http)
{
	const char *name = exchange->argument ? exchange->argument : "";
	struct api_error error;
	const struct upstream_model *model = models_find(http, name, &error);

	if (model)
		exchange_reply_json(exchange, 200, models_json(http, model));
	else
		exchange_reply_error(exchange, &error);
}
