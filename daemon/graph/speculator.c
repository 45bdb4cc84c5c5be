/* SPDX-License-Identifier: MIT */
#include "daemon/graph/speculate.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/model/draft.h"

/* ---- making ---- */

static struct attention_config attention_of(const struct speculator_options *o)
{
	const struct attention_config config = o->attention_of_target;
	const struct device_info info = {
		.activation_dtype = config.activation_dtype, .kv_dtype = config.kv_dtype};
	struct attention_config own = model_attention(&o->draft->config, &info);

	own.page_tokens = config.page_tokens;
	own.max_rows = config.max_rows;
	own.max_tokens = config.max_tokens;
	own.max_pages = config.max_pages;
	own.max_seq_len = config.max_seq_len;
	own.max_decode_query = config.max_decode_query;
	own.n_kv_pages = kv_cache_config(o->kv)->max_pages;
	return own;
}

static int take_context(struct speculator *s, struct forward_context *context,
	const struct forward_context *target, const struct speculator_options *o,
	const struct attention_config *attention)
{
	context->device = target->device;
	context->model = o->draft;
	context->attention = o->attention;
	context->inputs = target->inputs;
	context->buffers = o->buffers;
	context->pool = target->pool;
	context->pool_bytes = target->pool_bytes;
	context->kv = o->kv;
	context->kv_layers = &s->kv_layer;
	context->page_tokens = target->page_tokens;
	context->target = target;
	return o->attention->manager_new(
		target->device, attention, &context->view, &context->manager);
}

static int take_contexts(struct speculator *s, const struct forward_context *target,
	const struct speculator_options *o)
{
	struct attention_config attention = attention_of(o);
	int rc;

	s->prefill.role = FORWARD_DRAFT_PREFILL;
	s->prefill.view = draft_prefill_inputs(&target->inputs->persistent, &target->inputs->draft);
	s->prefill.view_built = &s->prefill_built;
	s->decode.role = FORWARD_DRAFT_DECODE;
	s->decode.view = draft_decode_inputs(&target->inputs->persistent, &target->inputs->draft);
	s->decode.view_built = &s->decode_built;
	rc = take_context(s, &s->prefill, target, o, &attention);
	attention.max_decode_query = 1;
	return rc ? rc : take_context(s, &s->decode, target, o, &attention);
}

/* Of passes over all tokens of a step: the target's, as far as the draft's own attention goes. */
static enum graph_mode prefill_mode(const struct speculator_options *o)
{
	struct mode_resolution ret = {.resolved = GRAPH_NONE};

	/* Who demands FULL demands it of the target: a draft that cannot runs eager. */
	mode_resolve(&(struct mode_request){.configured = o->mode,
		.support = o->support,
		.backend = o->attention->name,
		.decode_query = 1 + o->n_drafts,
		.piecewise_available = o->piecewise}, &ret);
	return o->support == ATTENTION_NEVER ? GRAPH_NONE : ret.resolved;
}

static int take_graphs(struct speculator *s, const struct speculator_options *o)
{
	const uint32_t verify = 1 + o->n_drafts, max_rows = o->attention_of_target.max_rows;
	int rc = graph_set_init_queries(&s->prefill_graphs, prefill_mode(o), o->ladder, &verify, 1,
		max_rows, o->attention_of_target.max_tokens);

	return rc ? rc
		  : graph_set_init(&s->decode_graphs, mode_resolve_draft(o->mode, o->support),
			    o->ladder, 1, max_rows);
}

int speculator_init(struct speculator *ret, const struct forward_context *target,
	const struct speculator_options *o)
{
	uint32_t max_rows = o->attention_of_target.max_rows;
	int rc;

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
		ret->seq_lens[i] = o->attention_of_target.max_seq_len;
	}
	rc = take_contexts(ret, target, o);
	if (!rc)
		rc = executor_init(&ret->prefill_executor, &ret->prefill);
	if (!rc)
		rc = executor_init(&ret->decode_executor, &ret->decode);
	return rc ? rc : take_graphs(ret, o);
}

static void give_context(struct forward_context *context)
{
	if (context->manager)
		context->attention->manager_free(context->manager);
}

