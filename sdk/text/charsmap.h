/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHARSMAP_H
#define MIMEO_SDK_TEXT_CHARSMAP_H

/*
 * SentencePiece's precompiled map of characters (normalizer_spec.precompiled_charsmap): a
 * double-array trie of Darts, whose values are offsets of terminated strings.
 */

#include <stddef.h>
#include <stdint.h>

#include "sdk/text/buffer.h"
#include "sdk/text/span.h"

struct charsmap {
	uint32_t *units; /* [n_units] */
	uint32_t n_units;
	char *strings; /* [strings_length], each terminated, valid UTF-8 */
	uint32_t strings_length;
};

#define CHARSMAP_BYTES_MAX ((size_t)16 << 20)

/* From base64 text. 0, INVALID (a sentence of why in *ret_reason, static) or NO_MEMORY;
 * charsmap_deinit in either case. */
int charsmap_init(struct charsmap *map, const char *base64, size_t length, const char **ret_reason);
void charsmap_deinit(struct charsmap *map);

/*
 * What the shortest key that text[length] begins with is mapped to, or NULL. `tokenizers` asks for
 * a grapheme cluster of less than CHARSMAP_CLUSTER_MAX bytes, then for each character of those that
 * are not mapped.
 */
const char *charsmap_find(
	const struct charsmap *map, const char *text, size_t length, size_t *ret_length);
#define CHARSMAP_CLUSTER_MAX 6u

/* The length of the grapheme cluster at the start of text[length], which is not empty. */
size_t charsmap_cluster(const char *text, size_t length);

#endif
