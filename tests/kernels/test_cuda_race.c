/* SPDX-License-Identifier: MIT */
/*
 * Our own products for compute-sanitizer's racecheck: each variant of skinny.cu, wide.cu and broad.cu for
 * weights that are not packed,
 * launched by itself and not through gemm.c, because racecheck breaks down where one of cuBLASLt's
 * kernels runs. The device is said to have two multiprocessors, so that with small matrices, too, a
 * block goes on to further tiles and round its ring. What comes out is what the cpu device makes.
 *
 * This program has these files compiled for itself, with MIMEO_RACECHECK: see racecheck.cuh.
 */
#include "tests/kernels/cuda_ops_fixture.h"

#include "kernels/cuda/broad.h"
#include "kernels/cuda/internal.h"
#include "kernels/cuda/skinny.h"
#include "kernels/cuda/wide.h"

#define N_SMS 2u

struct product {
	struct op_gemm gemm[N_SIDES];
	struct op_gated_gemm gated; /* the cpu device's */
	struct both x, w, bias, gate_up, y;
	bool is_gated, f32;
};

static void product_new(struct product *p, uint32_t rows, uint32_t n, uint32_t k)
{
	const uint32_t cols = p->is_gated ? n / 2 : n;
	const enum dtype dtype = p->f32 ? DTYPE_F32 : DTYPE_BF16;
	struct weight w, bias;

	p->x = random_act_at((size_t)rows * k, 4 / sqrtf((float)k), 0);
	p->w = random_weight(&w, DTYPE_BF16, n, k);
	p->bias = random_weight(&bias, dtype, 1, n);
	p->gate_up = both_new(ACT, (size_t)rows * n);
	p->y = p->f32 ? both_new(BYTES, (size_t)rows * cols * 4)
		      : both_new(ACT, (size_t)rows * cols);
	for (int side = 0; side < N_SIDES; side++) {
		w.data = p->w.at[side];
		bias.data = p->bias.at[side];
		p->gemm[side] = (struct op_gemm){.x = p->x.at[side],
			.w = w,
			.bias = bias,
			.y = p->y.at[side],
			.y_dtype = side == CPU ? DTYPE_F32 : dtype,
			.n_rows = rows};
	}
	p->gated = (struct op_gated_gemm){.x = p->x.at[CPU],
		.w = p->gemm[CPU].w,
		.bias = p->gemm[CPU].bias,
		.gate_up = p->gate_up.at[CPU],
		.y = p->y.at[CPU],
		.n_rows = rows};
	if (p->is_gated)
		RUN(CPU, gated_gemm, &p->gated);
	else
		RUN(CPU, gemm, &p->gemm[CPU]);
}

/* What both sides hold, float32 there as well. */
static void check_floats(const struct both *y)
{
	float *values[N_SIDES];

	for (int side = 0; side < N_SIDES; side++) {
		values[side] = scratch(y->n);
		both_copy(side, values[side], y->at[side], y->n);
	}
	for (size_t i = 0; i < y->n / 4; i++) {
		const float want = values[CPU][i], got = values[CUDA][i];

		if (!(fabsf(got - want) <= 1e-4f + 1e-4f * fabsf(want)))
			fail_msg("element %zu: cuda %.9g, cpu %.9g", i, (double)got, (double)want);
	}
}

enum family { SKINNY, WIDE, BROAD };

static int variants_of(enum family family, const struct product *p, uint8_t *ret)
{
	if (family == SKINNY)
		return skinny_variants(streams[CUDA], &p->gemm[CUDA], p->is_gated, ret);
#ifdef MIMEO_CUDA_SM90A
	if (family == BROAD)
		return broad_variants(streams[CUDA], &p->gemm[CUDA], p->is_gated, ret);
	return wide_variants(streams[CUDA], &p->gemm[CUDA], p->is_gated, ret);
#else
	return 0;
#endif
}

static int launch(enum family family, const struct product *p, uint8_t variant)
{
	if (family == SKINNY)
		return skinny_launch(streams[CUDA], &p->gemm[CUDA], variant);
#ifdef MIMEO_CUDA_SM90A
	if (family == BROAD)
		return broad_launch(streams[CUDA], &p->gemm[CUDA], p->is_gated, variant);
	return wide_launch(streams[CUDA], &p->gemm[CUDA], p->is_gated, variant);
#else
	return -ENOTSUP;
#endif
}

static void check_variant(enum family family, const struct product *p, uint8_t variant)
{
	const struct device_ops *ops = devices[CUDA]->ops;
	struct stream *stream = streams[CUDA];

	assert_int_equal(
		ops->fill_async(stream, p->y.at[CUDA], 0xff, both_bytes(&p->y, CUDA)), 0);
	assert_int_equal(cuda_launch_begin(stream, "race", skinny_kernel()), 0);
	assert_int_equal(launch(family, p, variant), 0);
	assert_int_equal(cuda_launch_end(stream, "race"), 0);
	assert_int_equal(ops->stream_sync(stream), 0);
	if (p->f32)
		check_floats(&p->y);
	else
		both_check_close(&p->y, 0x1p-7, 1e-3);
}

struct shapes {
	enum family family;
	bool gated;
	uint32_t n_rows, n_shapes;
	const uint32_t *rows;
	const uint32_t (*shapes)[2]; /* n, k */
};

