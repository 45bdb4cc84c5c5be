/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_OWN_GEMM_H
#define MIMEO_TESTS_KERNELS_OWN_GEMM_H

/* Products of random numbers, by each variant of our kernels, against sums in double precision. */

#include "kernels/convert.h"
#include "kernels/packed.h"
#include "tests/kernels/cuda_fixture.h"

#include <math.h>
#include <time.h>

static inline size_t aligned(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

/* Nearly normal: the sum of four numbers between -1/2 and 1/2, of variance 1. */
static inline double normal(uint64_t *state)
{
	double sum = -2;

	*state = *state * 6364136223846793005u + 1442695040888963407u;
	for (int i = 0; i < 4; i++)
		sum += (double)((*state ^ *state >> 31) >> (12 * i) & 0xfff) / 4096;
	return sum * 1.7320508075688772;
}

struct shape_case {
	uint32_t rows, n, k;
	bool f32, bias, gated, invariant;
	enum packed_kind packed;
	bool add; /* to y */
};

struct sample {
	uint16_t *x, *bias;
	float *w; /* [n, k] what W stands for */
	float *bias32;
	uint8_t *memory; /* on the device: x, w, factors, bias, gate_up, y */
	size_t x_at, w_at, factors_at, bias_at, gate_up_at, y_at, y_bytes;
};

static inline uint16_t *random_bf16(size_t n, double scale, uint64_t *state)
{
	uint16_t *values = calloc(n, sizeof(*values));

	assert_non_null(values);
	for (size_t i = 0; i < n; i++)
		values[i] = f32_to_bf16((float)(scale * normal(state)));
	return values;
}

static inline uint32_t random_below(uint32_t n, uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((*state >> 33) % n);
}

static inline enum dtype dtype_of(enum packed_kind kind)
{
	switch (kind) {
	case PACKED_NOT:
		return DTYPE_BF16;
	case PACKED_U4:
		return DTYPE_U4;
	case PACKED_U4_32:
		return DTYPE_U4_32;
	default:
		return DTYPE_E4M3;
	}
}

static inline size_t w_bytes_of(const struct shape_case *c)
{
	return c->packed == PACKED_NOT ? (size_t)c->n * c->k * 2
				       : packed_bytes(c->n, c->k, dtype_of(c->packed), c->packed != PACKED_E4M3_ROWS);
}

/* Random codes, as units; of e4m3 no NaN, but all else, subnormals too. factors: [n], of whole rows. */
static inline void random_units(const struct shape_case *c, uint8_t *to, float *factors, uint64_t *state)
{
	const bool is_u4 = packed_is_u4(dtype_of(c->packed)), grouped = c->packed != PACKED_E4M3_ROWS;
	const size_t unit_bytes = packed_unit_bytes(dtype_of(c->packed), grouped);
	const double scale = (is_u4 ? 0.2 : 0.006) / sqrt((double)c->k);
	uint8_t codes[PACKED_ROWS * PACKED_COLS], zeros[PACKED_GROUPS_MAX * PACKED_ROWS];
	float group[PACKED_GROUPS_MAX * PACKED_ROWS];

	for (size_t i = 0; i < (size_t)(c->n / PACKED_ROWS) * (c->k / PACKED_COLS); i++, to += unit_bytes) {
		for (size_t j = 0; j < sizeof(codes); j++) {
			codes[j] = (uint8_t)random_below(is_u4 ? 16 : 256, state);
			if (!is_u4 && (codes[j] & 0x7f) == 0x7f)
				codes[j] = 0;
		}
		for (size_t r = 0; r < packed_groups(dtype_of(c->packed)) * PACKED_ROWS; r++) {
			zeros[r] = (uint8_t)random_below(17, state);
			group[r] = bf16_to_f32(f32_to_bf16((float)(scale * (0.5 + random_below(1000, state) / 1000.0))));
		}
		packed_unit(to, dtype_of(c->packed), codes, PACKED_COLS, grouped ? group : NULL, is_u4 ? zeros : NULL);
	}
	for (uint32_t r = 0; r < c->n; r++)
		factors[r] = (float)(scale * (0.5 + random_below(1000, state) / 1000.0));
}

/* W's memory, in its form; *ret: its numbers. */
static inline uint8_t *random_weight(const struct shape_case *c, float *ret, float *factors, uint64_t *state)
{
	uint16_t *plain;

	if (c->packed == PACKED_NOT) {
		plain = random_bf16((size_t)c->n * c->k, 1 / sqrt((double)c->k), state);
		for (size_t i = 0; i < (size_t)c->n * c->k; i++)
			ret[i] = bf16_to_f32(plain[i]);
		return (uint8_t *)plain;
	}
	uint8_t *units = calloc(1, w_bytes_of(c));
	const struct weight w = {.data = units,
		.dtype = dtype_of(c->packed),
		.rows = c->n,
		.cols = c->k,
		.factors = c->packed == PACKED_E4M3_ROWS ? factors : NULL};

	assert_non_null(units);
	random_units(c, units, factors, state);
	for (uint32_t row = 0; row < c->n; row++)
		packed_to_f32(&w, row, ret + (size_t)row * c->k);
	return units;
}

static inline struct sample sample_new(struct fixture *f, const struct shape_case *c, uint64_t *state)
{
	struct sample s = {.w_at = aligned((size_t)c->rows * c->k * 2)};
	const uint32_t y_cols = c->gated ? c->n / 2 : c->n;
	float *factors = calloc(c->n, sizeof(*factors));
	uint8_t *weight;
	void *memory;

	s.x = random_bf16((size_t)c->rows * c->k, 1, state);
	s.w = calloc((size_t)c->n * c->k, sizeof(*s.w));
	assert_non_null(s.w);
	assert_non_null(factors);
	weight = random_weight(c, s.w, factors, state);
	s.bias = random_bf16(c->n, 1, state);
	s.bias32 = calloc(c->n, sizeof(*s.bias32));
	assert_non_null(s.bias32);
	for (uint32_t i = 0; i < c->n; i++)
		s.bias32[i] = bf16_to_f32(s.bias[i]);
	s.factors_at = s.w_at + aligned(w_bytes_of(c));
	s.bias_at = s.factors_at + aligned((size_t)c->n * 4);
	s.gate_up_at = s.bias_at + aligned((size_t)c->n * 4);
	s.y_at = s.gate_up_at + aligned((size_t)c->rows * c->n * 2);
	s.y_bytes = (size_t)c->rows * y_cols * (c->f32 ? 4 : 2);
	assert_int_equal(f->ops->mem_alloc(f->device, s.y_at + s.y_bytes + 64, &memory), 0);
	s.memory = memory;
	f->ops->copy(f->device, s.memory, s.x, (size_t)c->rows * c->k * 2);
	f->ops->copy(f->device, s.memory + s.w_at, weight, w_bytes_of(c));
	f->ops->copy(f->device, s.memory + s.factors_at, factors, (size_t)c->n * sizeof(*factors));
	f->ops->copy(f->device, s.memory + s.bias_at, c->f32 ? (void *)s.bias32 : (void *)s.bias,
		(size_t)c->n * (c->f32 ? 4 : 2));
	free(weight);
	free(factors);
	return s;
}

static inline void sample_free(struct fixture *f, struct sample *s)
{
	f->ops->mem_free(f->device, s->memory);
	free(s->x);
	free(s->w);
	free(s->bias);
	free(s->bias32);
}

static inline struct weight sample_weight(const struct shape_case *c, const struct sample *s)
{
	return (struct weight){.data = s->memory + s->w_at,
		.dtype = dtype_of(c->packed),
		.rows = c->n,
		.cols = c->k,
		.factors = c->packed == PACKED_E4M3_ROWS ? (const float *)(s->memory + s->factors_at) : NULL};
}

static inline struct weight sample_bias(const struct shape_case *c, const struct sample *s)
{
	return (struct weight){.data = c->bias ? s->memory + s->bias_at : NULL,
		.dtype = c->f32 ? DTYPE_F32 : DTYPE_BF16,
		.rows = 1,
		.cols = c->n};
}

static inline int sample_queue(struct fixture *f, const struct shape_case *c, const struct sample *s)
{
	const struct weight w = sample_weight(c, s), bias = sample_bias(c, s);
	const struct op_gemm gemm = {.x = s->memory + s->x_at,
		.w = w,
		.bias = bias,
		.y = s->memory + s->y_at,
		.y_dtype = bias.dtype,
		.n_rows = c->rows,
		.invariant = c->invariant,
		.add = c->add};
	const struct op_gated_gemm gated = {.x = s->memory + s->x_at,
		.w = w,
		.bias = bias,
		.gate_up = s->memory + s->gate_up_at,
		.y = s->memory + s->y_at,
		.n_rows = c->rows,
		.invariant = c->invariant};

	return c->gated ? f->device->kernels->gated_gemm(f->stream, &gated)
			: f->device->kernels->gemm(f->stream, &gemm);
}

static inline double exact(const struct shape_case *c, const struct sample *s, uint32_t r, uint32_t col)
{
	double sum = c->bias ? s->bias32[col] : 0;

	for (uint32_t i = 0; i < c->k; i++)
		sum += (double)bf16_to_f32(s->x[(size_t)r * c->k + i]) *
		       (double)s->w[(size_t)col * c->k + i];
	return sum;
}

/* Of a large matrix only every 31st column is looked at. */
static inline uint32_t column_step(const struct shape_case *c)
{
	return (uint64_t)c->n * c->k > 1u << 24 ? 31 : 1;
}

static inline uint32_t columns_of(const struct shape_case *c)
{
	return c->gated ? c->n / 2 : c->n;
}

static inline double *expected_new(const struct shape_case *c, const struct sample *s)
{
	const uint32_t cols = columns_of(c);
	double *want = calloc((size_t)c->rows * cols, sizeof(*want)), *at = want;

	assert_non_null(want);
	for (uint32_t r = 0; r < c->rows; r++)
		for (uint32_t col = 0; col < cols; col += column_step(c)) {
			const double y = exact(c, s, r, col);

			*at++ = c->gated ? y / (1 + exp(-y)) * exact(c, s, r, col + cols) : y;
		}
	return want;
}

/* |y - want| / |want|; NaN where an element was not written. */
static inline double distance(const struct shape_case *c, const double *want, const uint8_t *bytes)
{
	const uint32_t cols = columns_of(c);
	double off = 0, all = 0;

	for (uint32_t r = 0; r < c->rows; r++)
		for (uint32_t col = 0; col < cols; col += column_step(c), want++) {
			const size_t at = (size_t)r * cols + col;
			const double got = c->f32 ? (double)((const float *)bytes)[at]
						  : (double)bf16_to_f32(((const uint16_t *)bytes)[at]);

			off += (got - *want) * (got - *want);
			all += *want * *want;
		}
	return sqrt(off / all);
}

/* What a product may be off by: its sums, y's rounding, or that of W. */
static inline double most_of(const struct shape_case *c)
{
	const bool copied = c->packed != PACKED_NOT && c->rows > 128 && !c->invariant;
	const bool rounded = c->packed == PACKED_U4_32 && (c->rows > 8 || c->invariant); /* by wide.cu */

	return c->f32 && !copied && !rounded ? 1e-5 : c->gated ? 8e-3 : 4e-3;
}

static inline float addend_of(size_t at)
{
	return (float)(at % 7) - 3;
}

/* Adds it to other numbers: ahead of all else, so that the way is chosen with an addend at hand. */
static inline void check_addition(
	struct fixture *f, int variant, struct shape_case c, const struct sample *s, const double *want)
{
	const uint32_t cols = columns_of(&c);
	const size_t n = (size_t)c.rows * cols;
	uint16_t *y = calloc(n, sizeof(*y));
	double *sums = calloc(n, sizeof(*sums)), *to = sums, off;

	assert_non_null(y);
	assert_non_null(sums);
	for (size_t at = 0; at < n; at++) {
		y[at] = f32_to_bf16(addend_of(at));
		if (at % cols % column_step(&c) == 0)
			*to++ = *want++ + (double)addend_of(at);
	}
	c.add = true;
	f->ops->copy(f->device, s->memory + s->y_at, y, n * sizeof(*y));
	assert_int_equal(sample_queue(f, &c, s), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, y, s->memory + s->y_at, n * sizeof(*y)), 0);
	off = distance(&c, sums, (const uint8_t *)y);
	if (!(off < most_of(&c)))
		fail_msg("variant %d, form %d, %u rows, [%u, %u]%s added: off by %g", variant, c.packed, c.rows, c.n,
			c.k, c.bias ? " bias" : "", off);
	free(sums);
	free(y);
}

