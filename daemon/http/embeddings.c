/* SPDX-License-Identifier: MIT */
/*
 * POST /v1/embeddings: the mean of the last layer's hidden states over an input's tokens, of length 1.
 *
 * Each input is a sequence of its own. A request has several LANES, which take one input after another, so that a step
 * of the daemon has rows of several inputs. A step has a limit of tokens; an input that exceeds it is appended in
 * parts, and the parts' means are combined by their lengths.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
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
#define NUMBERS_MAX (1u << 22) /* of all embeddings in a reply */
#define LANES 32u

struct embedding;

struct embedding_lane {
	struct upstream_call call; /* first */
	struct embedding *embedding;
	bool live; /* a step is at mimeod */
	uint32_t input;
	struct upstream_sequence *sequence; /* of the input; NULL: the lane has none */
	size_t done, part; /* tokens of the input: computed, and in the step */
	double *sum;       /* [hidden_size] of the hidden states so far */
};

struct embedding {
	struct upstream_waiter waiter; /* first: a lane has work */
	struct exchange *exchange;     /* NULL: replied, or gone */
	struct http *http;
	const struct upstream_model *model;
	uint32_t request_class;
	char name[MIMEO_NAME_MAX];
	bool base64;
	struct token_ids *inputs; /* [n_inputs], owned */
	uint32_t n_inputs, next;  /* next: the first one that no lane has taken */
	uint32_t n_done;
	uint32_t n_live; /* lanes */
	double *sums;    /* of all lanes */
	struct bytes *texts; /* [n_inputs] the embeddings as JSON, owned */
	uint64_t n_tokens; /* of all inputs */
	const char *why;   /* the session's, of the last refusal */
	struct embedding_lane lanes[LANES];
};

static void embeddings_close(struct embedding_lane *lane)
{
	if (lane->sequence)
		upstream_close_sequence(lane->embedding->http->upstream, lane->sequence);
	lane->sequence = NULL;
}

static void embeddings_free(struct embedding *embedding)
{
	assert(embedding->n_live == 0 && !embedding->exchange && !embedding->waiter.waits);
	for (uint32_t i = 0; i < LANES; i++)
		embeddings_close(&embedding->lanes[i]);
	for (uint32_t i = 0; i < embedding->n_inputs; i++) {
		token_ids_deinit(&embedding->inputs[i]);
		bytes_deinit(&embedding->texts[i]);
	}
	free(embedding->inputs);
	free(embedding->texts);
	free(embedding->sums);
	free(embedding);
}

DEFINE_CLEANUP(embeddings, struct embedding, embeddings_free)

/* Released by the final event of its last lane, or by the caller if none is live. */
static void embeddings_cancel(struct embedding *embedding)
{
	embedding->exchange = NULL;
	upstream_forget(embedding->http->upstream, &embedding->waiter);
	for (uint32_t i = 0; i < LANES; i++) {
		if (embedding->lanes[i].live)
			upstream_cancel(embedding->http->upstream, &embedding->lanes[i].call);
	}
}

static void embeddings_on_gone(void *userdata)
{
	struct embedding *embedding = userdata;

	embeddings_cancel(embedding);
	if (embedding->n_live == 0)
		embeddings_free(embedding);
}

static void embeddings_fail(struct embedding *embedding, int status, const char *text)
{
	struct exchange *exchange = embedding->exchange;
	struct api_error error;

	embeddings_cancel(embedding);
	api_error_set_status(&error, status, text);
	exchange_reply_error(exchange, &error);
}

/* ---- steps ---- */

/* Submit the next part of the lane's input. 0 or a status. */
static int embeddings_step(struct embedding_lane *lane, struct mimeo_request *request)
{
	struct embedding *embedding = lane->embedding;
	const struct mimeo_model_info *info = embedding->model->info;
	const struct token_ids *input = &embedding->inputs[lane->input];
	struct mimeo_step step = MIMEO_STEP_INIT;
	size_t left = input->n - lane->done;

	lane->part = left < info->max_batch_tokens ? left : info->max_batch_tokens;
	const struct mimeo_step_row row = {
		.sequence = lane->sequence->id,
		.n_tokens = (uint32_t)lane->part,
		.tokens = input->ids + lane->done,
	};
	step.model = embedding->model->index;
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_MEAN_HIDDEN;
	step.request_class = embedding->request_class;
	step.deadline_ms = embedding->http->options->request_s * 1000;
	int rc = mimeo_request_prep_step(request, &step);
	if (rc < 0) {
		embedding->why = mimeo_request_message(request);
		return rc == MIMEO_E_FULL && upstream_is_idle(embedding->http->upstream) ? MIMEO_E_TOO_LONG : rc;
	}
	upstream_add(embedding->http->upstream, request, &lane->call);
	lane->live = true;
	embedding->n_live++;
	return 0;
}

