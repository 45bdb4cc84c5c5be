/* SPDX-License-Identifier: MIT */
/*
 * Our own products, each variant of skinny.cu, wide.cu and broad.cu by itself, against sums in double
 * precision over random numbers; of plain weights and of packed ones.
 */
#include "kernels/convert.h"
#include "kernels/packed.h"
#include "tests/kernels/cuda_fixture.h"

#include <math.h>
#include <time.h>

static size_t aligned(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

/* Nearly normal: the sum of four numbers between -1/2 and 1/2, of variance 1. */
static double normal(uint64_t *state)
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
};

struct sample {
	uint16_t *x, *bias;
	float *w; /* [n, k] what W stands for */
	float *bias32;
	uint8_t *memory; /* on the device: x, w, factors, bias, gate_up, y */
	size_t x_at, w_at, factors_at, bias_at, gate_up_at, y_at, y_bytes;
};

static uint16_t *random_bf16(size_t n, double scale, uint64_t *state)
{
	uint16_t *values = calloc(n, sizeof(*values));

	assert_non_null(values);
	for (size_t i = 0; i < n; i++)
		values[i] = f32_to_bf16((float)(scale * normal(state)));
	return values;
}

static uint32_t random_below(uint32_t n, uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((*state >> 33) % n);
}

static enum dtype dtype_of(enum packed_kind kind)
{
	return kind == PACKED_NOT ? DTYPE_BF16 : kind == PACKED_U4 ? DTYPE_U4 : DTYPE_E4M3;
}

static size_t w_bytes_of(const struct shape_case *c)
{
	return c->packed == PACKED_NOT ? (size_t)c->n * c->k * 2
				       : packed_bytes(c->n, c->k, dtype_of(c->packed), c->packed != PACKED_E4M3_ROWS);
}

/* Random codes, as units; of e4m3 no NaN, but all else, subnormals too. factors: [n], of whole rows. */
static void random_units(const struct shape_case *c, uint8_t *to, float *factors, uint64_t *state)
{
	const bool is_u4 = c->packed == PACKED_U4, grouped = c->packed != PACKED_E4M3_ROWS;
	const size_t unit_bytes = packed_unit_bytes(dtype_of(c->packed), grouped);
	const double scale = (is_u4 ? 0.2 : 0.006) / sqrt((double)c->k);
	uint8_t codes[PACKED_ROWS * PACKED_COLS], zeros[PACKED_ROWS];
	float group[PACKED_ROWS];

	for (size_t i = 0; i < (size_t)(c->n / PACKED_ROWS) * (c->k / PACKED_COLS); i++, to += unit_bytes) {
		for (size_t j = 0; j < sizeof(codes); j++) {
			codes[j] = (uint8_t)random_below(is_u4 ? 16 : 256, state);
			if (!is_u4 && (codes[j] & 0x7f) == 0x7f)
				codes[j] = 0;
		}
		for (size_t r = 0; r < PACKED_ROWS; r++) {
			zeros[r] = (uint8_t)random_below(17, state);
			group[r] = bf16_to_f32(f32_to_bf16((float)(scale * (0.5 + random_below(1000, state) / 1000.0))));
		}
		packed_unit(to, dtype_of(c->packed), codes, PACKED_COLS, grouped ? group : NULL, is_u4 ? zeros : NULL);
	}
	for (uint32_t r = 0; r < c->n; r++)
		factors[r] = (float)(scale * (0.5 + random_below(1000, state) / 1000.0));
}

/* W's memory, in its form; *ret: its numbers. */
static uint8_t *random_weight(const struct shape_case *c, float *ret, float *factors, uint64_t *state)
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

static struct sample sample_new(struct fixture *f, const struct shape_case *c, uint64_t *state)
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

static void sample_free(struct fixture *f, struct sample *s)
{
	f->ops->mem_free(f->device, s->memory);
	free(s->x);
	free(s->w);
	free(s->bias);
	free(s->bias32);
}

