/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include "ipc/msg.h"
#include "ipc/wire_check.h"
#include "tests/ipc/test.h"
#include "tests/random.h"

struct sample {
	const char *bytes;
	size_t size;
	enum wire_refusal refusal;
	size_t offset;
};
#define SAMPLE(text, refusal, offset)                                                              \
	{                                                                                          \
		text, sizeof(text) - 1, refusal, offset                                            \
	}

/* From a heap block of that very size: a sanitizer sees one byte too far. */
static enum wire_refusal check(const void *bytes, size_t size, size_t *ret_offset)
{
	void *copy = malloc(size ? size : 1);

	assert_non_null(copy);
	memcpy(copy, bytes, size);
	enum wire_refusal refusal = wire_check((char *)copy + (size ? 0 : 1), size, ret_offset);
	free(copy);
	return refusal;
}

static void check_samples(const struct sample *samples, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size_t offset = SIZE_MAX;
		enum wire_refusal refusal = check(samples[i].bytes, samples[i].size, &offset);

		if (refusal != samples[i].refusal || offset != samples[i].offset)
			fail_msg("sample %zu: refusal %d at %zu", i, refusal, offset);
	}
}

static void test_wire_check_accepts_every_type_whole_and_no_prefix_of_it(void **state)
{
	static const struct sample samples[] = {
		SAMPLE("\x00", 0, 1),
		SAMPLE("\x7f", 0, 1),
		SAMPLE("\xe0", 0, 1),
		SAMPLE("\xff", 0, 1),
		SAMPLE("\xc0", 0, 1),
		SAMPLE("\xc2", 0, 1),
		SAMPLE("\xc3", 0, 1),
		SAMPLE("\xcc\x01", 0, 2),
		SAMPLE("\xcd\x01\x02", 0, 3),
		SAMPLE("\xce\x01\x02\x03\x04", 0, 5),
		SAMPLE("\xcf\1\2\3\4\5\6\7\x08", 0, 9),
		SAMPLE("\xd0\x01", 0, 2),
		SAMPLE("\xd1\x01\x02", 0, 3),
		SAMPLE("\xd2\x01\x02\x03\x04", 0, 5),
		SAMPLE("\xd3\1\2\3\4\5\6\7\x08", 0, 9),
		SAMPLE("\xca\x01\x02\x03\x04", 0, 5),
		SAMPLE("\xcb\1\2\3\4\5\6\7\x08", 0, 9),
		SAMPLE("\xa0", 0, 1),
		SAMPLE("\xa2hi", 0, 3),
		SAMPLE("\xd9\x02hi", 0, 4),
		SAMPLE("\xda\x00\x02hi", 0, 5),
		SAMPLE("\xdb\x00\x00\x00\x02hi", 0, 7),
		SAMPLE("\xc4\x02hi", 0, 4),
		SAMPLE("\xc5\x00\x02hi", 0, 5),
		SAMPLE("\xc6\x00\x00\x00\x02hi", 0, 7),
		SAMPLE("\x90", 0, 1),
		SAMPLE("\x92\x01\x02", 0, 3),
		SAMPLE("\xdc\x00\x02\x01\x02", 0, 5),
		SAMPLE("\xdd\x00\x00\x00\x02\x01\x02", 0, 7),
		SAMPLE("\x80", 0, 1),
		SAMPLE("\x81\x01\x02", 0, 3),
		SAMPLE("\xde\x00\x01\x01\x02", 0, 5),
		SAMPLE("\xdf\x00\x00\x00\x01\x01\x02", 0, 7),
		SAMPLE("\x82\x01\x92\xa1x\x80\x02\xc0", 0, 8),
	};

	check_samples(samples, ARRAY_SIZE(samples));
	for (size_t i = 0; i < ARRAY_SIZE(samples); i++) {
		for (size_t n = 0; n < samples[i].size; n++) {
			size_t offset;
			enum wire_refusal refusal = check(samples[i].bytes, n, &offset);

			assert_true(refusal == WIRE_SHORT || refusal == WIRE_COUNT);
			assert_true(offset <= n);
		}
	}
}

