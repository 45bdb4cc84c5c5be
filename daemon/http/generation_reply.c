/* SPDX-License-Identifier: MIT */
#include "daemon/http/generation_reply.h"

#include <assert.h>

static json_t *generation_reply_usage(const struct generation *generation)
{
	json_int_t n_generated = 0, n_cached = 0;

	for (uint32_t i = 0; i < generation->n_choices; i++) {
		const struct choice *choice = &generation->choices[i];

		n_generated += choice->n_tokens;
		/* Further choices of a prompt find the first one's tokens in the cache. */
		if (i % generation->params.n == 0)
			n_cached += choice->n_cached;
	}
	return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)generation->n_prompt,
		"completion_tokens", n_generated, "total_tokens", generation->n_prompt + n_generated,
		"prompt_tokens_details", "cached_tokens", n_cached);
}

/* With a list of choices, which is taken over. */
static json_t *generation_reply_object(const struct generation *generation, const char *object, json_t *choices)
{
	return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", generation->id, "object", object, "created",
		(json_int_t)generation->created, "model", generation->model, "choices", choices);
}

/* ---- whole replies ---- */

static void generation_reply_whole(struct generation *generation)
{
	struct exchange *exchange = generation->exchange;
	json_t *choices = json_array();

	for (uint32_t i = 0; i < generation->n_choices; i++)
		json_array_append_new(choices, generation->format->whole(&generation->choices[i]));
	json_t *reply = generation_reply_object(generation, generation->format->object, choices);
	json_object_set_new(reply, "usage", generation_reply_usage(generation));
	generation->exchange = NULL;
	exchange_reply_json(exchange, 200, reply);
}

/* ---- streams ---- */

static void generation_reply_send(struct generation *generation, json_t *choice, json_t *usage)
{
	json_t *chunk = generation_reply_object(generation, generation->format->chunk_object,
		choice ? json_pack("[o]", choice) : json_array());

	/* With usage in the last chunk, OpenAI has null in the others. */
	if (generation->params.include_usage)
		json_object_set_new(chunk, "usage", usage ? usage : json_null());
	exchange_send_json(generation->exchange, chunk);
}

static void generation_reply_start(struct generation *generation)
{
	generation->started = true;
	exchange_stream(generation->exchange);
	for (uint32_t i = 0; i < generation->n_choices && generation->exchange; i++) {
		if (generation->format->first)
			generation_reply_send(generation, generation->format->first(&generation->choices[i]), NULL);
	}
}

static void generation_reply_end(struct generation *generation)
{
	struct exchange *exchange = generation->exchange;

	if (generation->params.include_usage)
		generation_reply_send(generation, NULL, generation_reply_usage(generation));
	generation->exchange = NULL;
	exchange_end(exchange);
}

/* A client that does not read is lost in between: then generation->exchange becomes NULL. */
static void generation_reply_stream(struct generation *generation, struct choice *choice)
{
	const struct generation_format *format = generation->format;
	struct bytes *content = &choice->content;

	if (!generation->started)
		generation_reply_start(generation);
	bool has_logprobs = choice->logprobs && json_array_size(choice->logprobs) > 0;
	if (generation->exchange && (content->n > 0 || has_logprobs))
		generation_reply_send(
			generation, format->chunk(choice, content->data ? content->data : "", content->n), NULL);
	bytes_drop(content, content->n);
	if (generation->exchange && choice->finish)
		generation_reply_send(generation, format->chunk(choice, NULL, 0), NULL);
	if (generation->exchange && generation->n_live == 0)
		generation_reply_end(generation);
}

void generation_reply_stream_error(struct exchange *exchange, const struct api_error *error)
{
	exchange_send_json(exchange, api_error_json(error));
	exchange_end(exchange);
}

void generation_reply_advance(struct generation *generation, struct choice *choice)
{
	assert(generation->exchange);
	if (generation->params.stream)
		generation_reply_stream(generation, choice);
	else if (generation->n_live == 0)
		generation_reply_whole(generation);
}
