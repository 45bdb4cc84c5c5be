/* SPDX-License-Identifier: MIT */
/*
 * A runner's memory on host and device: worst-case sizes first, and at the end as many KV pages as fit in
 * what is left.
 */
#include "daemon/engine/models/runner.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/output/log.h"
#include "kernels/arena.h"

#define RESERVE_BYTES_MAX (256ull << 20)
#define LAZY_GRAPH_BYTES (2ull << 20) /* what one was measured to take (1B, H200) */
#define RESULT_BYTES_MAX (64ull << 20) /* pinned logits of an in-flight step ... */
#define RESULTS_MAX 512u               /* ... of so many positions at most, if there are not more rows */

static uint32_t runner_smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t runner_larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

int runner_fail(struct model_error *error, const struct runner *runner, const char *what, int rc)
{
	snprintf(error->text, sizeof(error->text), "model %s: %s: %s", runner->options.name, what,
		device_strerror(rc));
	return rc;
}

static struct inputs_limits runner_limits_of(const struct engine_options *o,
	const struct model_config *c, const struct kv_sets *sets, uint32_t max_seq_len, uint32_t n_drafts, bool masks)
{
	const uint32_t n_sets = runner_larger(sets->n, 1);
	uint32_t max_pages = kv_ceil_div(max_seq_len + n_drafts, o->page_tokens);
	uint64_t results = RESULT_BYTES_MAX / ((uint64_t)c->vocab_size * sizeof(float));
	uint64_t init_pages = (uint64_t)max_pages * 4;
	uint64_t row_pages = 2 + kv_ceil_div(2 * n_drafts, o->page_tokens);

	if (results > runner_larger(o->max_requests, RESULTS_MAX))
		results = runner_larger(o->max_requests, RESULTS_MAX);
	if (results < 2)
		results = 2;
	if (init_pages < o->max_requests)
		init_pages = o->max_requests;
	return (struct inputs_limits){
		.max_rows = o->max_requests,
		.max_tokens = o->max_batch_tokens,
		.max_slots = o->max_requests,
		.max_pages = max_pages,
		.page_tokens = o->page_tokens,
		.vocab_size = c->vocab_size,
		.hidden_size = c->hidden_size,
		.max_step_pages = (uint32_t)((init_pages + row_pages * o->max_requests) * n_sets),
		.max_results = (uint32_t)results,
		.max_scores = o->max_batch_tokens,
		.masks = masks,
		.n_sets = n_sets,
		.n_full_sets = sets->n_full,
		.window = sets->window,
		.max_drafts = n_drafts,
	};
}

/* What a pool is carved for, and what is carved of it. */
struct pool_carving {
	const struct engine_options *options;
	const struct model_config *config, *draft; /* draft: NULL if there is none */
	uint32_t n_drafts;
	enum dtype activation;
	struct model_buffers *ret, *ret_draft;
};

/* The target's, then the draft's, which reads what the target's pass left. */
static void runner_carve_pool(void *userdata, struct arena *arena)
{
	const struct pool_carving *p = userdata;
	const struct engine_options *o = p->options;

	model_buffers_carve(p->config, o->max_batch_tokens, o->max_requests * (1 + p->n_drafts),
		p->activation, arena, p->ret);
	if (p->draft)
		model_buffers_carve(p->draft, o->max_batch_tokens, o->max_requests, p->activation,
			arena, p->ret_draft);
}

int engine_measure(const struct engine_options *options, const struct model_config *config,
	const struct kv_sets *sets, const struct model_config *draft, uint32_t n_drafts, uint32_t max_seq_len,
	enum dtype activation, struct engine_needs *ret)
{
	/* Those of masks are small, and counted whether the model has any or not. */
	const struct inputs_limits limits =
		runner_limits_of(options, config, sets, max_seq_len, n_drafts, true);
	struct engine_needs needs;
	struct model_buffers buffers, draft_buffers;
	struct pool_carving carving = {options, config, draft, n_drafts, activation, &buffers,
		&draft_buffers};
	struct arena counting = {0};
	int rc = inputs_measure(&limits, &needs.inputs_bytes, &needs.pinned_bytes);

	if (rc)
		return rc;
	runner_carve_pool(&carving, &counting);
	if (counting.failed)
		return -EOVERFLOW;
	needs.pool_bytes = counting.used;
	needs.draft_logits_bytes = inputs_draft_logits(&limits);
	*ret = needs;
	return 0;
}

