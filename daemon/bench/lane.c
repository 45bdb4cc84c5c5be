/* SPDX-License-Identifier: MIT */
#include "daemon/bench/lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/probe.h"

#define MAX_BATCH_TOKENS 512u /* the daemon's default, which the activations are sized for */
#define KEEP_FREE 16u         /* a part of the device's memory for graphs and workspaces */

uint32_t lane_row_pages(uint32_t positions)
{
	return (positions + LANE_PAGE_TOKENS - 1) / LANE_PAGE_TOKENS;
}

/* ---- set-up: what the engine does for a model, without an engine ---- */

static int load(struct lane *lane, const struct lane_options *options, struct model_error *error)
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
		rc = model_load(lane->device, options->model_dir, &config, config.max_seq_len, NULL,
			NULL, &lane->model, error);
	model_config_deinit(&config);
	return rc;
}

static int take_inputs(struct lane *lane, const struct lane_options *options)
{
	const struct model_config *c = &lane->model->config;
	const struct inputs_limits limits = {
		.max_rows = options->max_rows,
		.max_tokens = MAX_BATCH_TOKENS,
		.max_slots = options->max_rows,
		.max_pages = (c->max_seq_len + LANE_PAGE_TOKENS - 1) / LANE_PAGE_TOKENS,
		.page_tokens = LANE_PAGE_TOKENS,
		.vocab_size = c->vocab_size,
		.hidden_size = c->hidden_size,
		.max_init_pages = options->max_rows * lane_row_pages(options->max_positions),
		.max_results = 1,
	};

	return inputs_init(&lane->inputs, lane->device, &limits);
}

struct pool_carving {
	struct lane *lane;
	uint32_t max_rows;
};

static void carve_pool(void *userdata, struct arena *arena)
{
	const struct pool_carving *c = userdata;

	model_buffers_carve(&c->lane->model->config, MAX_BATCH_TOKENS, c->max_rows,
		c->lane->info.activation_dtype, arena, &c->lane->context.buffers);
}

static int take_pool(struct lane *lane, uint32_t max_rows)
{
	struct pool_carving carving = {lane, max_rows};
	size_t bytes;
	int rc = arena_alloc(lane->device, carve_pool, &carving, &lane->pool, &bytes);

	if (rc)
		return rc;
	lane->context.pool = lane->pool;
	lane->context.pool_bytes = bytes;
	return 0;
}

static int fill_cache(struct lane *lane, const struct kv_config *config)
{
	uint64_t bytes = (lane->n_pages + 1) * kv_layer_page_bytes(config);
	int rc = 0;

	for (uint32_t i = 0; i < config->n_layers && !rc; i++) {
		lane->context.kv_layers[i] = kv_layer(lane->context.kv, i);
		rc = probe_fill(lane->device, lane->context.kv_layers[i], bytes, config->dtype);
	}
	return rc;
}

static int take_cache(struct lane *lane, uint32_t n_pages)
{
	const struct model_config *c = &lane->model->config;
	struct kv_config config = model_kv(c, &lane->info, LANE_PAGE_TOKENS);
	struct device_info now;

	int rc = lane->device->ops->info(lane->device, &now);
	if (rc)
		return rc;
	uint64_t room = now.free_bytes - now.free_bytes / KEEP_FREE;
	uint64_t most = room / kv_page_bytes(&config);
	lane->n_pages = n_pages < most ? n_pages : (uint32_t)most;
	config.max_pages = lane->n_pages + 1;
	lane->context.kv_layers = calloc(c->n_layers, sizeof(void *));
	if (!lane->context.kv_layers)
		return -ENOMEM;
	rc = kv_cache_new(lane->device, &config, lane->n_pages, &lane->context.kv);
	return rc ? rc : fill_cache(lane, &config);
}

static int take_attention(
	struct lane *lane, const struct lane_options *options, struct model_error *error)
{
	const struct model_config *c = &lane->model->config;
	struct attention_config config = model_attention(c, &lane->info);
	enum attention_support support;

	config.page_tokens = LANE_PAGE_TOKENS;
	config.max_rows = options->max_rows;
	config.max_tokens = MAX_BATCH_TOKENS;
	config.max_pages = lane->inputs.limits.max_pages;
	config.max_seq_len = c->max_seq_len;
	config.n_kv_pages = lane->n_pages + 1;
	int rc = attention_choose(options->attention, &config, &lane->context.attention, &support,
		error->text, sizeof(error->text));
	if (!rc && support == ATTENTION_NEVER)
		rc = -ENOTSUP;
	if (rc)
		return rc;
	error->text[0] = '\0'; /* it said why that one */
	return lane->context.attention->manager_new(
		lane->device, &config, &lane->inputs.persistent, &lane->context.manager);
}

