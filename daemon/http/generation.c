/* SPDX-License-Identifier: MIT */
#include "daemon/http/generation.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/http/generation_reply.h"
#include "daemon/http/logprobs.h"
#include "daemon/http/models.h"
#include "ipc/cleanup.h"

/* ---- life ---- */

static void choice_deinit(struct choice *choice)
{
	mimeo_text_stream_free(choice->text);
	bytes_deinit(&choice->content);
	tool_calls_deinit(&choice->tools);
	json_decref(choice->logprobs);
	json_decref(choice->calls);
}

static void generation_free(struct generation *generation)
{
	assert(generation->n_live == 0 && !generation->exchange);
	for (uint32_t i = 0; i < generation->n_choices; i++)
		choice_deinit(&generation->choices[i]);
	json_decref((json_t *)(uintptr_t)generation->request);
	free(generation);
}

static void generation_cancel(struct generation *generation)
{
	for (uint32_t i = 0; i < generation->n_choices; i++) {
		if (generation->choices[i].live)
			upstream_cancel(generation->http->upstream, &generation->choices[i].call);
	}
}

/* Released by the final event of its last choice. */
static void generation_on_gone(void *userdata)
{
	struct generation *generation = userdata;

	generation->exchange = NULL;
	generation_cancel(generation);
}

/* ---- a choice's text ---- */

json_t *choice_take_logprobs(struct choice *choice)
{
	json_t *list = choice->logprobs;

	if (list)
		choice->logprobs = json_array();
	return list;
}

/* Text that is part of the answer, unless it may be a tool call. 0 or -ENOMEM. */
static int choice_add_text(struct choice *choice, const char *text, size_t n)
{
	if (n == 0)
		return 0;
	return choice->generation->tools ? tool_calls_push(&choice->tools, text, n, &choice->content)
					 : bytes_append(&choice->content, text, n);
}

static void choice_add_logprobs(struct choice *choice, const struct mimeo_event *event, uint32_t i)
{
	const struct generation_params *params = &choice->generation->params;

	if (!choice->logprobs || !event->logprobs || event->n_logprobs < 1 + params->top_logprobs)
		return;
	json_array_append_new(choice->logprobs, logprobs_json(params->model,
		&event->logprobs[(size_t)i * event->n_logprobs], params->top_logprobs));
}

static bool choice_is_end(const struct choice *choice, int32_t token)
{
	const struct generation_params *params = &choice->generation->params;
	const struct mimeo_model_info *info = params->model->info;

	for (uint32_t i = 0; i < params->n_stop_ids; i++) {
		if (params->stop_ids[i] == token)
			return true;
	}
	for (uint32_t i = 0; i < info->n_eos && !params->ignore_eos; i++) {
		if (info->eos[i] == token)
			return true;
	}
	return false;
}

/* The event's tokens, up to a stop string. An end token is counted, and is no text. 0 or a status. */
static int choice_take_tokens(struct choice *choice, const struct mimeo_event *event)
{
	const char *text;
	size_t n;

	for (uint32_t i = 0; i < event->n_tokens && !choice->stopped; i++) {
		choice->n_tokens++;
		if (choice_is_end(choice, event->tokens[i]))
			continue;
		int rc = mimeo_text_stream_push(choice->text, &event->tokens[i], 1, &text, &n);
		if (rc < 0)
			return rc;
		choice->stopped = rc > 0;
		choice_add_logprobs(choice, event, i);
		if (choice_add_text(choice, text, n) < 0)
			return MIMEO_E_NO_MEMORY;
	}
	if (choice->stopped)
		upstream_cancel(choice->generation->http->upstream, &choice->call);
	return 0;
}

/* The text that was held back. 0 or a status. */
static int choice_end_text(struct choice *choice)
{
	const char *text = "";
	size_t n = 0;

	int rc = choice->stopped ? 0 : mimeo_text_stream_end(choice->text, &text, &n);
	if (rc < 0)
		return rc;
	if (choice_add_text(choice, text, n) < 0)
		return MIMEO_E_NO_MEMORY;
	if (!choice->generation->tools)
		return 0;
	return tool_calls_end(&choice->tools, &choice->content, &choice->calls) < 0 ? MIMEO_E_NO_MEMORY : 0;
}