static int sample_queue(struct fixture *f, const struct shape_case *c, const struct sample *s)
{
	const struct weight w = {.data = s->memory + s->w_at,
		.dtype = dtype_of(c->packed),
		.rows = c->n,
		.cols = c->k,
		.factors = c->packed == PACKED_E4M3_ROWS ? (const float *)(s->memory + s->factors_at) : NULL};
	const struct weight bias = {.data = c->bias ? s->memory + s->bias_at : NULL,
		.dtype = c->f32 ? DTYPE_F32 : DTYPE_BF16,
		.rows = 1,
		.cols = c->n};
	const struct op_gemm gemm = {.x = s->memory + s->x_at,
		.w = w,
		.bias = bias,
		.y = s->memory + s->y_at,
		.y_dtype = bias.dtype,
		.n_rows = c->rows,
		.invariant = c->invariant};
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

static double exact(const struct shape_case *c, const struct sample *s, uint32_t r, uint32_t col)
{
	double sum = c->bias ? s->bias32[col] : 0;

	for (uint32_t i = 0; i < c->k; i++)
		sum += (double)bf16_to_f32(s->x[(size_t)r * c->k + i]) *
		       (double)s->w[(size_t)col * c->k + i];
	return sum;
}

/* Of a large matrix only every 31st column is looked at. */
static uint32_t column_step(const struct shape_case *c)
{
	return (uint64_t)c->n * c->k > 1u << 24 ? 31 : 1;
}

static uint32_t columns_of(const struct shape_case *c)
{
	return c->gated ? c->n / 2 : c->n;
}

static double *expected_new(const struct shape_case *c, const struct sample *s)
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
static double distance(const struct shape_case *c, const double *want, const uint8_t *bytes)
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

/* What a product may be off by: its sums, y's rounding, or that of W's copy. */
static double most_of(const struct shape_case *c)
{
	const bool copied = c->packed != PACKED_NOT && c->rows > 128 && !c->invariant;

	return c->f32 && !copied ? 1e-5 : c->gated ? 8e-3 : 4e-3;
}

/* Checks it eagerly and replayed; the second has the bits of the first. */
static void check_sample(struct fixture *f, int variant, const struct shape_case *c,
	const struct sample *s, const double *want)
{
	uint8_t *bytes = calloc(2, s->y_bytes + 64), *again = bytes + s->y_bytes + 64;
	uint8_t *y = s->memory + s->y_at;
	struct graph_exec *exec;
	double off;

	assert_non_null(bytes);
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
static void check_shapes(struct fixture *f, const struct shapes *t)
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

static void test_each_variant_for_few_rows_is_the_product(void **state)
{
	static const uint32_t rows[] = {1, 2, 5, 8, 9, 16},
			      shapes[][2] = {{8, 64}, {24, 64}, {100, 128}, {2120, 2048},
				      {144, 4160}, {272, 8192}, {1, 14336}};

	check_shapes(*state, &(struct shapes){6, 7, rows, shapes, 0, 4, false});
}

static void test_each_variant_for_more_rows_is_the_product(void **state)
{
	static const uint32_t rows[] = {17, 29, 32, 40, 64},
			      shapes[][2] = {{2, 64}, {100, 72}, {130, 200}, {392, 1032},
				      {272, 4096}, {264, 2056}, {17000, 128}};

	check_shapes(*state, &(struct shapes){5, 7, rows, shapes, 0, VARIANTS_MAX, false});
}

static void test_each_variant_of_the_gated_gemm_is_right(void **state)
{
	static const uint32_t rows[] = {1, 3, 8, 13, 16, 24, 40},
			      shapes[][2] = {
				      {16, 64}, {48, 2048}, {96, 2112}, {4400, 1024}, {17600, 128}};

	check_shapes(*state, &(struct shapes){7, 5, rows, shapes, -1, 7, true});
}

/* A tile is more rows of W than there are, a part of them, or several a block. The last shape keeps
 * enough multiprocessors busy without a split for two blocks to share x: their tiles are odd in
 * number, and their ring wraps. */
static void test_each_variant_for_many_rows_is_the_product(void **state)
{
	static const uint32_t rows[] = {65, 99, 128, 200, 256},
			      shapes[][2] = {{2, 64}, {100, 72}, {130, 200}, {392, 1032},
				      {272, 2056}, {17000, 72}, {1476, 1032}};

	check_shapes(*state, &(struct shapes){5, 7, rows, shapes, 0, 6, false});
}

static void test_each_variant_for_many_rows_of_the_gated_gemm_is_right(void **state)
{
	static const uint32_t rows[] = {40, 65, 96, 131, 256},
			      shapes[][2] = {{16, 64}, {112, 2120}, {1184, 520}, {17600, 72}};

	check_shapes(*state, &(struct shapes){5, 4, rows, shapes, -1, VARIANTS_MAX, true});
}

/* 64 MiB: what is so large has a deeper ring, with x beside it, and more variants when gated. */
static void test_each_variant_for_a_large_matrix_is_the_product(void **state)
{
	static const uint32_t rows[] = {5, 13, 33}, shapes[][2] = {{16512, 2048}};

	check_shapes(*state, &(struct shapes){3, 1, rows, shapes, 0, 4, false});
	check_shapes(*state, &(struct shapes){3, 1, rows, shapes, 0, 4, true});
}

static void test_what_none_of_ours_can_is_right(void **state)
{
	static const uint32_t rows[] = {1, 5, 16, 29, 64, 65, 99},
			      shapes[][2] = {
				      {8, 32}, {100, 96}, {96, 2080}, {22, 64}, {64, 36}, {50, 33}};

	check_shapes(*state, &(struct shapes){7, 6, rows, shapes, -1, 1, false});
	check_shapes(*state, &(struct shapes){7, 6, rows, shapes, -1, 1, true});
}

/* Each form with each way: few rows by skinny.cu, more by wide.cu, many by a copy. */
static void check_packed(struct fixture *f, const struct shapes *t)
{
	struct device_info info;

	assert_int_equal(f->ops->info(f->device, &info), 0);
	for (int kind = PACKED_E4M3_ROWS; kind <= PACKED_U4 && info.packs; kind++) {
		struct shapes shapes = *t;

		shapes.packed = (enum packed_kind)kind;
		check_shapes(f, &shapes);
	}
	if (!info.packs)
		skip();
}

static void test_each_variant_of_packed_weights_for_few_rows_is_the_product(void **state)
{
	static const uint32_t rows[] = {1, 3, 8, 11, 16},
			      shapes[][2] = {{8, 128}, {24, 896}, {1064, 2048}, {136, 4224}, {40, 14336}};

	check_packed(*state, &(struct shapes){5, 5, rows, shapes, 0, 2, false});
}

static void test_each_variant_of_packed_weights_for_more_rows_is_the_product(void **state)
{
	static const uint32_t rows[] = {17, 32, 40, 64, 65, 128},
			      shapes[][2] = {{8, 128}, {136, 384}, {272, 4096}, {1064, 896}, {17000, 128}};

	check_packed(*state, &(struct shapes){6, 5, rows, shapes, 0, 5, false});
}

static void test_each_variant_of_packed_weights_of_the_gated_gemm_is_right(void **state)
{
	static const uint32_t rows[] = {1, 8, 13, 24, 40, 64, 100},
			      shapes[][2] = {{16, 128}, {112, 2176}, {4432, 384}, {17600, 128}};

	check_packed(*state, &(struct shapes){7, 4, rows, shapes, -1, 5, true});
}

/* So wide that x does not fit beside the ring. */
static void test_each_variant_of_packed_weights_of_a_wide_gated_gemm_is_right(void **state)
{
	static const uint32_t rows[] = {1, 8, 12, 16}, shapes[][2] = {{48, 8192}, {32, 16384}};

	check_packed(*state, &(struct shapes){4, 2, rows, shapes, -1, 5, true});
}

/* 272 MiB as bf16: rows are multiplied 64 at a time. */
static void test_packed_weights_that_are_too_large_to_copy_are_multiplied(void **state)
{
	static const uint32_t rows[] = {130}, shapes[][2] = {{34816, 4096}};

	check_packed(*state, &(struct shapes){1, 1, rows, shapes, -1, 1, false});
}

static void test_packed_weights_for_many_rows_are_copied(void **state)
{
	static const uint32_t rows[] = {129, 300}, shapes[][2] = {{8, 128}, {136, 384}, {272, 2048}};

	check_packed(*state, &(struct shapes){2, 3, rows, shapes, -1, 1, false});
	check_packed(*state, &(struct shapes){2, 2, rows, shapes + 1, -1, 1, true});
}

/* Rows from `first` on by themselves have the bits that they have among all. */
static void check_rows(struct fixture *f, struct shape_case c, struct sample s, const uint8_t *among_all,
	uint32_t first, uint32_t n)
{
	const size_t row_bytes = s.y_bytes / c.rows;
	uint8_t *alone = calloc(n, row_bytes);

	assert_non_null(alone);
	c.rows = n;
	s.x_at = (size_t)first * c.k * 2;
	assert_int_equal(sample_queue(f, &c, &s), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, alone, s.memory + s.y_at, n * row_bytes), 0);
	if (memcmp(alone, among_all + first * row_bytes, n * row_bytes) != 0)
		fail_msg("[%u, %u]%s%s: rows from %u on, %u of them, have other bits than among %u", c.n, c.k,
			c.f32 ? " f32" : "", c.gated ? " gated" : "", first, n, (uint32_t)(s.y_bytes / row_bytes));
	free(alone);
}

static void check_invariant(struct fixture *f, const uint32_t *shape, bool f32, bool gated, enum packed_kind packed,
	uint64_t *seed)
{
	static const uint32_t parts[][2] = {
		{0, 1}, {7, 1}, {199, 1}, {3, 2}, {5, 16}, {60, 17}, {1, 31}, {33, 64}, {64, 65}, {70, 130}};
	const struct shape_case c = {200, shape[0], shape[1], f32, .bias = !f32, gated, .invariant = true, packed};
	struct sample s = sample_new(f, &c, seed);
	double *want = expected_new(&c, &s);
	uint8_t *all = calloc(1, s.y_bytes);

	assert_non_null(all);
	check_sample(f, 0, &c, &s, want);
	assert_int_equal(f->ops->copy(f->device, all, s.memory + s.y_at, s.y_bytes), 0);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		check_rows(f, c, s, all, parts[i][0], parts[i][1]);
	free(all);
	free(want);
	sample_free(f, &s);
}

static void test_rows_of_an_invariant_product_have_the_same_bits_alone_and_among_others(void **state)
{
	static const uint32_t shapes[][2] = {{64, 64}, {96, 160}, {272, 2048}, {2048, 512}, {17600, 128}, {4096, 1024}};
	struct fixture *f = *state;
	struct device_info info;
	uint64_t seed = 3;

	assert_int_equal(f->ops->info(f->device, &info), 0);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && info.invariant; i++) {
		check_invariant(f, shapes[i], false, false, PACKED_NOT, &seed);
		check_invariant(f, shapes[i], true, false, PACKED_NOT, &seed);
		check_invariant(f, shapes[i], false, true, PACKED_NOT, &seed);
	}
	for (int kind = PACKED_E4M3_ROWS; kind <= PACKED_U4 && info.packs; kind++)
		check_invariant(f, shapes[2], false, false, (enum packed_kind)kind, &seed);
}