static int runner_alloc_host(struct runner *runner)
{
	const uint32_t n = runner->limits->max_requests, n_sets = runner->options.sets.n;

	runner->query_lens = calloc(n, sizeof(*runner->query_lens));
	runner->seq_lens = calloc(n, sizeof(*runner->seq_lens));
	runner->slots.free = calloc(n, sizeof(*runner->slots.free));
	runner->slots.running = calloc(n, sizeof(struct sequence *));
	runner->slots.max_copies = n * n_sets;
	runner->slots.copies = calloc(runner->slots.max_copies, sizeof(*runner->slots.copies));
	runner->dropped = calloc((size_t)runner->max_pages * n_sets, sizeof(*runner->dropped));
	runner->context.kv_layers = calloc(runner->model->config.n_layers, sizeof(void *));
	if (!runner->query_lens || !runner->seq_lens || !runner->slots.free || !runner->slots.running ||
		!runner->slots.copies || !runner->dropped || !runner->context.kv_layers)
		return -ENOMEM;
	/* The lowest slot is given out first. */
	for (uint32_t i = 0; i < n; i++)
		runner->slots.free[i] = (int32_t)(n - 1 - i);
	runner->slots.n_free = n;
	return 0;
}

static int runner_alloc_pool(struct runner *runner, struct model_buffers *ret_draft)
{
	const struct engine_model_options *o = &runner->options;
	struct pool_carving carving = {
		.options = runner->limits,
		.config = &runner->model->config,
		.draft = o->draft ? &o->draft->config : NULL,
		.n_drafts = o->n_drafts,
		.activation = runner->activation_dtype,
		.ret = &runner->context.buffers,
		.ret_draft = ret_draft,
	};
	size_t bytes;
	int rc = arena_alloc(
		runner->device, runner_carve_pool, &carving, &runner->pool, &bytes);

	if (rc)
		return rc;
	runner->pool_bytes = bytes;
	return 0;
}

uint32_t runner_warm_up_pages(const struct runner *runner)
{
	const struct engine_options *o = runner->limits;
	uint32_t n = kv_ceil_div(o->max_batch_tokens, o->page_tokens);

	if (n > runner->options.kv_pages)
		n = runner->options.kv_pages;
	return n < runner->max_pages ? n : runner->max_pages;
}

static int runner_alloc_kv(struct runner *runner, const struct device_info *info)
{
	const struct model_config *c = &runner->model->config;
	struct kv_config config = model_kv(c, info, runner->limits->page_tokens), draft;
	const struct kv_sets *sets = &runner->options.sets;
	uint64_t page_bytes, ceiling;
	struct pinned *pinned = &runner->slots.pinned;
	int rc;

	kv_config_divide(&config, sets);
	config.near_tokens = runner->limits->max_batch_tokens;
	page_bytes = kv_page_bytes(&config);
	if (runner->options.draft) {
		assert(!sets->window); /* its keys lie in the pages of all layers */
		draft = model_kv(&runner->options.draft->config, info,
			runner->limits->page_tokens);
		page_bytes += kv_page_bytes(&draft);
	}
	if (!runner->options.kv_pages)
		runner->options.kv_pages = (uint32_t)(runner->options.kv_bytes / page_bytes);
	if (!runner->options.kv_pages)
		return -ENOSPC;
	/* Address space for as many pages as the device could ever hold. */
	ceiling = info->total_bytes / page_bytes;
	if (ceiling > INT32_MAX / config.page_tokens)
		ceiling = INT32_MAX / config.page_tokens;
	if (ceiling < (uint64_t)runner->options.kv_pages + 1)
		ceiling = (uint64_t)runner->options.kv_pages + 1;
	config.max_pages = (uint32_t)ceiling;
	config.prefix_cache = runner->limits->prefix_sharing != ENGINE_PREFIX_NONE;
	rc = kv_cache_new(runner->device, &config, runner_warm_up_pages(runner), &runner->kv);
	if (rc)
		return rc;
	runner->slots.marks = calloc(config.max_pages, sizeof(*runner->slots.marks));
	pinned->n_tables = calloc(config.max_pages, sizeof(*pinned->n_tables));
	pinned->holders = calloc(config.max_pages, sizeof(*pinned->holders));
	if (!runner->slots.marks || !pinned->n_tables || !pinned->holders)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->n_layers; i++)
		runner->context.kv_layers[i] = kv_layer(runner->kv, sets->place[i]);
	runner->context.kv = runner->kv;
	runner->context.sets = sets;
	if (!runner->options.draft)
		return 0;
	/* A range of the same page ids; the target's cache counts them. */
	draft.max_pages = config.max_pages;
	return kv_cache_new(
		runner->device, &draft, runner_warm_up_pages(runner), &runner->draft_kv);
}

int runner_allocate(struct runner *runner, const struct device_info *info,
	struct model_buffers *ret_draft, struct model_error *error)
{
	struct engine_model_options *o = &runner->options;
	struct inputs_limits limits;
	int rc;

	if (!o->sets.n)
		kv_sets_divide(NULL, runner->model->config.n_layers, o->max_seq_len, runner->limits->page_tokens,
			&o->sets);

