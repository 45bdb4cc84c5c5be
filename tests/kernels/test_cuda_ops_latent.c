/* SPDX-License-Identifier: MIT */
/* The ops of latent attention on CUDA, against the cpu device's. */
#include "tests/kernels/cuda_ops_fixture.h"

/* A rounding to bf16 is half of 2^-7. */
#define ONE_ROUNDING 0.0040

/* ---- products a head ---- */

struct head_shape {
	enum dtype dtype;
	uint32_t n_rows, n_heads, head_n, cols, gap; /* gap: elements between heads, and between rows */
};

/* Those of the fast kernels: one row to several tiles of them, edges in every dimension; then
 * others. */
static const struct head_shape head_shapes[] = {
	{DTYPE_BF16, 1, 16, 128, 512, 64},
	{DTYPE_BF16, 8, 16, 128, 512, 0},
	{DTYPE_BF16, 16, 2, 128, 512, 8},
	{DTYPE_BF16, 17, 3, 128, 512, 64},
	{DTYPE_BF16, 130, 2, 128, 512, 16},
	{DTYPE_BF16, 1, 128, 128, 512, 64},
	{DTYPE_BF16, 5, 3, 8, 8, 8},
	{DTYPE_BF16, 33, 2, 40, 72, 0},
	{DTYPE_BF16, 9, 2, 24, 520, 8},
	{DTYPE_BF16, 3, 2, 264, 1032, 8},
	{DTYPE_BF16, 70, 1, 136, 1544, 0},
	{DTYPE_BF16, 4, 3, 8, 24, 5},
	{DTYPE_BF16, 6, 2, 7, 33, 0},
	{DTYPE_F32, 19, 2, 16, 64, 8},
	{DTYPE_F16, 2, 5, 13, 40, 3},
};

struct heads {
	struct op_head_gemm a;
	struct both x, w, y;
};

/* Heads that lie in wider rows of x and y, and in blocks of w that have more. */
static struct heads heads_new(const struct head_shape *s, bool transposed)
{
	uint32_t in = transposed ? s->head_n : s->cols, out = transposed ? s->cols : s->head_n;
	struct heads h;
	struct weight w;

	h.w = random_weight(&w, s->dtype, s->n_heads * (s->head_n + 3), s->cols);
	h.a = (struct op_head_gemm){
		.w = w,
		.x_head_stride = in + s->gap,
		.x_stride = s->n_heads * (in + s->gap) + s->gap,
		.y_head_stride = out + s->gap,
		.y_stride = s->n_heads * (out + s->gap) + s->gap,
		.head_rows = s->head_n + 3,
		.head_first = 2,
		.head_n = s->head_n,
		.n_rows = s->n_rows,
		.n_heads = s->n_heads,
		.transposed = transposed,
	};
	h.x = random_act((size_t)s->n_rows * h.a.x_stride);
	h.y = both_new(ACT, (size_t)s->n_rows * h.a.y_stride);
	return h;
}

static void heads_on(struct heads *h, int side)
{
	h->a.w.data = h->w.at[side];
	h->a.x = h->x.at[side];
	h->a.y = h->y.at[side];
}

/* What lies between heads and rows stays the NaN that it was on both. */
static void test_head_gemm_equals_the_oracle(void **state)
{
	for (size_t i = 0; i < 2 * COUNT_OF(head_shapes); i++) {
		const struct mark mark = mark_here();
		struct heads h = heads_new(&head_shapes[i / 2], i % 2);

		for (int side = 0; side < N_SIDES; side++) {
			heads_on(&h, side);
			RUN(side, head_gemm, &h.a);
		}
		both_check_close(&h.y, ONE_ROUNDING, 2e-3);
		release_to(mark);
	}
}

static void test_head_gemm_of_operands_that_are_not_aligned_equals_the_oracle(void **state)
{
	static const struct head_shape shape = {DTYPE_BF16, 9, 2, 32, 64, 8};

	for (int transposed = 0; transposed < 2; transposed++) {
		const struct mark mark = mark_here();
		struct heads h = heads_new(&shape, transposed);
		struct both x = random_act_at(h.x.n, 2, 1), y = both_new_at(ACT, h.y.n, 3, false);

		for (int side = 0; side < N_SIDES; side++) {
			heads_on(&h, side);
			h.a.x = x.at[side];
			h.a.y = y.at[side];
			RUN(side, head_gemm, &h.a);
		}
		both_check_close(&y, ONE_ROUNDING, 2e-3);
		release_to(mark);
	}
}