/* A hazard of overlap: each product reads what the one before wrote and writes what it read. */
static void check_chain(struct fixture *f, uint32_t rows, uint32_t n)
{
	enum { LINKS = 200 };
	const size_t bytes = sizeof(uint16_t) * n * rows, w_bytes = sizeof(uint16_t) * n * n;
	uint64_t seed = 7;
	uint16_t *w = random_bf16((size_t)n * n, 1 / sqrt((double)n), &seed);
	uint16_t *x = random_bf16((size_t)n * rows, 1, &seed);
	uint8_t *results = calloc(2, bytes);
	void *memory;
	uint8_t *at;

	assert_non_null(results);
	assert_int_equal(f->ops->mem_alloc(f->device, w_bytes + 2 * bytes, &memory), 0);
	at = memory;
	f->ops->copy(f->device, at, w, w_bytes);
	for (int serial = 0; serial < 2; serial++) {
		f->ops->copy(f->device, at + w_bytes, x, bytes);
		for (size_t i = 0; i < LINKS; i++) {
			uint8_t *from = at + w_bytes + i % 2 * bytes;
			uint8_t *to = at + w_bytes + (i + 1) % 2 * bytes;
			const struct op_gemm a = {.x = from,
				.y = to,
				.y_dtype = DTYPE_BF16,
				.w = {at, DTYPE_BF16, n, n},
				.n_rows = rows};

			assert_int_equal(f->device->kernels->gemm(f->stream, &a), 0);
			if (serial)
				assert_int_equal(f->ops->stream_sync(f->stream), 0);
		}
		assert_int_equal(f->ops->stream_sync(f->stream), 0);
		f->ops->copy(f->device, results + (size_t)serial * bytes, at + w_bytes + LINKS % 2 * bytes, bytes);
	}
	assert_memory_equal(results, results + bytes, bytes);
	f->ops->mem_free(f->device, memory);
	free(results);
	free(w);
	free(x);
}

