/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CPU_OPS_FIXTURE_H
#define MIMEO_TESTS_KERNELS_CPU_OPS_FIXTURE_H

/*
 * What the tests of the cpu device's ops share: a stream, buffers that are poisoned (0xff, a NaN)
 * and lie between canaries, and weights of every dtype with a decoder to double that shares nothing
 * with the one under test.
 *
 * With OPS_DEVICE defined before the include it is that device, and buffers are pinned memory,
 * which a GPU and the test can both read; everything that an op reads has to be in a buffer then.
 */

#include "tests/kernels/ops_fixture.h"

#ifdef OPS_DEVICE
#define OPS_PINNED true
#else
#define OPS_DEVICE "cpu"
#define OPS_PINNED false
#endif

static struct device *device;
static struct stream *stream;

static int group_setup(void **state)
{
	struct device_options options = {.spin_us = 0};

	if (device_open(OPS_DEVICE, &options, &device) != 0)
		return -1;
	return device->ops->stream_new(device, &stream);
}

static int group_teardown(void **state)
{
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

#define assert_refused(op, ...) assert_int_equal(device->kernels->op(stream, __VA_ARGS__), -EINVAL)

/* ---- buffers ---- */

#define CANARY_BYTES 64
#define F(buffer) ((float *)(buffer).data)
#define I(buffer) ((int32_t *)(buffer).data)

struct buffer {
	uint8_t *base;
	size_t bytes;
	void *data;
};

static struct buffer *buffers; /* of the test */
static size_t n_buffers;

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
	buffers = realloc(buffers, (n_buffers + 1) * sizeof(*buffers));
	assert_non_null(buffers);
	buffers[n_buffers++] = b;
	return b;
}

/* Frees all buffers but the first n and checks their canaries. */
static inline void buffers_free_to(size_t n)
{
	while (n_buffers > n) {
		const struct buffer b = buffers[--n_buffers];
		bool sound = true;

		for (size_t i = 0; i < CANARY_BYTES; i++)
			sound = sound && b.base[i] == 0xa5 &&
				b.base[CANARY_BYTES + b.bytes + i] == 0xa5;
		if (OPS_PINNED)
			device->ops->host_free(device, b.base);
		else
			free(b.base);
		assert_true(sound);
	}
}

static inline int buffers_release(void **state)
{
	buffers_free_to(0);
	free(buffers);
	buffers = NULL;
	scratch_release(NULL);
	return 0;
}

#define OPS_TEST_MAIN(name, tests)                                                                 \
	int main(void)                                                                             \
	{                                                                                          \
		return ops_run_group(name, tests, COUNT_OF(tests), group_setup, group_teardown,    \
			buffers_release);                                                          \
	}

static inline struct buffer random_floats(size_t n)
{
	struct buffer b = buffer_new(n * sizeof(float));

	random_fill_floats(&rng, b.data, n);
	return b;
}

/* ---- weights ---- */

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

static inline struct weight random_weight(enum dtype dtype, uint32_t rows, uint32_t cols)
{
	size_t n = (size_t)rows * cols;
	struct weight w = {.dtype = dtype, .rows = rows, .cols = cols};
	void *data = buffer_new(n * dtype_bytes(dtype)).data;

	for (size_t i = 0; i < n; i++)
		random_weight_value(data, dtype, i);
	w.data = data;
	return w;
}

static inline double norm_scale(const float *x, uint32_t n, float eps)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return 1 / sqrt(sum / n + (double)eps);
}

#endif
