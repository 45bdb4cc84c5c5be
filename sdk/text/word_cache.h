/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_WORD_CACHE_H
#define MIMEO_SDK_TEXT_WORD_CACHE_H

/* The ids of short words that a text had before. A word has one place, a cache line; a later word
 * replaces it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sdk/text/buffer.h"

#define WORD_CACHE_BYTES 26u /* of a word */
#define WORD_CACHE_IDS 9u

struct word_cache_line {
	uint8_t length; /* 0: empty */
	uint8_t n_ids;
	char word[WORD_CACHE_BYTES];
	int32_t ids[WORD_CACHE_IDS];
};
_Static_assert(sizeof(struct word_cache_line) == 64, "a cache line");

struct word_cache {
	struct word_cache_line *lines; /* [n], a power of two; NULL: no cache */
	size_t n;
	uint64_t seed;
};

/* For a text of `length` bytes. Without memory there is no cache. */
void word_cache_init(struct word_cache *cache, size_t length);
void word_cache_deinit(struct word_cache *cache);

/* The place of a word, or NULL: words so long are not kept. */
struct word_cache_line *word_cache_line(
	const struct word_cache *cache, const char *word, size_t length);
/* Whether the word is there. */
static inline bool word_cache_has(
	const struct word_cache_line *line, const char *word, size_t length)
{
	return line->length == length && memcmp(line->word, word, length) == 0;
}
void word_cache_put(struct word_cache_line *line, const char *word, size_t length,
	const int32_t *ids, size_t n_ids);

#endif
