/* SPDX-License-Identifier: MIT */
#include "daemon/graph/executor.h"

#include <assert.h>
#include <errno.h>

int executor_init(struct executor *executor, const struct forward_context *context)
{
	int rc = forward_init(&executor->eager, context, ATTENTION_EAGER);

	if (rc)
		return rc;
	rc = forward_init(&executor->replay, context, ATTENTION_REPLAY);
	if (rc)
		return rc;
	breakable_runner_init(&executor->breakable, context);
	return 0;
}

void executor_deinit(struct executor *executor)
{
	forward_deinit(&executor->replay);
	forward_deinit(&executor->eager);
}

static int executor_run_full(
	struct executor *executor, const struct graph_entry *entry, struct stream *stream)
{
	int rc = forward_check(&executor->replay, &entry->descriptor);

	assert(entry->exec);
	return rc ? rc : executor->replay.context->device->ops->graph_launch(entry->exec, stream);
}

static int executor_run_pieces(struct executor *executor, const struct graph_entry *entry,
	uint32_t n_rows, struct stream *stream)
{
	int rc = forward_check(&executor->eager, &entry->descriptor);

	if (rc)
		return rc;
	rc = breakable_replay(&executor->breakable, &entry->pieces, &executor->eager, stream);
	return rc ? rc : forward_sample(&executor->eager, &entry->descriptor, n_rows, stream);
}

static int executor_run_batch(struct executor *executor, const struct graph_entry *entry,
	struct inputs_slot *slot, struct attention_batch *batch, struct stream *stream)
{
	const struct descriptor descriptor = entry ? entry->descriptor
		: descriptor_eager(batch->n_rows, batch->n_tokens);
	bool full = descriptor.mode == GRAPH_FULL;
	struct forward *forward = full ? &executor->replay : &executor->eager;
	int rc;

	if (batch->n_tokens > descriptor.tokens || (full && batch->n_rows > descriptor.rows))
		return -EINVAL;
	batch->max_query = 0;
	for (uint32_t i = 0; i < batch->n_rows; i++) {
		if (batch->query_lens[i] > batch->max_query)
			batch->max_query = batch->query_lens[i];
	}
	rc = forward_build(forward, slot, &descriptor, batch, stream);
	if (rc)
		return rc;
	if (!entry)
		return forward_run(forward, &descriptor, descriptor.rows, stream);
	return full ? executor_run_full(executor, entry, stream)
		    : executor_run_pieces(executor, entry, batch->n_rows, stream);
}

int executor_run(struct executor *executor, const struct graph_entry *entry, struct inputs_slot *slot,
	const uint32_t *query_lens, const uint32_t *seq_lens, struct stream *stream)
{
	struct attention_batch batch = {
		.n_rows = slot->record->n_rows,
		.n_tokens = slot->record->n_tokens,
		.query_lens = query_lens,
		.seq_lens = seq_lens,
	};

	return executor_run_batch(executor, entry, slot, &batch, stream);
}

int executor_run_draft(struct executor *executor, const struct graph_entry *entry,
	const struct attention_batch *batch, struct stream *stream)
{
	struct attention_batch own = *batch;

	return executor_run_batch(executor, entry, NULL, &own, stream);
}
