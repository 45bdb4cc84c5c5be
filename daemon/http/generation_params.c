/* SPDX-License-Identifier: MIT */
#include "daemon/http/generation_params.h"

#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http/models.h"
#include "daemon/http/params.h"

/* ---- sampling ---- */

/* What the request says, else what generation_config.json does, else OpenAI's defaults. */
static bool generation_params_sampling(
	struct generation_params *params, const json_t *object, struct api_error *error)
{
	const struct mimeo_sampling *own = &params->model->info->sampling;
	bool has_own = own->temperature > 0;
	double temperature = has_own ? (double)own->temperature : 1, top_p = has_own ? (double)own->top_p : 1;
	double min_p = has_own ? (double)own->min_p : 0;
	int64_t top_k = has_own ? own->top_k : 0, seed = 0;

	if (!params_number(object, "temperature", 0, 2, &temperature, error) ||
		!params_number(object, "top_p", 0, 1, &top_p, error) ||
		!params_number(object, "min_p", 0, 1, &min_p, error) ||
		!params_integer(object, "top_k", -1, INT32_MAX, &top_k, error) ||
		!params_integer(object, "seed", INT64_MIN, INT64_MAX, &seed, error))
		return false;
	params->sampling = (struct mimeo_sampling){
		.temperature = (float)temperature,
		/* 0 is off in mimeo: of OpenAI's 0 the likeliest token is left. */
		.top_p = top_p > 0 ? (float)top_p : FLT_MIN,
		.min_p = (float)min_p,
		.top_k = top_k > 0 ? (uint32_t)top_k : 0,
		.seed = (uint64_t)seed,
		.flags = params_get(object, "seed") ? MIMEO_SAMPLING_SEEDED : 0,
	};
	return true;
}

static bool generation_params_penalties(
	struct generation_params *params, const json_t *object, struct api_error *error)
{
	double presence = 0, frequency = 0, repetition = 1;

	if (!params_number(object, "presence_penalty", -2, 2, &presence, error) ||
		!params_number(object, "frequency_penalty", -2, 2, &frequency, error) ||
		!params_number(object, "repetition_penalty", 0.01, 100, &repetition, error))
		return false;
	params->presence_penalty = (float)presence;
	params->frequency_penalty = (float)frequency;
	params->repetition_penalty = (float)repetition;
	return true;
}

static int generation_params_compare(const void *a, const void *b)
{
	int32_t left = ((const struct mimeo_bias *)a)->token, right = ((const struct mimeo_bias *)b)->token;

	return (left > right) - (left < right);
}

/* {"TOKEN": BIAS, ...} */
static bool generation_params_bias(struct generation_params *params, const json_t *object, struct api_error *error)
{
	static const char name[] = "logit_bias";
	json_t *list = params_get(object, name), *value;
	const char *key;

	if (!list)
		return true;
	if (!json_is_object(list))
		return api_error_set(error, 400, NULL, name, "logit_bias must be an object from token ids to numbers");
	if (json_object_size(list) > MIMEO_BIAS_MAX)
		return api_error_set(error, 400, NULL, name, "logit_bias has %zu entries: at most %u are accepted",
			json_object_size(list), MIMEO_BIAS_MAX);
	json_object_foreach (list, key, value) {
		char *end;
		errno = 0;
		long long token = strtoll(key, &end, 10);

		if (*key < '0' || *key > '9' || *end || errno || token >= params->model->info->vocab_size)
			return api_error_set(error, 400, NULL, name, "logit_bias: '%.32s' is no token id below %u", key,
				params->model->info->vocab_size);
		double bias = json_number_value(value);
		if (!json_is_number(value) || !(bias >= -MIMEO_BIAS_RANGE && bias <= MIMEO_BIAS_RANGE))
			return api_error_set(error, 400, NULL, name,
				"logit_bias: the bias of token %lld must be a number from -100 to 100", token);
		params->bias[params->n_bias++] = (struct mimeo_bias){(int32_t)token, (float)bias};
	}
	qsort(params->bias, params->n_bias, sizeof(params->bias[0]), generation_params_compare);
	for (uint32_t i = 1; i < params->n_bias; i++) {
		if (params->bias[i].token == params->bias[i - 1].token)
			return api_error_set(error, 400, NULL, name, "logit_bias has token %d twice",
				params->bias[i].token);
	}
	return true;
}

/* ---- the end ---- */