static void check_shapes(const struct shapes *t)
{
	for (uint32_t i = 0; i < t->n_rows * t->n_shapes; i++) {
		const struct mark mark = mark_here();
		const uint32_t *shape = t->shapes[i % t->n_shapes];
		struct product p = {.is_gated = t->gated, .f32 = !t->gated && i & 1};
		uint8_t variants[SKINNY_VARIANTS_MAX + WIDE_VARIANTS_MAX + BROAD_VARIANTS_MAX];
		int n;

		product_new(&p, t->rows[i / t->n_shapes], shape[0], shape[1]);
		n = variants_of(t->family, &p, variants);
		assert_true(n > 0);
		for (int v = 0; v < n; v++)
			check_variant(t->family, &p, variants[v]);
		release_to(mark);
	}
}

/* Of W: rows of nine chunks and a bit, for which x may not stay in shared memory; many rows, of two
 * chunks, of one and of less. */
static void test_skinny_s_variants_are_the_product(void **state)
{
	static const uint32_t rows[] = {1, 2, 8, 16},
			      shapes[][2] = {{40, 9280}, {136, 2048}, {72, 1024}, {100, 192}};

	check_shapes(&(struct shapes){SKINNY, false, 4, 4, rows, shapes});
}

static void test_skinny_s_variants_for_more_rows_are_the_product(void **state)
{
	static const uint32_t rows[] = {17, 32}, shapes[][2] = {{136, 2048}, {100, 192}};

	check_shapes(&(struct shapes){SKINNY, false, 2, 2, rows, shapes});
}

static void test_skinny_s_gated_variants_are_the_gated_product(void **state)
{
	static const uint32_t rows[] = {1, 2, 8, 16}, shapes[][2] = {{272, 2048}, {208, 192}};

	check_shapes(&(struct shapes){SKINNY, true, 4, 2, rows, shapes});
}

/* Three tiles a block, that take a ring round and that don't, and are not split; and tiles that are
 * split among the blocks of a cluster. */
static void test_wide_s_variants_are_the_product(void **state)
{
	static const uint32_t rows[] = {17, 32, 64},
			      shapes[][2] = {{600, 504}, {598, 136}, {42, 2624}};

	check_shapes(&(struct shapes){WIDE, false, 3, 3, rows, shapes});
}

static void test_wide_s_gated_variants_are_the_gated_product(void **state)
{
	static const uint32_t rows[] = {17, 32, 64},
			      shapes[][2] = {{600, 504}, {596, 136}, {44, 2624}};

	check_shapes(&(struct shapes){WIDE, true, 3, 3, rows, shapes});
}

static void test_broad_s_variants_are_the_product(void **state)
{
	static const uint32_t rows[] = {65, 130}, shapes[][2] = {{600, 504}, {598, 136}, {42, 2624}};

	check_shapes(&(struct shapes){BROAD, false, 2, 3, rows, shapes});
}

static void test_broad_s_gated_variants_are_the_gated_product(void **state)
{
	static const uint32_t rows[] = {65, 130}, shapes[][2] = {{608, 504}, {592, 136}, {48, 2624}};

	check_shapes(&(struct shapes){BROAD, true, 2, 3, rows, shapes});
}

static int products_start(void **state)
{
	int rc;

	cuda_device(devices[CUDA])->limits.n_sms = N_SMS;
	rc = skinny_start(streams[CUDA]);
#ifdef MIMEO_CUDA_SM90A
	if (rc)
		return rc;
	rc = wide_start(streams[CUDA]);
	return rc ? rc : broad_start(streams[CUDA]);
#else
	return rc;
#endif
}

/* How many of the tests, wide's and broad's last, this device has kernels for. */
static size_t n_for_device(size_t n_skinny, size_t n_all)
{
	const struct cuda_limits *limits = cuda_limits(streams[CUDA]);

	if (limits->code_arch < 90)
		return 0;
#ifdef MIMEO_CUDA_SM90A
	if (limits->arch == 90)
		return n_all;
#endif
	return n_skinny;
}

/* An argument is a pattern of tests to run. */
int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_skinny_s_variants_are_the_product),
		cmocka_unit_test(test_skinny_s_variants_for_more_rows_are_the_product),
		cmocka_unit_test(test_skinny_s_gated_variants_are_the_gated_product),
		cmocka_unit_test(test_wide_s_variants_are_the_product),
		cmocka_unit_test(test_wide_s_gated_variants_are_the_gated_product),
		cmocka_unit_test(test_broad_s_variants_are_the_product),
		cmocka_unit_test(test_broad_s_gated_variants_are_the_gated_product),
	};
	int rc = devices_open();
	size_t n;

	if (rc != 0)
		return rc == 77 ? 0 : rc;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	n = n_for_device(3, COUNT_OF(tests));
	if (n > 0)
		rc = _cmocka_run_group_tests("cuda_race", tests, n, products_start, NULL);
	else
		puts("1..0 # SKIP no kernels of our own for this device");
	for (size_t i = n; n > 0 && i < COUNT_OF(tests); i++)
		printf("# skipped: %s: no code for 9.0a\n", tests[i].name);
	devices_close();
	return rc;
}