void speculator_deinit(struct speculator *s)
{
	graph_set_deinit(&s->decode_graphs, s->decode.device);
	graph_set_deinit(&s->prefill_graphs, s->prefill.device);
	executor_deinit(&s->decode_executor);
	executor_deinit(&s->prefill_executor);
	give_context(&s->decode);
	give_context(&s->prefill);
	free(s->seq_lens);
	free(s->query_lens);
	*s = (struct speculator){0};
}

uint32_t speculator_n_graphs(const struct speculator *s)
{
	return s->prefill_graphs.n + s->decode_graphs.n;
}

/* Progress over the graphs of both managers. */
struct telling {
	graph_progress *progress;
	void *userdata;
	uint32_t before, total;
};

static void on_graph(void *userdata, uint32_t done, uint32_t total)
{
	const struct telling *telling = userdata;

	(void)total;
	if (telling->progress)
		telling->progress(telling->userdata, telling->before + done, telling->total);
}

int speculator_warm_up(
	struct speculator *s, struct stream *stream, graph_progress *progress, void *userdata)
{
	struct telling telling = {progress, userdata, .total = speculator_n_graphs(s)};
	int rc;

	for (unsigned reason = 0; reason < N_EAGER_REASONS; reason++) {
		atomic_store_explicit(&s->n_prefill_eager[reason], 0, memory_order_relaxed);
		atomic_store_explicit(&s->n_decode_eager[reason], 0, memory_order_relaxed);
	}
	rc = graph_set_warm_up(&s->prefill_graphs, &s->prefill, stream, on_graph, &telling);
	telling.before = s->prefill_graphs.n;
	return rc ? rc
		  : graph_set_warm_up(&s->decode_graphs, &s->decode, stream, on_graph, &telling);
}

int speculator_capture(
	struct speculator *s, struct stream *stream, graph_progress *progress, void *userdata)
{
	struct telling telling = {progress, userdata, .total = speculator_n_graphs(s)};
	int rc = graph_set_capture(
		&s->prefill_graphs, &s->prefill_executor.breakable, stream, on_graph, &telling);

	telling.before = s->prefill_graphs.n;
	return rc ? rc
		  : graph_set_capture(&s->decode_graphs, &s->decode_executor.breakable, stream,
			    on_graph, &telling);
}

/* ---- a step ---- */

struct manager {
	struct executor *executor;
	const struct graph_set *graphs;
	_Atomic uint64_t *n_eager; /* [N_EAGER_REASONS] */
};

/* Whose rows shared the replay is counted with the target's. */
static int run_pass(const struct manager *manager, const struct batch_shape *shape,
	const struct attention_batch *batch, struct stream *stream)
{
	enum eager_reason reason;
	struct graph_entry *entry = graph_set_dispatch(manager->graphs, shape, &reason);
	int rc;

	if (reason != EAGER_NO)
		entry = NULL;
	rc = executor_run_draft(manager->executor, entry, batch, stream);
	if (rc)
		return rc;
	if (entry)
		graph_entry_count(entry, batch->n_tokens, false);
	else
		atomic_fetch_add_explicit(&manager->n_eager[reason], 1, memory_order_relaxed);
	return 0;
}

static int run_decodes(
	struct speculator *s, uint32_t n_rows, uint32_t n_guesses, struct stream *stream)
{
	const struct batch_shape shape = {.rows = n_rows, .tokens = n_rows, .uniform = true,
		.past_prompt = true, .query_len = 1};
	const struct attention_batch batch = {.n_rows = n_rows, .n_tokens = n_rows,
		.query_lens = s->query_lens, .seq_lens = s->seq_lens};
	const struct manager manager = {
		&s->decode_executor, &s->decode_graphs, s->n_decode_eager};
	int rc = 0;

	for (uint32_t i = 1; i < n_guesses && i < s->n_drafts && !rc; i++)
		rc = run_pass(&manager, &shape, &batch, stream);
	return rc;
}

int speculator_run(struct speculator *s, const struct step_record *record,
	const struct batch_shape *shape, const uint32_t *query_lens, const uint32_t *seq_lens,
	uint32_t n_guesses, struct stream *stream)
{
	const struct attention_batch batch = {.n_rows = record->n_rows,
		.n_tokens = record->n_tokens, .query_lens = query_lens, .seq_lens = seq_lens};
	const struct manager manager = {
		&s->prefill_executor, &s->prefill_graphs, s->n_prefill_eager};
	int rc = run_pass(&manager, shape, &batch, stream);

	return rc ? rc : run_decodes(s, record->n_rows, n_guesses, stream);
}
