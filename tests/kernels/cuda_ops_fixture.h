/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CUDA_OPS_FIXTURE_H
#define MIMEO_TESTS_KERNELS_CUDA_OPS_FIXTURE_H

/*
 * The cpu device as the oracle of the CUDA device: each buffer exists on both, poisoned (0xff, a
 * NaN) and between canaries, each op runs on both with the same arguments, and what it left is
 * compared. Activations are float32 on one and bf16 on the other, so inputs are numbers that bf16
 * has.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/device.h"
#include "kernels/ops.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define CANARY_BYTES 256

enum side { CPU, CUDA, N_SIDES };

static struct device *devices[N_SIDES];
static struct stream *streams[N_SIDES];

/* An op on one side, to its end. */
#define RUN(side, op, args)                                                                        \
	do {                                                                                       \
		assert_int_equal(devices[side]->kernels->op(streams[side], (args)), 0);            \
		assert_int_equal(devices[side]->ops->stream_sync(streams[side]), 0);               \
	} while (0)

/* ---- random numbers, another sequence in each run; the seed is printed ---- */

static uint64_t random_state;

static inline uint32_t random_u32(void)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(random_state >> 32);
}

static inline uint32_t random_below(uint32_t n)
{
	return (uint32_t)((uint64_t)random_u32() * n >> 32);
}

/* In (-1, 1). */
static inline float random_float(void)
{
	return (float)((int32_t)random_u32()) * 0x1p-31f;
}

