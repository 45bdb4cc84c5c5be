/* SPDX-License-Identifier: MIT */
#include "daemon/bench/decoder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/probe.h"

#define MAX_BATCH_TOKENS 512u /* the daemon's default, which the activations are sized for */
#define KEEP_FREE 16u         /* a part of the device's memory for graphs and workspaces */

uint32_t decoder_row_pages(uint32_t positions)
{
	return (positions + DECODER_PAGE_TOKENS - 1) / DECODER_PAGE_TOKENS;
}

/* ---- set-up: what the engine does for a model, without an engine ---- */

static int decoder_load(
	struct decoder *decoder, const struct decoder_options *options, struct model_error *error)
{
	struct model_config config;
	int rc = model_config_load(options->model_dir, &config, error);

	if (rc)
		return rc;
	if (config.max_seq_len < options->max_positions) {
		snprintf(error->text, sizeof(error->text), "the model takes %u tokens, not %u",
			config.max_seq_len, options->max_positions);
		rc = -ERANGE;
	}
	if (!rc)
		rc = model_load(decoder->device, options->model_dir, &config, config.max_seq_len,
			NULL, NULL, &decoder->model, error);
	model_config_deinit(&config);
	return rc;
}

static int decoder_take_inputs(struct decoder *decoder, const struct decoder_options *options)
{
	const struct model_config *c = &decoder->model->config;
	const struct inputs_limits limits = {
		.max_rows = options->max_rows,
		.max_tokens = MAX_BATCH_TOKENS,
		.max_slots = options->max_rows,
		.max_pages = (c->max_seq_len + DECODER_PAGE_TOKENS - 1) / DECODER_PAGE_TOKENS,
		.page_tokens = DECODER_PAGE_TOKENS,
		.vocab_size = c->vocab_size,
		.hidden_size = c->hidden_size,
		.max_init_pages = options->max_rows * decoder_row_pages(options->max_positions),
		.max_results = 1,
	};

	return inputs_init(&decoder->inputs, decoder->device, &limits);
}

struct decoder_carving {
	struct decoder *decoder;
	uint32_t max_rows;
};

static void decoder_carve_pool(void *userdata, struct arena *arena)
{
	const struct decoder_carving *c = userdata;

	model_buffers_carve(&c->decoder->model->config, MAX_BATCH_TOKENS, c->max_rows,
		c->decoder->info.activation_dtype, arena, &c->decoder->context.buffers);
}

static int decoder_take_pool(struct decoder *decoder, uint32_t max_rows)
{
	struct decoder_carving carving = {decoder, max_rows};
	size_t bytes;
	int rc = arena_alloc(decoder->device, decoder_carve_pool, &carving, &decoder->pool, &bytes);

	if (rc)
		return rc;
	decoder->context.pool = decoder->pool;
	decoder->context.pool_bytes = bytes;
	return 0;
}

static int decoder_fill_cache(struct decoder *decoder, const struct kv_config *config)
{
	uint64_t bytes = (decoder->n_pages + 1) * kv_layer_page_bytes(config);
	int rc = 0;

	for (uint32_t i = 0; i < config->n_layers && !rc; i++) {
		decoder->context.kv_layers[i] = kv_layer(decoder->context.kv, i);
		rc = probe_fill(
			decoder->device, decoder->context.kv_layers[i], bytes, config->dtype);
	}
	return rc;
}

static int decoder_take_cache(struct decoder *decoder, uint32_t n_pages)
{
	const struct model_config *c = &decoder->model->config;
	struct kv_config config = model_kv(c, &decoder->info, DECODER_PAGE_TOKENS);
	struct device_info now;

	int rc = decoder->device->ops->info(decoder->device, &now);
	if (rc)
		return rc;
	uint64_t space = now.free_bytes - now.free_bytes / KEEP_FREE;
	uint64_t most = space / kv_page_bytes(&config);
	decoder->n_pages = n_pages < most ? n_pages : (uint32_t)most;
	config.max_pages = decoder->n_pages + 1;
	decoder->context.kv_layers = calloc(c->n_layers, sizeof(void *));
	if (!decoder->context.kv_layers)
		return -ENOMEM;
	rc = kv_cache_new(decoder->device, &config, decoder->n_pages, &decoder->context.kv);
	return rc ? rc : decoder_fill_cache(decoder, &config);
}

static int decoder_take_attention(
	struct decoder *decoder, const struct decoder_options *options, struct model_error *error)
{
	const struct model_config *c = &decoder->model->config;
	struct attention_config config = model_attention(c, &decoder->info);
	enum attention_support support;

