/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DENSE_H
#define MIMEO_TESTS_DENSE_H

/*
 * Tinycalc by the book, in double: no pages, no steps, no cache, and attention over a mask that a
 * function writes out, key by key. It reads the checkpoint by itself and shares nothing with the daemon
 * but the file.
 */

#include <stdbool.h>
#include <stdint.h>

#define DENSE_LAYERS 5
#define DENSE_VOCAB 256
#define DENSE_TOKENS_MAX 160

struct dense_layer {
	float *input_norm, *post_norm, *q, *k, *v, *o, *gate, *up, *down;
};

struct dense {
	float *embedding, *norm, *head;
	struct dense_layer layers[DENSE_LAYERS];
};

/* Reads examples/models/tinycalc; fails the test if it cannot. */
void dense_open(struct dense *dense);
void dense_close(struct dense *dense);

/* Does token q attend to token k? */
typedef bool dense_sees(const void *mask, uint32_t q, uint32_t k);

/* The logits of the last of n tokens. positions: to rotate by, NULL: 0, 1, ... */
void dense_logits(const struct dense *dense, const int32_t *tokens, const uint32_t *positions,
	uint32_t n, dense_sees *sees, const void *mask, double ret[static DENSE_VOCAB]);
/* Fails the test if the logits are further off than a part of the largest. */
void dense_check(const double expected[static DENSE_VOCAB], const float *logits, double tolerance);
/* The token that greedy decoding takes next; -1 where the best two are closer than `margin`. */
int32_t dense_next(const double logits[static DENSE_VOCAB], double margin);

#endif
