/* SPDX-License-Identifier: MIT */
#include "daemon/graph/speculator.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/model/draft.h"

/* ---- making ---- */

static struct attention_config speculator_attention(const struct speculator_options *o)
{
	const struct attention_config config = o->attention_of_target;
	const struct device_info info = {
		.activation_dtype = config.activation_dtype, .kv_dtype = config.kv_dtype};
	struct attention_config own = model_attention(&o->draft->config, &info);

	assert(own.kv_dtype == config.kv_dtype);
	own.page_tokens = config.page_tokens;
	own.max_rows = config.max_rows;
	own.max_tokens = config.max_tokens;
	own.max_pages = config.max_pages;
	own.max_seq_len = config.max_seq_len;
	own.max_decode_query = config.max_decode_query;
	own.n_kv_pages = kv_cache_config(o->kv)->max_pages;
	own.invariant = o->draft->deterministic;
	return own;
}

static int speculator_init_pass(struct speculator *s, struct speculator_pass *pass,
	enum forward_role role, const struct forward_context *target,
	const struct speculator_options *o, const struct attention_config *attention)
{
	const struct inputs *inputs = target->inputs;
	int rc;

	pass->context = (struct forward_context){
		.role = role,
		.device = target->device,
		.model = o->draft,
		.attention = o->attention,
		.inputs = target->inputs,
		.buffers = o->buffers,
		.view = role == FORWARD_DRAFT_DECODE
			? draft_decode_inputs(&inputs->persistent, &inputs->draft)
			: draft_prefill_inputs(&inputs->persistent, &inputs->draft),
		.view_built = &pass->built,
		.pool = target->pool,
		.pool_bytes = target->pool_bytes,
		.kv = o->kv,
		.kv_layers = &s->kv_layer,
		.page_tokens = target->page_tokens,
		.target = target,
	};
	rc = o->attention->manager_new(
		target->device, attention, &pass->context.view, &pass->context.manager);
	return rc ? rc : executor_init(&pass->executor, &pass->context);
}

/* The mode of passes over all tokens of a step: the target's, lowered to what the draft model's attention
 * supports. */
static enum graph_mode speculator_prefill_mode(const struct speculator_options *o)
{
	struct mode_resolution ret = {.resolved = GRAPH_NONE};

	/* FULL is demanded of the target: a draft model that cannot be captured runs eager. */
	mode_resolve(&(struct mode_request){.configured = o->mode,
		.support = o->support,
		.backend = o->attention->name,
		.decode_query = 1 + o->n_drafts,
		.piecewise_available = o->piecewise}, &ret);
	return o->support == ATTENTION_NEVER ? GRAPH_NONE : ret.resolved;
}

int speculator_init(struct speculator *ret, const struct forward_context *target,
	const struct speculator_options *o)
{
	struct attention_config attention = speculator_attention(o);
	const uint32_t verify = 1 + o->n_drafts, max_rows = attention.max_rows;
	int rc;

	assert(o->n_drafts && o->n_drafts <= SPECULATE_MAX);
	assert(o->n_drafts == target->inputs->limits.max_drafts);
	*ret = (struct speculator){
		.n_drafts = o->n_drafts,
		.kv_layer = kv_layer(o->kv, 0),
		.query_lens = calloc(max_rows, sizeof(*ret->query_lens)),
		.seq_lens = calloc(max_rows, sizeof(*ret->seq_lens)),
	};
	if (!ret->query_lens || !ret->seq_lens)
		return -ENOMEM;
	for (uint32_t i = 0; i < max_rows; i++) {
		ret->query_lens[i] = 1;
		ret->seq_lens[i] = attention.max_seq_len;
	}
	rc = speculator_init_pass(
		ret, &ret->prefill, FORWARD_DRAFT_PREFILL, target, o, &attention);
	if (rc)
		return rc;
	attention.max_decode_query = 1;
	rc = speculator_init_pass(ret, &ret->decode, FORWARD_DRAFT_DECODE, target, o, &attention);
	if (rc)
		return rc;
	rc = graph_set_init_queries(&ret->prefill.graphs, speculator_prefill_mode(o), o->ladder,
		&verify, 1, max_rows, attention.max_tokens);
	if (rc)
		return rc;
	return graph_set_init(&ret->decode.graphs, mode_resolve_draft(o->mode, o->support),
		o->ladder, 1, max_rows);
}

