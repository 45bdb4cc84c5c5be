/* SPDX-License-Identifier: MIT */
#include "daemon/graph/capture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/clock.h"

static double now_seconds(void)
{
	return (double)clock_ns() * 1e-9;
}

int capture_dummy_batch(const struct forward_context *context, struct stream *stream,
	uint32_t n_rows, uint32_t query_len, struct attention_batch *ret, uint32_t *lens_storage)
{
	struct inputs *inputs = context->inputs;
	/* Set-up is synchronous, so slot 0 is always free: step 0 asks for no flag. */
	struct inputs_slot *slot = inputs_begin(inputs, 0);

	if (!slot)
		return -EBUSY;
	for (uint32_t i = 0; i < n_rows; i++) {
		struct step_row row = {.slot = -1, .n_tokens = query_len};
		int32_t *ids = inputs_add_row(slot, &row);

		memset(ids, 0, query_len * sizeof(ids[0]));
		lens_storage[i] = query_len;
		lens_storage[n_rows + i] = 0;
	}
	*ret = (struct attention_batch){
		.n_rows = n_rows,
		.n_tokens = n_rows * query_len,
		.padded_rows = n_rows,
		.padded_tokens = n_rows * query_len,
		.max_query = query_len,
		.query_lens = lens_storage,
		.seq_lens = lens_storage + n_rows,
	};
	return inputs_prepare(inputs, slot, stream, n_rows, n_rows * query_len,
		kv_pages_total(context->kv) + 1);
}

/* Inputs and metadata, from nothing, for a forward that was made for this phase alone. */
static int build(struct forward *forward, const struct descriptor *d, struct stream *stream)
{
	uint32_t *lens = calloc(2 * (size_t)d->rows, sizeof(*lens));
	struct attention_batch batch;
	int rc;

	if (!lens)
		return -ENOMEM;
	rc = capture_dummy_batch(forward->context, stream, d->rows, d->query_len, &batch, lens);
	if (!rc)
		rc = forward_build(forward, &batch, stream);
	if (!rc)
		rc = forward->context->device->ops->stream_sync(stream);
	free(lens);
	return rc;
}

int capture_warm_up(struct graph_entry *entry, const struct forward_context *context,
	struct stream *stream)
{
	const struct descriptor *d = &entry->descriptor;
	int rc;

	forward_deinit(&entry->warm_up);
	rc = forward_init(&entry->warm_up, context, ATTENTION_WARM_UP);
	if (!rc)
		rc = build(&entry->warm_up, d, stream);
	if (!rc)
		rc = forward_run(&entry->warm_up, stream, d->rows, d->tokens);
	if (!rc)
		rc = context->device->ops->stream_sync(stream);
	return rc;
}

static int record(struct graph_entry *entry, const struct forward_context *context,
	struct stream *stream)
{
	const struct device_ops *ops = context->device->ops;
	const struct descriptor *d = &entry->descriptor;
	struct graph *graph = NULL;
	int rc, end;

	forward_deinit(&entry->capture);
	rc = forward_init(&entry->capture, context, ATTENTION_CAPTURE);
	if (!rc)
		rc = build(&entry->capture, d, stream);
	if (rc)
		return rc;
	rc = ops->capture_begin(stream);
	if (rc)
		return rc;
	rc = forward_run(&entry->capture, stream, d->rows, d->tokens);
	end = ops->capture_end(stream, &graph);
	if (rc || end) {
		if (!end)
			ops->graph_free(graph);
		return rc ? rc : end;
	}
	entry->graph = graph;
	return 0;
}

int capture_record(struct graph_entry *entry, const struct forward_context *context,
	struct stream *stream)
{
	const struct device_ops *ops = context->device->ops;
	double start = now_seconds();
	int rc;

	capture_drop(entry, context->device);
	rc = capture_warm_up(entry, context, stream);
	if (!rc)
		rc = record(entry, context, stream);
	if (!rc)
		rc = ops->graph_instantiate(context->device, entry->graph, &entry->exec);
	if (!rc)
		rc = ops->graph_upload(entry->exec, stream);
	if (!rc)
		rc = ops->graph_info(entry->exec, &entry->info);
	if (!rc)
		rc = ops->stream_sync(stream);
	if (rc) {
		capture_drop(entry, context->device);
		return rc;
	}
	entry->seconds = now_seconds() - start;
	atomic_fetch_add_explicit(&entry->n_captures, 1, memory_order_relaxed);
	return 0;
}

void capture_drop(struct graph_entry *entry, struct device *device)
{
	if (entry->exec)
		device->ops->graph_exec_free(entry->exec);
	if (entry->graph)
		device->ops->graph_free(entry->graph);
	entry->exec = NULL;
	entry->graph = NULL;
	forward_deinit(&entry->capture);
	forward_deinit(&entry->warm_up);
}
