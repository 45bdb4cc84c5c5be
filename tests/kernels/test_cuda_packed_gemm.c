/* SPDX-License-Identifier: MIT */
/* Our own products of packed weights (kernels/packed.h): skinny.cu, wide.cu, and by copies. */
#include "tests/kernels/own_gemm.h"

/* Each form with each way: few rows by skinny.cu, more by wide.cu, many by a copy. */
static void check_packed(struct fixture *f, const struct shapes *t)
{
	struct device_info info;

	assert_int_equal(f->ops->info(f->device, &info), 0);
	for (int kind = PACKED_E4M3_ROWS; kind <= PACKED_U4_32 && info.packs; kind++) {
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

int main(void)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_each_variant_of_packed_weights_for_few_rows_is_the_product),
		ON_DEVICE(test_each_variant_of_packed_weights_for_more_rows_is_the_product),
		ON_DEVICE(test_each_variant_of_packed_weights_of_the_gated_gemm_is_right),
		ON_DEVICE(test_each_variant_of_packed_weights_of_a_wide_gated_gemm_is_right),
		ON_DEVICE(test_packed_weights_that_are_too_large_to_copy_are_multiplied),
		ON_DEVICE(test_packed_weights_for_many_rows_are_copied),
	};

	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_packed_gemm", tests, NULL, NULL);
}