/* Checks it eagerly and replayed; the second has the bits of the first. */
static inline void check_sample(struct fixture *f, int variant, const struct shape_case *c,
	const struct sample *s, const double *want)
{
	uint8_t *bytes = calloc(2, s->y_bytes + 64), *again = bytes + s->y_bytes + 64;
	uint8_t *y = s->memory + s->y_at;
	struct graph_exec *exec;
	double off;

	assert_non_null(bytes);
	if (!c->f32 && !c->gated)
		check_addition(f, variant, *c, s, want);
	f->ops->fill_async(f->stream, y, 0xff, s->y_bytes + 64);
	assert_int_equal(sample_queue(f, c, s), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, bytes, y, s->y_bytes + 64), 0);
	off = distance(c, want, bytes);
	if (!(off < most_of(c)))
		fail_msg("variant %d, form %d, %u rows, [%u, %u]%s%s%s: off by %g", variant, c->packed, c->rows, c->n,
			c->k, c->f32 ? " f32" : "", c->bias ? " bias" : "",
			c->gated ? " gated" : "", off);
	for (int i = 0; i < 64; i++)
		assert_int_equal(bytes[s->y_bytes + (size_t)i], 0xff);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	for (int i = 0; i < 3; i++) /* each behind another of its kind: launches overlap */
		assert_int_equal(sample_queue(f, c, s), 0);
	exec = finish(f);
	f->ops->fill_async(f->stream, y, 0xff, s->y_bytes + 64);
	replay(f, exec);
	assert_int_equal(f->ops->copy(f->device, again, y, s->y_bytes + 64), 0);
	assert_memory_equal(again, bytes, s->y_bytes + 64);
	f->ops->graph_exec_free(exec);
	free(bytes);
}

