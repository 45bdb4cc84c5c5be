/* SPDX-License-Identifier: MIT */
/*
 * POST /v1/embeddings: the mean of the last layer's hidden states over an input's tokens, of length 1.
 *
 * Each input is a sequence of its own. A request has several LANES, which take one input after another, so that a step
 * of the daemon has rows of several inputs. A step has a limit of tokens; an input that exceeds it is appended in
 * parts, and the parts' means are combined by their lengths.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http/base64.h"
#include "daemon/http/endpoints.h"
#include "daemon/http/models.h"
#include "daemon/http/params.h"
#include "daemon/http/token_ids.h"
#include "ipc/cleanup.h"

DEFINE_CLEANUP(json, json_t, json_decref)

#define INPUTS_MAX 2048u /* OpenAI's */
#define LANES 32u

struct embedding;

struct embedding_lane {
	struct upstream_call call; /* first */
	struct embedding *embedding;
	bool live; /* a step is at mimeod */
	uint32_t input, sequence;
	size_t done, part; /* tokens of the input: computed, and in the step */
	double *sum;       /* [hidden_size] of the hidden states so far */
};

struct embedding {
	struct exchange *exchange; /* NULL: replied, or gone */
	struct http *http;
	const struct upstream_model *model;
	char name[MIMEO_NAME_MAX];
	bool base64;
	struct token_ids *inputs; /* [n_inputs], owned */
	uint32_t n_inputs, next;  /* next: the first one that no lane has taken */
	uint32_t n_done;
	uint32_t n_live; /* lanes */
	double *sums;    /* of all lanes */
	json_t *data;    /* the reply's list: null where an input is not done */
	uint64_t n_tokens; /* of all inputs */
	struct embedding_lane lanes[LANES];
};

static void embeddings_free(struct embedding *embedding)
{
	assert(embedding->n_live == 0 && !embedding->exchange);
	for (uint32_t i = 0; i < embedding->n_inputs; i++)
		token_ids_deinit(&embedding->inputs[i]);
	free(embedding->inputs);
	free(embedding->sums);
	json_decref(embedding->data);
	free(embedding);
}

DEFINE_CLEANUP(embeddings, struct embedding, embeddings_free)

static void embeddings_cancel(struct embedding *embedding)
{
	for (uint32_t i = 0; i < LANES; i++) {
		if (embedding->lanes[i].live)
			upstream_cancel(embedding->http->upstream, &embedding->lanes[i].call);
	}
}

/* Released by the final event of its last lane. */
static void embeddings_on_gone(void *userdata)
{
	struct embedding *embedding = userdata;

	embedding->exchange = NULL;
	embeddings_cancel(embedding);
}

/* ---- steps ---- */

static void embeddings_on_event(struct upstream_call *call, const struct mimeo_event *event);

/* Submit the next part of the lane's input. 0 or a status. */
static int embeddings_step(struct embedding_lane *lane)
{
	struct embedding *embedding = lane->embedding;
	const struct mimeo_model_info *info = embedding->model->info;
	const struct token_ids *input = &embedding->inputs[lane->input];
	struct mimeo *m = upstream_session(embedding->http->upstream);
	struct mimeo_request *request = m ? mimeo_request_get(m) : NULL;
	struct mimeo_step step = MIMEO_STEP_INIT;
	size_t left = input->n - lane->done;

	if (!request)
		return m ? MIMEO_E_FULL : MIMEO_E_GONE;
	lane->part = left < info->max_batch_tokens ? left : info->max_batch_tokens;
	const struct mimeo_step_row row = {
		.sequence = lane->sequence,
		.n_tokens = (uint32_t)lane->part,
		.tokens = input->ids + lane->done,
	};
	step.model = embedding->model->index;
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_MEAN_HIDDEN;
	step.deadline_ms = embedding->http->options->request_s * 1000;
	int rc = mimeo_request_prep_step(request, &step);
	if (rc < 0) {
		mimeo_request_put(request);
		return rc;
	}
	upstream_add(embedding->http->upstream, request, &lane->call);
	lane->live = true;
	embedding->n_live++;
	return 0;
}

static void embeddings_close(struct embedding_lane *lane)
{
	struct mimeo *m = upstream_session(lane->embedding->http->upstream);

	if (m && lane->sequence != 0)
		(void)mimeo_sequence_close(m, lane->sequence);
	lane->sequence = 0;
}

/* Take the next input. 0, also if none is left, or a status. */
static int embeddings_begin_input(struct embedding_lane *lane)
{
	struct embedding *embedding = lane->embedding;
	struct mimeo *m = upstream_session(embedding->http->upstream);

	assert(!lane->live && lane->sequence == 0);
	if (embedding->next == embedding->n_inputs)
		return 0;
	if (!m)
		return MIMEO_E_GONE;
	lane->done = 0;
	memset(lane->sum, 0, embedding->model->info->hidden_size * sizeof(*lane->sum));
	int rc = mimeo_sequence_open(m, embedding->model->index, &lane->sequence);
	if (rc < 0)
		return rc;
	lane->input = embedding->next;
	rc = embeddings_step(lane);
	if (rc < 0)
		embeddings_close(lane);
	else
		embedding->next++;
	return rc;
}

