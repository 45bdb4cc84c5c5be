/* SPDX-License-Identifier: MIT */
#include "sdk/text/trie.h"

#include <assert.h>
#include <stdlib.h>

#include <mimeo/types.h>

#include "ipc/cleanup.h"

/* The keys below a node: keys[first ... last), which have `depth` bytes in common. */
struct trie_range {
	uint32_t first, last, depth;
};

struct trie_builder {
	struct trie *trie;
	const struct trie_key *keys;
	struct trie_range *ranges; /* [capacity], of each node */
	uint32_t capacity;
};

static int trie_compare(const void *left, const void *right)
{
	const struct trie_key *a = left, *b = right;
	uint32_t shorter = a->length < b->length ? a->length : b->length;
	int order = memcmp(a->bytes, b->bytes, shorter);

	if (order != 0)
		return order;
	if (a->length != b->length)
		return a->length < b->length ? -1 : 1;
	return a->value < b->value ? -1 : a->value > b->value;
}

static int trie_grow(struct trie_builder *builder)
{
	struct trie *trie = builder->trie;
	uint32_t capacity = builder->capacity > 0 ? builder->capacity * 2 : 256;

	if (capacity > TRIE_NODES_MAX)
		return MIMEO_E_INVALID;
	struct trie_node *nodes = realloc(trie->nodes, capacity * sizeof(*nodes));
	if (!nodes)
		return MIMEO_E_NO_MEMORY;
	trie->nodes = nodes;
	uint8_t *labels = realloc(trie->labels, capacity);
	if (!labels)
		return MIMEO_E_NO_MEMORY;
	trie->labels = labels;
	struct trie_range *ranges = realloc(builder->ranges, capacity * sizeof(*ranges));
	if (!ranges)
		return MIMEO_E_NO_MEMORY;
	builder->ranges = ranges;
	builder->capacity = capacity;
	return 0;
}

static int trie_add(struct trie_builder *builder, uint8_t label, struct trie_range range)
{
	struct trie *trie = builder->trie;

	if (trie->n_nodes == builder->capacity) {
		int rc = trie_grow(builder);
		if (rc < 0)
			return rc;
	}
	trie->nodes[trie->n_nodes] = (struct trie_node){.value = -1};
	trie->labels[trie->n_nodes] = label;
	builder->ranges[trie->n_nodes] = range;
	trie->n_nodes++;
	return 0;
}

/* The value of a node, and its children behind all nodes that there are. */
static int trie_expand(struct trie_builder *builder, uint32_t node)
{
	struct trie_range range = builder->ranges[node];
	const struct trie_key *keys = builder->keys;
	struct trie *trie = builder->trie;
	uint32_t first_child = trie->n_nodes, i = range.first;

	while (i < range.last && keys[i].length == range.depth)
		trie->nodes[node].value = keys[i++].value;
	while (i < range.last) {
		uint8_t label = (uint8_t)keys[i].bytes[range.depth];
		struct trie_range child = {.first = i, .depth = range.depth + 1};

		while (i < range.last && (uint8_t)keys[i].bytes[range.depth] == label)
			i++;
		child.last = i;
		int rc = trie_add(builder, label, child);
		if (rc < 0)
			return rc;
	}
	assert(trie->n_nodes - first_child <= 256);
	trie->nodes[node].first_child = first_child;
	trie->nodes[node].n_children = (uint16_t)(trie->n_nodes - first_child);
	return 0;
}

int trie_init(struct trie *trie, struct trie_key *keys, uint32_t n)
{
	struct trie_builder builder = {.trie = trie, .keys = keys};
	int rc;

	*trie = (struct trie){0};
	if (n > 0)
		qsort(keys, n, sizeof(*keys), trie_compare);
	rc = trie_add(&builder, 0, (struct trie_range){.last = n});
	for (uint32_t node = 0; rc == 0 && node < trie->n_nodes; node++)
		rc = trie_expand(&builder, node);
	free(builder.ranges);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < trie->nodes[0].n_children; i++) {
		uint32_t child = trie->nodes[0].first_child + i;

		trie->children_of_root[trie->labels[child]] = child;
	}
	return 0;
}

void trie_deinit(struct trie *trie)
{
	free(trie->nodes);
	free(trie->labels);
	*trie = (struct trie){0};
}
