/* SPDX-License-Identifier: MIT */
#include "sdk/text/word_cache.h"

#include <assert.h>
#include <stdlib.h>

#include "sdk/text/hash.h"

#define WORD_CACHE_LINES_MIN 64u
#define WORD_CACHE_LINES_MAX 32768u /* 2 MiB */
#define WORD_CACHE_SHARE 8u         /* bytes of text for each line */

void word_cache_init(struct word_cache *cache, size_t length)
{
	size_t n = WORD_CACHE_LINES_MIN;

	while (n < length / WORD_CACHE_SHARE && n < WORD_CACHE_LINES_MAX)
		n *= 2;
	*cache = (struct word_cache){.n = n, .seed = hash_seed()};
	cache->lines = calloc(n, sizeof(*cache->lines));
}

void word_cache_deinit(struct word_cache *cache)
{
	free(cache->lines);
	*cache = (struct word_cache){0};
}

struct word_cache_line *word_cache_line(
	const struct word_cache *cache, const char *word, size_t length)
{
	if (length > WORD_CACHE_BYTES || !cache->lines)
		return NULL;
	return &cache->lines[hash_bytes(cache->seed, word, length) & (cache->n - 1)];
}

void word_cache_put(struct word_cache_line *line, const char *word, size_t length,
	const int32_t *ids, size_t n_ids)
{
	assert(length > 0 && length <= WORD_CACHE_BYTES);
	if (n_ids > WORD_CACHE_IDS)
		return;
	line->length = (uint8_t)length;
	line->n_ids = (uint8_t)n_ids;
	memcpy(line->word, word, length);
	for (size_t i = 0; i < n_ids; i++)
		line->ids[i] = ids[i];
}