	config.page_tokens = DECODER_PAGE_TOKENS;
	config.max_rows = options->max_rows;
	config.max_tokens = MAX_BATCH_TOKENS;
	config.max_pages = decoder->inputs.limits.max_pages;
	config.max_seq_len = c->max_seq_len;
	config.n_kv_pages = decoder->n_pages + 1;
	int rc = attention_choose(options->attention, &config, &decoder->context.attention,
		&support, error->text, sizeof(error->text));
	if (!rc && support == ATTENTION_NEVER)
		rc = -ENOTSUP;
	if (rc)
		return rc;
	error->text[0] = '\0'; /* it said why that one */
	return decoder->context.attention->manager_new(
		decoder->device, &config, &decoder->inputs.persistent, &decoder->context.manager);
}

/* The daemon's ladder and its default mode: for a decode there is one graph of each kind. */
static int decoder_take_graphs(struct decoder *decoder, uint32_t max_rows)
{
	CLEANUP(cleanup_free) struct ladder *ladder = malloc(sizeof(*ladder));

	if (!ladder)
		return -ENOMEM;
	ladder_default(ladder, MAX_BATCH_TOKENS, max_rows, 1);
	return graph_set_init(&decoder->graphs, GRAPH_FULL_AND_PIECEWISE, ladder, 1, max_rows);
}

static int decoder_take_stream(struct decoder *decoder)
{
	int rc = decoder->device->ops->stream_new(decoder->device, &decoder->stream);

	decoder->polls = strcmp(decoder->info.kind, "cpu") != 0;
	for (unsigned i = 0; i < INPUTS_SLOTS && !rc; i++)
		rc = decoder->device->ops->event_new(decoder->device, &decoder->done[i]);
	return rc;
}

int decoder_open(
	struct decoder *decoder, const struct decoder_options *o, struct model_error *error)
{
	*decoder = (struct decoder){.next = 1};
	if (o->max_rows > DECODER_ROWS_MAX)
		return -ERANGE;
	int rc = probe_device(
		o->device, &decoder->device, &decoder->info, error->text, sizeof(error->text));
	if (rc)
		return rc;
	rc = decoder_load(decoder, o, error);
	if (rc)
		return rc;
	rc = decoder_take_stream(decoder);
	if (rc)
		return rc;
	rc = decoder_take_inputs(decoder, o);
	if (rc)
		return rc;
	rc = decoder_take_pool(decoder, o->max_rows);
	if (rc)
		return rc;
	rc = decoder_take_cache(decoder, o->max_pages);
	if (rc)
		return rc;
	rc = decoder_take_attention(decoder, o, error);
	if (rc)
		return rc;
	decoder->context.device = decoder->device;
	decoder->context.model = decoder->model;
	decoder->context.inputs = &decoder->inputs;
	decoder->context.page_tokens = DECODER_PAGE_TOKENS;
	decoder->pages = calloc(decoder_row_pages(o->max_positions), sizeof(*decoder->pages));
	if (!decoder->pages)
		return -ENOMEM;
	rc = executor_init(&decoder->executor, &decoder->context);
	return rc ? rc : decoder_take_graphs(decoder, o->max_rows);
}

void decoder_close(struct decoder *decoder)
{
	if (!decoder->device)
		return;
	if (decoder->stream)
		decoder->device->ops->stream_sync(decoder->stream);
	graph_set_deinit(&decoder->graphs, decoder->device);
	executor_deinit(&decoder->executor);
	if (decoder->context.manager)
		decoder->context.attention->manager_free(decoder->context.manager);
	kv_cache_free(decoder->context.kv);
	free(decoder->context.kv_layers);
	if (decoder->pool)
		decoder->device->ops->mem_free(decoder->device, decoder->pool);
	inputs_deinit(&decoder->inputs);
	for (unsigned i = 0; i < INPUTS_SLOTS; i++) {
		if (decoder->done[i])
			decoder->device->ops->event_free(decoder->done[i]);
	}
	if (decoder->stream)
		decoder->device->ops->stream_free(decoder->stream);
	model_free(decoder->model);
	free(decoder->pages);
	decoder->device->ops->free(decoder->device);
	*decoder = (struct decoder){0};
}

int decoder_graph(
	struct decoder *decoder, uint32_t n_rows, enum graph_mode mode, struct graph_entry **ret)
{
	/* One that is not past its prompts takes the graphs that serve any batch. */
	const struct batch_shape shape = {n_rows, n_rows, true, mode == GRAPH_FULL, 1};
	enum eager_reason reason = EAGER_NO;
	struct graph_entry *entry = NULL;
	int rc = 0;

	if (mode != GRAPH_NONE) {
		entry = graph_set_dispatch(&decoder->graphs, &shape, &reason);
		rc = entry ? 0 : -ERANGE;
	}
	if (!rc && reason == EAGER_NOT_CAPTURED)
		rc = capture_now(entry, &decoder->executor.breakable, decoder->stream);
	if (!rc)
		*ret = entry;
	return rc;
}

/* ---- steps ---- */

/* Each row has a slot and pages of its own. */
static void decoder_fill_first(
	struct decoder *decoder, struct inputs_slot *slot, const struct decoder_step *step)
{
	const struct slot_sampling greedy = {.top_p = 1};

