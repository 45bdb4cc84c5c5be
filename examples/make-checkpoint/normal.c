/* SPDX-License-Identifier: MIT */
#include "examples/make-checkpoint/normal.h"

#include <math.h>
#include <string.h>

/* x with erf(x / sqrt 2) as the middle of each of NORMAL_QUANTILES equal parts has it, by
 * bisection. */
static void normal_fill_quantiles(float quantiles[NORMAL_QUANTILES])
{
	for (uint32_t i = 0; i < NORMAL_QUANTILES / 2; i++) {
		double want = (2 * i + 1.0) / NORMAL_QUANTILES, low = 0, high = 8;

		for (int step = 0; step < 50; step++) {
			double middle = (low + high) / 2;

			if (erf(middle * M_SQRT1_2) < want)
				low = middle;
			else
				high = middle;
		}
		quantiles[NORMAL_QUANTILES / 2 + i] = (float)low;
		quantiles[NORMAL_QUANTILES / 2 - 1 - i] = (float)-low;
	}
}

void normal_init(struct normal *normal, uint64_t seed)
{
	normal->seed = seed;
	normal_fill_quantiles(normal->quantiles);
}

static uint16_t normal_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t normal_mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t normal_key(uint64_t seed, const char *name)
{
	uint64_t key = normal_mix(seed + 0x9e3779b97f4a7c15u);

	for (; *name; name++)
		key = normal_mix(key ^ (uint8_t)*name);
	return key;
}

/* Elements 4 * group ...; one word of random bits makes four. */
static void normal_fill_groups(uint16_t *to, uint64_t n_groups, uint64_t key, uint64_t group,
	const uint16_t table[NORMAL_QUANTILES])
{
	for (uint64_t i = 0; i < n_groups; i++, to += 4) {
		uint64_t bits = normal_mix(key + (group + i) * 0x9e3779b97f4a7c15u);

		to[0] = table[bits & (NORMAL_QUANTILES - 1)];
		to[1] = table[bits >> 16 & (NORMAL_QUANTILES - 1)];
		to[2] = table[bits >> 32 & (NORMAL_QUANTILES - 1)];
		to[3] = table[bits >> 48 & (NORMAL_QUANTILES - 1)];
	}
}

void normal_fill(const struct normal *normal, const char *name, double mean, double deviation,
	uint64_t first, uint64_t n, uint16_t *to)
{
	uint16_t table[NORMAL_QUANTILES];

	for (uint32_t i = 0; i < NORMAL_QUANTILES; i++)
		table[i] = normal_bf16((float)(mean + deviation * normal->quantiles[i]));
	normal_fill_groups(to, (n + 3) / 4, normal_key(normal->seed, name), first / 4, table);
}
