/* SPDX-License-Identifier: MIT */

/* The entries of tensors in a GGUF header. */
#include "tests/model/gguf_file.h"

#define F32 0u
#define Q8_0 8u

static void test_tensors_have_their_shape_in_row_order_and_their_place(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;
	struct model_error error = {""};

	file.version = 2;
	put_tensor(&file, "b", 3, 64, Q8_0, 32);
	put_tensor(&file, "a", 5, 0, F32, 0);
	assert_int_equal(gguf_file_parse(&file, WHOLE, &gguf, &error), 0);
	const struct safetensors_tensor *b = gguf_find_tensor(&gguf, "b");
	assert_non_null(b);
	assert_int_equal(b->n_dims, 2);
	assert_int_equal(b->shape[0], 3);
	assert_int_equal(b->shape[1], 64);
	assert_int_equal(b->bytes, 3 * 2 * 34);
	assert_string_equal(b->dtype_name, "Q8_0");
	assert_true(b->usable && b->format && b->dtype == DTYPE_F32);
	assert_int_equal(b->offset, gguf_find_tensor(&gguf, "a")->offset + 32);
	assert_int_equal(b->offset % 32, 0);
	gguf_deinit(&gguf);
	(void)state;
}

static void test_unknown_type_is_unusable_but_no_error(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;
	struct model_error error = {""};

	put_tensor(&file, "a", 1, 7, 4711, 0);
	put_tensor(&file, "b", 1, 256, 10, 0);
	assert_int_equal(gguf_file_parse(&file, WHOLE, &gguf, &error), 0);
	assert_false(gguf_find_tensor(&gguf, "a")->usable);
	assert_string_equal(gguf_find_tensor(&gguf, "a")->dtype_name, "4711");
	assert_string_equal(gguf_find_tensor(&gguf, "b")->dtype_name, "Q2_K");
	gguf_deinit(&gguf);
	(void)state;
}

/* A tensor of a type, alone in a header. */
static void refuse_tensor(
	uint64_t rows, uint64_t cols, uint32_t type, uint64_t offset, const char *words)
{
	struct gguf_file file = GGUF_FILE_INIT;

	put_tensor(&file, "t", rows, cols, type, offset);
	gguf_file_refused(file, WHOLE, words);
}

static void test_bad_tensor_is_refused_with_its_name(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	refuse_tensor(0, 8, F32, 0, "tensor \"t\": its shape is empty or overflows");
	refuse_tensor(1ull << 40, 1ull << 40, F32, 0, "tensor \"t\": its shape is empty or overflows");
	refuse_tensor(1ull << 31, 1ull << 31, F32, 0, "tensor \"t\": its shape is empty or overflows");
	refuse_tensor(4, 48, Q8_0, 0,
		"tensor \"t\": rows of 48 elements are not made of blocks of 32, as type Q8_0 needs");
	refuse_tensor(4, 4, F32, 4, "tensor \"t\": offset 4 is not a multiple of general.alignment 32");
	refuse_tensor(4, 4, F32, WHOLE, "tensor \"t\": 64 bytes at offset 1048576 leave the file");
	refuse_tensor(1 << 10, 1 << 10, F32, 0, "leave the file");
	refuse_tensor(4, 4, F32, UINT64_MAX - 31, "leave the file");
	/* its header has 96 bytes with the padding */
	refuse_tensor(4, 4, F32, WHOLE - 128, "leave the file, which has 1048480 bytes of data");
	put_tensor(&file, "t", 1, 0, F32, 0);
	put_tensor(&file, "t", 1, 0, F32, 32);
	gguf_file_refused(file, WHOLE, "tensor \"t\" comes twice");
	(void)state;
}

static void test_tensors_that_overlap_are_refused(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	put_tensor(&file, "second", 4, 4, F32, 32);
	put_tensor(&file, "first", 3, 4, F32, 0);
	gguf_file_refused(file, WHOLE, "tensor \"second\": its data overlaps that of \"first\"");
	(void)state;
}

static void test_dimensions_outside_their_range_are_refused(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	file.n_tensors = 1;
	put_string(&file.tensors, "t");
	put_uint(&file.tensors, 5, 4);
	gguf_file_refused(file, WHOLE, "tensor \"t\": 5 dimensions; the range is 1 to 4");
	file = (struct gguf_file)GGUF_FILE_INIT;
	file.n_tensors = 1;
	put_string(&file.tensors, "t");
	put_uint(&file.tensors, 0, 4);
	gguf_file_refused(file, WHOLE, "tensor \"t\": 0 dimensions; the range is 1 to 4");
	(void)state;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tensors_have_their_shape_in_row_order_and_their_place),
		cmocka_unit_test(test_unknown_type_is_unusable_but_no_error),
		cmocka_unit_test(test_bad_tensor_is_refused_with_its_name),
		cmocka_unit_test(test_tensors_that_overlap_are_refused),
		cmocka_unit_test(test_dimensions_outside_their_range_are_refused),
	};

	return cmocka_run_group_tests_name("gguf_tensors", tests, NULL, NULL);
}
