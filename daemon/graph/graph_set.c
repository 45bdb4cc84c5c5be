/* SPDX-License-Identifier: MIT */
#include "daemon/graph/graph_set.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* ---- the set ---- */

/* Decodes of several tokens a row have fewer rows; those of one, and mixed batches, have as many as
 * requests. */
static void graph_set_make_families(struct graph_set *set, const struct ladder *ladder,
	const uint32_t queries[], uint32_t n_queries, uint32_t max_requests, uint32_t max_tokens)
{
	enum graph_mode mixed = graph_mode_mixed(set->mode);
	/* If every batch has a full graph, decodes need no graphs of their own. */
	bool decodes = graph_mode_decode(set->mode) == GRAPH_FULL && mixed != GRAPH_FULL;

	for (uint32_t i = 0; decodes && i < n_queries; i++) {
		uint32_t fit = max_tokens / queries[i];

		assert(fit);
		set->n_decode += ladder_decode_family(ladder, queries[i],
			fit < max_requests ? fit : max_requests,
			set->descriptors + set->n_decode);
		set->family_end[set->n_families++] = set->n_decode;
	}
	set->n = set->n_decode;
	if (mixed != GRAPH_NONE)
		set->n += ladder_mixed_family(
			ladder, mixed, max_requests, set->descriptors + set->n);
}

int graph_set_init_queries(struct graph_set *set, enum graph_mode resolved,
	const struct ladder *ladder, const uint32_t queries[], uint32_t n_queries,
	uint32_t max_requests, uint32_t max_tokens)
{
	size_t most = (n_queries + 1) * (size_t)ladder->n;

	*set = (struct graph_set){.mode = resolved};
	if (n_queries > GRAPH_QUERIES_MAX)
		return -EINVAL;
	if (resolved == GRAPH_NONE)
		return 0;
	set->entries = calloc(most, sizeof(*set->entries));
	set->descriptors = calloc(most, sizeof(*set->descriptors));
	if (!set->entries || !set->descriptors) {
		graph_set_deinit(set, NULL);
		return -ENOMEM;
	}
	graph_set_make_families(set, ladder, queries, n_queries, max_requests, max_tokens);
	assert(set->n <= most && set->n_decode <= set->n);
	for (uint32_t i = 0; i < set->n; i++)
		set->entries[i].descriptor = set->descriptors[i];
	return 0;
}

int graph_set_init(struct graph_set *set, enum graph_mode resolved, const struct ladder *ladder,
	uint32_t decode_query, uint32_t max_requests)
{
	return graph_set_init_queries(
		set, resolved, ladder, &decode_query, 1, max_requests, UINT32_MAX);
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
	struct stream *stream, graph_progress *progress, void *userdata)
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

int graph_set_capture(struct graph_set *set, struct breakable_runner *runner, struct stream *stream,
	graph_progress *progress, void *userdata)
{
	for (uint32_t i = set->n; i-- > 0;) {
		int rc = capture_now(&set->entries[i], runner, stream);

		if (rc)
			return rc;
		if (progress)
			progress(userdata, set->n - i, set->n);
	}
	return 0;
}

/* ---- dispatch ---- */

/* The smallest graph of [first, end) that the batch fits, or NULL. */
static struct graph_entry *graph_set_find(const struct graph_set *set, uint32_t first, uint32_t end,
	const struct batch_shape *shape)
{
	int index;

	assert(first <= end && end <= set->n);
	index = descriptor_find(set->descriptors + first, end - first, shape);
	if (index < 0)
		return NULL;
	assert(set->descriptors[first + (uint32_t)index].tokens >= shape->tokens);
	return &set->entries[first + (uint32_t)index];
}

struct graph_entry *graph_set_dispatch(const struct graph_set *set, const struct batch_shape *shape,
	enum eager_reason *ret_reason)
{
	bool decode = batch_is_decode(shape);
	struct graph_entry *entry = NULL;

	for (uint32_t i = 0, first = 0; decode && !entry && i < set->n_families; i++) {
		entry = graph_set_find(set, first, set->family_end[i], shape);
		first = set->family_end[i];
	}
	if (!entry)
		entry = graph_set_find(set, set->n_decode, set->n, shape);
	if (entry)
		*ret_reason = graph_entry_state(entry) == GRAPH_READY ? EAGER_NO : EAGER_NOT_CAPTURED;
	else if (!set->n)
		*ret_reason = EAGER_MODE;
	else
		*ret_reason = !decode && set->n == set->n_decode ? EAGER_MIXED : EAGER_TOO_WIDE;
	return entry;
}

/* ---- counters ---- */

void graph_entry_follow(uint64_t *known, uint64_t ns)
{
	if (*known && ns > *known)
		*known += (ns - *known) / 8;
	else
		*known = ns;
}

void graph_entry_count(struct graph_entry *entry, uint32_t n_tokens, bool shared)
{
	assert(n_tokens <= entry->descriptor.tokens);
	atomic_fetch_add_explicit(&entry->n_replays, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->n_shared_replays, shared, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->n_padded_rows, graph_entry_padding(entry, n_tokens),
		memory_order_relaxed);
}
