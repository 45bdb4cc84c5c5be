/* SPDX-License-Identifier: MIT */
#include "daemon/bench/replay.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/bench.h"
#include "daemon/graph/dispatch.h"

#define PAGE_TOKENS 16u
#define MAX_BATCH_TOKENS 512u /* the daemon's default, which the activations are sized for */
#define MAX_REQUESTS BENCH_PROCESSES_MAX
#define WARM_UPS 8u

struct bare {
	const struct replay_options *options;
	struct device *device;
	struct stream *stream;
	struct model *model;
	struct inputs inputs;
	struct forward_context context;
	struct forward replay;
	struct graph_set graphs;
	void *pool;
	uint32_t seq_pages; /* of a row */
	uint32_t query_lens[MAX_REQUESTS], seq_lens[MAX_REQUESTS];
	struct event *done[INPUTS_SLOTS];
};

static uint32_t positions(const struct replay_options *o)
{
	return o->n_prompt + o->n_steps + WARM_UPS;
}

/* ---- set-up: what the engine does for a model, without an engine ---- */

static int load(struct bare *bare, struct model_error *error)
{
	struct model_config config;
	int rc = model_config_load(bare->options->model_dir, &config, error);

	if (rc)
		return rc;
	if (config.max_seq_len < positions(bare->options)) {
		snprintf(error->text, sizeof(error->text), "the model takes %u tokens, not %u",
			config.max_seq_len, positions(bare->options));
		rc = -ERANGE;
	}
	if (!rc)
		rc = model_load(bare->device, bare->options->model_dir, &config, config.max_seq_len,
			NULL, NULL, &bare->model, error);
	model_config_deinit(&config);
	return rc;
}

static int take_inputs(struct bare *bare)
{
	const struct model_config *c = &bare->model->config;
	const struct inputs_limits limits = {
		.max_rows = MAX_REQUESTS,
		.max_tokens = MAX_BATCH_TOKENS,
		.max_slots = MAX_REQUESTS,
		.max_pages = (c->max_seq_len + PAGE_TOKENS - 1) / PAGE_TOKENS,
		.page_tokens = PAGE_TOKENS,
		.vocab_size = c->vocab_size,
		.hidden_size = c->hidden_size,
		.max_init_pages = MAX_REQUESTS * bare->seq_pages,
		.max_results = 1,
	};

	return inputs_init(&bare->inputs, bare->device, &limits);
}

static int take_pool(struct bare *bare, enum dtype activation)
{
	struct arena counting = {0}, arena;

	model_buffers_carve(&bare->model->config, MAX_BATCH_TOKENS, MAX_REQUESTS, activation,
		&counting, &bare->context.buffers);
	int rc = bare->device->ops->mem_alloc(bare->device, counting.used, &bare->pool);
	if (rc)
		return rc;
	arena = (struct arena){.base = bare->pool, .size = counting.used};
	model_buffers_carve(&bare->model->config, MAX_BATCH_TOKENS, MAX_REQUESTS, activation,
		&arena, &bare->context.buffers);
	return 0;
}

static int take_cache(struct bare *bare, enum dtype dtype)
{
	const struct model_config *c = &bare->model->config;
	uint32_t n_pages = MAX_REQUESTS * bare->seq_pages;
	const struct kv_config config = {
		.n_layers = c->n_layers,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = PAGE_TOKENS,
		.max_pages = n_pages + 1,
		.dtype = dtype,
	};

	bare->context.kv_layers = calloc(c->n_layers, sizeof(void *));
	if (!bare->context.kv_layers)
		return -ENOMEM;
	int rc = kv_cache_new(bare->device, &config, n_pages, &bare->context.kv);
	for (uint32_t i = 0; i < c->n_layers && !rc; i++)
		bare->context.kv_layers[i] = kv_layer(bare->context.kv, i);
	return rc;
}

