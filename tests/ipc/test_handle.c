/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "ipc/handle.h"
#include "tests/ipc/test.h"

static struct mimeo_handle example(uint32_t kind)
{
	struct mimeo_handle handle = {.kind = kind, .bytes = 0x123456789abcull, .offset = 0x200000};

	if (kind != MIMEO_HANDLE_MEMFD)
		memset(handle.uuid, 0xa5, sizeof(handle.uuid));
	if (kind == MIMEO_HANDLE_CUDA_IPC)
		for (size_t i = 0; i < sizeof(handle.opaque); i++)
			handle.opaque[i] = (uint8_t)i;
	return handle;
}

static void test_handle_is_decoded_as_it_was_encoded(void **state)
{
	for (uint32_t kind = MIMEO_HANDLE_MEMFD; kind <= MIMEO_HANDLE_CUDA_IPC; kind++) {
		struct mimeo_handle sent = example(kind), got = {0};
		uint8_t wire[HANDLE_WIRE_BYTES];

		handle_encode(&sent, wire);
		assert_int_equal(handle_decode(wire, sizeof(wire), &got), HANDLE_OK);
		assert_int_equal(got.kind, kind);
		assert_int_equal(got.bytes, sent.bytes);
		assert_int_equal(got.offset, sent.offset);
		assert_memory_equal(got.uuid, sent.uuid, sizeof(sent.uuid));
		assert_memory_equal(got.opaque, sent.opaque, sizeof(sent.opaque));
		assert_int_equal(handle_has_fd(&got), kind != MIMEO_HANDLE_CUDA_IPC);
	}
}

static void test_handle_travels_as_drawn(void **state)
{
	struct mimeo_handle handle = example(MIMEO_HANDLE_CUDA_IPC);
	uint8_t wire[HANDLE_WIRE_BYTES];

	handle_encode(&handle, wire);
	assert_memory_equal(wire, "\3\0\0\0\0\0\0\0\xa5", 9);
	assert_memory_equal(
		wire + 24, "\xbc\x9a\x78\x56\x34\x12\0\0\0\0\x20\0\0\0\0\0\0\1\2\3", 20);
}

static void test_handle_of_another_length_is_refused(void **state)
{
	struct mimeo_handle handle = example(MIMEO_HANDLE_VMM_FD), got;
	uint8_t wire[HANDLE_WIRE_BYTES + 1] = {0};

	handle_encode(&handle, wire);
	assert_int_equal(handle_decode(wire, HANDLE_WIRE_BYTES - 1, &got), HANDLE_LENGTH);
	assert_int_equal(handle_decode(wire, HANDLE_WIRE_BYTES + 1, &got), HANDLE_LENGTH);
	assert_int_equal(handle_decode(wire, 0, &got), HANDLE_LENGTH);
}

static void test_handle_of_an_unknown_kind_is_refused(void **state)
{
	struct mimeo_handle handle = example(MIMEO_HANDLE_VMM_FD);

	handle.kind = 0;
	assert_int_equal(handle_check(&handle), HANDLE_KIND);
	handle.kind = MIMEO_HANDLE_CUDA_IPC + 1;
	assert_int_equal(handle_check(&handle), HANDLE_KIND);
}

static void test_handle_with_dirty_padding_is_refused_and_writes_nothing(void **state)
{
	struct mimeo_handle handle = example(MIMEO_HANDLE_VMM_FD), got, before;
	uint8_t wire[HANDLE_WIRE_BYTES];

	memset(&got, 0x5a, sizeof(got));
	before = got;
	handle_encode(&handle, wire);
	wire[7] = 1;
	assert_int_equal(handle_decode(wire, sizeof(wire), &got), HANDLE_PADDING);
	assert_memory_equal(&got, &before, sizeof(got));
}

static void test_handle_with_an_impossible_extent_is_refused(void **state)
{
	static const struct {
		uint64_t size, offset;
	} bad[] = {{0, 0}, {1, UINT64_MAX}, {UINT64_MAX, 1}, {INT64_MAX, 1}, {1ull << 63, 0},
		{1, INT64_MAX}};
	struct mimeo_handle handle = example(MIMEO_HANDLE_VMM_FD);

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		handle.bytes = bad[i].size;
		handle.offset = bad[i].offset;
		assert_int_equal(handle_check(&handle), HANDLE_SIZE);
	}
	handle.bytes = INT64_MAX;
	handle.offset = 0;
	assert_int_equal(handle_check(&handle), HANDLE_OK);
}

static void test_handle_whose_bytes_do_not_suit_its_kind_is_refused(void **state)
{
	struct mimeo_handle handle = example(MIMEO_HANDLE_MEMFD);

	handle.uuid[15] = 1;
	assert_int_equal(handle_check(&handle), HANDLE_UUID);
	handle = example(MIMEO_HANDLE_VMM_FD);
	memset(handle.uuid, 0, sizeof(handle.uuid));
	assert_int_equal(handle_check(&handle), HANDLE_UUID);
	handle = example(MIMEO_HANDLE_VMM_FD);
	handle.opaque[63] = 1;
	assert_int_equal(handle_check(&handle), HANDLE_OPAQUE);
	handle = example(MIMEO_HANDLE_CUDA_IPC);
	memset(handle.opaque, 0, sizeof(handle.opaque));
	assert_int_equal(handle_check(&handle), HANDLE_OPAQUE);
}

static void test_handle_refusals_have_texts_of_their_own(void **state)
{
	for (int i = HANDLE_OK; i <= HANDLE_OPAQUE; i++)
		for (int k = HANDLE_OK; k < i; k++)
			assert_string_not_equal(handle_refusal_text((enum handle_refusal)i),
				handle_refusal_text((enum handle_refusal)k));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_handle_is_decoded_as_it_was_encoded),
		cmocka_unit_test(test_handle_travels_as_drawn),
		cmocka_unit_test(test_handle_of_another_length_is_refused),
		cmocka_unit_test(test_handle_of_an_unknown_kind_is_refused),
		cmocka_unit_test(test_handle_with_dirty_padding_is_refused_and_writes_nothing),
		cmocka_unit_test(test_handle_with_an_impossible_extent_is_refused),
		cmocka_unit_test(test_handle_whose_bytes_do_not_suit_its_kind_is_refused),
		cmocka_unit_test(test_handle_refusals_have_texts_of_their_own),
	};

	return cmocka_run_group_tests_name("handle", tests, NULL, NULL);
}
