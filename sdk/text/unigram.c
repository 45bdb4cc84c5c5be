/* SPDX-License-Identifier: MIT */
#include "sdk/text/unigram.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "sdk/text/utf8.h"

#define UNIGRAM_UNREACHED UINT32_MAX

int unigram_prepare(struct unigram *unigram)
{
	const struct vocabulary *vocabulary = unigram->vocabulary;
	struct trie_key *keys = calloc((size_t)vocabulary->n + 1, sizeof(*keys));
	double least = INFINITY;
	uint32_t n = 0;
	char token[8];

	if (!keys)
		return MIMEO_E_NO_MEMORY;
	for (uint32_t i = 0; i < vocabulary->n; i++) {
		const struct vocabulary_entry *entry = &vocabulary->entries[i];

		if (unigram->scores[entry->id] < least)
			least = unigram->scores[entry->id];
		if (entry->length > 0)
			keys[n++] = (struct trie_key){
				vocabulary->text.data + entry->start, entry->length, entry->id};
	}
	unigram->unknown_score = least - UNIGRAM_UNKNOWN_PENALTY;
	for (unsigned i = 0; i < 256; i++) {
		snprintf(token, sizeof(token), "<0x%02X>", i);
		unigram->fallback[i] = vocabulary_find(vocabulary, token, strlen(token));
	}
	int rc = trie_init(&unigram->trie, keys, n);
	free(keys);
	return rc;
}

void unigram_deinit(struct unigram *unigram)
{
	trie_deinit(&unigram->trie);
	free(unigram->scores);
	*unigram = (struct unigram){0};
}

void unigram_work_deinit(struct unigram_work *work)
{
	free(work->nodes);
	*work = (struct unigram_work){0};
}

/* ---- the best path (Viterbi) ---- */

static int unigram_clear(struct unigram_work *work, size_t n)
{
	if (n > work->capacity) {
		free(work->nodes);
		work->nodes = malloc(n * sizeof(*work->nodes));
		work->capacity = work->nodes ? n : 0;
		if (!work->nodes)
			return MIMEO_E_NO_MEMORY;
	}
	for (size_t i = 0; i < n; i++)
		work->nodes[i] = (struct unigram_node){.start = UNIGRAM_UNREACHED};
	return 0;
}

static void unigram_offer(struct unigram_node *node, double score, size_t start, int32_t id)
{
	if (node->start == UNIGRAM_UNREACHED || score > node->score)
		*node = (struct unigram_node){.score = score, .start = (uint32_t)start, .id = id};
}

/* The tokens that begin at a position. 0 or INVALID. */
static int unigram_extend(const struct unigram *unigram, struct unigram_node *nodes,
	const char *word, size_t length, size_t start)
{
	const struct trie *trie = &unigram->trie;
	double score = nodes[start].score;
	size_t size = utf8_size(word[start]);
	bool has_character = false;
	uint32_t at = 0;

	for (size_t i = start; i < length; i++) {
		at = trie_child(trie, at, word[i]);
		if (at == TRIE_NONE)
			break;
		int32_t id = trie->nodes[at].value;
		if (id < 0)
			continue;
		unigram_offer(&nodes[i + 1], score + unigram->scores[id], start, id);
		has_character |= i + 1 - start == size;
	}
	if (has_character)
		return 0;
	struct unigram_node *node = &nodes[start + size];
	bool improves =
		node->start == UNIGRAM_UNREACHED || score + unigram->unknown_score > node->score;
	if (improves && unigram->unknown < 0)
		return MIMEO_E_INVALID;
	unigram_offer(node, score + unigram->unknown_score, start, unigram->unknown);
	return 0;
}

/* ---- ids ---- */

/* Unknown characters side by side are one token: the one that is written so, or those of the bytes,
 * or the unknown one. */
static void unigram_add_unknown(
	const struct unigram *unigram, const char *text, size_t length, struct ids *out)
{
	int32_t id = vocabulary_find(unigram->vocabulary, text, length);
	bool has_bytes = id < 0 && unigram->byte_fallback;

	for (size_t i = 0; has_bytes && i < length; i++)
		has_bytes = unigram->fallback[(unsigned char)text[i]] >= 0;
	if (!has_bytes) {
		ids_add(out, id >= 0 ? id : unigram->unknown);
		return;
	}
	for (size_t i = 0; i < length; i++)
		ids_add(out, unigram->fallback[(unsigned char)text[i]]);
}

/* Turn the links from the end into a list from the start: `start` of a node becomes the end of the
 * token that begins there. */
static void unigram_reverse(struct unigram_node *nodes, size_t length)
{
	size_t end = length;
	uint32_t start = nodes[length].start;
	int32_t id = nodes[length].id;

	while (end > 0) {
		size_t begin = start;
		int32_t next_id = nodes[begin].id;

		assert(begin < end);
		start = nodes[begin].start;
		nodes[begin].start = (uint32_t)end;
		nodes[begin].id = id;
		id = next_id;
		end = begin;
	}
}

int unigram_encode(const struct unigram *unigram, struct unigram_work *work, const char *word,
	size_t length, struct ids *out)
{
	int rc = unigram_clear(work, length + 1);

	assert(length > 0 && length < UNIGRAM_UNREACHED);
	for (size_t at = 0; rc == 0 && at < length; at += utf8_size(word[at]))
		rc = unigram_extend(unigram, work->nodes, word, length, at);
	if (rc < 0)
		return rc;
	unigram_reverse(work->nodes, length);
	for (size_t at = 0; at < length;) {
		size_t end = work->nodes[at].start;

		if (work->nodes[at].id != unigram->unknown) {
			ids_add(out, work->nodes[at].id);
			at = end;
			continue;
		}
		while (end < length && work->nodes[end].id == unigram->unknown)
			end = work->nodes[end].start;
		unigram_add_unknown(unigram, word + at, end - at, out);
		at = end;
	}
	return out->rc;
}
