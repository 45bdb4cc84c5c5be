/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_MASKS_H
#define MIMEO_TESTS_DAEMON_MASKS_H

/* Masks of requests by what the public header says, for the dense reference, and as requests bring them. */

#include "tests/daemon/rig.h"
#include "tests/dense.h"

/* Prompts without sense are to a trained model what any are to a random one. */
#define MASK_TOLERANCE test_logits_tolerance(false)
#define MASK_TOKENS_MAX 128

/* A mask, by what the public header says. begin: the request's first token. */
struct mask {
	struct mimeo_mask msg;
	uint32_t begin;
	uint64_t words[MASK_TOKENS_MAX]; /* by position */
};

/* Does the token at position q see that at k? For dense_logits. */
bool mask_sees(const void *mask, uint32_t q, uint32_t k);
/* Tokens, then the words of a mask that has some: the number of int32_t in payload, 3 n at most. */
uint32_t mask_payload(const struct mask *m, const int32_t *tokens, uint32_t n, int32_t *payload);

#endif