static int take_attention(struct bare *bare, const struct device_info *info)
{
	const struct model_config *c = &bare->model->config;
	const struct attention_config config = {
		.n_layers = c->n_layers,
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.scale = model_attention_scale(c),
		.windows = c->windows,
		.page_tokens = PAGE_TOKENS,
		.max_rows = MAX_REQUESTS,
		.max_tokens = MAX_BATCH_TOKENS,
		.max_pages = bare->inputs.limits.max_pages,
		.max_seq_len = c->max_seq_len,
		.max_decode_query = 1,
		.activation_dtype = info->activation_dtype,
		.kv_dtype = info->kv_dtype,
	};
	enum attention_support support;
	char why[256];

	int rc = attention_choose(
		"auto", &config, &bare->context.attention, &support, why, sizeof(why));
	if (!rc && support == ATTENTION_NEVER)
		rc = -ENOTSUP;
	if (!rc)
		rc = bare->context.attention->manager_new(
			bare->device, &config, &bare->inputs.persistent, &bare->context.manager);
	return rc;
}

/* The daemon's ladder; only what is replayed is captured. */
static int capture(struct bare *bare)
{
	struct ladder *ladder = malloc(sizeof(*ladder));

	if (!ladder)
		return -ENOMEM;
	ladder_default(ladder, MAX_BATCH_TOKENS, MAX_REQUESTS, 1);
	int rc = graph_set_init(&bare->graphs, GRAPH_FULL_DECODE_ONLY, ladder, 1, MAX_REQUESTS);
	free(ladder);
	bare->graphs.ready = true;
	return rc;
}

static int set_up(struct bare *bare, struct model_error *error)
{
	const struct replay_options *o = bare->options;
	struct device_info info;
	int rc = device_open(o->device, NULL, &bare->device);

	if (!rc)
		rc = bare->device->ops->info(bare->device, &info);
	if (rc)
		return rc;
	rc = load(bare, error);
	if (rc)
		return rc;
	bare->seq_pages = (positions(o) + PAGE_TOKENS - 1) / PAGE_TOKENS;
	rc = bare->device->ops->stream_new(bare->device, &bare->stream);
	for (unsigned i = 0; i < INPUTS_SLOTS && !rc; i++)
		rc = bare->device->ops->event_new(bare->device, &bare->done[i]);
	if (!rc)
		rc = take_inputs(bare);
	if (!rc)
		rc = take_pool(bare, info.activation_dtype);
	if (!rc)
		rc = take_cache(bare, info.kv_dtype);
	if (!rc)
		rc = take_attention(bare, &info);
	bare->context.device = bare->device;
	bare->context.model = bare->model;
	bare->context.inputs = &bare->inputs;
	bare->context.page_tokens = PAGE_TOKENS;
	if (!rc)
		rc = forward_init(&bare->replay, &bare->context, ATTENTION_REPLAY);
	return rc ? rc : capture(bare);
}

static void tear_down(struct bare *bare)
{
	if (!bare->device)
		return;
	graph_set_deinit(&bare->graphs, bare->device);
	forward_deinit(&bare->replay);
	if (bare->context.manager)
		bare->context.attention->manager_free(bare->context.manager);
	kv_cache_free(bare->context.kv);
	free(bare->context.kv_layers);
	if (bare->pool)
		bare->device->ops->mem_free(bare->device, bare->pool);
	inputs_deinit(&bare->inputs);
	for (unsigned i = 0; i < INPUTS_SLOTS; i++) {
		if (bare->done[i])
			bare->device->ops->event_free(bare->done[i]);
	}
	if (bare->stream)
		bare->device->ops->stream_free(bare->stream);
	model_free(bare->model);
	bare->device->ops->free(bare->device);
}

/* ---- the loop ---- */

/* Each row has a slot and pages of its own. What the cache holds before n_prompt is as it
 * was mapped, which costs as much to read as anything else. */
static void fill_first(
	struct bare *bare, struct inputs_slot *slot, uint32_t n_rows, uint32_t *pages)
{
	const struct slot_sampling greedy = {.top_p = 1};

	for (uint32_t i = 0; i < n_rows; i++) {
		for (uint32_t j = 0; j < bare->seq_pages; j++)
			pages[j] = 1 + i * bare->seq_pages + j;
		inputs_add_init(slot, (int32_t)i, &greedy, pages, bare->seq_pages);
	}
}

