/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_HASH_H
#define MIMEO_SDK_TEXT_HASH_H

/* Hashes of the library's tables. Keys come from files and texts that may be made to collide, so
 * each table has a random seed. */

#include <stddef.h>
#include <stdint.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash_seed(void);

static inline uint64_t hash_bytes(uint64_t seed, const char *bytes, size_t length)
{
	return XXH3_64bits_withSeed(bytes, length, seed);
}

/* A bijection of 64 bits for each seed (the finaliser of MurmurHash3, A. Appleby, public domain).
 */
static inline uint64_t hash_word(uint64_t seed, uint64_t word)
{
	word ^= seed;
	word ^= word >> 33;
	word *= 0xff51afd7ed558ccdu;
	word ^= word >> 33;
	word *= 0xc4ceb9fe1a85ec53u;
	return word ^ word >> 33;
}

/* A power of two of slots that n entries fill at most by half. */
static inline size_t hash_slots(size_t n)
{
	size_t slots = 16;

	while (slots < 2 * n)
		slots *= 2;
	return slots;
}

#endif