/* 0 or a status. */
static int choice_end(struct choice *choice, const struct mimeo_event *event)
{
	int rc = choice_end_text(choice);
	if (rc < 0)
		return rc;
	while (choice->generation->params.one_call && json_array_size(choice->calls) > 1)
		json_array_remove(choice->calls, json_array_size(choice->calls) - 1);
	choice->n_cached = event->n_cached;
	bool stopped = choice->stopped || mimeo_text_stream_stopped(choice->text) >= 0;
	bool cut = event->finish == MIMEO_FINISH_LENGTH || event->status == MIMEO_E_DEADLINE;
	choice->finish = choice->calls ? "tool_calls" : !stopped && cut ? "length" : "stop";
	return 0;
}

/* ---- events ---- */

static void generation_fail(struct generation *generation, int status, const char *text)
{
	struct exchange *exchange = generation->exchange;
	struct api_error error;

	generation->exchange = NULL;
	generation_cancel(generation);
	if (!exchange)
		return;
	api_error_set_status(&error, status, text);
	if (status == MIMEO_E_DEADLINE && generation->started)
		snprintf(error.message + strlen(error.message), sizeof(error.message) - strlen(error.message), "%s",
			": a lower max_tokens may help");
	if (generation->started)
		generation_reply_stream_error(exchange, &error);
	else
		exchange_reply_error(exchange, &error);
}

static void generation_count(struct generation *generation, const struct choice *choice,
	const struct mimeo_event *event)
{
	struct counters *counters = &generation->http->counters;

	if (event->n_tokens > 0 && !generation->timed) {
		generation->timed = true;
		counters->first_tokens++;
		if (generation->exchange)
			counters->first_token_us += (uint64_t)(http_now_us() - generation->exchange->began_us);
	}
	counters->tokens_generated += event->n_tokens;
	if (event->kind == MIMEO_EVENT_FINAL)
		counters->tokens_cached += event->n_cached;
}

static bool generation_has_tokens(const struct generation *generation)
{
	for (uint32_t i = 0; i < generation->n_choices; i++) {
		if (generation->choices[i].n_tokens > 0)
			return true;
	}
	return false;
}

/* A choice that was stopped by a string is complete, and cancelled. One of a whole reply whose time is over has what came
 * until then: nothing has been sent of it. The last choice to end fails if none has a token. */
static bool choice_failed(const struct choice *choice, const struct mimeo_event *event)
{
	const struct generation *generation = choice->generation;

	if (event->status >= 0 || choice->stopped)
		return false;
	if (event->status != MIMEO_E_DEADLINE || generation->params.stream)
		return true;
	return generation->n_live == 0 && event->n_tokens == 0 && !generation_has_tokens(generation);
}

static void generation_take(struct generation *generation, struct choice *choice, const struct mimeo_event *event)
{
	char message[256];

	if (choice_failed(choice, event)) {
		mimeo_event_message(event, message, sizeof(message));
		generation_fail(generation, event->status, message);
		return;
	}
	int rc = choice_take_tokens(choice, event);
	if (rc == 0 && event->kind == MIMEO_EVENT_FINAL)
		rc = choice_end(choice, event);
	if (rc < 0)
		generation_fail(generation, rc, "");
	else
		generation_reply_advance(generation, choice);
}

static void generation_on_event(struct upstream_call *call, const struct mimeo_event *event)
{
	struct choice *choice = (struct choice *)call;
	struct generation *generation = choice->generation;

	assert(choice->live && generation->n_live > 0);
	if (event->kind == MIMEO_EVENT_FINAL) {
		choice->live = false;
		generation->n_live--;
	}
	generation_count(generation, choice, event);
	if (generation->exchange)
		generation_take(generation, choice, event);
	if (generation->n_live == 0)
		generation_free(generation);
}

/* ---- the beginning ---- */

/* Tokens that a prompt's choices may have; 0: as many as the sequence holds. */
static uint32_t generation_limit(const struct generation_params *params, const struct token_ids *prompt)
{
	const uint64_t most = params->model->info->max_seq_len;

	return !params->has_limit && prompt->n + params->max_tokens > most ? 0 : params->max_tokens;
}

