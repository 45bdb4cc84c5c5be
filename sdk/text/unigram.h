/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_UNIGRAM_H
#define MIMEO_SDK_TEXT_UNIGRAM_H

/*
 * The unigram model (Kudo 2018, arXiv:1804.10959): a word becomes the tokens whose scores,
 * logarithms of probabilities, have the greatest sum.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sdk/text/buffer.h"
#include "sdk/text/trie.h"
#include "sdk/text/vocabulary.h"

#define UNIGRAM_UNKNOWN_PENALTY 10.0 /* below the least score of a token */

struct unigram {
	const struct vocabulary *vocabulary;
	struct trie trie; /* values are ids */
	double *scores;   /* [n_ids] */
	double unknown_score;
	int32_t unknown; /* -1: none */
	bool byte_fallback;
	int32_t fallback[256]; /* ids of <0x00> ..., or -1 */
};

/* vocabulary, scores (owned from now on), unknown and byte_fallback are set. 0, INVALID or
 * NO_MEMORY. */
int unigram_prepare(struct unigram *unigram);
void unigram_deinit(struct unigram *unigram);

/* The best tokens of the text up to a position. */
struct unigram_node {
	double score;
	uint32_t start; /* of the last of them; UINT32_MAX: the position is not reached */
	int32_t id;
};

struct unigram_work {
	struct unigram_node *nodes; /* [capacity] */
	size_t capacity;
};
void unigram_work_deinit(struct unigram_work *work);

/* Add the ids of a word. 0, INVALID (an unknown character, and there is no unknown token), or
 * NO_MEMORY. */
int unigram_encode(const struct unigram *unigram, struct unigram_work *work, const char *word,
	size_t length, struct ids *out);

#endif