static int launch(struct bare *bare, struct graph_entry *entry, struct inputs_slot *slot,
	uint32_t n_rows)
{
	struct attention_batch batch = {
		.n_rows = n_rows,
		.n_tokens = n_rows,
		.padded_rows = entry->descriptor.rows,
		.padded_tokens = entry->descriptor.tokens,
		.max_query = 1,
		.query_lens = bare->query_lens,
		.seq_lens = bare->seq_lens,
	};
	const struct op_outbox outbox = {
		.sampled = bare->inputs.sampled,
		.out = slot->sampled,
		.flag = slot->flag,
		.step = slot->step,
		.n_rows = n_rows,
	};
	int rc = inputs_prepare(&bare->inputs, slot, bare->stream, batch.padded_rows,
		batch.padded_tokens, kv_pages_total(bare->context.kv) + 1);

	if (!rc)
		rc = forward_build(&bare->replay, &batch, bare->stream);
	if (!rc)
		rc = bare->device->ops->graph_launch(entry->exec, bare->stream);
	if (!rc)
		rc = bare->device->kernels->outbox(bare->stream, &outbox);
	return rc ? rc : bare->device->ops->event_record(
				 bare->done[slot->step % INPUTS_SLOTS], bare->stream);
}

static int step(struct bare *bare, struct graph_entry *entry, uint64_t number, uint32_t position,
	uint32_t n_rows, uint32_t *pages)
{
	bool first = position == bare->options->n_prompt;
	struct inputs_slot *slot = inputs_begin(&bare->inputs, number);

	if (!slot)
		return -EBUSY;
	if (first)
		fill_first(bare, slot, n_rows, pages);
	for (uint32_t i = 0; i < n_rows; i++) {
		const struct step_row row = {
			.slot = (int32_t)i,
			.flags = ROW_SAMPLE | (first ? 0 : ROW_FROM_SLOT),
			.n_tokens = 1,
			.start = position,
		};

		*inputs_add_row(slot, &row) = 0;
		bare->query_lens[i] = 1;
		bare->seq_lens[i] = position + 1;
	}
	return launch(bare, entry, slot, n_rows);
}

/* Launch step k + 1 before step k has ended, as the engine does; an event tells a step's end. */
static int replay(struct bare *bare, struct graph_entry *entry, const struct replay_run *run,
	uint64_t *number, uint32_t *pages)
{
	const struct replay_options *o = bare->options;
	uint32_t n = o->n_steps + WARM_UPS;
	uint64_t before = 0;
	int rc = 0;

	for (uint32_t i = 0; i <= n && !rc; i++) {
		if (i < n)
			rc = step(bare, entry, *number + i, o->n_prompt + i, run->n_rows, pages);
		if (rc || i == 0)
			continue;
		rc = bare->device->ops->event_sync(bare->done[(*number + i - 1) % INPUTS_SLOTS]);
		uint64_t now = stats_now();
		if (i > WARM_UPS && !rc)
			samples_add(run->steps, now - before);
		before = now;
	}
	*number += n;
	return rc;
}

static int run_all(struct bare *bare)
{
	uint32_t *pages = calloc(bare->seq_pages, sizeof(*pages));
	uint64_t number = 1;
	int rc = pages ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < bare->options->n_runs && !rc; i++) {
		const struct replay_run *run = &bare->options->runs[i];
		const struct batch_shape shape = {run->n_rows, run->n_rows, true, true, 1};
		enum eager_reason reason;
		struct graph_entry *entry = graph_set_dispatch(&bare->graphs, &shape, &reason);

		if (!entry)
			rc = -ERANGE;
		else if (!entry->exec)
			rc = capture_record(entry, &bare->context, bare->stream);
		if (!rc)
			rc = replay(bare, entry, run, &number, pages);
	}
	free(pages);
	return rc;
}

int floor_replay(const struct replay_options *options, char *why, size_t size)
{
	struct bare *bare = calloc(1, sizeof(*bare));
	struct model_error error = {""};

	if (!bare)
		return -ENOMEM;
	bare->options = options;
	int rc = set_up(bare, &error);
	if (!rc)
		rc = run_all(bare);
	if (rc)
		snprintf(why, size, "%s", error.text[0] ? error.text : device_strerror(rc));
	tear_down(bare);
	free(bare);
	return rc ? -EIO : 0;
}