/* The daemon's ladder and its default mode: for a decode there is one graph of each kind. */
static int take_graphs(struct lane *lane, uint32_t max_rows)
{
	struct ladder *ladder = malloc(sizeof(*ladder));

	if (!ladder)
		return -ENOMEM;
	ladder_default(ladder, MAX_BATCH_TOKENS, max_rows, 1);
	int rc = graph_set_init(&lane->graphs, GRAPH_FULL_AND_PIECEWISE, ladder, 1, max_rows);
	free(ladder);
	return rc;
}

static int take_stream(struct lane *lane)
{
	int rc = lane->device->ops->stream_new(lane->device, &lane->stream);

	lane->polls = strcmp(lane->info.kind, "cpu") != 0;
	for (unsigned i = 0; i < INPUTS_SLOTS && !rc; i++)
		rc = lane->device->ops->event_new(lane->device, &lane->done[i]);
	return rc;
}

int lane_open(struct lane *lane, const struct lane_options *o, struct model_error *error)
{
	*lane = (struct lane){.next = 1};
	if (o->max_rows > LANE_ROWS_MAX)
		return -ERANGE;
	int rc = probe_device(
		o->device, &lane->device, &lane->info, error->text, sizeof(error->text));
	if (!rc)
		rc = load(lane, o, error);
	if (!rc)
		rc = take_stream(lane);
	if (!rc)
		rc = take_inputs(lane, o);
	if (!rc)
		rc = take_pool(lane, o->max_rows);
	if (!rc)
		rc = take_cache(lane, o->max_pages);
	if (!rc)
		rc = take_attention(lane, o, error);
	if (rc)
		return rc;
	lane->context.device = lane->device;
	lane->context.model = lane->model;
	lane->context.inputs = &lane->inputs;
	lane->context.page_tokens = LANE_PAGE_TOKENS;
	lane->pages = calloc(lane_row_pages(o->max_positions), sizeof(*lane->pages));
	rc = lane->pages ? executor_init(&lane->executor, &lane->context) : -ENOMEM;
	return rc ? rc : take_graphs(lane, o->max_rows);
}

void lane_close(struct lane *lane)
{
	if (!lane->device)
		return;
	if (lane->stream)
		lane->device->ops->stream_sync(lane->stream);
	graph_set_deinit(&lane->graphs, lane->device);
	executor_deinit(&lane->executor);
	if (lane->context.manager)
		lane->context.attention->manager_free(lane->context.manager);
	kv_cache_free(lane->context.kv);
	free(lane->context.kv_layers);
	if (lane->pool)
		lane->device->ops->mem_free(lane->device, lane->pool);
	inputs_deinit(&lane->inputs);
	for (unsigned i = 0; i < INPUTS_SLOTS; i++) {
		if (lane->done[i])
			lane->device->ops->event_free(lane->done[i]);
	}
	if (lane->stream)
		lane->device->ops->stream_free(lane->stream);
	model_free(lane->model);
	free(lane->pages);
	lane->device->ops->free(lane->device);
	*lane = (struct lane){0};
}

int lane_graph(struct lane *lane, uint32_t n_rows, enum graph_mode mode, struct graph_entry **ret)
{
	/* One that is not past its prompts takes the graphs that serve any batch. */
	const struct batch_shape shape = {n_rows, n_rows, true, mode == GRAPH_FULL, 1};
	enum eager_reason reason = EAGER_NO;
	struct graph_entry *entry = NULL;
	int rc = 0;

	if (mode != GRAPH_NONE) {
		entry = graph_set_dispatch(&lane->graphs, &shape, &reason);
		rc = entry ? 0 : -ERANGE;
	}
	if (!rc && reason == EAGER_NOT_CAPTURED)
		rc = capture_now(entry, &lane->executor.breakable, lane->stream);
	if (!rc)
		*ret = entry;
	return rc;
}

/* ---- steps ---- */

/* Each row has a slot and pages of its own. */
static void fill_first(struct lane *lane, struct inputs_slot *slot, const struct lane_step *step)
{
	const struct slot_sampling greedy = {.top_p = 1};

	for (uint32_t i = 0; i < step->n_rows; i++) {
		for (uint32_t j = 0; j < step->row_pages; j++)
			lane->pages[j] = 1 + i * step->row_pages + j;
		inputs_add_init(slot, (int32_t)i, &greedy, lane->pages, step->row_pages);
	}
}

