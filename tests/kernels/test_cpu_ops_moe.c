/* SPDX-License-Identifier: MIT */
/* Grouping, products of experts and their sum, each against a plain loop. */
#include "tests/kernels/cpu_ops_fixture.h"

/* ---- grouping ---- */

enum { TOKENS = 23, ACTIVE = 3, EXPERTS = 5, PAIRS = TOKENS * ACTIVE };

struct group_case {
	struct op_moe_group a;
	struct buffer experts, start, pairs;
};

/* Random ids, some of them of no expert; expert 2 has no pair. */
static struct group_case group_new(void)
{
	static const int32_t ids[] = {0, 1, 3, 4, -1, 4, 4};
	struct group_case c = {
		.experts = buffer_new(PAIRS * sizeof(int32_t)),
		.start = buffer_new((EXPERTS + 1) * sizeof(int32_t)),
		.pairs = buffer_new(PAIRS * sizeof(int32_t)),
	};

	for (uint32_t p = 0; p < PAIRS; p++)
		I(c.experts)[p] = ids[random_below(&rng, COUNT_OF(ids))];
	c.a = (struct op_moe_group){.experts = c.experts.data, .expert_start = c.start.data,
		.pairs = c.pairs.data, .n_tokens = TOKENS, .n_active = ACTIVE, .n_experts = EXPERTS};
	return c;
}

static void test_group_lists_each_experts_pairs_in_order(void **state)
{
	struct group_case c;
	int32_t at = 0;

	rng = 6;
	c = group_new();
	I(c.experts)[7] = EXPERTS; /* as -1 */
	I(c.experts)[8] = INT32_MIN;
	memset(c.pairs.data, 0x11, c.pairs.bytes); /* a poisoned tail would already be -1 */
	RUN(moe_group, &c.a);
	for (int32_t e = 0; e < EXPERTS; e++) {
		assert_int_equal(I(c.start)[e], at);
		for (int32_t p = 0; p < PAIRS; p++)
			if (I(c.experts)[p] == e)
				assert_int_equal(I(c.pairs)[at++], p);
	}
	assert_int_equal(I(c.start)[EXPERTS], at);
	assert_true(at < PAIRS);
	for (; at < PAIRS; at++)
		assert_int_equal(I(c.pairs)[at], -1);
}

static void test_group_of_no_tokens_is_empty_and_of_too_many_is_refused(void **state)
{
	struct group_case c = group_new();
	c.a.n_tokens = INT32_MAX / ACTIVE + 1; /* pairs that 32 bits do not count */
	assert_int_equal(device->kernels->moe_group(stream, &c.a), -EINVAL);
	c.a.n_tokens = 0;
	RUN(moe_group, &c.a);
	for (int32_t e = 0; e <= EXPERTS; e++)
		assert_int_equal(I(c.start)[e], 0);
}

/* ---- products ---- */

/* y[p][c] of an expert's pair, from row x. */
static void check_product(const struct weight *w, const float *x, uint32_t first, uint32_t n,
	const float *y)
{
	for (uint32_t c = 0; c < n; c++) {
		double sum = 0, magnitude = 0;

		for (uint32_t i = 0; i < w->cols; i++) {
			double term = (double)x[i] * weight_at(w, first + c, i);

			sum += term;
			magnitude += fabs(term);
		}
		assert_close((double)y[c], sum, 2e-6 * magnitude);
	}
}

static void check_expert_gemm(
	const struct group_case *g, enum dtype dtype, uint32_t out, uint32_t in, uint32_t x_div)
{
	struct op_expert_gemm a = {.w = random_weight(dtype, EXPERTS * out, in),
		.x_div = x_div,
		.expert_start = g->start.data,
		.pairs = g->pairs.data,
		.n_tokens = TOKENS,
		.n_active = ACTIVE,
		.n_experts = EXPERTS};
	struct buffer x = random_floats((size_t)PAIRS / x_div * in);
	struct buffer y = buffer_new((size_t)PAIRS * out * sizeof(float));

	a.x = x.data;
	a.y = y.data;
	RUN(expert_gemm, &a);
	for (uint32_t p = 0; p < PAIRS; p++) {
		int32_t e = I(g->experts)[p];

		if (e >= 0)
			check_product(&a.w, F(x) + p / x_div * in, (uint32_t)e * out, out,
				F(y) + p * out);
		else
			assert_true(isnan(F(y)[p * out]));
	}
}

