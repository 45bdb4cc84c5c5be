/* SPDX-License-Identifier: MIT */
/* The ops of latent attention: products a head, and what comes ahead of attention. */
#include "tests/kernels/cpu_ops_fixture.h"
#include "tests/e4m3.h"

/* ---- products a head ---- */

struct heads {
	struct op_head_gemm a;
	struct buffer x, y;
	uint32_t in, out;
};

/* Of heads that lie in wider rows of x and y, and in blocks of w that have more. */
static struct heads heads_new(
	enum dtype dtype, uint32_t n_rows, uint32_t n_heads, uint32_t n, uint32_t cols, bool transposed)
{
	struct heads h = {.in = transposed ? n : cols, .out = transposed ? cols : n};

	h.a = (struct op_head_gemm){
		.w = random_weight(dtype, n_heads * (n + 3), cols),
		.x_head_stride = h.in + 2,
		.x_stride = n_heads * (h.in + 2) + 5,
		.y_head_stride = h.out + 1,
		.y_stride = n_heads * (h.out + 1) + 4,
		.head_rows = n + 3,
		.head_first = 2,
		.head_n = n,
		.n_rows = n_rows,
		.n_heads = n_heads,
		.transposed = transposed,
	};
	h.x = random_floats((size_t)n_rows * h.a.x_stride);
	h.y = buffer_new((size_t)n_rows * h.a.y_stride * sizeof(float));
	h.a.x = h.x.data;
	h.a.y = h.y.data;
	return h;
}

static void check_element(const struct heads *h, uint32_t t, uint32_t head, uint32_t c)
{
	const struct op_head_gemm *a = &h->a;
	const float *x = F(h->x) + t * a->x_stride + head * a->x_head_stride;
	uint32_t row = head * a->head_rows + a->head_first;
	double sum = 0, magnitude = 0;

	for (uint32_t i = 0; i < h->in; i++) {
		double term = (double)x[i] * (a->transposed ? weight_at(&a->w, row + i, c)
							    : weight_at(&a->w, row + c, i));

		sum += term;
		magnitude += fabs(term);
	}
	assert_close((double)F(h->y)[t * a->y_stride + head * a->y_head_stride + c], sum,
		2e-6 * magnitude);
}

static void check_heads(enum dtype dtype, uint32_t n_rows, uint32_t n_heads, uint32_t n,
	uint32_t cols, bool transposed)
{
	struct heads h = heads_new(dtype, n_rows, n_heads, n, cols, transposed);

	RUN(head_gemm, &h.a);
	for (uint32_t t = 0; t < n_rows; t++) {
		for (uint32_t head = 0; head < n_heads; head++) {
			const float *y = F(h.y) + t * h.a.y_stride + head * h.a.y_head_stride;

			for (uint32_t c = 0; c < h.out; c++)
				check_element(&h, t, head, c);
			assert_true(isnan(y[h.out])); /* between heads nothing is written */
		}
	}
}

static void test_head_gemm_equals_double_reference(void **state)
{
	rng = 1;
	for (size_t d = 0; d < COUNT_OF(weight_dtypes); d++)
		for (int i = 0; i < 16; i++)
			check_heads(weight_dtypes[d], 1 + random_below(&rng, 20),
				1 + random_below(&rng, 5), 1 + random_below(&rng, 70),
				1 + random_below(&rng, 90), i % 2);
	check_heads(DTYPE_BF16, 9, 2, 33, 1030, false);
	check_heads(DTYPE_BF16, 9, 2, 1030, 33, true);
}

static void test_head_gemm_row_is_bitwise_the_same_in_any_batch(void **state)
{
	rng = 2;
	for (int transposed = 0; transposed < 2; transposed++) {
		struct heads h = heads_new(DTYPE_BF16, 19, 3, 40, 50, transposed);
		struct buffer together = buffer_new(h.y.bytes);
		struct op_head_gemm one = h.a;

		RUN(head_gemm, &h.a);
		memcpy(together.data, h.y.data, h.y.bytes);
		one.n_rows = 1;
		for (uint32_t t = 0; t < 19; t++) {
			one.x = F(h.x) + t * h.a.x_stride;
			one.y = F(h.y) + t * h.a.y_stride;
			memset(one.y, 0xff, h.a.y_stride * sizeof(float));
			RUN(head_gemm, &one);
			assert_memory_equal(one.y, F(together) + t * h.a.y_stride,
				h.a.y_stride * sizeof(float));
		}
	}
}

