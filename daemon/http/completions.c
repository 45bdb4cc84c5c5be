/* SPDX-License-Identifier: MIT */
/* POST /v1/completions. */
#include <stdlib.h>

#include "daemon/http/endpoints.h"
#include "daemon/http/generation.h"
#include "daemon/http/logprobs.h"
#include "daemon/http/params.h"
#include "ipc/cleanup.h"

DEFINE_CLEANUP(json, json_t, json_decref)

#define DEFAULT_TOKENS 16u /* OpenAI's */
#define LOGPROBS_MAX 20

/* ---- the reply ---- */

static json_t *completions_logprobs(struct choice *choice)
{
	CLEANUP(cleanup_json) json_t *list = choice_take_logprobs(choice);

	return list ? logprobs_legacy(list, &choice->text_offset) : json_null();
}

static json_t *completions_choice(struct choice *choice, const char *text, size_t n)
{
	return json_pack("{s:I, s:s%, s:o, s:s?}", "index", (json_int_t)choice->index, "text", text, n, "logprobs",
		completions_logprobs(choice), "finish_reason", choice->finish);
}

static json_t *completions_whole(struct choice *choice)
{
	return completions_choice(choice, choice->content.data ? choice->content.data : "", choice->content.n);
}

static json_t *completions_chunk(struct choice *choice, const char *text, size_t n)
{
	if (!text)
		return json_pack("{s:I, s:s, s:n, s:s}", "index", (json_int_t)choice->index, "text", "", "logprobs",
			"finish_reason", choice->finish);
	return json_pack("{s:I, s:s%, s:o, s:n}", "index", (json_int_t)choice->index, "text", text, n, "logprobs",
		completions_logprobs(choice), "finish_reason");
}

static const struct generation_format completions_format = {
	.prefix = "cmpl-",
	.object = "text_completion",
	.chunk_object = "text_completion",
	.whole = completions_whole,
	.chunk = completions_chunk,
};

/* ---- the request ---- */

struct completions_prompts {
	struct token_ids *own; /* [n] */
	uint32_t n;
};

static void completions_prompts_deinit(struct completions_prompts *prompts)
{
	for (uint32_t i = 0; i < prompts->n; i++)
		token_ids_deinit(&prompts->own[i]);
	free(prompts->own);
}

/* A string, a list of strings, a list of token ids, or a list of such lists. */
static bool completions_read_prompts(struct completions_prompts *prompts, const json_t *object,
	const struct upstream_model *model, uint32_t most, struct api_error *error)
{
	const json_t *prompt = params_get(object, "prompt");
	const json_t *first = json_array_get(prompt, 0);
	bool several = json_is_string(first) || json_is_array(first);
	size_t n = several ? json_array_size(prompt) : 1;

	if (!prompt)
		return api_error_set(error, 400, NULL, "prompt", "prompt is missing");
	if (n > most)
		return api_error_set(error, 400, NULL, "prompt", "prompt has %zu prompts: this server allows %u choices",
			n, most);
	prompts->own = calloc(n, sizeof(*prompts->own));
	if (!prompts->own)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	for (size_t i = 0; i < n; i++) {
		if (!token_ids_of_input(&prompts->own[i], several ? json_array_get(prompt, i) : prompt, model, "prompt",
				error))
			return false;
		prompts->n++;
	}
	return true;
}

static bool completions_read(struct generation_params *params, const json_t *object, const struct http *http,
	struct api_error *error)
{
	static const char *const unsupported[] = {"suffix", "echo", "use_beam_search", "prompt_logprobs", NULL};
	int64_t logprobs = -1, best_of;

	if (!generation_params_read(params, object, http, error) ||
		!generation_params_limit(params, object, "max_tokens", DEFAULT_TOKENS, http, error) ||
		!params_refuse(object, unsupported, error) ||
		!params_integer(object, "logprobs", 0, LOGPROBS_MAX, &logprobs, error))
		return false;
	best_of = params->n;
	if (!params_integer(object, "best_of", 1, INT32_MAX, &best_of, error))
		return false;
	if (best_of != params->n)
		return api_error_set(error, 400, "unsupported", "best_of", "best_of is supported only if it is n");
	params->logprobs = logprobs >= 0;
	params->top_logprobs = logprobs > 0 ? (uint32_t)logprobs : 0;
	return true;
}

static bool completions_begin(struct exchange *exchange, struct http *http, struct api_error *error)
{
	CLEANUP(completions_prompts_deinit) struct completions_prompts prompts = {NULL, 0};
	CLEANUP(cleanup_free) struct generation_params *params = malloc(sizeof(*params));
	CLEANUP(cleanup_json) json_t *object = params_parse(exchange->body.data, exchange->body.n, error);

	if (!object)
		return false;
	if (!params)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	return completions_read(params, object, http, error) &&
		completions_read_prompts(&prompts, object, params->model, http->options->max_choices, error) &&
		generation_begin(exchange, http, &completions_format, params, prompts.own, prompts.n, object, NULL,
			error);
}

void completions_serve(struct exchange *exchange, struct http *http)
{
	struct api_error error = {0};

	if (!completions_begin(exchange, http, &error))
		exchange_reply_error(exchange, &error);
}