/* The results of all choices, which are in the arena until their ends. */
static bool generation_check_arena(const struct http *http, const struct generation_params *params,
	const struct token_ids *prompts, uint32_t n_prompts, struct api_error *error)
{
	const uint64_t token = sizeof(int32_t) +
		(params->logprobs ? (1 + params->top_logprobs) * sizeof(struct mimeo_logprob) : 0);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n_prompts; i++) {
		uint32_t limit = generation_limit(params, &prompts[i]);

		if (limit == 0)
			limit = params->model->info->max_seq_len - (uint32_t)prompts[i].n;
		bytes += token * limit * params->n;
	}
	if (bytes <= http->options->arena_bytes)
		return true;
	return api_error_set(error, 400, NULL, "max_tokens",
		"all choices together may have %llu bytes of results: the arena of this server has %llu",
		(unsigned long long)bytes, (unsigned long long)http->options->arena_bytes);
}

static bool generation_check(const struct http *http, const struct generation_params *params,
	const struct token_ids *prompts, uint32_t n_prompts, struct api_error *error)
{
	const struct mimeo_model_info *info = params->model->info;

	if (!models_session(http, error) || !models_text(params->model, error))
		return false;
	if (n_prompts > http->options->max_choices || params->n > http->options->max_choices / n_prompts)
		return api_error_set(error, 400, NULL, "n", "%u prompts with n %u: this server allows %u choices",
			n_prompts, params->n, http->options->max_choices);
	for (uint32_t i = 0; i < n_prompts; i++) {
		const uint32_t limit = generation_limit(params, &prompts[i]), more = limit > 0 ? limit : 1;

		if (prompts[i].n == 0)
			return api_error_set(error, 400, NULL, "prompt", "the prompt has no token");
		if (prompts[i].n + (uint64_t)more > info->max_seq_len)
			return api_error_set(error, 400, "context_length_exceeded", "max_tokens",
				"the prompt has %zu tokens and may get %u more: model %s holds %u in all", prompts[i].n,
				more, info->name, info->max_seq_len);
	}
	return generation_check_arena(http, params, prompts, n_prompts, error);
}

static int generation_open_text(struct choice *choice, const struct token_ids *prompt, uint32_t flags)
{
	const struct generation_params *params = &choice->generation->params;
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;

	config.flags = flags;
	config.stop = params->stop;
	config.n_stop = params->n_stop;
	config.before = prompt->ids;
	config.n_before = prompt->n;
	return mimeo_text_stream_new(&choice->text, params->model->text, &config);
}

/* Some models begin tool calls with a special token, which must not be left out of the text. */
static uint32_t generation_text_flags(const struct generation *generation)
{
	const struct mimeo_text *text = generation->params.model->text;

	if (generation->tools &&
		(mimeo_text_id(text, "[TOOL_CALLS]") >= 0 || mimeo_text_id(text, "<|python_tag|>") >= 0))
		return 0;
	return MIMEO_TEXT_SKIP_SPECIAL;
}

/* 0 or a status. */
static int generation_prepare(struct generation *generation, struct choice *choice,
	const struct token_ids *prompt, struct mimeo_request *request)
{
	const struct generation_params *params = &generation->params;
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	generate.model = params->model->index;
	generate.tokens = prompt->ids;
	generate.n_tokens = (uint32_t)prompt->n;
	generate.max_tokens = generation_limit(params, prompt);
	generate.request_class = generation->request_class;
	generate.sampling = params->sampling;
	if (generate.sampling.flags & MIMEO_SAMPLING_SEEDED)
		generate.sampling.seed += choice->index;
	generate.stop = params->stop_ids;
	generate.n_stop = params->n_stop_ids;
	generate.deadline_ms = generation->http->options->request_s * 1000;
	generate.repetition_penalty = params->repetition_penalty;
	generate.presence_penalty = params->presence_penalty;
	generate.frequency_penalty = params->frequency_penalty;
	generate.bias = params->n_bias > 0 ? params->bias : NULL;
	generate.n_bias = params->n_bias;
	generate.min_tokens = params->min_tokens;
	generate.top_logprobs = params->top_logprobs;
	generate.flags = (params->ignore_eos ? MIMEO_GENERATE_IGNORE_EOS : 0) |
		(params->logprobs ? MIMEO_GENERATE_LOGPROBS : 0);
	return mimeo_request_prep_generate(request, &generate);
}