/* The same for any lane. Where there is no space for it, other lanes go on without it. */
static int embeddings_go_on(struct embedding_lane *lane)
{
	int rc = embeddings_begin_input(lane);

	return (rc == MIMEO_E_FULL || rc == MIMEO_E_QUOTA) && lane->embedding->n_live > 0 ? 0 : rc;
}

/* ---- results ---- */

static json_t *embeddings_numbers(const float *values, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, json_real((double)values[i]));
	return list;
}

/* The direction of the sum, as float32. 0 or a status. */
static int embeddings_finish_input(struct embedding_lane *lane)
{
	struct embedding *embedding = lane->embedding;
	const uint32_t n = embedding->model->info->hidden_size;
	CLEANUP(cleanup_free) float *values = malloc(n * sizeof(*values));
	double squares = 0;

	if (!values)
		return MIMEO_E_NO_MEMORY;
	for (uint32_t i = 0; i < n; i++)
		squares += lane->sum[i] * lane->sum[i];
	if (!isfinite(squares))
		return MIMEO_E_NOT_FINITE;
	const double scale = squares > 0 ? 1 / sqrt(squares) : 0;
	for (uint32_t i = 0; i < n; i++)
		values[i] = (float)(lane->sum[i] * scale);
	json_t *numbers = embedding->base64 ? base64_json(values, n * sizeof(*values)) : embeddings_numbers(values, n);
	embedding->n_done++;
	return json_array_set_new(embedding->data, lane->input, json_pack("{s:s, s:I, s:o}", "object", "embedding",
		"index", (json_int_t)lane->input, "embedding", numbers)) < 0 ? MIMEO_E_NO_MEMORY : 0;
}

/* A part is computed: go on with the next one, or another input. 0 or a status. */
static int embeddings_advance(struct embedding_lane *lane, const float *mean)
{
	struct embedding *embedding = lane->embedding;

	if (!mean)
		return MIMEO_E_UNSUPPORTED;
	for (uint32_t i = 0; i < embedding->model->info->hidden_size; i++)
		lane->sum[i] += (double)mean[i] * (double)lane->part;
	lane->done += lane->part;
	if (lane->done < embedding->inputs[lane->input].n)
		return embeddings_step(lane);
	embeddings_close(lane);
	int rc = embeddings_finish_input(lane);
	return rc < 0 ? rc : embeddings_go_on(lane);
}

static void embeddings_reply(struct embedding *embedding)
{
	struct exchange *exchange = embedding->exchange;
	const json_int_t n = (json_int_t)embedding->n_tokens;

	embedding->exchange = NULL;
	exchange_reply_json(exchange, 200, json_pack("{s:s, s:O, s:s, s:{s:I, s:I}}", "object", "list", "data",
		embedding->data, "model", embedding->name, "usage", "prompt_tokens", n, "total_tokens", n));
}

static void embeddings_fail(struct embedding *embedding, int status, const char *text)
{
	struct exchange *exchange = embedding->exchange;
	struct api_error error;

	embedding->exchange = NULL;
	embeddings_cancel(embedding);
	api_error_set_status(&error, status, text);
	exchange_reply_error(exchange, &error);
}

static void embeddings_take(struct embedding_lane *lane, const struct mimeo_event *event)
{
	struct embedding *embedding = lane->embedding;
	char message[256] = "";
	int rc = event->status;

	if (rc < 0)
		mimeo_event_message(event, message, sizeof(message));
	else
		rc = embeddings_advance(lane, event->hidden);
	if (rc < 0)
		embeddings_fail(embedding, rc, message);
	else if (embedding->n_done == embedding->n_inputs)
		embeddings_reply(embedding);
}

static void embeddings_on_event(struct upstream_call *call, const struct mimeo_event *event)
{
	struct embedding_lane *lane = (struct embedding_lane *)call;
	struct embedding *embedding = lane->embedding;

	if (event->kind != MIMEO_EVENT_FINAL)
		return;
	assert(lane->live && embedding->n_live > 0);
	lane->live = false;
	embedding->n_live--;
	if (embedding->exchange)
		embeddings_take(lane, event);
	if (!lane->live)
		embeddings_close(lane);
	if (embedding->n_live == 0)
		embeddings_free(embedding);
}

/* ---- the request ---- */