static void fill_rows(struct lane *lane, struct inputs_slot *slot, const struct lane_step *step)
{
	for (uint32_t i = 0; i < step->n_rows; i++) {
		const struct step_row row = {
			.slot = (int32_t)i,
			.flags = ROW_SAMPLE | (step->first ? 0 : ROW_FROM_SLOT),
			.n_tokens = 1,
			.start = step->position,
		};

		*inputs_add_row(slot, &row) = 0;
		lane->query_lens[i] = 1;
		lane->seq_lens[i] = step->position + 1;
	}
}

static int queue(struct lane *lane, const struct lane_step *step, struct inputs_slot *slot)
{
	const struct op_outbox outbox = {
		.sampled = lane->inputs.sampled,
		.out = slot->sampled,
		.flag = slot->flag,
		.step = slot->step,
		.ended = slot->ended,
		.n_rows = step->n_rows,
	};
	int rc = executor_run(&lane->executor, step->entry, slot, lane->query_lens, lane->seq_lens,
		lane->stream);

	if (!rc)
		rc = lane->device->kernels->outbox(lane->stream, &outbox);
	if (!rc && !lane->polls)
		rc = lane->device->ops->event_record(
			lane->done[slot->step % INPUTS_SLOTS], lane->stream);
	return rc;
}

int lane_launch(struct lane *lane, const struct lane_step *step)
{
	struct inputs_slot *slot = inputs_begin(&lane->inputs, lane->next);

	if (!slot)
		return -EBUSY;
	lane->next++;
	if (step->first)
		fill_first(lane, slot, step);
	fill_rows(lane, slot, step);
	return queue(lane, step, slot);
}

int lane_await(struct lane *lane, uint64_t number, const struct inputs_slot **ret)
{
	const struct inputs_slot *slot = &lane->inputs.slots[number % INPUTS_SLOTS];
	int rc = 0;

	if (!lane->polls)
		rc = lane->device->ops->event_sync(lane->done[number % INPUTS_SLOTS]);
	while (lane->polls && !rc && !inputs_slot_done(slot))
		rc = lane->device->ops->status(lane->device);
	if (ret)
		*ret = slot;
	return rc;
}

/* ---- bytes ---- */

static uint64_t weight_bytes(const struct weight *weight)
{
	return weight->data ? (uint64_t)weight->rows * weight->cols * dtype_bytes(weight->dtype)
			    : 0;
}

uint64_t lane_weight_bytes(const struct model *model)
{
	uint64_t bytes = weight_bytes(&model->head) + weight_bytes(&model->final_norm);

	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct model_layer *l = &model->layers[i];
		const struct weight *const all[] = {&l->input_norm, &l->post_norm, &l->qkv,
			&l->qkv_bias, &l->q_norm, &l->k_norm, &l->o, &l->o_bias, &l->gate_up,
			&l->gate_up_bias, &l->down, &l->down_bias, &l->q_a, &l->q_a_bias, &l->q_a_norm,
			&l->q, &l->kv_a, &l->kv_a_bias, &l->kv_a_norm, &l->kv_b, &l->router,
			&l->router_bias};

		for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++)
			bytes += weight_bytes(all[j]);
		/* of the experts what one token sees, the least that a step reads */
		if (l->router.data)
			bytes += (weight_bytes(&l->expert_gate_up) + weight_bytes(&l->expert_down)) /
				model->config.experts.n * model->config.experts.n_active;
	}
	return bytes;
}

uint64_t lane_kv_bytes(const struct lane *lane, uint32_t n_rows, uint32_t seq_len)
{
	const struct model_config *c = &lane->model->config;
	const struct kv_config kv = model_kv(c, &lane->info, 1);
	uint64_t a_token = kv_layer_page_bytes(&kv);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < c->n_layers; i++) {
		uint32_t seen = c->windows[i] && c->windows[i] < seq_len ? c->windows[i] : seq_len;

		bytes += n_rows * a_token * seen;
	}
	return bytes;
}

static double elements(const struct weight *weight)
{
	return weight->data ? (double)weight->rows * weight->cols : 0;
}

double lane_token_flop(const struct model *model)
{
	double n = 0;

	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct model_layer *l = &model->layers[i];

		n += elements(&l->qkv) + elements(&l->o) + elements(&l->gate_up) +
			elements(&l->down);
	}
	return 2 * n;
}
