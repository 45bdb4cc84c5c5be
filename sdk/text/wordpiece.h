/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_WORDPIECE_H
#define MIMEO_SDK_TEXT_WORDPIECE_H

/* WordPiece: a word is cut from left to right, always into the longest token; tokens behind the
 * first have a prefix. If a part has no token, the whole word is unknown. */

#include <stddef.h>
#include <stdint.h>

#include "sdk/text/buffer.h"
#include "sdk/text/trie.h"
#include "sdk/text/vocabulary.h"

struct wordpiece {
	const struct vocabulary *vocabulary;
	struct trie trie;        /* values are ids */
	uint32_t behind;         /* the node of the prefix, or TRIE_NONE */
	int32_t unknown;         /* -1: the vocabulary lacks it */
	uint32_t max_characters; /* of a word; longer ones are unknown */
};

/* vocabulary, unknown and max_characters are set. 0, INVALID or NO_MEMORY. */
int wordpiece_prepare(struct wordpiece *wordpiece, const char *prefix, size_t prefix_length);
void wordpiece_deinit(struct wordpiece *wordpiece);

/* Add the ids of a word. 0, INVALID (the word is unknown, and so is the unknown token), or
 * NO_MEMORY. */
int wordpiece_encode(
	const struct wordpiece *wordpiece, const char *word, size_t length, struct ids *out);

#endif