	runner->max_pages = kv_ceil_div(o->max_seq_len, runner->limits->page_tokens);
	rc = runner_alloc_host(runner);
	if (rc)
		return runner_fail(error, runner, "host memory", rc);
	limits = runner_limits_of(runner->limits, &runner->model->config, &o->sets, o->max_seq_len,
		o->n_drafts, o->attention.reads_masks);
	rc = inputs_init(&runner->inputs, runner->device, &limits);
	if (rc)
		return runner_fail(error, runner, "persistent inputs", rc);
	rc = runner_alloc_pool(runner, ret_draft);
	if (rc)
		return runner_fail(error, runner, "activation pool", rc);
	rc = runner_alloc_kv(runner, info);
	return rc ? runner_fail(error, runner, "KV cache", rc) : 0;
}

/* ---- KV pages, when all else is there ---- */

/* Of the device's memory, for what comes after the KV pages: captures while serving, clients' buffers,
 * what the driver takes for itself. */
static uint64_t runner_reserve_of(const struct runners *runners, const struct device_info *info)
{
	uint64_t bytes = info->free_bytes / 20;

	if (bytes > RESERVE_BYTES_MAX)
		bytes = RESERVE_BYTES_MAX;
	for (uint32_t i = 0; i < runners->n && runners->all[i]->limits->lazy_capture; i++)
		bytes += runners->all[i]->graphs.n * LAZY_GRAPH_BYTES;
	return bytes;
}

uint64_t runner_page_bytes(const struct runner *runner)
{
	return kv_page_bytes(kv_cache_config(runner->kv)) +
	       (runner->draft_kv ? kv_page_bytes(kv_cache_config(runner->draft_kv)) : 0);
}

/* What its KV pages still take of the device. */
static uint64_t runner_wanted_bytes(const struct runner *runner)
{
	uint32_t there = kv_pages_total(runner->kv), wanted = runner->options.kv_pages;

	return wanted > there ? (wanted - there) * runner_page_bytes(runner) : 0;
}

/* Pages that fit in this model's part of what weights, pool and graphs have left of the device, at most
 * those wanted. Of the models still to be mapped, those that want exactly so many get them, and the
 * others share the rest in proportion to what they want. */
static int runner_fit_pages(const struct runners *runners, uint32_t at, uint32_t *ret)
{
	const struct runner *runner = runners->all[at];
	uint64_t sharing = 0, taken, left;
	struct device_info info;
	int rc = runner->device->ops->info(runner->device, &info);

	if (rc)
		return rc;
	taken = runner_reserve_of(runners, &info);
	for (uint32_t i = at; i < runners->n; i++)
		*(runners->all[i]->options.kv_exact ? &taken : &sharing) += runner_wanted_bytes(runners->all[i]);
	left = info.free_bytes > taken ? info.free_bytes - taken : 0;
	if (sharing > left)
		left = (uint64_t)((double)left * ((double)runner_wanted_bytes(runner) / (double)sharing));
	left = (uint64_t)((double)left * ((double)kv_page_bytes(kv_cache_config(runner->kv)) /
						 (double)runner_page_bytes(runner)));
	*ret = runner_smaller(kv_pages_within(runner->kv, left), runner->options.kv_pages);
	return 0;
}

static int runner_map_pages(struct runner *runner, uint32_t n)
{
	int rc = kv_cache_map(runner->kv, n + 1);

	if (rc || !runner->draft_kv)
		return rc;
	return kv_cache_map(runner->draft_kv, n + 1);
}

static int runner_map(const struct runners *runners, uint32_t at)
{
	struct runner *runner = runners->all[at];
	uint32_t wanted = runner->options.kv_pages, n_pages = wanted;
	int rc;

	if (!runner->options.kv_exact) {
		rc = runner_fit_pages(runners, at, &n_pages);
		if (rc)
			return rc;
	}
	assert(n_pages <= wanted);
	if (n_pages < wanted)
		log_warn("model %s: KV cache: %u page%s in what graphs have left of the "
			"device, not %u: fewer capture sizes or models leave more",
			runner->options.name, n_pages, n_pages == 1 ? " fits" : "s fit", wanted);
	runner->options.kv_pages = n_pages;
	rc = runner_map_pages(runner, n_pages);
	if (rc)
		return rc;
	assert(kv_pages_free(runner->kv) == kv_pages_total(runner->kv));
	runner_show_pages(runner);
	return 0;
}

int runner_map_all(const struct runners *runners, struct model_error *error)
{
	for (uint32_t i = 0; i < runners->n; i++) {
		int rc = runner_map(runners, i);

		if (rc)
			return runner_fail(error, runners->all[i], "KV pages", rc);
	}
	return 0;
}

void runner_show_pages(struct runner *runner)
{
	atomic_store_explicit(&runner->pages_free, kv_pages_free(runner->kv), memory_order_relaxed);
	atomic_store_explicit(&runner->pages_cached, kv_prefix_pages_unused(runner->kv), memory_order_relaxed);
}