static void test_head_gemm_of_no_rows_writes_nothing(void **state)
{
	static const struct head_shape shape = {DTYPE_BF16, 2, 2, 16, 64, 0};

	for (int transposed = 0; transposed < 2; transposed++) {
		const struct mark mark = mark_here();
		struct heads h = heads_new(&shape, transposed);
		float *y;

		heads_on(&h, CUDA);
		h.a.n_rows = 0;
		RUN(CUDA, head_gemm, &h.a);
		y = both_floats(&h.y, CUDA);
		for (size_t i = 0; i < h.y.n; i++)
			assert_true(isnan(y[i]));
		release_to(mark);
	}
}

static void test_head_gemm_is_the_same_each_time(void **state)
{
	for (size_t i = 0; i < 10; i++) {
		const struct mark mark = mark_here();
		struct heads h = heads_new(&head_shapes[i / 2], i % 2);
		float *first, *second;

		heads_on(&h, CUDA);
		RUN(CUDA, head_gemm, &h.a);
		first = both_floats(&h.y, CUDA);
		RUN(CUDA, head_gemm, &h.a);
		second = both_floats(&h.y, CUDA);
		assert_memory_equal(first, second, h.y.n * sizeof(*first));
		release_to(mark);
	}
}

static void test_head_gemm_refuses_heads_outside_of_the_weight(void **state)
{
	static const struct head_shape shape = {DTYPE_F32, 1, 2, 4, 4, 0};
	struct heads h = heads_new(&shape, false);

	for (int side = 0; side < N_SIDES; side++) {
		for (int fault = 0; fault < 7; fault++) {
			struct op_head_gemm a;

			heads_on(&h, side);
			a = h.a;
			a.n_heads = fault == 0 ? 3 : fault == 1 ? 0 : 2;
			a.head_first = fault == 2 ? 4 : fault == 6 ? UINT32_MAX : 2;
			a.head_n = fault == 3 ? 0 : fault == 4 ? 8 : 4;
			a.x = fault == 5 ? NULL : h.a.x;
			assert_int_equal(
				devices[side]->kernels->head_gemm(streams[side], &a), -EINVAL);
		}
	}
}

/* ---- norm, rotation, cache ---- */

struct rope_shape {
	uint32_t n_tokens, n_heads, nope, rope, rank, page_tokens;
	enum dtype norm;
	size_t shift; /* elements off alignment */
};

static const struct rope_shape rope_shapes[] = {
	{1, 16, 128, 64, 512, 16, DTYPE_BF16, 0},
	{37, 16, 128, 64, 512, 64, DTYPE_F32, 0},
	{5, 128, 128, 64, 512, 16, DTYPE_BF16, 0},
	{130, 3, 6, 8, 24, 4, DTYPE_F16, 0},
	{9, 5, 6, 8, 21, 4, DTYPE_BF16, 0},
	{9, 2, 16, 2, 1, 1, DTYPE_F32, 0},
	{9, 2, 8, 10, 1544, 3, DTYPE_BF16, 0},
	{9, 4, 8, 16, 64, 8, DTYPE_BF16, 1},
	{0, 16, 128, 64, 512, 16, DTYPE_BF16, 0},
};

enum { PAGES = 40, POSITIONS = 50 };

struct ropes {
	struct op_mla_rope_and_cache a;
	struct both q, kv_a, positions, slots, cos_sin, norm, kv;
};

static struct both random_positions(uint32_t n)
{
	int32_t *values = scratch(n * sizeof(*values));

	for (uint32_t t = 0; t < n; t++)
		values[t] =
			t % 7 ? (int32_t)random_below(&rng, POSITIONS) : (int32_t)random_u32(&rng);
	return both_of(values, n * sizeof(*values));
}

/* Distinct, one in five absent. */
static struct both random_slots(uint32_t n, uint32_t n_slots)
{
	int32_t *values = scratch(n * sizeof(*values));

	for (uint32_t t = 0; t < n; t++)
		values[t] = t % 5 && t < n_slots ? (int32_t)(t * 7919u % n_slots) : -1;
	return both_of(values, n * sizeof(*values));
}

