/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_BPE_H
#define MIMEO_SDK_TEXT_BPE_H

/*
 * Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909): a word's characters are merged,
 * always the pair of the lowest rank, the leftmost of these.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sdk/text/buffer.h"
#include "sdk/text/merges.h"
#include "sdk/text/vocabulary.h"

#define BPE_AFFIX_MAX 64u /* bytes of the prefix and of the suffix */

struct bpe {
	const struct vocabulary *vocabulary;
	struct merges merges;
	char prefix[BPE_AFFIX_MAX],
		suffix[BPE_AFFIX_MAX]; /* continuing_subword_prefix, end_of_word_suffix */
	size_t prefix_length, suffix_length;
	int32_t unknown;  /* -1: the vocabulary lacks it */
	bool has_unknown; /* unk_token is given: without it unknown characters are left out */
	bool fuse_unknown, ignore_merges;
	bool byte_fallback;
	int32_t fallback[256]; /* ids of <0x00> ..., or -1 */
	/* Words are bytes, and their characters those of byte_level.h. */
	bool is_byte_level;
	int32_t byte_ids[256]; /* ids of these characters, or -1 */
	size_t longest;        /* token of the vocabulary, in bytes */
	/* For bpe_cut: characters that have an id, and pairs of characters that a merge may join;
	 * NULL: words are not cut. */
	uint64_t *known;
	uint64_t *joins;
	uint64_t ascii_joins[128][2];
};

/* The other members are set: vocabulary to byte_fallback, and is_byte_level. 0 or NO_MEMORY. */
int bpe_prepare(struct bpe *bpe);
void bpe_deinit(struct bpe *bpe);

struct bpe_work {
	struct ids symbols;
	struct bytes text; /* a word in characters of byte_level.h */
	uint32_t *links;   /* of merges_apply_long */
	uint64_t *heap;
	size_t capacity;
};
void bpe_work_deinit(struct bpe_work *work);

/* Add the ids of a word. 0, INVALID (an unknown character, and the vocabulary lacks unk_token), or
 * NO_MEMORY. */
int bpe_encode(const struct bpe *bpe, struct bpe_work *work, const char *word, size_t length,
	struct ids *out);

/*
 * The length of a part of word[length] that can be encoded by itself, because no merge joins the
 * characters on both sides of its end. Tokenizers without a pre-tokenizer give whole texts as a
 * word: these parts are about as long as words.
 */
size_t bpe_cut(const struct bpe *bpe, const char *word, size_t length);

#endif
