/* SPDX-License-Identifier: MIT */
#include "sdk/text/wordpiece.h"

#include <stdbool.h>
#include <stdlib.h>

#include "sdk/text/utf8.h"

int wordpiece_prepare(struct wordpiece *wordpiece, const char *prefix, size_t prefix_length)
{
	const struct vocabulary *vocabulary = wordpiece->vocabulary;
	struct trie_key *keys = calloc((size_t)vocabulary->n + 1, sizeof(*keys));
	uint32_t n = 0;

	if (!keys)
		return MIMEO_E_NO_MEMORY;
	for (uint32_t i = 0; i < vocabulary->n; i++) {
		const struct vocabulary_entry *entry = &vocabulary->entries[i];

		if (entry->length > 0)
			keys[n++] = (struct trie_key){
				vocabulary->text.data + entry->start, entry->length, entry->id};
	}
	int rc = trie_init(&wordpiece->trie, keys, n);
	free(keys);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < prefix_length && wordpiece->behind != TRIE_NONE; i++)
		wordpiece->behind = trie_child(&wordpiece->trie, wordpiece->behind, prefix[i]);
	return 0;
}

void wordpiece_deinit(struct wordpiece *wordpiece)
{
	trie_deinit(&wordpiece->trie);
	*wordpiece = (struct wordpiece){0};
}

static bool wordpiece_is_too_long(
	const struct wordpiece *wordpiece, const char *word, size_t length)
{
	size_t n = 0;

	if (length <= wordpiece->max_characters)
		return false;
	for (size_t i = 0; i < length; i++)
		n += !utf8_is_continuation(word[i]);
	return n > wordpiece->max_characters;
}

int wordpiece_encode(
	const struct wordpiece *wordpiece, const char *word, size_t length, struct ids *out)
{
	size_t first = out->n;
	size_t at = wordpiece_is_too_long(wordpiece, word, length) ? SIZE_MAX : 0;

	while (at < length) {
		uint32_t node = at == 0 ? 0 : wordpiece->behind;
		size_t n = 0;
		int32_t id = node == TRIE_NONE ? -1
					       : trie_longest(&wordpiece->trie, node, word + at,
							 length - at, &n);

		if (id < 0) {
			at = SIZE_MAX;
			break;
		}
		ids_add(out, id);
		at += n;
	}
	if (at != SIZE_MAX)
		return out->rc;
	if (wordpiece->unknown < 0)
		return MIMEO_E_INVALID;
	if (out->rc == 0)
		out->n = first;
	ids_add(out, wordpiece->unknown);
	return out->rc;
}