static struct ropes ropes_new(const struct rope_shape *s, bool interleaved, bool fp8)
{
	struct ropes r = {
		.q = random_act_at((size_t)s->n_tokens * s->n_heads * (s->nope + s->rope), 2, s->shift),
		.kv_a = random_act_at((size_t)s->n_tokens * (s->rank + s->rope), 2, s->shift),
		.positions = random_positions(s->n_tokens),
		.slots = random_slots(s->n_tokens, PAGES * s->page_tokens),
		.kv = both_new_at(fp8 ? BYTES : ACT, (size_t)PAGES * s->page_tokens * (s->rank + s->rope),
			s->shift, false),
	};
	r.cos_sin = random_both_floats((size_t)POSITIONS * s->rope);
	r.norm = random_weight(&r.a.norm, s->norm, 1, s->rank);
	r.a.max_positions = POSITIONS;
	r.a.eps = 1e-6f;
	r.a.n_tokens = s->n_tokens;
	r.a.n_heads = s->n_heads;
	r.a.nope = s->nope;
	r.a.rope = s->rope;
	r.a.rank = s->rank;
	r.a.page_tokens = s->page_tokens;
	r.a.interleaved = interleaved;
	r.a.fp8 = fp8;
	r.a.factors.key = 0.0031f; /* so that large values saturate */
	return r;
}

static void ropes_on(struct ropes *r, int side)
{
	r->a.q = r->q.at[side];
	r->a.kv_a = r->kv_a.at[side];
	r->a.positions = r->positions.at[side];
	r->a.slot_mapping = r->slots.at[side];
	r->a.cos_sin = r->cos_sin.at[side];
	r->a.norm.data = r->norm.at[side];
	r->a.kv = r->kv.at[side];
}

/* A token of slot -1 would write before the cache, onto a canary; other slots' rows stay as they were. */
static void check_ropes(bool fp8)
{
	for (size_t i = 0; i < 2 * COUNT_OF(rope_shapes); i++) {
		const struct mark mark = mark_here();
		struct ropes r = ropes_new(&rope_shapes[i / 2], i % 2, fp8);

		for (int side = 0; side < N_SIDES; side++) {
			ropes_on(&r, side);
			RUN(side, mla_rope_and_cache, &r.a);
		}
		both_check_close(&r.q, ONE_ROUNDING, 1e-5);
		if (fp8)
			both_check_codes(&r.kv);
		else
			both_check_close(&r.kv, ONE_ROUNDING, 1e-5);
		release_to(mark);
	}
}

static void test_mla_rope_and_cache_equals_the_oracle(void **state)
{
	check_ropes(false);
}

static void test_mla_rope_and_cache_of_fp8_equals_the_oracle(void **state)
{
	check_ropes(true);
}

static void test_mla_rope_refuses_shapes_that_cannot_be(void **state)
{
	struct ropes r = ropes_new(&rope_shapes[4], true, false);

	for (int side = 0; side < N_SIDES; side++) {
		for (int fault = 0; fault < 7; fault++) {
			struct op_mla_rope_and_cache a;

			ropes_on(&r, side);
			a = r.a;
			a.rope = fault == 0 ? 7 : fault == 1 ? 0 : a.rope;
			a.rank = fault == 2 ? a.rank + 1 : a.rank;
			a.n_heads = fault == 3 ? 0 : a.n_heads;
			a.kv = fault == 4 ? NULL : a.kv;
			a.eps = fault == 5 ? -1 : 1e-6f;
			a.max_positions = fault == 6 ? 0 : a.max_positions;
			assert_int_equal(devices[side]->kernels->mla_rope_and_cache(
						 streams[side], &a), -EINVAL);
		}
	}
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_head_gemm_equals_the_oracle),
	cmocka_unit_test(test_head_gemm_of_operands_that_are_not_aligned_equals_the_oracle),
	cmocka_unit_test(test_head_gemm_of_no_rows_writes_nothing),
	cmocka_unit_test(test_head_gemm_is_the_same_each_time),
	cmocka_unit_test(test_head_gemm_refuses_heads_outside_of_the_weight),
	cmocka_unit_test(test_mla_rope_and_cache_equals_the_oracle),
	cmocka_unit_test(test_mla_rope_and_cache_of_fp8_equals_the_oracle),
	cmocka_unit_test(test_mla_rope_refuses_shapes_that_cannot_be),
};

CUDA_TEST_MAIN("cuda ops: latent attention", tests)