static void test_wire_check_refuses_counts_that_the_bytes_cannot_hold(void **state)
{
	static const struct sample samples[] = {
		SAMPLE("\xdd\xff\xff\xff\xff", WIRE_COUNT, 0),
		SAMPLE("\xdf\xff\xff\xff\xff", WIRE_COUNT, 0),
		SAMPLE("\xdf\x80\x00\x00\x00\x01\x02", WIRE_COUNT, 0),
		SAMPLE("\x93\x01\x02", WIRE_COUNT, 0),
		SAMPLE("\x82\x01\x02\x03", WIRE_COUNT, 0),
		/* each fits alone, together they do not */
		SAMPLE("\x92\x92\x01\x02", WIRE_COUNT, 1),
		SAMPLE("\x93\x01\x91\x02", WIRE_COUNT, 2),
		SAMPLE("\xa3hi", WIRE_SHORT, 0),
		SAMPLE("\x92\xdb\xff\xff\xff\xff\x01", WIRE_SHORT, 1),
		SAMPLE("\x91\xc6\xff\xff\xff\xff", WIRE_SHORT, 1),
		SAMPLE("\x91\xcd\x01", WIRE_SHORT, 1),
		SAMPLE("\x92\xa1x", WIRE_SHORT, 3),
		SAMPLE("", WIRE_SHORT, 0),
	};

	check_samples(samples, ARRAY_SIZE(samples));
}

static void test_wire_check_refuses_types_that_are_never_sent(void **state)
{
	static const struct sample samples[] = {
		SAMPLE("\xc1", WIRE_RESERVED, 0),
		SAMPLE("\x92\x01\xc1", WIRE_RESERVED, 2),
		SAMPLE("\xc7\x00\x01", WIRE_EXT, 0),
		SAMPLE("\xc8\x00\x00\x01", WIRE_EXT, 0),
		SAMPLE("\xc9\x00\x00\x00\x00\x01", WIRE_EXT, 0),
		SAMPLE("\xd4\x01\x00", WIRE_EXT, 0),
		SAMPLE("\xd5\x01\x00\x00", WIRE_EXT, 0),
		SAMPLE("\xd6\x01\x00\x00\x00\x00", WIRE_EXT, 0),
		SAMPLE("\xd7\x01\1\2\3\4\5\6\7\x08", WIRE_EXT, 0),
		SAMPLE("\x91\xd8\x01\1\2\3\4\5\6\7\x08\1\2\3\4\5\6\7\x08", WIRE_EXT, 1),
	};

	check_samples(samples, ARRAY_SIZE(samples));
}

static void test_wire_check_refuses_trailing_bytes(void **state)
{
	static const struct sample samples[] = {
		SAMPLE("\x01\x02", WIRE_TRAILING, 1),
		SAMPLE("\x80\xc1", WIRE_TRAILING, 1),
		SAMPLE("\x91\x01\x00", WIRE_TRAILING, 2),
	};

	check_samples(samples, ARRAY_SIZE(samples));
}

static void test_wire_check_bounds_the_depth(void **state)
{
	uint8_t bytes[MSG_DEPTH_MAX + 2];
	size_t offset;

	memset(bytes, 0x91, sizeof(bytes));
	bytes[MSG_DEPTH_MAX] = 0x01;
	assert_int_equal(check(bytes, MSG_DEPTH_MAX + 1, &offset), WIRE_OK);
	bytes[MSG_DEPTH_MAX] = 0x90; /* even an empty one is one too deep */
	assert_int_equal(check(bytes, MSG_DEPTH_MAX + 1, &offset), WIRE_DEPTH);
	assert_int_equal(offset, MSG_DEPTH_MAX);
	bytes[MSG_DEPTH_MAX - 1] = 0x90;
	assert_int_equal(check(bytes, MSG_DEPTH_MAX, &offset), WIRE_OK);
}