static void test_expert_gemm_equals_a_plain_loop(void **state)
{
	struct group_case g;

	rng = 7;
	g = group_new();
	RUN(moe_group, &g.a);
	for (size_t d = 0; d < COUNT_OF(weight_dtypes); d++) {
		check_expert_gemm(&g, weight_dtypes[d], 48, 16, ACTIVE);
		check_expert_gemm(&g, weight_dtypes[d], 33, 70, 1);
		check_expert_gemm(&g, weight_dtypes[d], 1, 1025, ACTIVE);
	}
}

static void test_expert_gemm_row_is_bitwise_the_same_in_any_batch(void **state)
{
	enum { OUT = 40, IN = 50 };
	int32_t start[2] = {0, 1}, pair = 0;
	struct op_expert_gemm a = {.x_div = 1, .n_tokens = TOKENS, .n_active = ACTIVE,
		.n_experts = EXPERTS};
	struct buffer x, y, one;
	struct group_case g;

	rng = 8;
	g = group_new();
	a.w = random_weight(DTYPE_BF16, EXPERTS * OUT, IN);
	x = random_floats(PAIRS * IN);
	y = buffer_new(PAIRS * OUT * sizeof(float));
	one = buffer_new(OUT * sizeof(float));
	RUN(moe_group, &g.a);
	a.x = x.data;
	a.y = y.data;
	a.expert_start = g.start.data;
	a.pairs = g.pairs.data;
	RUN(expert_gemm, &a);
	for (uint32_t p = 0; p < PAIRS; p++) {
		int32_t e = I(g.experts)[p];
		struct op_expert_gemm alone = {.x = F(x) + p * IN, .x_div = 1, .expert_start = start,
			.pairs = &pair, .y = one.data, .n_tokens = 1, .n_active = 1, .n_experts = 1};

		if (e < 0)
			continue;
		alone.w = (struct weight){
			(const uint16_t *)a.w.data + (size_t)e * OUT * IN, DTYPE_BF16, OUT, IN};
		RUN(expert_gemm, &alone);
		assert_memory_equal(F(y) + p * OUT, one.data, OUT * sizeof(float));
	}
}

static void test_expert_gated_gemm_is_silu_of_gate_times_up(void **state)
{
	enum { OUT = 20, IN = 30 };
	struct op_expert_gated_gemm a = {
		.n_tokens = TOKENS,
		.n_active = ACTIVE,
		.n_experts = EXPERTS,
	};
	struct buffer x, gate_up, y;
	struct group_case g;

	rng = 9;
	g = group_new();
	a.w = random_weight(DTYPE_BF16, EXPERTS * 2 * OUT, IN);
	x = random_floats(TOKENS * IN);
	gate_up = buffer_new(PAIRS * 2 * OUT * sizeof(float));
	y = buffer_new(PAIRS * OUT * sizeof(float));
	RUN(moe_group, &g.a);
	a.x = x.data;
	a.y = y.data;
	a.gate_up = gate_up.data;
	a.expert_start = g.start.data;
	a.pairs = g.pairs.data;
	RUN(expert_gated_gemm, &a);
	for (uint32_t p = 0; p < PAIRS; p++) {
		const float *row = F(x) + p / ACTIVE * IN;
		uint32_t first = (uint32_t)I(g.experts)[p] * 2 * OUT;

		for (uint32_t c = 0; c < OUT && I(g.experts)[p] >= 0; c++) {
			double gate = 0, up = 0;

			for (uint32_t i = 0; i < IN; i++) {
				gate += (double)row[i] * weight_at(&a.w, first + c, i);
				up += (double)row[i] * weight_at(&a.w, first + OUT + c, i);
			}
			assert_close((double)F(y)[p * OUT + c], gate / (1 + exp(-gate)) * up, 1e-4);
		}
	}
}