static bool embeddings_add_input(struct embedding *embedding, const json_t *input, struct api_error *error)
{
	const struct mimeo_model_info *info = embedding->model->info;
	struct token_ids *ids = &embedding->inputs[embedding->n_inputs];
	bool done = json_is_string(input) ? token_ids_of_text(ids, input, embedding->model, MIMEO_TEXT_SPECIAL, error)
		: json_is_array(input) ? token_ids_of_list(ids, input, embedding->model, "input", error)
		: api_error_set(error, 400, NULL, "input", "input must be a string, or have strings or token ids");

	if (!done)
		return false;
	embedding->n_inputs++;
	embedding->n_tokens += ids->n;
	if (ids->n == 0)
		return api_error_set(error, 400, NULL, "input", "input %u has no token", embedding->n_inputs - 1);
	if (ids->n > info->max_seq_len)
		return api_error_set(error, 400, "context_length_exceeded", "input",
			"input %u has %zu tokens: model %s holds %u", embedding->n_inputs - 1, ids->n, info->name,
			info->max_seq_len);
	return true;
}

/* A string, a list of strings, a list of token ids, or a list of such lists. */
static bool embeddings_read_inputs(struct embedding *embedding, const json_t *object, struct api_error *error)
{
	const json_t *input = params_get(object, "input"), *first = json_array_get(input, 0);
	bool several = json_is_string(first) || json_is_array(first);
	size_t n = several ? json_array_size(input) : 1;

	if (!input || n > INPUTS_MAX)
		return api_error_set(error, 400, NULL, "input", "input must have 1 to %u inputs", INPUTS_MAX);
	embedding->inputs = calloc(n, sizeof(*embedding->inputs));
	embedding->sums = calloc((size_t)LANES * embedding->model->info->hidden_size, sizeof(*embedding->sums));
	embedding->data = json_array();
	if (!embedding->inputs || !embedding->sums || !embedding->data)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	for (size_t i = 0; i < n; i++) {
		if (!embeddings_add_input(embedding, several ? json_array_get(input, i) : input, error))
			return false;
		if (json_array_append_new(embedding->data, json_null()) < 0)
			return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	}
	return true;
}

static bool embeddings_read(struct embedding *embedding, const json_t *object, struct api_error *error)
{
	const char *format = "float";
	int64_t dimensions;

	embedding->model = models_of(embedding->http, object, error);
	if (!embedding->model || !params_string(object, "encoding_format", &format, error))
		return false;
	embedding->base64 = strcmp(format, "base64") == 0;
	if (!embedding->base64 && strcmp(format, "float") != 0)
		return api_error_set(error, 400, NULL, "encoding_format", "encoding_format must be float or base64");
	dimensions = embedding->model->info->hidden_size;
	if (!params_integer(object, "dimensions", 1, INT32_MAX, &dimensions, error))
		return false;
	if (dimensions != embedding->model->info->hidden_size)
		return api_error_set(error, 400, "unsupported", "dimensions", "dimensions must be %u for model %s",
			embedding->model->info->hidden_size, embedding->model->info->name);
	memcpy(embedding->name, embedding->model->info->name, sizeof(embedding->name));
	return embeddings_read_inputs(embedding, object, error);
}

/* Begin all lanes that there is work and space for. 0 or a status, and none is live. */
static int embeddings_begin_lanes(struct embedding *embedding)
{
	int rc = 0;

	for (uint32_t i = 0; i < LANES && rc == 0; i++) {
		struct embedding_lane *lane = &embedding->lanes[i];

		lane->embedding = embedding;
		lane->call.on_event = embeddings_on_event;
		lane->sum = embedding->sums + (size_t)i * embedding->model->info->hidden_size;
		rc = embeddings_go_on(lane);
		if (rc < 0 && embedding->n_live > 0)
			rc = 0; /* their events bring the reason, too */
	}
	return rc;
}

static bool embeddings_begin(struct exchange *exchange, struct http *http, struct api_error *error)
{
	CLEANUP(cleanup_json) json_t *object = params_parse(exchange->body.data, exchange->body.n, error);
	if (!object)
		return false;
	CLEANUP(cleanup_embeddings) struct embedding *embedding = calloc(1, sizeof(*embedding));
	if (!embedding)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	embedding->http = http;
	if (!embeddings_read(embedding, object, error))
		return false;
	int rc = embeddings_begin_lanes(embedding);
	if (rc < 0)
		return api_error_set_status(error, rc, rc == MIMEO_E_FULL ? "too many requests are in flight" : "");
	http->counters.tokens_prompt += embedding->n_tokens;
	embedding->exchange = exchange;
	exchange_wait(exchange, embeddings_on_gone, STEAL(embedding));
	return true;
}

void embeddings_serve(struct exchange *exchange, struct http *http)
{
	struct api_error error = {0};

	if (!embeddings_begin(exchange, http, &error))
		exchange_reply_error(exchange, &error);
}