static inline float random_normal(void)
{
	double u = ((double)random_u32() + 0.5) * 0x1p-32, v = (double)random_u32() * 0x1p-32;

	return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static inline float bf16_value(uint16_t bits)
{
	uint32_t word = (uint32_t)bits << 16;
	float value;

	memcpy(&value, &word, sizeof(value));
	return value;
}

static inline uint16_t bf16_bits(float value)
{
	uint32_t word;

	memcpy(&word, &value, sizeof(word));
	return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

/* ---- buffers ---- */

enum kind { ACT, BYTES };

struct both {
	enum kind kind;
	bool pinned;
	size_t n, shift;
	uint8_t *base[N_SIDES];
	void *at[N_SIDES];
};

static inline size_t both_bytes(const struct both *b, int side)
{
	return b->kind == BYTES ? b->n : b->n * (side == CPU ? 4 : 2);
}

static inline void both_copy(int side, void *dst, const void *src, size_t bytes)
{
	assert_int_equal(devices[side]->ops->copy(devices[side], dst, src, bytes), 0);
}

/* n elements (ACT) or bytes; `shift` elements off the allocation's alignment. */
static inline struct both both_new_at(enum kind kind, size_t n, size_t shift, bool pinned)
{
	struct both b = {.kind = kind, .n = n, .shift = shift, .pinned = pinned};

	for (int side = 0; side < N_SIDES; side++) {
		const struct device_ops *ops = devices[side]->ops;
		size_t element = kind == BYTES ? 1 : side == CPU ? 4 : 2;
		size_t bytes = both_bytes(&b, side),
		       whole = bytes + shift * element + 2 * CANARY_BYTES;
		uint8_t *image = malloc(whole);
		void *memory;

		assert_non_null(image);
		assert_int_equal(
			(pinned ? ops->host_alloc : ops->mem_alloc)(devices[side], whole, &memory),
			0);
		b.base[side] = memory;
		b.at[side] = b.base[side] + CANARY_BYTES + shift * element;
		memset(image, 0xa5, whole);
		memset(image + CANARY_BYTES + shift * element, 0xff, bytes);
		both_copy(side, memory, image, whole);
		free(image);
	}
	return b;
}

static inline struct both both_new(enum kind kind, size_t n)
{
	return both_new_at(kind, n, 0, false);
}

static inline struct both both_new_pinned(size_t n)
{
	return both_new_at(BYTES, n, 0, true);
}

/* Checks the canaries. */
static inline void both_free(struct both *b)
{
	for (int side = 0; side < N_SIDES; side++) {
		const struct device_ops *ops = devices[side]->ops;
		size_t bytes = both_bytes(b, side);
		size_t before = (size_t)((uint8_t *)b->at[side] - b->base[side]);
		uint8_t *image = malloc(before + bytes + CANARY_BYTES);

		assert_non_null(image);
		both_copy(side, image, b->base[side], before + bytes + CANARY_BYTES);
		for (size_t i = 0; i < before + CANARY_BYTES; i++)
			if (image[i < before ? i : i + bytes] != 0xa5)
				fail_msg("%s wrote outside its buffer: byte %zd",
					side ? "cuda" : "cpu",
					(ssize_t)(i < before ? i : i + bytes) - (ssize_t)before);
		free(image);
		(b->pinned ? ops->host_free : ops->mem_free)(devices[side], b->base[side]);
	}
}

/* `data`: the bytes, or floats which are rounded to bf16 on both sides. */
static inline void both_put(struct both *b, const void *data)
{
	float *rounded;
	uint16_t *halves;

	if (b->kind == BYTES) {
		for (int side = 0; side < N_SIDES; side++)
			both_copy(side, b->at[side], data, b->n);
		return;
	}
	rounded = malloc(b->n * 4 + 1);
	halves = malloc(b->n * 2 + 1);
	assert_true(rounded && halves);
	for (size_t i = 0; i < b->n; i++) {
		halves[i] = bf16_bits(((const float *)data)[i]);
		rounded[i] = bf16_value(halves[i]);
	}
	both_copy(CPU, b->at[CPU], rounded, b->n * 4);
	both_copy(CUDA, b->at[CUDA], halves, b->n * 2);
	free(rounded);
	free(halves);
}

static inline struct both both_of(const void *data, size_t bytes)
{
	struct both b = both_new(BYTES, bytes);

	both_put(&b, data);
	return b;
}

static inline struct both random_act_at(size_t n, float scale, size_t shift)
{
	struct both b = both_new_at(ACT, n, shift, false);
	float *values = malloc(n * sizeof(*values) + 1);

	assert_non_null(values);
	for (size_t i = 0; i < n; i++)
		values[i] = scale * random_float();
	both_put(&b, values);
	free(values);
	return b;
}

static inline struct both random_act(size_t n)
{
	return random_act_at(n, 2, 0);
}

/* Values of magnitude 2^-8 to 2. The weight's data is to be set to .at[side]. */
static inline struct both random_weight(
	struct weight *w, enum dtype dtype, uint32_t rows, uint32_t cols)
{
	size_t n = (size_t)rows * cols;
	uint8_t *data = malloc(n * 4);
	struct both b;

	assert_non_null(data);
	*w = (struct weight){.dtype = dtype, .rows = rows, .cols = cols};
	for (size_t i = 0; i < n; i++) {
		uint32_t sign = random_u32() & 1, below_one = random_below(8), noise = random_u32();

		if (dtype == DTYPE_F32)
			((float *)(void *)data)[i] = random_float();
		else if (dtype == DTYPE_BF16)
			((uint16_t *)(void *)data)[i] =
				(uint16_t)(sign << 15 | (126 - below_one) << 7 | (noise & 0x7f));
		else
			((uint16_t *)(void *)data)[i] =
				(uint16_t)(sign << 15 | (14 - below_one) << 10 | (noise & 0x3ff));
	}
	b = both_of(data, n * dtype_bytes(dtype));
	free(data);
	return b;
}

/* What the side holds, as floats; the caller's. */
static inline float *both_floats(const struct both *b, int side)
{
	float *values = malloc(b->n * 4 + 1);
	uint16_t *halves = malloc(b->n * 2 + 1);

	assert_true(values && halves);
	if (side == CPU)
		both_copy(side, values, b->at[side], b->n * 4);
	else
		both_copy(side, halves, b->at[side], b->n * 2);
	for (size_t i = 0; side == CUDA && i < b->n; i++)
		values[i] = bf16_value(halves[i]);
	free(halves);
	return values;
}

/* Every element within relative * |cpu's| + absolute, or a NaN on both sides. */
static inline void both_check_close(const struct both *b, double relative, double absolute)
{
	float *want = both_floats(b, CPU), *got = both_floats(b, CUDA);

	for (size_t i = 0; i < b->n; i++) {
		double limit = relative * fabs((double)want[i]) + absolute;

		if (isnan(want[i]) && isnan(got[i]))
			continue;
		if (!(fabs((double)got[i] - (double)want[i]) <= limit))
			fail_msg("element %zu: cuda %.9g, cpu %.9g, off by more than %.3g", i,
				(double)got[i], (double)want[i], limit);
	}
	free(want);
	free(got);
}

static inline void both_check_equal(const struct both *b, const char *what)
{
	uint8_t *want = malloc(b->n + 1), *got = malloc(b->n + 1);

	assert_true(want && got && b->kind == BYTES);
	both_copy(CPU, want, b->at[CPU], b->n);
	both_copy(CUDA, got, b->at[CUDA], b->n);
	for (size_t i = 0; i < b->n; i++)
		if (want[i] != got[i]) {
			size_t word = i / 4 * 4;
			int32_t w = 0, g = 0;

			memcpy(&w, want + word, b->n - word < 4 ? b->n - word : 4);
			memcpy(&g, got + word, b->n - word < 4 ? b->n - word : 4);
			fail_msg("%s: word %zu: cuda %d, cpu %d", what, word / 4, g, w);
		}
	free(want);
	free(got);
}

/* ---- the program ---- */

static inline void devices_close(void)
{
	for (int side = 0; side < N_SIDES; side++) {
		if (devices[side] == NULL)
			continue;
		devices[side]->ops->stream_free(streams[side]);
		devices[side]->ops->free(devices[side]);
	}
}

/* 0; or 77 where there is no CUDA device, having said so in TAP; or 1. */
static inline int devices_open(void)
{
	const char *seed = getenv("MIMEO_TEST_SEED");
	int rc = device_open("cuda", NULL, &devices[CUDA]);

	if (rc == -ENODEV || rc == -ENOTSUP) {
		printf("1..0 # SKIP no CUDA device: %s\n", device_strerror(rc));
		return 77;
	}
	if (rc == 0)
		rc = device_open("cpu", NULL, &devices[CPU]);
	for (int side = 0; rc == 0 && side < N_SIDES; side++)
		rc = devices[side]->ops->stream_new(devices[side], &streams[side]);
	if (rc != 0) {
		printf("Bail out! the devices don't open: %s\n", device_strerror(rc));
		return 1;
	}
	random_state = seed != NULL ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	printf("# MIMEO_TEST_SEED=%llu\n", (unsigned long long)random_state);
	return 0;
}

/* The devices are open for the length of the group. */
#define CUDA_TEST_MAIN(name, tests)                                                                \
	int main(void)                                                                             \
	{                                                                                          \
		int rc = devices_open();                                                           \
		if (rc == 0)                                                                       \
			rc = cmocka_run_group_tests_name(name, tests, NULL, NULL);                 \
		devices_close();                                                                   \
		return rc == 77 ? 0 : rc;                                                          \
	}

#endif