/* Of one shape, of all kernels: wide.cu's and broad.cu's at 33 to 64 rows. */
enum { VARIANTS_MAX = 13 };

struct shapes {
	uint32_t n_rows, n_shapes;
	const uint32_t *rows;
	const uint32_t (*shapes)[2]; /* n, k */
	int first, n_devices;        /* variants; -1: the one that is taken */
	bool gated;
	enum packed_kind packed;
};

/* A device for each variant, so that what is expected is worked out once. */
static inline void check_shapes(struct fixture *f, const struct shapes *t)
{
	uint64_t seed = (uint64_t)time(NULL);
	void *devices[VARIANTS_MAX];

	print_message("# seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < t->n_devices; i++) {
		assert_int_equal(fixture_setup(&devices[i]), 0);
		cuda_gemm_choose(((struct fixture *)devices[i])->device,
			(enum cuda_gemm_choice)(CUDA_GEMM_OWN + 1 + t->first + i));
	}
	for (uint32_t i = 0; i < t->n_rows * t->n_shapes; i++) {
		const uint32_t row = i / t->n_shapes, *shape = t->shapes[i % t->n_shapes];
		const struct shape_case c = {.rows = t->rows[row],
			.n = shape[0],
			.k = shape[1],
			.f32 = !t->gated && (i % t->n_shapes + row) & 1,
			.bias = i & (t->gated ? 1 : 2),
			.gated = t->gated,
			.packed = t->packed};
		struct sample s = sample_new(f, &c, &seed);
		double *want = expected_new(&c, &s);

		for (int v = 0; v < t->n_devices; v++)
			check_sample(devices[v], t->first + v, &c, &s, want);
		free(want);
		sample_free(f, &s);
	}
	for (int i = 0; i < t->n_devices; i++)
		assert_int_equal(fixture_teardown(&devices[i]), 0);
}

#endif
