/* SPDX-License-Identifier: MIT */
#include "daemon/graph/capture.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/cleanup.h"
#include "ipc/clock.h"

static const char *const state_names[] = {
	[GRAPH_EMPTY] = "empty",
	[GRAPH_WANTED] = "wanted",
	[GRAPH_BUILDING] = "building",
	[GRAPH_READY] = "ready",
	[GRAPH_DROPPING] = "dropping",
	[GRAPH_FAILED] = "failed",
};

const char *graph_state_name(enum graph_state state)
{
	return (unsigned)state <= GRAPH_FAILED ? state_names[state] : "?";
}

/* ---- the dummy batch ---- */

static uint32_t capture_dummy_rows(
	const struct forward_context *context, const struct descriptor *d)
{
	uint32_t max_rows = context->inputs->limits.max_rows;

	if (d->rows)
		return d->rows;
	return d->tokens < max_rows ? d->tokens : max_rows;
}

/* Fill the next record slot with empty rows that make the descriptor's batch: its rows, or as many as
 * its tokens allow, of its query length, or the tokens spread evenly. `lens` [2 * rows] lives as long
 * as *ret. -EBUSY: steps are in flight. */
static int capture_dummy_batch(const struct forward_context *context, const struct descriptor *descriptor,
	struct inputs_slot **ret_slot, struct attention_batch *ret, uint32_t *lens)
{
	/* No step is in flight, so slot 0 is free: step 0 waits for no flag. */
	struct inputs_slot *slot = inputs_begin(context->inputs, 0);
	uint32_t n_rows = capture_dummy_rows(context, descriptor), left = descriptor->tokens;
	struct attention_batch batch = {
		.n_rows = n_rows,
		.n_tokens = descriptor->tokens,
		.query_lens = lens,
		.seq_lens = lens + n_rows,
	};

	if (!slot)
		return -EBUSY;
	for (uint32_t i = 0; i < n_rows; i++) {
		uint32_t rows_left = n_rows - i, n = (left + rows_left - 1) / rows_left;
		struct step_row row = {.slot = -1, .n_tokens = n};

		memset(inputs_add_row(slot, &row), 0, n * sizeof(int32_t));
		lens[i] = n;
		lens[n_rows + i] = 0;
		left -= n;
		if (n > batch.max_query)
			batch.max_query = n;
	}
	assert(!left);
	assert(!descriptor->query_len || batch.max_query == descriptor->query_len);
	*ret_slot = slot;
	*ret = batch;
	return 0;
}

/* Write inputs and metadata for a forward that was made for this phase alone. */
static int capture_build(struct forward *forward, const struct descriptor *d, struct stream *stream)
{
	size_t n_rows = capture_dummy_rows(forward->context, d);
	CLEANUP(cleanup_free) uint32_t *lens = calloc(2 * n_rows, sizeof(*lens));
	struct attention_batch batch;
	struct inputs_slot *slot;
	int rc;

	if (!lens)
		return -ENOMEM;
	rc = capture_dummy_batch(forward->context, d, &slot, &batch, lens);
	if (rc)
		return rc;
	rc = forward_build(forward, slot, d, &batch, stream);
	return rc ? rc : forward->context->device->ops->stream_sync(stream);
}

/* ---- the three moves ---- */

int capture_warm_up(struct graph_entry *entry, const struct forward_context *context,
	struct stream *stream)
{
	const struct descriptor *d = &entry->descriptor;
	int rc;

	forward_deinit(&entry->warm_up);
	rc = forward_init(&entry->warm_up, context, ATTENTION_WARM_UP);
	if (rc)
		return rc;
	rc = capture_build(&entry->warm_up, d, stream);
	if (rc)
		return rc;
	rc = forward_warm_up(&entry->warm_up, d, capture_dummy_rows(context, d), stream);
	return rc ? rc : context->device->ops->stream_sync(stream);
}

static int capture_record_whole(struct graph_entry *entry, struct stream *stream)
{
	const struct device_ops *ops = entry->capture.context->device->ops;
	struct graph *graph = NULL;
	int rc = ops->capture_begin(stream), end;

	if (rc)
		return rc;
	rc = forward_run(&entry->capture, &entry->descriptor, entry->descriptor.rows, stream);
	end = ops->capture_end(stream, &graph);
	if (rc || end) {
		if (!end)
			ops->graph_free(graph);
		return rc ? rc : end;
	}
	entry->graph = graph;
	return 0;
}

int capture_record(struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream)
{
	int rc;

	assert(!entry->graph && !entry->exec && !entry->pieces.graphs);
	forward_deinit(&entry->capture);
	rc = forward_init(&entry->capture, runner->context, ATTENTION_CAPTURE);
	if (rc)
		return rc;
	/* A state of its own: the warm-up's would leave a lazy plan out of the graph. */
	assert(entry->capture.metadata != entry->warm_up.metadata);
	rc = capture_build(&entry->capture, &entry->descriptor, stream);
	if (rc)
		return rc;
	if (entry->descriptor.mode == GRAPH_PIECEWISE)
		return breakable_record(
			runner, &entry->pieces, &entry->capture, &entry->descriptor, stream);
	assert(entry->descriptor.mode == GRAPH_FULL);
	return capture_record_whole(entry, stream);
}

int capture_instantiate(struct graph_entry *entry, struct device *device, struct stream *stream)
{
	bool pieces = entry->descriptor.mode == GRAPH_PIECEWISE;
	struct graph_info info;
	int rc = pieces ? breakable_instantiate(&entry->pieces, device, stream, &info)
			: breakable_instantiate_one(
				  device, entry->graph, &entry->exec, stream, &info);

	if (rc)
		return rc;
	rc = device->ops->stream_sync(stream);
	if (rc)
		return rc;
	atomic_store_explicit(&entry->n_nodes, info.n_nodes, memory_order_relaxed);
	atomic_store_explicit(&entry->n_segments, pieces ? entry->pieces.n_breaks + 1 : 1,
		memory_order_relaxed);
	atomic_store_explicit(&entry->bytes, info.bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->n_captures, 1, memory_order_relaxed);
	return 0;
}

static int capture_finish(
	struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream)
{
	int rc = entry->warm_up.context ? 0 : capture_warm_up(entry, runner->context, stream);

	if (rc)
		return rc;
	rc = capture_record(entry, runner, stream);
	return rc ? rc : capture_instantiate(entry, runner->context->device, stream);
}

int capture_now(struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream)
{
	uint64_t start = clock_ns();
	int rc = capture_finish(entry, runner, stream);

	if (rc)
		capture_drop(entry, runner->context->device);
	else
		atomic_store_explicit(&entry->capture_ns, clock_ns() - start, memory_order_relaxed);
	graph_entry_set_state(entry, rc ? GRAPH_EMPTY : GRAPH_READY);
	return rc;
}

void capture_drop(struct graph_entry *entry, struct device *device)
{
	if (entry->exec)
		device->ops->graph_exec_free(entry->exec);
	if (entry->graph)
		device->ops->graph_free(entry->graph);
	entry->exec = NULL;
	entry->graph = NULL;
	breakable_free(&entry->pieces, device);
	forward_deinit(&entry->capture);
	forward_deinit(&entry->warm_up);
	atomic_store_explicit(&entry->bytes, 0, memory_order_relaxed);
	atomic_store_explicit(&entry->n_nodes, 0, memory_order_relaxed);
	atomic_store_explicit(&entry->n_segments, 0, memory_order_relaxed);
	atomic_store_explicit(&entry->capture_ns, 0, memory_order_relaxed);
}
