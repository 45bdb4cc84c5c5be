/* SPDX-License-Identifier: MIT */
/* Products whose sums stay float32, as a router's logits do, on the CUDA device, against the cpu's. */
#include "tests/kernels/cuda_ops_fixture.h"

/* So that near scores keep their order. */
static void test_router_logits_are_float32(void **state)
{
	static const uint32_t shapes[][2] = {{8, 48}, {8, 160}, {64, 2048}, {256, 7168}};
	static const uint32_t tokens[] = {1, 9, 70};

	for (size_t i = 0; i < COUNT_OF(shapes) * COUNT_OF(tokens); i++) {
		const struct mark mark = mark_here();
		const uint32_t n = tokens[i / COUNT_OF(shapes)],
			       *shape = shapes[i % COUNT_OF(shapes)];
		const size_t count = (size_t)n * shape[0];
		struct op_gemm a = {.y_dtype = DTYPE_F32, .n_rows = n};
		struct both data = random_weight(&a.w, DTYPE_BF16, shape[0], shape[1]);
		struct both x = random_act((size_t)n * shape[1]), y = both_new(BYTES, count * 4);
		float *sums[N_SIDES];

		for (int side = 0; side < N_SIDES; side++) {
			a.x = x.at[side];
			a.w.data = data.at[side];
			a.y = y.at[side];
			RUN(side, gemm, &a);
			sums[side] = scratch(count * sizeof(float));
			both_copy(side, sums[side], y.at[side], count * sizeof(float));
		}
		for (size_t j = 0; j < count; j++)
			if (!(fabsf(sums[CUDA][j] - sums[CPU][j]) <= 2e-6f * (float)shape[1]))
				fail_msg("logit %zu of %u experts: cuda %.9g, cpu %.9g", j,
					shape[0], (double)sums[CUDA][j], (double)sums[CPU][j]);
		release_to(mark);
	}
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_router_logits_are_float32),
};

CUDA_TEST_MAIN("cuda router", tests)
