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
		.max_seq_len = o->attention_of_target.max_seq_len,
		.kv_layer = kv_layer(o->kv, 0),
		.query_lens = calloc(max_rows, sizeof(*ret->query_lens)),
		.seq_lens = calloc(max_rows, sizeof(*ret->seq_lens)),
	};
	if (!ret->query_lens || !ret->seq_lens)
		return -ENOMEM;
	for (uint32_t i = 0; i < max_rows; i++)
		ret->query_lens[i] = 1;
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

int speculator_warm_up(struct speculator *s, struct stream *stream)
{
	int rc = graph_set_warm_up(&s->prefill_graphs, &s->prefill, stream, NULL, NULL);

	return rc ? rc : graph_set_warm_up(&s->decode_graphs, &s->decode, stream, NULL, NULL);
}

int speculator_capture(struct speculator *s, struct stream *stream)
{
	int rc = graph_set_capture(
		&s->prefill_graphs, &s->prefill_executor.breakable, stream, NULL, NULL);

	return rc ? rc
		  : graph_set_capture(&s->decode_graphs, &s->decode_executor.breakable, stream,
			    NULL, NULL);
}

/* ---- a step ---- */

static struct graph_entry *choose(
	struct speculator *s, const struct graph_set *graphs, const struct batch_shape *shape)
{
	enum eager_reason reason;
	struct graph_entry *entry = graph_set_dispatch(graphs, shape, &reason);

	if (reason == EAGER_NO)
		return entry;
	s->n_eager++;
	return NULL;
}

static int run_decodes(struct speculator *s, uint32_t n_rows, const uint32_t *seq_lens,
	struct stream *stream)
{
	const struct batch_shape shape = {.rows = n_rows, .tokens = n_rows, .uniform = true,
		.past_prompt = true, .query_len = 1};
	const struct attention_batch batch = {.n_rows = n_rows, .n_tokens = n_rows,
		.query_lens = s->query_lens, .seq_lens = s->seq_lens};
	int rc = 0;

	for (uint32_t r = 0; r < n_rows; r++) {
		s->seq_lens[r] = seq_lens[r] + s->n_drafts;
		if (s->seq_lens[r] > s->max_seq_len)
			s->seq_lens[r] = s->max_seq_len;
	}
	for (uint32_t i = 1; i < s->n_drafts && !rc; i++)
		rc = executor_run_draft(&s->decode_executor,
			choose(s, &s->decode_graphs, &shape), &batch, stream);
	return rc;
}

int speculator_run(struct speculator *s, const struct step_record *record,
	const struct batch_shape *shape, const uint32_t *query_lens, const uint32_t *seq_lens,
	struct stream *stream)
{
	const struct attention_batch batch = {.n_rows = record->n_rows,
		.n_tokens = record->n_tokens, .query_lens = query_lens, .seq_lens = seq_lens};
	int rc = executor_run_draft(&s->prefill_executor, choose(s, &s->prefill_graphs, shape),
		&batch, stream);

	return rc ? rc : run_decodes(s, record->n_rows, seq_lens, stream);
}