/* Take the next input. 0 or a status. */
static int embeddings_begin_input(struct embedding_lane *lane)
{
	struct embedding *embedding = lane->embedding;

	int rc = upstream_open_sequence(embedding->http->upstream, embedding->model->index, &lane->sequence);
	if (rc < 0)
		return rc;
	lane->input = embedding->next++;
	lane->done = 0;
	memset(lane->sum, 0, embedding->model->info->hidden_size * sizeof(*lane->sum));
	return 0;
}

/* Go on with the lane's input, or with another one. 0, also if there is nothing to do, or a status. */
static int embeddings_go_on(struct embedding_lane *lane)
{
	struct embedding *embedding = lane->embedding;
	struct mimeo *m = upstream_session(embedding->http->upstream);

	if (lane->live || (!lane->sequence && embedding->next == embedding->n_inputs))
		return 0;
	/* Before the sequence, which is of no use without it. */
	struct mimeo_request *request = m ? mimeo_request_get(m) : NULL;
	if (!request)
		return m ? MIMEO_E_FULL : MIMEO_E_GONE;
	int rc = lane->sequence ? 0 : embeddings_begin_input(lane);
	if (rc == 0)
		rc = embeddings_step(lane, request);
	if (rc < 0)
		mimeo_request_put(request);
	return rc;
}

static bool embeddings_is_full(int status)
{
	return status == MIMEO_E_FULL || status == MIMEO_E_QUOTA;
}

/* In all lanes. 0 or a status; FULL, QUOTA: in those that there is space for. */
static int embeddings_go_on_all(struct embedding *embedding)
{
	int status = 0;

	embedding->why = "";
	for (uint32_t i = 0; i < LANES; i++) {
		int rc = embeddings_go_on(&embedding->lanes[i]);

		if (rc < 0 && !embeddings_is_full(rc))
			return rc;
		status = rc < 0 ? rc : status;
	}
	return status;
}

/* ---- results ---- */

/* As JSON: at once, because the numbers of all inputs as values of jansson's would take ten times the memory, and
 * writing them at the end much time. 0 or -ENOMEM. */
static int embeddings_write(struct bytes *text, const float *values, uint32_t n)
{
	char number[32];
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		snprintf(number, sizeof(number), "%c%.9g", i > 0 ? ',' : '[', (double)values[i]);
		rc = bytes_append_text(text, number);
	}
	return rc < 0 ? rc : bytes_append_text(text, "]");
}

static int embeddings_write_base64(struct bytes *text, const float *values, uint32_t n)
{
	return bytes_append_text(text, "\"") < 0 || base64_append(text, values, n * sizeof(*values)) < 0 ||
		bytes_append_text(text, "\"") < 0 ? -ENOMEM : 0;
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
	struct bytes *text = &embedding->texts[lane->input];
	int rc = embedding->base64 ? embeddings_write_base64(text, values, n) : embeddings_write(text, values, n);
	embedding->n_done++;
	return rc < 0 ? MIMEO_E_NO_MEMORY : 0;
}

/* A part is computed. 0 or a status. */
static int embeddings_add_part(struct embedding_lane *lane, const float *mean)
{
	struct embedding *embedding = lane->embedding;

	if (!mean)
		return MIMEO_E_UNSUPPORTED;
	for (uint32_t i = 0; i < embedding->model->info->hidden_size; i++)
		lane->sum[i] += (double)mean[i] * (double)lane->part;
	lane->done += lane->part;
	if (lane->done < embedding->inputs[lane->input].n)
		return 0;
	embeddings_close(lane);
	return embeddings_finish_input(lane);
}

/* All but the list. */
static int embeddings_write_frame(const struct embedding *embedding, struct bytes *ret)
{
	const json_int_t n = (json_int_t)embedding->n_tokens;
	CLEANUP(cleanup_json) json_t *frame = json_pack("{s:s, s:s, s:{s:I, s:I}}", "object", "list", "model",
		embedding->name, "usage", "prompt_tokens", n, "total_tokens", n);
	CLEANUP(cleanup_free) char *text = frame ? json_dumps(frame, JSON_COMPACT) : NULL;

	/* Without its last brace. */
	return text ? bytes_append(ret, text, strlen(text) - 1) : -ENOMEM;
}