static bool generation_params_add_stop(struct generation_params *params, const json_t *text, struct api_error *error)
{
	size_t n = json_string_length(text);

	if (!json_is_string(text))
		return api_error_set(error, 400, NULL, "stop", "stop must be a string or a list of strings");
	if (n == 0)
		return true;
	if (params->n_stop == MIMEO_TEXT_STOP_MAX || n > MIMEO_TEXT_STOP_BYTES || strlen(json_string_value(text)) != n)
		return api_error_set(error, 400, NULL, "stop",
			"stop may have %u strings of at most %u bytes, without zero bytes", MIMEO_TEXT_STOP_MAX,
			MIMEO_TEXT_STOP_BYTES);
	params->stop[params->n_stop++] = json_string_value(text);
	return true;
}

static bool generation_params_stops(struct generation_params *params, const json_t *object, struct api_error *error)
{
	const json_t *stop = params_get(object, "stop"), *text;
	size_t i;

	if (!stop)
		return true;
	if (!json_is_array(stop))
		return generation_params_add_stop(params, stop, error);
	json_array_foreach (stop, i, text) {
		if (!generation_params_add_stop(params, text, error))
			return false;
	}
	return true;
}

static bool generation_params_stop_ids(
	struct generation_params *params, const json_t *object, struct api_error *error)
{
	static const char name[] = "stop_token_ids";
	const json_t *list = params_get(object, name), *value;
	size_t i;

	if (!list)
		return true;
	if (!json_is_array(list) || json_array_size(list) > MIMEO_STOP_MAX)
		return api_error_set(error, 400, NULL, name, "stop_token_ids must be a list of at most %u token ids",
			MIMEO_STOP_MAX);
	json_array_foreach (list, i, value) {
		int64_t id;

		if (!params_is_integer(value, &id) || id < 0 || id >= params->model->info->vocab_size)
			return api_error_set(error, 400, NULL, name, "stop_token_ids[%zu] is no token id below %u", i,
				params->model->info->vocab_size);
		params->stop_ids[params->n_stop_ids++] = (int32_t)id;
	}
	return true;
}

bool generation_params_limit(struct generation_params *params, const json_t *object, const char *name,
	uint32_t otherwise, const struct http *http, struct api_error *error)
{
	const uint32_t most = http->options->max_tokens;
	int64_t max_tokens = most > 0 && (otherwise == 0 || most < otherwise) ? most : otherwise;

	if (!params_integer(object, name, 1, INT32_MAX, &max_tokens, error))
		return false;
	if (most > 0 && max_tokens > most)
		return api_error_set(error, 400, NULL, name, "%s is %lld: this server allows %u", name,
			(long long)max_tokens, most);
	params->max_tokens = (uint32_t)max_tokens;
	params->has_limit = params_get(object, name);
	return true;
}

/* ---- the rest ---- */

static bool generation_params_stream(
	struct generation_params *params, const json_t *object, struct api_error *error)
{
	const json_t *options = params_get(object, "stream_options");

	if (!params_bool(object, "stream", &params->stream, error))
		return false;
	if (!options)
		return true;
	if (!json_is_object(options) || !params->stream)
		return api_error_set(error, 400, NULL, "stream_options",
			"stream_options must be an object, and needs stream to be true");
	return params_bool(options, "include_usage", &params->include_usage, error);
}

/* Text only: nothing here makes an answer follow a schema. */
static bool generation_params_format(const json_t *object, struct api_error *error)
{
	const json_t *format = params_get(object, "response_format");
	const char *type = json_string_value(json_object_get(format, "type"));

	if (!format)
		return true;
	if (!type)
		return api_error_set(error, 400, NULL, "response_format", "response_format must be an object with a type");
	if (strcmp(type, "text") == 0)
		return true;
	return api_error_set(error, 400, "unsupported", "response_format",
		"response_format: type %.32s is not supported, only text is", type);
}

bool generation_params_read(struct generation_params *ret, const json_t *object, const struct http *http,
	struct api_error *error)
{
	int64_t n = 1, min_tokens = 0;

	*ret = (struct generation_params){.model = models_of(http, object, error)};
	if (!ret->model)
		return false;
	if (!params_integer(object, "n", 1, http->options->max_choices, &n, error) ||
		!params_integer(object, "min_tokens", 0, INT32_MAX, &min_tokens, error) ||
		!params_bool(object, "ignore_eos", &ret->ignore_eos, error))
		return false;
	ret->n = (uint32_t)n;
	ret->min_tokens = (uint32_t)min_tokens;
	return generation_params_stream(ret, object, error) && generation_params_format(object, error) &&
		generation_params_sampling(ret, object, error) && generation_params_penalties(ret, object, error) &&
		generation_params_bias(ret, object, error) && generation_params_stops(ret, object, error) &&
		generation_params_stop_ids(ret, object, error);
}