static void test_head_gemm_of_no_rows_writes_nothing(void **state)
{
	struct heads h = heads_new(DTYPE_F32, 1, 2, 4, 4, false);
	h.a.n_rows = 0;
	RUN(head_gemm, &h.a);
	for (size_t i = 0; i < h.y.bytes / sizeof(float); i++)
		assert_true(isnan(F(h.y)[i]));
}

static void test_head_gemm_refuses_heads_outside_of_the_weight(void **state)
{
	struct heads h;
	struct op_head_gemm a;

	h = heads_new(DTYPE_F32, 1, 2, 4, 4, false);
	for (int fault = 0; fault < 6; fault++) {
		a = h.a;
		a.n_heads = fault == 0 ? 3 : fault == 1 ? 0 : 2;
		a.head_first = fault == 2 ? 4 : 2;
		a.head_n = fault == 3 ? 0 : fault == 4 ? 8 : 4;
		a.x = fault == 5 ? NULL : h.a.x;
		assert_refused(head_gemm, &a);
	}
}

/* ---- norm, rotation, cache ---- */

enum { HEADS = 3, NOPE = 6, ROPE = 8, RANK = 21, PAGE = 4, PAGES = 3, POSITIONS = 10, TOKENS = 5 };

struct rope_case {
	struct op_mla_rope_and_cache a;
	struct buffer q, kv_a, cos_sin, kv, before;
};

static const int32_t positions[TOKENS] = {0, 3, POSITIONS - 1, -5, POSITIONS + 9};
static const int32_t slots[TOKENS] = {5, 0, PAGE * PAGES - 1, -1, 7};

static struct rope_case rope_new(bool interleaved)
{
	struct rope_case c = {
		.q = random_floats(TOKENS * HEADS * (NOPE + ROPE)),
		.kv_a = random_floats(TOKENS * (RANK + ROPE)),
		.cos_sin = random_floats(POSITIONS * ROPE),
		.kv = buffer_new(PAGES * PAGE * (RANK + ROPE) * sizeof(float)),
		.before = buffer_new(TOKENS * HEADS * (NOPE + ROPE) * sizeof(float)),
	};

	c.a.norm = random_weight(DTYPE_BF16, 1, RANK);
	memcpy(c.before.data, c.q.data, c.q.bytes);
	c.a.q = c.q.data;
	c.a.kv_a = c.kv_a.data;
	c.a.positions = positions;
	c.a.slot_mapping = slots;
	c.a.cos_sin = c.cos_sin.data;
	c.a.max_positions = POSITIONS;
	c.a.eps = 1e-6f;
	c.a.kv = c.kv.data;
	c.a.n_tokens = TOKENS;
	c.a.n_heads = HEADS;
	c.a.nope = NOPE;
	c.a.rope = ROPE;
	c.a.rank = RANK;
	c.a.page_tokens = PAGE;
	c.a.interleaved = interleaved;
	return c;
}

/* As complex numbers: pair i times (cos, sin) of the token's clamped position. */
static void check_rotated(
	const struct rope_case *c, uint32_t token, const float *was, const float *is)
{
	int32_t at = positions[token] < 0 ? 0
		: positions[token] >= POSITIONS ? POSITIONS - 1 : positions[token];
	const float *table = F(c->cos_sin) + at * ROPE;

	for (uint32_t i = 0; i < ROPE / 2; i++) {
		uint32_t re = c->a.interleaved ? 2 * i : i;
		uint32_t im = c->a.interleaved ? 2 * i + 1 : i + ROPE / 2;
		double x = (double)was[re], y = (double)was[im];
		double cosine = (double)table[i], sine = (double)table[ROPE / 2 + i];

		assert_close((double)is[re], x * cosine - y * sine, 1e-6);
		assert_close((double)is[im], y * cosine + x * sine, 1e-6);
	}
}