	for (uint32_t i = 0; i < step->n_rows; i++) {
		for (uint32_t j = 0; j < step->row_pages; j++)
			decoder->pages[j] = 1 + i * step->row_pages + j;
		inputs_add_init(slot, (int32_t)i, &greedy, decoder->pages, step->row_pages);
	}
}

static void decoder_fill_rows(
	struct decoder *decoder, struct inputs_slot *slot, const struct decoder_step *step)
{
	for (uint32_t i = 0; i < step->n_rows; i++) {
		const struct step_row row = {
			.slot = (int32_t)i,
			.flags = ROW_SAMPLE | (step->first ? 0 : ROW_FROM_SLOT),
			.n_tokens = 1,
			.start = step->position,
		};

		*inputs_add_row(slot, &row) = 0;
		decoder->query_lens[i] = 1;
		decoder->seq_lens[i] = step->position + 1;
	}
}

static int decoder_queue(
	struct decoder *decoder, const struct decoder_step *step, struct inputs_slot *slot)
{
	const struct op_outbox outbox = {
		.sampled = decoder->inputs.sampled,
		.out = slot->sampled,
		.flag = slot->flag,
		.step = slot->step,
		.ended = slot->ended,
		.n_rows = step->n_rows,
	};
	int rc = executor_run(&decoder->executor, step->entry, slot, decoder->query_lens,
		decoder->seq_lens, decoder->stream);

	if (!rc)
		rc = decoder->device->kernels->outbox(decoder->stream, &outbox);
	if (!rc && !decoder->polls)
		rc = decoder->device->ops->event_record(
			decoder->done[slot->step % INPUTS_SLOTS], decoder->stream);
	return rc;
}

int decoder_launch(struct decoder *decoder, const struct decoder_step *step)
{
	struct inputs_slot *slot = inputs_begin(&decoder->inputs, decoder->next);

	if (!slot)
		return -EBUSY;
	decoder->next++;
	if (step->first)
		decoder_fill_first(decoder, slot, step);
	decoder_fill_rows(decoder, slot, step);
	return decoder_queue(decoder, step, slot);
}

int decoder_await(struct decoder *decoder, uint64_t number, const struct inputs_slot **ret)
{
	const struct inputs_slot *slot = &decoder->inputs.slots[number % INPUTS_SLOTS];
	int rc = 0;

	if (!decoder->polls)
		rc = decoder->device->ops->event_sync(decoder->done[number % INPUTS_SLOTS]);
	while (decoder->polls && !rc && !inputs_slot_done(slot))
		rc = decoder->device->ops->status(decoder->device);
	if (ret)
		*ret = slot;
	return rc;
}

/* ---- bytes ---- */

static uint64_t decoder_bytes_of(const struct weight *weight)
{
	return weight->data ? (uint64_t)weight->rows * weight->cols * dtype_bytes(weight->dtype)
			    : 0;
}

uint64_t decoder_weight_bytes(const struct model *model)
{
	uint64_t bytes = decoder_bytes_of(&model->head) + decoder_bytes_of(&model->final_norm);

	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct model_layer *l = &model->layers[i];
		const struct weight *const all[] = {&l->input_norm, &l->post_norm, &l->qkv,
			&l->qkv_bias, &l->q_norm, &l->k_norm, &l->o, &l->o_bias, &l->gate_up,
			&l->gate_up_bias, &l->down, &l->down_bias, &l->q_a, &l->q_a_bias,
			&l->q_a_norm, &l->q, &l->kv_a, &l->kv_a_bias, &l->kv_a_norm, &l->kv_b,
			&l->router, &l->router_bias};

		for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++)
			bytes += decoder_bytes_of(all[j]);
		/* of the experts what one token sees, the least that a step reads */
		if (l->router.data)
			bytes += (decoder_bytes_of(&l->expert_gate_up) +
					 decoder_bytes_of(&l->expert_down)) /
				 model->config.experts.n * model->config.experts.n_active;
	}
	return bytes;
}

uint64_t decoder_kv_bytes(const struct decoder *decoder, uint32_t n_rows, uint32_t seq_len)
{
	const struct model_config *c = &decoder->model->config;
	const struct kv_config kv = model_kv(c, &decoder->info, 1);
	uint64_t a_token = kv_layer_page_bytes(&kv);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < c->n_layers; i++) {
		uint32_t seen = c->windows[i] && c->windows[i] < seq_len ? c->windows[i] : seq_len;

		bytes += n_rows * a_token * seen;
	}
	return bytes;
}

static double decoder_elements(const struct weight *weight)
{
	return weight->data ? (double)weight->rows * weight->cols : 0;
}

double decoder_token_flop(const struct model *model)
{
	double n = 0;

	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct model_layer *l = &model->layers[i];

		n += decoder_elements(&l->qkv) + decoder_elements(&l->o) +
		     decoder_elements(&l->gate_up) + decoder_elements(&l->down);
	}
	return 2 * n;
}