static void test_products_of_other_shapes_are_refused(void **state)
{
	struct op_expert_gemm a = {.n_tokens = TOKENS, .n_active = ACTIVE};
	struct group_case g;
	struct buffer x;

	g = group_new();
	a.w = random_weight(DTYPE_F32, EXPERTS * 4, 8);
	x = random_floats(PAIRS * 8);
	a.x = a.y = x.data;
	a.expert_start = g.start.data;
	a.pairs = g.pairs.data;
	for (int fault = 0; fault < 4; fault++) {
		a.n_experts = fault == 0 ? 3 : fault == 1 ? 0 : EXPERTS;
		a.x_div = fault == 2 ? 2 : 1;
		a.pairs = fault == 3 ? NULL : g.pairs.data;
		assert_refused(expert_gemm, &a);
	}
}

static void test_products_of_packed_experts_are_refused(void **state)
{
	struct op_expert_gemm a = {.x_div = 1, .n_tokens = TOKENS, .n_active = ACTIVE, .n_experts = EXPERTS};
	struct group_case g;
	struct buffer x;

	g = group_new();
	a.w = random_weight(DTYPE_F32, EXPERTS * 8, 128);
	a.w.dtype = DTYPE_E4M3;
	x = random_floats(PAIRS * 128);
	a.x = a.y = x.data;
	a.expert_start = g.start.data;
	a.pairs = g.pairs.data;
	assert_refused(expert_gemm, &a);
}

/* ---- the sum ---- */

static void check_combine(const struct group_case *g, bool based, bool in_place)
{
	enum { COLS = 37 };
	struct buffer base = random_floats(TOKENS * COLS), kept = buffer_new(base.bytes);
	struct buffer y = random_floats(PAIRS * COLS), weights = random_floats(PAIRS);
	struct buffer out = buffer_new(base.bytes);
	struct op_moe_combine a = {.base = based ? base.data : NULL, .y = y.data,
		.experts = g->experts.data, .weights = weights.data,
		.out = in_place ? base.data : out.data, .n_tokens = TOKENS, .n_active = ACTIVE,
		.cols = COLS};

	memcpy(kept.data, base.data, base.bytes);
	for (uint32_t p = 0; p < PAIRS; p++) /* what no expert computes is not written */
		for (uint32_t i = 0; I(g->experts)[p] < 0 && i < COLS; i++)
			F(y)[p * COLS + i] = NAN;
	RUN(moe_combine, &a);
	for (uint32_t i = 0; i < TOKENS * COLS; i++) {
		double sum = based ? (double)F(kept)[i] : 0;

		for (uint32_t j = 0; j < ACTIVE; j++) {
			uint32_t p = i / COLS * ACTIVE + j;

			if (I(g->experts)[p] >= 0)
				sum += (double)F(weights)[p] * (double)F(y)[p * COLS + i % COLS];
		}
		assert_close((double)((float *)a.out)[i], sum, 1e-6);
	}
}

static void test_combine_weighs_what_experts_computed_and_nothing_else(void **state)
{
	struct group_case g;

	rng = 10;
	g = group_new();
	check_combine(&g, false, false);
	check_combine(&g, true, false);
	check_combine(&g, true, true);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_group_lists_each_experts_pairs_in_order),
	cmocka_unit_test(test_group_of_no_tokens_is_empty_and_of_too_many_is_refused),
	cmocka_unit_test(test_expert_gemm_equals_a_plain_loop),
	cmocka_unit_test(test_expert_gemm_row_is_bitwise_the_same_in_any_batch),
	cmocka_unit_test(test_expert_gated_gemm_is_silu_of_gate_times_up),
	cmocka_unit_test(test_products_of_other_shapes_are_refused),
	cmocka_unit_test(test_products_of_packed_experts_are_refused),
	cmocka_unit_test(test_combine_weighs_what_experts_computed_and_nothing_else),
};

OPS_TEST_MAIN("cpu ops: experts", tests)
