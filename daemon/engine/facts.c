/* SPDX-License-Identifier: MIT */
#include "daemon/engine/state.h"

#include <assert.h>
#include <stdio.h>

#include "daemon/engine/lane/speculation.h"

const struct engine_stats *engine_stats(const struct engine *engine)
{
	return &engine->stats;
}

struct request_log *engine_request_log(struct engine *engine)
{
	return &engine->request_log;
}

struct trace *engine_trace(struct engine *engine)
{
	return &engine->trace;
}

const char *engine_loop_name(const struct engine *engine)
{
	return loop_name(engine->loop);
}

const char *engine_loop_reason(const struct engine *engine)
{
	return loop_fallback_reason(engine->loop);
}

int engine_device_info(const struct engine *engine, struct device_info *ret)
{
	return engine->device->ops->info(engine->device, ret);
}

uint64_t engine_bytes_of_session(
	const struct engine *engine, uint32_t entries, uint64_t arena_bytes)
{
	return engine_session_bytes(&engine->accounting, entries, arena_bytes);
}

uint32_t engine_n_models(const struct engine *engine)
{
	return engine->served.n;
}

uint32_t engine_find_model(const struct engine *engine, uint32_t id)
{
	uint32_t i = 0;

	while (i < engine->served.n && engine->served.all[i]->id != id)
		i++;
	return i;
}

/* ---- graphs: the model's own, and those of its draft's two managers ---- */

enum { OWN_GRAPHS, PREFILL_GRAPHS, DECODE_GRAPHS, N_GRAPH_SETS };

/* A draft's are empty where there is none. */
static const struct graph_set *facts_graphs_of(const struct runner *runner, unsigned owner)
{
	const struct graph_set *const sets[N_GRAPH_SETS] = {
		[OWN_GRAPHS] = &runner->graphs,
		[PREFILL_GRAPHS] = &runner->speculator.prefill.graphs,
		[DECODE_GRAPHS] = &runner->speculator.decode.graphs,
	};

	return sets[owner];
}

static void facts_add_graphs(struct engine_model_facts *facts, const struct graph_set *graphs)
{
	facts->n_graphs += graphs->n;
	for (uint32_t i = 0; i < graphs->n; i++) {
		const struct graph_entry *entry = &graphs->entries[i];

		facts->n_ready += graph_entry_state(entry) == GRAPH_READY;
		facts->graph_bytes += counter_read(&entry->bytes);
		facts->capture_seconds += (double)counter_read(&entry->capture_ns) * 1e-9;
	}
}

static void facts_add_weights(struct engine_model_facts *facts, const struct model *model)
{
	facts->weights_bytes += model->bytes;
	facts->weights_read_bytes += model->file_bytes;
	facts->load_seconds += model->load_seconds;
}

static const char *facts_dtype(enum dtype dtype)
{
	switch (dtype) {
	case DTYPE_F32:
		return "f32";
	case DTYPE_BF16:
		return "bf16";
	case DTYPE_E4M3:
		return "fp8";
	default:
		assert(!"a dtype of keys and values");
		return NULL;
	}
}