/* Prepare all choices, or none. */
static bool generation_add(struct generation *generation, const struct token_ids *prompts, struct api_error *error)
{
	struct mimeo *m = upstream_session(generation->http->upstream);
	struct mimeo_request *requests[HTTP_CHOICES_MAX];
	const char *why = "too many requests are in flight";
	bool no_block = false;
	uint32_t n = 0;
	int rc = 0;

	for (; n < generation->n_choices && rc == 0; n++) {
		requests[n] = mimeo_request_get(m);
		if (!requests[n]) {
			rc = MIMEO_E_FULL;
			break;
		}
		rc = generation_prepare(generation, &generation->choices[n], &prompts[n / generation->params.n],
			requests[n]);
		if (rc < 0)
			why = mimeo_request_message(requests[n]);
		no_block = rc == MIMEO_E_FULL;
	}
	/* Without others in the arena it does not fit later, either. */
	if (no_block && upstream_is_idle(generation->http->upstream))
		api_error_set(error, 400, NULL, "max_tokens", "%s", why);
	else if (rc < 0)
		api_error_set_status(error, rc, why);
	for (uint32_t i = 0; i < n; i++) {
		struct choice *choice = &generation->choices[i];

		if (rc < 0) {
			mimeo_request_put(requests[i]);
			continue;
		}
		upstream_add(generation->http->upstream, requests[i], &choice->call);
		choice->live = true;
		generation->n_live++;
	}
	return rc == 0;
}

static bool generation_init(struct generation *generation, const struct token_ids *prompts, struct api_error *error)
{
	const struct generation_params *params = &generation->params;
	uint64_t random = 0;

	if (getrandom(&random, sizeof(random), 0) < 0)
		return api_error_set(error, 500, NULL, NULL, "no random number");
	snprintf(generation->id, sizeof(generation->id), "%s%016" PRIx64, generation->format->prefix, random);
	snprintf(generation->model, sizeof(generation->model), "%s", params->model->info->name);
	for (uint32_t i = 0; i < generation->n_choices; i++) {
		struct choice *choice = &generation->choices[i];
		const struct token_ids *prompt = &prompts[i / params->n];

		choice->call.on_event = generation_on_event;
		choice->generation = generation;
		choice->index = i;
		choice->tools.tools = generation->tools;
		choice->logprobs = params->logprobs ? json_array() : NULL;
		int rc = generation_open_text(choice, prompt, generation_text_flags(generation));
		if (rc < 0 || (params->logprobs && !choice->logprobs))
			return api_error_set_status(error, rc < 0 ? rc : MIMEO_E_NO_MEMORY, "");
		if (i % params->n == 0)
			generation->n_prompt += (uint32_t)prompt->n;
	}
	return true;
}

bool generation_begin(struct exchange *exchange, struct http *http, const struct generation_format *format,
	const struct generation_params *params, const struct token_ids *prompts, uint32_t n_prompts,
	json_t *request, const json_t *tools, struct api_error *error)
{
	if (!generation_check(http, params, prompts, n_prompts, error))
		return false;
	uint32_t n = n_prompts * params->n;
	struct generation *generation = calloc(1, sizeof(*generation) + n * sizeof(struct choice));
	if (!generation)
		return api_error_set_status(error, MIMEO_E_NO_MEMORY, "");
	generation->http = http;
	generation->format = format;
	generation->params = *params;
	generation->request_class = exchange->request_class;
	generation->request = json_incref(request);
	generation->tools = tools;
	generation->created = time(NULL);
	generation->n_choices = n;
	if (!generation_init(generation, prompts, error) || !generation_add(generation, prompts, error)) {
		generation_free(generation);
		return false;
	}
	http->counters.tokens_prompt += generation->n_prompt;
	generation->exchange = exchange;
	exchange_wait(exchange, generation_on_gone, generation);
	return true;
}