static int embeddings_write_reply(struct embedding *embedding, struct bytes *ret)
{
	char head[80];

	if (embeddings_write_frame(embedding, ret) < 0 || bytes_append_text(ret, ",\"data\":[") < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < embedding->n_inputs; i++) {
		struct bytes *text = &embedding->texts[i];

		snprintf(head, sizeof(head), "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i > 0 ? "," : "", i);
		if (bytes_append_text(ret, head) < 0 || bytes_append(ret, text->data, text->n) < 0 ||
			bytes_append_text(ret, "}") < 0)
			return -ENOMEM;
		bytes_deinit(text);
	}
	return bytes_append_text(ret, "]}");
}

static void embeddings_reply(struct embedding *embedding)
{
	struct exchange *exchange = embedding->exchange;
	struct bytes reply = {0};

	if (embeddings_write_reply(embedding, &reply) < 0)
		bytes_deinit(&reply);
	embedding->exchange = NULL;
	upstream_forget(embedding->http->upstream, &embedding->waiter);
	exchange_reply_bytes(exchange, 200, "application/json", &reply);
}

static void embeddings_take(struct embedding_lane *lane, const struct mimeo_event *event)
{
	struct embedding *embedding = lane->embedding;
	char message[256] = "";
	int rc = event->status;

	if (rc < 0)
		mimeo_event_message(event, message, sizeof(message));
	else
		rc = embeddings_add_part(lane, event->hidden);
	if (rc < 0)
		embeddings_fail(embedding, rc, message);
	else if (embedding->n_done == embedding->n_inputs)
		embeddings_reply(embedding);
	else
		upstream_await_space(embedding->http->upstream, &embedding->waiter);
}

/* The step's entry and its memory are free only behind this. */
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
	if (!embedding->exchange && embedding->n_live == 0)
		embeddings_free(embedding);
}

static void embeddings_on_space(struct upstream_waiter *waiter, int status)
{
	struct embedding *embedding = (struct embedding *)waiter;

	int rc = status < 0 ? status : embeddings_go_on_all(embedding);
	if (rc == 0)
		return;
	if (embeddings_is_full(rc)) {
		upstream_await_space(embedding->http->upstream, waiter);
		return;
	}
	embeddings_fail(embedding, rc, status < 0 ? "" : embedding->why);
	if (embedding->n_live == 0)
		embeddings_free(embedding);
}

/* ---- the request ---- */

static bool embeddings_add_input(struct embedding *embedding, const json_t *input, struct api_error *error)
{
	const struct mimeo_model_info *info = embedding->model->info;
	struct token_ids *ids = &embedding->inputs[embedding->n_inputs];

	if (!token_ids_of_input(ids, input, embedding->model, "input", error))
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
	if (n * embedding->model->info->hidden_size > NUMBERS_MAX)
		return api_error_set(error, 400, NULL, "input",
			"input has %zu inputs: all embeddings together may have %u numbers, and one of model %s has %u", n,
			NUMBERS_MAX, embedding->model->info->name, embedding->model->info->hidden_size);
	embedding->inputs = calloc(n, sizeof(*embedding->inputs));
	embedding->sums = calloc((size_t)LANES * embedding->model->info->hidden_size, sizeof(*embedding->sums));
	embedding->texts = calloc(n, sizeof(*embedding->texts));
	if (!embedding->inputs || !embedding->sums || !embedding->texts)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	for (size_t i = 0; i < n; i++) {
		if (!embeddings_add_input(embedding, several ? json_array_get(input, i) : input, error))
			return false;
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

/* 0 or a status, and no lane is live. */
static int embeddings_begin_lanes(struct embedding *embedding)
{
	for (uint32_t i = 0; i < LANES; i++) {
		struct embedding_lane *lane = &embedding->lanes[i];

		lane->embedding = embedding;
		lane->call.on_event = embeddings_on_event;
		lane->sum = embedding->sums + (size_t)i * embedding->model->info->hidden_size;
	}
	int rc = embeddings_go_on_all(embedding);
	if (embedding->n_live == 0)
		return rc;
	if (rc < 0)
		upstream_await_space(embedding->http->upstream, &embedding->waiter);
	return 0;
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
	embedding->request_class = exchange->request_class;
	embedding->waiter.on_space = embeddings_on_space;
	embedding->why = "";
	if (!embeddings_read(embedding, object, error))
		return false;
	int rc = embeddings_begin_lanes(embedding);
	if (rc < 0)
		return api_error_set_status(
			error, rc, rc == MIMEO_E_FULL ? "too many requests are in flight" : embedding->why);
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