void engine_model_facts(const struct engine *engine, uint32_t model, struct engine_model_facts *ret)
{
	const struct runner *runner = engine->served.all[model];
	const struct speculator *speculator = &runner->speculator;

	*ret = (struct engine_model_facts){
		.id = runner->id,
		.name = runner->options.name,
		.model = runner->model,
		.attention = runner->options.attention.names,
		.kv_dtype = facts_dtype(kv_cache_config(runner->kv)->dtype),
		.masks = runner->options.attention.masks,
		.support = runner->options.attention.level,
		.mode = &runner->options.mode,
		.mask = &runner->options.mask,
		/* A request that exceeds all pages could never run. */
		.max_seq_len = kv_tokens_within(kv_cache_config(runner->kv), runner->options.kv_pages,
			runner->options.max_seq_len),
		.max_batch_tokens = engine->options.max_batch_tokens,
		.max_rows = engine->options.max_requests,
		.page_tokens = engine->options.page_tokens,
		.pages_total = runner->options.kv_pages,
		.pages_free = atomic_load_explicit(&runner->pages_free, memory_order_relaxed),
		.kv_bytes = runner->options.kv_pages * runner_page_bytes(runner),
		.pool_bytes = runner->pool_bytes + runner->inputs.device_bytes,
		.draft = runner->options.draft ? runner->options.draft->config.architecture : NULL,
		.n_drafts = runner->options.n_drafts,
		.speculation = speculation_facts(runner),
		.n_tokens_out = counter_read(&runner->n_tokens_out),
		.n_steps = counter_read(&runner->n_steps),
		.n_rows = counter_read(&runner->n_rows),
		.n_firsts = histogram_n(&runner->distributions[ENGINE_FIRST_TOKEN]),
		.first_ns = counter_read(&runner->distributions[ENGINE_FIRST_TOKEN].sum),
		.between_ns = counter_read(&runner->distributions[ENGINE_TOKEN].sum),
		.distributions = runner->distributions,
		.n_prompt_tokens = counter_read(&runner->n_prompt_tokens),
		.n_prefix_hits = counter_read(&runner->n_prefix_hits),
		.n_cached_tokens = counter_read(&runner->n_cached_tokens),
		.pages_cached = atomic_load_explicit(&runner->pages_cached, memory_order_relaxed),
		.n_evicted = counter_read(&runner->n_evicted),
		.n_preempted = counter_read(&runner->n_preempted),
		.n_not_finite = counter_read(&runner->n_not_finite),
	};
	facts_add_weights(ret, runner->model);
	if (runner->options.draft)
		facts_add_weights(ret, runner->options.draft);
	for (unsigned owner = 0; owner < N_GRAPH_SETS; owner++)
		facts_add_graphs(ret, facts_graphs_of(runner, owner));
	for (unsigned i = 0; i < N_EAGER_REASONS; i++) {
		ret->n_eager[i] = counter_read(&runner->n_eager[i]);
		ret->n_prefill_eager[i] = counter_read(&speculator->prefill.n_eager[i]);
		ret->n_decode_eager[i] = counter_read(&speculator->decode.n_eager[i]);
	}
}

bool engine_graph_facts(const struct engine *engine, uint32_t model, uint32_t index,
	struct engine_graph_facts *ret)
{
	static const char *const owners[N_GRAPH_SETS] = {
		[OWN_GRAPHS] = "target",
		[PREFILL_GRAPHS] = "draft prefill",
		[DECODE_GRAPHS] = "draft decode",
	};
	const struct runner *runner = engine->served.all[model];
	const struct graph_entry *entry;
	unsigned owner = OWN_GRAPHS;

	while (owner < N_GRAPH_SETS && index >= facts_graphs_of(runner, owner)->n)
		index -= facts_graphs_of(runner, owner++)->n;
	if (owner == N_GRAPH_SETS)
		return false;
	entry = &facts_graphs_of(runner, owner)->entries[index];
	*ret = (struct engine_graph_facts){
		.owner = owners[owner],
		.of_draft = owner != OWN_GRAPHS,
		.state = graph_state_name(graph_entry_state(entry)),
		.tokens = entry->descriptor.tokens,
		.rows = entry->descriptor.rows,
		.query_len = entry->descriptor.query_len,
		.n_captures = atomic_load_explicit(&entry->n_captures, memory_order_relaxed),
		.n_drops = atomic_load_explicit(&entry->n_drops, memory_order_relaxed),
		.n_nodes = atomic_load_explicit(&entry->n_nodes, memory_order_relaxed),
		.n_segments = atomic_load_explicit(&entry->n_segments, memory_order_relaxed),
		.bytes = counter_read(&entry->bytes),
		.seconds = (double)counter_read(&entry->capture_ns) * 1e-9,
		.n_replays = counter_read(&entry->n_replays),
		.n_shared_replays = counter_read(&entry->n_shared_replays),
		.n_padded_rows = counter_read(&entry->n_padded_rows),
	};
	snprintf(ret->mode, sizeof(ret->mode), "%s", graph_mode_name(entry->descriptor.mode));
	descriptor_format(&entry->descriptor, ret->name, sizeof(ret->name));
	return true;
}