static void test_a_long_chain_of_each_variant_has_the_bits_of_one_run_serially(void **state)
{
	for (int variant = 0; variant < VARIANTS_MAX; variant++) {
		void *device = NULL;

		assert_int_equal(fixture_setup(&device), 0);
		cuda_gemm_choose(((struct fixture *)device)->device,
			(enum cuda_gemm_choice)(CUDA_GEMM_OWN + 1 + variant));
		check_chain(device, 8, 512);
		check_chain(device, 24, 512);
		check_chain(device, 40, 512);
		check_chain(device, 100, 512);
		check_chain(device, 100, 1536); /* also with a shared x, and rings that wrap */
		assert_int_equal(fixture_teardown(&device), 0);
	}
}

/* An argument is a pattern of tests to run: cuBLASLt is used in those without "variant" only. */
int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_each_variant_for_few_rows_is_the_product),
		ON_DEVICE(test_each_variant_for_more_rows_is_the_product),
		ON_DEVICE(test_each_variant_of_the_gated_gemm_is_right),
		ON_DEVICE(test_each_variant_for_many_rows_is_the_product),
		ON_DEVICE(test_each_variant_for_many_rows_of_the_gated_gemm_is_right),
		ON_DEVICE(test_each_variant_for_a_large_matrix_is_the_product),
		ON_DEVICE(test_each_variant_of_packed_weights_for_few_rows_is_the_product),
		ON_DEVICE(test_each_variant_of_packed_weights_for_more_rows_is_the_product),
		ON_DEVICE(test_each_variant_of_packed_weights_of_the_gated_gemm_is_right),
		ON_DEVICE(test_each_variant_of_packed_weights_of_a_wide_gated_gemm_is_right),
		ON_DEVICE(test_packed_weights_for_many_rows_are_copied),
		ON_DEVICE(test_packed_weights_that_are_too_large_to_copy_are_multiplied),
		ON_DEVICE(test_what_none_of_ours_can_is_right),
		ON_DEVICE(test_rows_of_an_invariant_product_have_the_same_bits_alone_and_among_others),
		cmocka_unit_test(
			test_a_long_chain_of_each_variant_has_the_bits_of_one_run_serially),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_own_gemm", tests, NULL, NULL);
}