static void speculator_deinit_pass(struct speculator_pass *pass)
{
	graph_set_deinit(&pass->graphs, pass->context.device);
	executor_deinit(&pass->executor);
	if (pass->context.manager)
		pass->context.attention->manager_free(pass->context.manager);
}

void speculator_deinit(struct speculator *s)
{
	speculator_deinit_pass(&s->decode);
	speculator_deinit_pass(&s->prefill);
	free(s->seq_lens);
	free(s->query_lens);
	*s = (struct speculator){0};
}

uint32_t speculator_n_graphs(const struct speculator *s)
{
	return s->prefill.graphs.n + s->decode.graphs.n;
}

/* Progress over the graphs of both passes. */
struct speculator_progress {
	graph_progress *progress;
	void *userdata;
	uint32_t before, total;
};

static void speculator_on_graph(void *userdata, uint32_t done, uint32_t total)
{
	const struct speculator_progress *p = userdata;

	assert(p->before + total <= p->total);
	if (p->progress)
		p->progress(p->userdata, p->before + done, p->total);
}

int speculator_warm_up(
	struct speculator *s, struct stream *stream, graph_progress *progress, void *userdata)
{
	struct speculator_progress p = {progress, userdata, .total = speculator_n_graphs(s)};
	int rc;

	for (unsigned reason = 0; reason < N_EAGER_REASONS; reason++) {
		atomic_store_explicit(&s->prefill.n_eager[reason], 0, memory_order_relaxed);
		atomic_store_explicit(&s->decode.n_eager[reason], 0, memory_order_relaxed);
	}
	rc = graph_set_warm_up(
		&s->prefill.graphs, &s->prefill.context, stream, speculator_on_graph, &p);
	if (rc)
		return rc;
	p.before = s->prefill.graphs.n;
	return graph_set_warm_up(
		&s->decode.graphs, &s->decode.context, stream, speculator_on_graph, &p);
}

int speculator_capture(
	struct speculator *s, struct stream *stream, graph_progress *progress, void *userdata)
{
	struct speculator_progress p = {progress, userdata, .total = speculator_n_graphs(s)};
	int rc = graph_set_capture(&s->prefill.graphs, &s->prefill.executor.breakable, stream,
		speculator_on_graph, &p);

	if (rc)
		return rc;
	p.before = s->prefill.graphs.n;
	return graph_set_capture(&s->decode.graphs, &s->decode.executor.breakable, stream,
		speculator_on_graph, &p);
}

/* ---- a step ---- */

/* Shared replays are counted only for the target. */
static int speculator_run_pass(struct speculator_pass *pass, const struct batch_shape *shape,
	const struct attention_batch *batch, struct stream *stream)
{
	enum eager_reason reason;
	struct graph_entry *entry = graph_set_dispatch(&pass->graphs, shape, &reason);
	int rc;

	if (reason != EAGER_NO)
		entry = NULL;
	rc = executor_run_draft(&pass->executor, entry, batch, stream);
	if (rc)
		return rc;
	if (entry)
		graph_entry_count(entry, batch->n_tokens, false);
	else
		atomic_fetch_add_explicit(&pass->n_eager[reason], 1, memory_order_relaxed);
	return 0;
}

int speculator_run(struct speculator *s, const struct step_record *record,
	const struct batch_shape *shape, const uint32_t *query_lens, const uint32_t *seq_lens,
	uint32_t n_tokens, struct stream *stream)
{
	const uint32_t n_rows = record->n_rows;
	const struct batch_shape decode_shape = {.rows = n_rows, .tokens = n_rows, .uniform = true,
		.past_prompt = true, .query_len = 1};
	const struct attention_batch decode = {.n_rows = n_rows, .n_tokens = n_rows,
		.query_lens = s->query_lens, .seq_lens = s->seq_lens};
	int rc = speculator_run_pass(&s->prefill, shape,
		&(struct attention_batch){.n_rows = n_rows,
			.n_tokens = record->n_tokens,
			.query_lens = query_lens,
			.seq_lens = seq_lens},
		stream);

	assert(n_tokens <= s->n_drafts);
	if (rc)
		return rc;
	for (uint32_t i = 1; i < n_tokens; i++) {
		rc = speculator_run_pass(&s->decode, &decode_shape, &decode, stream);
		if (rc)
			return rc;
	}
	return 0;
}
