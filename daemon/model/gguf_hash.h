/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_HASH_H
#define MIMEO_DAEMON_MODEL_GGUF_HASH_H

/*
 * Polynomial hashes, from which those of all prefixes and suffixes of a text follow. The text's bytes are the
 * coefficients; the polynomial is evaluated at a random point modulo the prime 2^61 - 1. Two given texts of n bytes
 * collide with a probability of at most n / 2^61. Modulo 2^64, Thue-Morse texts collide at every point.
 */

#include <stdint.h>
#include <sys/random.h>
#include <time.h>

#define GGUF_HASH_PRIME ((UINT64_C(1) << 61) - 1)

__extension__ typedef unsigned __int128 gguf_hash_product;

/* Both are below the prime, and their product is 1. */
struct gguf_hash_point {
	uint64_t base, inverse;
};

static inline uint64_t gguf_hash_add(uint64_t a, uint64_t b)
{
	uint64_t sum = a + b;

	return sum >= GGUF_HASH_PRIME ? sum - GGUF_HASH_PRIME : sum;
}

static inline uint64_t gguf_hash_subtract(uint64_t a, uint64_t b)
{
	return a >= b ? a - b : a + GGUF_HASH_PRIME - b;
}

static inline uint64_t gguf_hash_multiply(uint64_t a, uint64_t b)
{
	gguf_hash_product product = (gguf_hash_product)a * b;

	return gguf_hash_add((uint64_t)product & GGUF_HASH_PRIME, (uint64_t)(product >> 61));
}

/* The hash of a text and one byte more. */
static inline uint64_t gguf_hash_append(
	const struct gguf_hash_point *point, uint64_t hash, uint8_t byte)
{
	return gguf_hash_add(gguf_hash_multiply(hash, point->base), byte + UINT64_C(1));
}

/* A number's power of the prime less 2 is its inverse (Fermat). */
static inline void gguf_hash_choose(struct gguf_hash_point *ret)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
		random = (uint64_t)time(NULL) * UINT64_C(0x9e3779b97f4a7c15);
	ret->base = 256 + random % (GGUF_HASH_PRIME - 256);
	ret->inverse = 1;
	for (int bit = 60; bit >= 0; bit--) {
		ret->inverse = gguf_hash_multiply(ret->inverse, ret->inverse);
		if ((GGUF_HASH_PRIME - 2) >> bit & 1)
			ret->inverse = gguf_hash_multiply(ret->inverse, ret->base);
	}
}

#endif