static void check_cached(const struct rope_case *c, uint32_t token)
{
	const float *kv_a = F(c->kv_a) + token * (RANK + ROPE);
	const float *row = F(c->kv) + (size_t)slots[token] * (RANK + ROPE);
	double sum = 0;

	for (uint32_t i = 0; i < RANK; i++)
		sum += (double)kv_a[i] * (double)kv_a[i];
	for (uint32_t i = 0; i < RANK; i++)
		assert_close((double)row[i], (double)kv_a[i] / sqrt(sum / RANK + 1e-6) *
			weight_at(&c->a.norm, 0, i), 1e-5);
	check_rotated(c, token, kv_a + RANK, row + RANK);
}

static void test_mla_rope_rotates_queries_and_caches_normed_latents(void **state)
{
	rng = 3;
	for (int interleaved = 0; interleaved < 2; interleaved++) {
		struct rope_case c = rope_new(interleaved);
		uint32_t n_written = 0;

		RUN(mla_rope_and_cache, &c.a);
		for (uint32_t t = 0; t < TOKENS; t++) {
			for (uint32_t h = 0; h < HEADS; h++) {
				size_t head = (t * HEADS + h) * (NOPE + ROPE);

				assert_memory_equal(
					F(c.q) + head, F(c.before) + head, NOPE * sizeof(float));
				check_rotated(
					&c, t, F(c.before) + head + NOPE, F(c.q) + head + NOPE);
			}
			if (slots[t] >= 0)
				check_cached(&c, t);
		}
		for (uint32_t slot = 0; slot < PAGE * PAGES; slot++)
			n_written += !isnan(F(c.kv)[slot * (RANK + ROPE)]);
		assert_int_equal(n_written, TOKENS - 1); /* slot -1 wrote nowhere */
	}
}

static void test_mla_rope_stores_fp8_rounded_to_nearest_by_the_factor_of_keys(void **state)
{
	struct rope_case wide, narrow;

	rng = 4;
	wide = rope_new(true);
	rng = 4;
	narrow = rope_new(true);
	narrow.a.fp8 = true;
	narrow.a.factors.key = 0.0031f; /* so that large values saturate; of values there are none */
	RUN(mla_rope_and_cache, &wide.a);
	RUN(mla_rope_and_cache, &narrow.a);
	assert_memory_equal(narrow.q.data, wide.q.data, wide.q.bytes);
	for (size_t i = 0; i < PAGES * PAGE * (RANK + ROPE); i++)
		assert_int_equal(((uint8_t *)narrow.kv.data)[i], isnan(F(wide.kv)[i]) ? 0xff
			: e4m3_from_float(F(wide.kv)[i] / narrow.a.factors.key));
	narrow.a.factors.key = 0;
	assert_refused(mla_rope_and_cache, &narrow.a);
}

static void test_mla_rope_refuses_shapes_that_cannot_be(void **state)
{
	struct rope_case c = rope_new(true);
	for (int fault = 0; fault < 6; fault++) {
		struct op_mla_rope_and_cache a = c.a;

		a.rope = fault == 0 ? 7 : fault == 1 ? 0 : ROPE;
		a.rank = fault == 2 ? RANK + 1 : RANK;
		a.n_heads = fault == 3 ? 0 : HEADS;
		a.kv = fault == 4 ? NULL : c.a.kv;
		a.eps = fault == 5 ? -1 : 1e-6f;
		assert_refused(mla_rope_and_cache, &a);
	}
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_head_gemm_equals_double_reference),
	cmocka_unit_test(test_head_gemm_row_is_bitwise_the_same_in_any_batch),
	cmocka_unit_test(test_head_gemm_of_no_rows_writes_nothing),
	cmocka_unit_test(test_head_gemm_refuses_heads_outside_of_the_weight),
	cmocka_unit_test(test_mla_rope_rotates_queries_and_caches_normed_latents),
	cmocka_unit_test(test_mla_rope_stores_fp8_rounded_to_nearest_by_the_factor_of_keys),
	cmocka_unit_test(test_mla_rope_refuses_shapes_that_cannot_be),
};

OPS_TEST_MAIN("cpu ops: latent attention", tests)
