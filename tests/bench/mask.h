/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_MASK_H
#define MIMEO_TESTS_BENCH_MASK_H

/*
 * The mask that attention is measured under: its program, each token's word, and what it leaves to
 * be read and computed, by the functions of masks themselves.
 */

#include <stdbool.h>

#include "kernels/ops.h"

struct bench_mask {
	enum mask_kind kind;
	uint32_t n; /* of a window, a prefix, a document, a tree: tokens */
};

/* "causal", "window:N", "prefix:N", "documents:N", "tree:N"; NULL: causal. False: none of these. */
bool bench_mask_parse(const char *text, struct bench_mask *ret);
/* Tokens that a decoding row has: of a tree all of it, in one pass, otherwise one. */
uint32_t bench_mask_query(const struct bench_mask *mask);

/* The program and a token's word, for a row of so many tokens in all. */
struct slot_mask bench_mask_program(const struct bench_mask *mask, uint32_t context);
uint64_t bench_mask_word(const struct bench_mask *mask, uint32_t position, uint32_t context);

struct bench_mask_cost {
	double pairs;  /* of a token of the query and one that it sees */
	uint64_t keys; /* that any of them sees */
};
/* Of a row whose last `query` tokens of `context` attend. */
struct bench_mask_cost bench_mask_cost(
	const struct bench_mask *mask, uint32_t query, uint32_t context);

#endif
