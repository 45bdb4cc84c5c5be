/* SPDX-License-Identifier: MIT */
#include "sdk/text/merges.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

int merges_init(struct merges *merges, size_t n)
{
	*merges = (struct merges){.n_slots = hash_slots(n), .seed = hash_seed()};
	merges->slots = malloc(merges->n_slots * sizeof(*merges->slots));
	if (!merges->slots)
		return MIMEO_E_NO_MEMORY;
	/* no pair has such ids, so that an empty slot matches none */
	for (size_t i = 0; i < merges->n_slots; i++)
		merges->slots[i] =
			(struct merge){.pair = UINT64_MAX, .rank = MERGES_NONE, .id = -1};
	return 0;
}

void merges_deinit(struct merges *merges)
{
	free(merges->slots);
	*merges = (struct merges){0};
}

void merges_add(struct merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
	struct merge *slot = (struct merge *)merges_find(merges, left, right);

	assert(rank != MERGES_NONE && left >= 0 && right >= 0);
	*slot = (struct merge){
		.pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, .rank = rank, .id = id};
}

size_t merges_apply(const struct merges *merges, int32_t *ids, size_t n)
{
	/* of the pair that begins at each id */
	uint32_t ranks[MERGES_SHORT];
	int32_t merged[MERGES_SHORT];

	assert(n <= MERGES_SHORT);
	for (size_t i = 0; i + 1 < n; i++) {
		const struct merge *merge = merges_find(merges, ids[i], ids[i + 1]);

		ranks[i] = merge->rank;
		merged[i] = merge->id;
	}
	while (n > 1) {
		uint32_t best = MERGES_NONE;
		size_t at = 0;

		for (size_t i = 0; i + 1 < n; i++) {
			if (ranks[i] < best) {
				best = ranks[i];
				at = i;
			}
		}
		if (best == MERGES_NONE)
			break;
		ids[at] = merged[at];
		n--;
		for (size_t i = at + 1; i < n; i++) {
			ids[i] = ids[i + 1];
			ranks[i] = i + 1 < n ? ranks[i + 1] : MERGES_NONE;
			merged[i] = i + 1 < n ? merged[i + 1] : -1;
		}
		for (size_t i = at > 0 ? at - 1 : 0; i <= at && i + 1 < n; i++) {
			const struct merge *merge = merges_find(merges, ids[i], ids[i + 1]);

			ranks[i] = merge->rank;
			merged[i] = merge->id;
		}
	}
	return n;
}

/* ---- long words ---- */

/*
 * A linked list of the ids, and a heap of candidates (rank, position), smallest first. A candidate
 * is void if its position's pair has another rank by now.
 */
struct merges_list {
	const struct merges *merges;
	int32_t *ids;
	uint32_t *next, *previous; /* [n]; n: none */
	uint32_t *ranks; /* [n] of the pair that begins there; MERGES_NONE: none, or merged away */
	int32_t *merged; /* [n] */
	uint64_t *heap;  /* [n_heap] rank, position */
	size_t n_heap;
	uint32_t n;
};

static void merges_sift_down(struct merges_list *list, size_t at)
{
	uint64_t *heap = list->heap, moved = heap[at];
	size_t n = list->n_heap;

	for (;;) {
		size_t first = 4 * at + 1, least = first;

		if (first >= n)
			break;
		for (size_t child = first + 1; child < first + 4 && child < n; child++) {
			if (heap[child] < heap[least])
				least = child;
		}
		if (heap[least] >= moved)
			break;
		heap[at] = heap[least];
		at = least;
	}
	heap[at] = moved;
}

static void merges_push(struct merges_list *list, uint64_t candidate)
{
	uint64_t *heap = list->heap;
	size_t at = list->n_heap++;

	assert(list->n_heap <= 2 * (size_t)list->n);
	while (at > 0 && heap[(at - 1) / 4] > candidate) {
		heap[at] = heap[(at - 1) / 4];
		at = (at - 1) / 4;
	}
	heap[at] = candidate;
}

static uint64_t merges_pop(struct merges_list *list)
{
	uint64_t top = list->heap[0];

	list->heap[0] = list->heap[--list->n_heap];
	if (list->n_heap > 0)
		merges_sift_down(list, 0);
	return top;
}

/* Look the pair at a position up. True: it can be merged. */
static bool merges_look(struct merges_list *list, uint32_t at)
{
	uint32_t next = list->next[at];

	list->ranks[at] = MERGES_NONE;
	if (next == list->n)
		return false;
	const struct merge *merge = merges_find(list->merges, list->ids[at], list->ids[next]);
	list->ranks[at] = merge->rank;
	list->merged[at] = merge->id;
	return merge->rank != MERGES_NONE;
}

static uint64_t merges_candidate(const struct merges_list *list, uint32_t at)
{
	return (uint64_t)list->ranks[at] << 32 | at;
}

static void merges_join(struct merges_list *list, uint32_t at)
{
	uint32_t right = list->next[at], previous = list->previous[at], next = list->next[right];

	assert(right < list->n);
	list->ids[at] = list->merged[at];
	list->ids[right] = -1;
	list->ranks[right] = MERGES_NONE;
	list->next[at] = next;
	if (next < list->n)
		list->previous[next] = at;
	if (previous < list->n && merges_look(list, previous))
		merges_push(list, merges_candidate(list, previous));
	if (merges_look(list, at))
		merges_push(list, merges_candidate(list, at));
}

static void merges_list_fill(struct merges_list *list)
{
	for (uint32_t i = 0; i < list->n; i++) {
		list->next[i] = i + 1;
		list->previous[i] = i > 0 ? i - 1 : list->n;
	}
	for (uint32_t i = 0; i < list->n; i++) {
		if (merges_look(list, i))
			list->heap[list->n_heap++] = merges_candidate(list, i);
	}
	for (size_t i = list->n_heap / 4 + 1; i-- > 0;) {
		if (i < list->n_heap)
			merges_sift_down(list, i);
	}
}

size_t merges_apply_long(
	const struct merges *merges, int32_t *ids, size_t n, uint32_t *links, uint64_t *heap)
{
	struct merges_list list = {
		.merges = merges,
		.ids = ids,
		.next = links,
		.previous = links + n,
		.ranks = links + 2 * n,
		.merged = (int32_t *)(links + 3 * n),
		.heap = heap,
		.n = (uint32_t)n,
	};
	size_t left = 0;

	assert(n < UINT32_MAX);
	merges_list_fill(&list);
	while (list.n_heap > 0) {
		uint64_t candidate = merges_pop(&list);
		uint32_t at = (uint32_t)candidate;

		if (list.ranks[at] == (uint32_t)(candidate >> 32))
			merges_join(&list, at);
	}
	for (size_t i = 0; i < n; i++) {
		if (ids[i] >= 0)
			ids[left++] = ids[i];
	}
	return left;
}
