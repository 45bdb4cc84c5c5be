/* SPDX-License-Identifier: MIT */
#include "daemon/graph/dispatch.h"

#include <errno.h>
#include <stdlib.h>

int graph_set_init(struct graph_set *set, enum graph_mode resolved, const struct ladder *ladder,
	uint32_t decode_query, uint32_t max_requests)
{
	*set = (struct graph_set){.mode = resolved};
	if (graph_mode_decode(resolved) != GRAPH_FULL)
		return 0;
	set->entries = calloc(ladder->n, sizeof(*set->entries));
	set->descriptors = calloc(LADDER_MAX, sizeof(*set->descriptors));
	if (!set->entries || !set->descriptors) {
		graph_set_deinit(set, NULL);
		return -ENOMEM;
	}
	set->n = ladder_decode_family(ladder, decode_query, max_requests, set->descriptors);
	for (uint32_t i = 0; i < set->n; i++)
		set->entries[i].descriptor = set->descriptors[i];
	return 0;
}

void graph_set_deinit(struct graph_set *set, struct device *device)
{
	if (!set)
		return;
	for (uint32_t i = 0; i < set->n; i++)
		capture_drop(&set->entries[i], device);
	free(set->entries);
	free(set->descriptors);
	*set = (struct graph_set){0};
}

int graph_set_warm_up(struct graph_set *set, const struct forward_context *context,
	struct stream *stream, void (*progress)(void *userdata, uint32_t done, uint32_t total),
	void *userdata)
{
	for (uint32_t i = set->n; i-- > 0;) {
		int rc = capture_warm_up(&set->entries[i], context, stream);

		if (rc)
			return rc;
		if (progress)
			progress(userdata, set->n - i, set->n);
	}
	return 0;
}

int graph_set_capture(struct graph_set *set, const struct forward_context *context,
	struct stream *stream, void (*progress)(void *userdata, uint32_t done, uint32_t total),
	void *userdata)
{
	for (uint32_t i = set->n; i-- > 0;) {
		int rc = capture_record(&set->entries[i], context, stream);

		if (rc)
			return rc;
		set->seconds += set->entries[i].seconds;
		set->bytes += set->entries[i].info.bytes;
		if (progress)
			progress(userdata, set->n - i, set->n);
	}
	set->ready = true;
	return 0;
}

struct graph_entry *graph_set_dispatch(const struct graph_set *set, const struct batch_shape *shape,
	enum eager_reason *ret_reason)
{
	int index;

	if (graph_mode_decode(set->mode) != GRAPH_FULL || !set->ready) {
		*ret_reason = EAGER_MODE;
		return NULL;
	}
	if (!shape->uniform || !shape->past_prompt) {
		*ret_reason = EAGER_MIXED;
		return NULL;
	}
	index = descriptor_find(set->descriptors, set->n, shape);
	*ret_reason = index < 0 ? EAGER_TOO_WIDE : EAGER_NO;
	return index < 0 ? NULL : &set->entries[index];
}

/* One replay that somebody else held up says little about the next. */
void graph_entry_timed(struct graph_entry *entry, uint64_t lane_ns)
{
	if (entry->lane_ns && lane_ns > entry->lane_ns)
		entry->lane_ns += (lane_ns - entry->lane_ns) / 8;
	else
		entry->lane_ns = lane_ns;
}

void graph_entry_count(struct graph_entry *entry, uint32_t n_rows, bool shared)
{
	atomic_fetch_add_explicit(&entry->n_replays, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->n_shared_replays, shared, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->n_padded_rows, entry->descriptor.rows - n_rows,
		memory_order_relaxed);
}
