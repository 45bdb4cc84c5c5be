/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_TRIE_H
#define MIMEO_SDK_TEXT_TRIE_H

/*
 * A trie of byte strings: finds those that a text begins with. Nodes lie in breadth-first order, so
 * that a node's children and their labels are neighbours.
 */

#include <stdint.h>
#include <string.h>

struct trie_key {
	const char *bytes; /* [length]; not needed behind trie_init */
	uint32_t length;   /* > 0 */
	int32_t value;     /* >= 0 */
};

struct trie_node {
	uint32_t first_child;
	uint16_t n_children;
	int32_t value; /* -1: no key ends here */
};

struct trie {
	struct trie_node *nodes; /* [n_nodes]; 0 is the root */
	uint8_t *labels;         /* [n_nodes] the byte that leads to the node */
	uint32_t n_nodes;
	uint32_t children_of_root[256]; /* by label; 0: none */
};

#define TRIE_NODES_MAX (1u << 28)
#define TRIE_NONE UINT32_MAX

/* Sorts the keys. Of equal keys, the one with the greatest value counts. 0, INVALID (more than
 * TRIE_NODES_MAX nodes), or NO_MEMORY; trie_deinit in each case. */
int trie_init(struct trie *trie, struct trie_key *keys, uint32_t n);
void trie_deinit(struct trie *trie);

/* The child of a node by a byte, or TRIE_NONE. */
static inline uint32_t trie_child(const struct trie *trie, uint32_t node, char byte)
{
	const struct trie_node *at = &trie->nodes[node];

	if (node == 0) {
		uint32_t child = trie->children_of_root[(unsigned char)byte];
		return child > 0 ? child : TRIE_NONE;
	}
	if (at->n_children == 1)
		return trie->labels[at->first_child] == (unsigned char)byte ? at->first_child
									    : TRIE_NONE;
	if (at->n_children == 0)
		return TRIE_NONE;
	const uint8_t *labels = trie->labels + at->first_child;
	const uint8_t *found = memchr(labels, (unsigned char)byte, at->n_children);
	return found ? at->first_child + (uint32_t)(found - labels) : TRIE_NONE;
}

/* The longest key that text[length] begins with: its value and length, or -1. Begin at a node other
 * than 0 for keys behind the prefix that leads there. */
static inline int32_t trie_longest(
	const struct trie *trie, uint32_t node, const char *text, size_t length, size_t *ret_length)
{
	int32_t value = -1;

	for (size_t i = 0; i < length; i++) {
		node = trie_child(trie, node, text[i]);
		if (node == TRIE_NONE)
			break;
		if (trie->nodes[node].value >= 0) {
			value = trie->nodes[node].value;
			*ret_length = i + 1;
		}
	}
	return value;
}

#endif
