/* SPDX-License-Identifier: MIT */
/* Our own products of plain weights: skinny.cu, wide.cu and broad.cu; and invariant ones of all weights. */
#include "tests/kernels/own_gemm.h"

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

/* x has several tiles of rows, and the last one is not full. W has rows for one multiprocessor, or for several rounds
 * of all. The number of W's tiles is odd, and a cluster of two blocks takes two tiles. */
static void test_each_variant_for_several_tiles_of_rows_is_the_product(void **state)
{
	static const uint32_t rows[] = {257, 384, 520, 1025},
			      shapes[][2] = {{2, 64}, {100, 72}, {392, 1032}, {4484, 200}};

	check_shapes(*state, &(struct shapes){4, 4, rows, shapes, 0, 3, false});
}

static void test_each_variant_for_several_tiles_of_rows_of_the_gated_gemm_is_right(void **state)
{
	static const uint32_t rows[] = {257, 384, 520, 1025},
			      shapes[][2] = {{16, 64}, {112, 520}, {4496, 200}};

	check_shapes(*state, &(struct shapes){4, 3, rows, shapes, -1, 4, true});
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
	for (int kind = PACKED_E4M3_ROWS; kind <= PACKED_U4_32 && info.packs; kind++)
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
		ON_DEVICE(test_each_variant_for_several_tiles_of_rows_is_the_product),
		ON_DEVICE(test_each_variant_for_several_tiles_of_rows_of_the_gated_gemm_is_right),
		ON_DEVICE(test_each_variant_for_a_large_matrix_is_the_product),
		ON_DEVICE(test_what_none_of_ours_can_is_right),
		ON_DEVICE(test_rows_of_an_invariant_product_have_the_same_bits_alone_and_among_others),
		cmocka_unit_test(
			test_a_long_chain_of_each_variant_has_the_bits_of_one_run_serially),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_own_gemm", tests, NULL, NULL);
}