static void test_wire_check_leaves_a_depth_when_its_container_ends(void **state)
{
	/* twenty arrays beside each other, in one */
	uint8_t bytes[3 + 20 * 2] = {0xdc, 0, 20};
	size_t offset;

	for (size_t i = 3; i < sizeof(bytes); i += 2) {
		bytes[i] = 0x91;
		bytes[i + 1] = 0x90;
	}
	assert_int_equal(check(bytes, sizeof(bytes), &offset), WIRE_OK);
}

static void test_wire_check_bounds_the_whole(void **state)
{
	uint8_t *bytes = calloc(1, MSG_SOCKET_MAX + 1);
	size_t offset;

	assert_non_null(bytes);
	bytes[0] = 0xc5; /* bin 16 */
	bytes[1] = 0xff;
	bytes[2] = 0xfd;
	assert_int_equal(wire_check(bytes, MSG_SOCKET_MAX, &offset), WIRE_OK);
	assert_int_equal(wire_check(bytes, MSG_SOCKET_MAX + 1, &offset), WIRE_TOO_LARGE);
	assert_int_equal(offset, MSG_SOCKET_MAX);
	free(bytes);
}

static size_t count_values(const msgpack_object *object)
{
	size_t n = 1;

	if (object->type == MSGPACK_OBJECT_ARRAY) {
		for (uint32_t i = 0; i < object->via.array.size; i++)
			n += count_values(&object->via.array.ptr[i]);
	} else if (object->type == MSGPACK_OBJECT_MAP) {
		for (uint32_t i = 0; i < object->via.map.size; i++) {
			n += count_values(&object->via.map.ptr[i].key);
			n += count_values(&object->via.map.ptr[i].val);
		}
	}
	return n;
}

/* Random bytes, biased to small containers so that a good share of them is accepted. */
static void test_wire_check_agrees_with_msgpack_and_bounds_its_values(void **state)
{
	static const uint8_t likely[] = {0x80, 0x81, 0x82, 0x90, 0x91, 0x92, 0x93, 0xa0, 0xa1, 0xc0,
		0xc4, 0xcc, 0xcd, 0xd9, 0xdc, 0xde, 0x00, 0x01, 0x02, 0xff};
	uint64_t random = 1;
	unsigned accepted = 0;

	for (unsigned round = 0; round < 200000; round++) {
		uint8_t bytes[16];
		size_t n = 1 + round % sizeof(bytes), offset = 0;
		msgpack_unpacked result;

		for (size_t i = 0; i < n; i++)
			bytes[i] = likely[random_below(&random, sizeof(likely))];
		if (wire_check(bytes, n, &offset) != WIRE_OK)
			continue;
		accepted++;
		msgpack_unpacked_init(&result);
		offset = 0;
		assert_int_equal(msgpack_unpack_next(&result, (const char *)bytes, n, &offset),
			MSGPACK_UNPACK_SUCCESS);
		assert_int_equal(offset, n);
		assert_true(count_values(&result.data) <= n);
		msgpack_unpacked_destroy(&result);
	}
	assert_true(accepted > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wire_check_accepts_every_type_whole_and_no_prefix_of_it),
		cmocka_unit_test(test_wire_check_refuses_counts_that_the_bytes_cannot_hold),
		cmocka_unit_test(test_wire_check_refuses_types_that_are_never_sent),
		cmocka_unit_test(test_wire_check_refuses_trailing_bytes),
		cmocka_unit_test(test_wire_check_bounds_the_depth),
		cmocka_unit_test(test_wire_check_leaves_a_depth_when_its_container_ends),
		cmocka_unit_test(test_wire_check_bounds_the_whole),
		cmocka_unit_test(test_wire_check_agrees_with_msgpack_and_bounds_its_values),
	};

	return cmocka_run_group_tests_name("wire_check", tests, NULL, NULL);
}
