/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_VOCABULARY_H
#define MIMEO_SDK_TEXT_VOCABULARY_H

/*
 * Tokens and their ids, both ways. Tokens are added while a file is read; then any number of
 * threads may look them up.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sdk/text/buffer.h"

#define VOCABULARY_TOKENS_MAX (1u << 22)
#define VOCABULARY_IDS_MAX (1u << 22) /* ids are less */

struct vocabulary_entry {
	uint32_t start, length; /* in text */
	int32_t id;
};

struct vocabulary {
	struct bytes text;                /* the tokens, one behind the other */
	struct vocabulary_entry *entries; /* [n], in the order in which they were added */
	uint32_t n, capacity;
	uint32_t *by_id; /* [n_ids] index of an entry + 1, or 0 */
	uint32_t n_ids, by_id_capacity;
	struct vocabulary_slot {
		uint32_t hash;  /* its upper half */
		uint32_t entry; /* + 1, or 0 */
	} * slots;              /* [n_slots], a power of two */
	size_t n_slots;
	uint32_t n_distinct; /* tokens that are found */
	uint64_t seed;
};

/* Room for n tokens. 0 or NO_MEMORY; vocabulary_deinit in either case. */
int vocabulary_init(struct vocabulary *vocabulary, uint32_t n);
void vocabulary_deinit(struct vocabulary *vocabulary);
/* Add a token. If it is there already, it is found with the new id from now on. 0, INVALID (the id
 * or the number of tokens exceeds its bound, or the id has another token), or NO_MEMORY. */
int vocabulary_add(struct vocabulary *vocabulary, const char *token, size_t length, int32_t id);

/* The token's id, or -1. */
int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token, size_t length);
/* The token of an id, not terminated; NULL: the id has none. */
const char *vocabulary_token(const struct vocabulary *vocabulary, int32_t id, size_t *ret_length);

#endif
