/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CPU_OPS_FIXTURE_H
#define MIMEO_TESTS_KERNELS_CPU_OPS_FIXTURE_H

/*
 * What the tests of the cpu device's ops share: a stream, buffers that are poisoned (0xff, a NaN)
 * and stand between canaries, repeatable random numbers, and weights of every dtype with a decoder
 * to double that has nothing in common with the one under test.
 *
 * With OPS_DEVICE defined ahead it is that device, and buffers are pinned memory, which a GPU sees
 * as well as the test does; whatever else an op reads is then to be in a buffer too.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "kernels/ops.h"

#ifdef OPS_DEVICE
#define OPS_PINNED true
#else
#define OPS_DEVICE "cpu"
#define OPS_PINNED false
#endif

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static struct device *device;
static struct stream *stream;

static int group_setup(void **state)
{
	struct device_options options = {.spin_us = 0};

	(void)state;
	if (device_open(OPS_DEVICE, &options, &device) != 0)
		return -1;
	return device->ops->stream_new(device, &stream);
}

static int group_teardown(void **state)
{
	(void)state;
	device->ops->stream_free(stream);
	device->ops->free(device);
	return 0;
}

/* Launch an op and wait for it. */
#define RUN(op, args)                                                                              \
	do {                                                                                       \
		assert_int_equal(device->kernels->op(stream, (args)), 0);                          \
		assert_int_equal(device->ops->stream_sync(stream), 0);                             \
	} while (0)

/* ---- buffers ---- */

#define CANARY_BYTES 64

struct buffer {
	uint8_t *base;
	size_t bytes;
	void *data;
};

static inline struct buffer buffer_new(size_t bytes)
{
	struct buffer b = {.bytes = bytes};
	void *memory = NULL;

	if (OPS_PINNED)
		assert_int_equal(
			device->ops->host_alloc(device, bytes + 2 * CANARY_BYTES, &memory), 0);
	else
		memory = malloc(bytes + 2 * CANARY_BYTES);
	assert_non_null(memory);
	b.base = memory;
	b.data = b.base + CANARY_BYTES;
	memset(b.base, 0xa5, bytes + 2 * CANARY_BYTES);
	memset(b.data, 0xff, bytes);
	return b;
}

static inline void buffer_free(struct buffer *b)
{
	for (size_t i = 0; i < CANARY_BYTES; i++) {
		assert_int_equal(b->base[i], 0xa5);
		assert_int_equal(b->base[CANARY_BYTES + b->bytes + i], 0xa5);
	}
	if (OPS_PINNED)
		device->ops->host_free(device, b->base);
	else
		free(b->base);
}

/* ---- random numbers ---- */

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

static inline struct buffer random_floats(size_t n)
{
	struct buffer b = buffer_new(n * sizeof(float));

	for (size_t i = 0; i < n; i++)
		((float *)b.data)[i] = random_float();
	return b;
}

/* ---- weights ---- */

static const enum dtype weight_dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static inline double decode(uint32_t bits, int exponent_bits, int mantissa_bits)
{
	uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
	uint32_t exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
	int bias = (1 << (exponent_bits - 1)) - 1;
	double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;

	if (exponent == (1u << exponent_bits) - 1)
		return mantissa ? (double)NAN : sign * (double)INFINITY;
	if (!exponent)
		return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
	return sign * ldexp(mantissa + (double)(1u << mantissa_bits),
			      (int)exponent - bias - mantissa_bits);
}

static inline double weight_at(const struct weight *w, size_t row, size_t col)
{
	size_t i = row * w->cols + col;

	if (w->dtype == DTYPE_F32)
		return (double)((const float *)w->data)[i];
	if (w->dtype == DTYPE_BF16)
		return decode(((const uint16_t *)w->data)[i], 8, 7);
	return decode(((const uint16_t *)w->data)[i], 5, 10);
}

/* Values of magnitude 2^-8 to 2, both signs, random mantissas; the buffer is the caller's. */
static inline struct buffer random_weight(
	struct weight *w, enum dtype dtype, uint32_t rows, uint32_t cols)
{
	size_t n = (size_t)rows * cols;
	struct buffer b = buffer_new(n * dtype_bytes(dtype));

	*w = (struct weight){.data = b.data, .dtype = dtype, .rows = rows, .cols = cols};
	for (size_t i = 0; i < n; i++) {
		uint32_t sign = random_u32() & 1, below_one = random_below(8), noise = random_u32();

		if (dtype == DTYPE_F32)
			((float *)b.data)[i] = random_float();
		else if (dtype == DTYPE_BF16)
			((uint16_t *)b.data)[i] =
				(uint16_t)(sign << 15 | (126 - below_one) << 7 | (noise & 0x7f));
		else
			((uint16_t *)b.data)[i] =
				(uint16_t)(sign << 15 | (14 - below_one) << 10 | (noise & 0x3ff));
	}
	return b;
}

static inline void assert_close(double got, double want, double tolerance)
{
	if (!(fabs(got - want) <= tolerance))
		fail_msg("got %.9g, want %.9g within %.3g", got, want, tolerance);
}

static inline double norm_scale(const float *x, uint32_t n, float eps)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return 1 / sqrt(sum / n + (double)eps);
}

#endif
