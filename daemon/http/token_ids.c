/* SPDX-License-Identifier: MIT */
#include "daemon/http/token_ids.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/http/models.h"
#include "daemon/http/params.h"
#include "ipc/cleanup.h"

void token_ids_deinit(struct token_ids *ids)
{
	free(ids->ids);
	*ids = (struct token_ids){NULL, 0};
}

bool token_ids_of_list(struct token_ids *ret, const json_t *list, const struct upstream_model *model,
	const char *name, struct api_error *error)
{
	size_t n = json_array_size(list);
	CLEANUP(cleanup_free) int32_t *ids = malloc((n > 0 ? n : 1) * sizeof(*ids));

	if (!ids)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	for (size_t i = 0; i < n; i++) {
		int64_t id;

		if (!params_is_integer(json_array_get(list, i), &id))
			return api_error_set(error, 400, NULL, name,
				"%s must be a string, or have strings or token ids only", name);
		if (id < 0 || id >= model->info->vocab_size)
			return api_error_set(error, 400, NULL, name, "token %zu is %lld, outside the vocabulary of %u", i,
				(long long)id, model->info->vocab_size);
		ids[i] = (int32_t)id;
	}
	*ret = (struct token_ids){STEAL(ids), n};
	return true;
}

bool token_ids_of_text(struct token_ids *ret, const json_t *text, const struct upstream_model *model,
	uint32_t flags, struct api_error *error)
{
	if (!models_text(model, error))
		return false;
	int rc = mimeo_text_encode(
		model->text, json_string_value(text), json_string_length(text), flags, &ret->ids, &ret->n);
	return rc < 0 ? api_error_set_status(error, rc, "") : true;
}

bool token_ids_of_input(struct token_ids *ret, const json_t *input, const struct upstream_model *model,
	const char *name, struct api_error *error)
{
	if (json_is_string(input))
		return token_ids_of_text(ret, input, model, MIMEO_TEXT_SPECIAL, error);
	if (json_is_array(input))
		return token_ids_of_list(ret, input, model, name, error);
	return api_error_set(error, 400, NULL, name, "%s must be a string, or have strings or token ids", name);
}

bool token_ids_of_chat(struct token_ids *ret, const json_t *chat, const struct upstream_model *model,
	struct api_error *error)
{
	char message[256] = "";

	if (!models_text(model, error))
		return false;
	CLEANUP(cleanup_free) char *text = json_dumps(chat, JSON_COMPACT);
	if (!text)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	int rc = mimeo_text_chat(model->text, text, strlen(text), &ret->ids, &ret->n, message, sizeof(message));
	return rc < 0 ? api_error_set_status(error, rc, message) : true;
}
