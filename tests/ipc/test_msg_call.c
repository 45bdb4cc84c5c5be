/* SPDX-License-Identifier: MIT */
/* Calls on a session's socket and their replies; places in device buffers in requests. */
#include <errno.h>
#include <string.h>

#include <mimeo/types.h>

#include "ipc/handle.h"
#include "ipc/msg_table.h"
#include "tests/ipc/test.h"

static struct msg_codec *codec;

static int setup(void **state)
{
	return msg_codec_new(&codec);
}

static int teardown(void **state)
{
	msg_codec_free(codec);
	return 0;
}

static void test_calls_come_back_as_they_were(void **state)
{
	struct msg_call calls[] = {
		{.call = MSG_CALL_BUFFER_ALLOC, .kind = MIMEO_HANDLE_VMM_FD, .bytes = UINT64_MAX},
		{.call = MSG_CALL_BUFFER_ALLOC, .bytes = 1},
		{.call = MSG_CALL_BUFFER_IMPORT},
		{.call = MSG_CALL_BUFFER_CLOSE, .buffer = UINT32_MAX},
		{.call = MSG_CALL_FENCE},
		{.call = MSG_CALL_FENCE, .request = RING_ENTRIES_MAX - 1},
		{.call = MSG_CALL_MODEL_FILES},
		{.call = MSG_CALL_MODEL_FILES, .model = UINT32_MAX},
	};

	memset(calls[2].handle, 0xa5, sizeof(calls[2].handle));
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		uint8_t bytes[MSG_CALL_MAX];
		struct msg_detail detail;
		struct msg_call got;
		int n = msg_call_encode(&calls[i], bytes, sizeof(bytes));

		assert_true(n > 0);
		assert_int_equal(msg_call_decode(codec, bytes, (size_t)n, &got, &detail), 0);
		assert_memory_equal(&got, &calls[i], sizeof(got));
	}
}

static void test_largest_reply_fits_a_call_s_buffer(void **state)
{
	struct msg_reply reply = {.status = -299, .buffer = UINT32_MAX, .files = 7}, got;
	uint8_t bytes[MSG_CALL_MAX];
	struct msg_detail detail;

	memset(reply.text, 'x', sizeof(reply.text) - 1);
	memset(reply.handle, 0xff, sizeof(reply.handle));
	int n = msg_reply_encode(&reply, bytes, sizeof(bytes));
	assert_true(n > 0);
	assert_int_equal(msg_reply_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_memory_equal(&got, &reply, sizeof(got));
}

static void test_calls_out_of_range_are_refused_by_name(void **state)
{
	/* A map of one or two fields of one byte each. */
	static const struct {
		const char *bytes;
		size_t size;
		unsigned field;
	} cases[] = {
		{"\x80", 1, MSG_CALL},
		{"\x81\x60\x00", 3, MSG_CALL},
		{"\x81\x60\x06", 3, MSG_CALL},
		{"\x81\x60\x01", 3, MSG_BYTES},
		{"\x83\x60\x01\x63\x01\x62\x04", 7, MSG_KIND},
		{"\x81\x60\x03", 3, MSG_BUFFER},
		{"\x82\x60\x03\x61\x00", 5, MSG_BUFFER},
		{"\x82\x60\x04\x65\xcd\x10\x00", 7, MSG_REQUEST},
		{"\x82\x60\x04\x65\xff", 5, MSG_REQUEST},
		{"\x82\x60\x02\x64\xc4\x02zz", 8, MSG_HANDLE},
		{"\x82\x60\x02\x64\xa2zz", 7, MSG_HANDLE},
		{"\x82\x60\x02\x0b\x01", 5, MSG_FLAGS},
		{"\x82\x60\x04\x60\x04", 5, MSG_CALL},
		{"\x82\x60\x05\x01\xff", 5, MSG_MODEL},
		{"\x82\x60\x05\x66\x01", 5, MSG_FILES},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct msg_detail detail;
		struct msg_call got = {.call = 77};
		int r = msg_call_decode(codec, cases[i].bytes, cases[i].size, &got, &detail);

		if (r != MIMEO_E_INVALID || detail.detail != RING_DETAIL_RANGE ||
			detail.values[0] != (int32_t)cases[i].field)
			fail_msg("case %zu: status %d, field %d", i, r, detail.values[0]);
		assert_int_equal(got.call, 77);
	}
}

static void test_bytes_that_are_no_call_are_the_protocol_s(void **state)
{
	static const char *const cases[] = {"\xc1", "\x01", "\x82\x60", "\xdf\xff\xff\xff\xff"};
	static const char long_one[MSG_CALL_MAX + 1] = "\xc5\x01\xfe";
	struct msg_detail detail;
	struct msg_call got;
	struct msg_reply reply;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		size_t n = strlen(cases[i]);

		assert_int_equal(msg_call_decode(codec, cases[i], n, &got, &detail),
			MIMEO_E_PROTOCOL);
		assert_int_equal(msg_reply_decode(codec, cases[i], n, &reply, &detail),
			MIMEO_E_PROTOCOL);
	}
	assert_int_equal(msg_call_decode(codec, long_one, sizeof(long_one), &got, &detail),
		MIMEO_E_PROTOCOL);
	/* A reply is the daemon's: whatever is wrong in it. */
	assert_int_equal(msg_reply_decode(codec, "\x81\x29\x01", 3, &reply, &detail),
		MIMEO_E_PROTOCOL);
	assert_int_equal(msg_reply_decode(codec, "\x81\x66\x08", 3, &reply, &detail),
		MIMEO_E_PROTOCOL);
}

static void test_places_come_back_as_they_were(void **state)
{
	struct msg_step step = {
		.n_rows = 3,
		.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN,
		.logits = {.buffer = 1, .offset = UINT64_MAX},
		.hidden = {.buffer = UINT32_MAX, .offset = 64},
		.embeddings = {.buffer = 2, .offset = 1ull << 40},
		.flags = MIMEO_STEP_FENCE,
	};
	struct msg_generate generate = {
		.n_tokens = 1,
		.max_tokens = 1,
		.flags = MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_FENCE,
		.logits = {.buffer = 7, .offset = 4096},
	};
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;
	struct msg_step got;
	struct msg_generate again;

	int n = msg_step_encode(&step, bytes, sizeof(bytes));
	assert_true(n > 0);
	assert_int_equal(msg_step_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_int_equal(got.logits.buffer, 1);
	assert_true(got.logits.offset == UINT64_MAX);
	assert_int_equal(got.hidden.buffer, UINT32_MAX);
	assert_int_equal(got.hidden.offset, 64);
	assert_int_equal(got.embeddings.buffer, 2);
	assert_true(got.embeddings.offset == 1ull << 40);
	assert_int_equal(got.flags, MIMEO_STEP_FENCE);
	n = msg_generate_encode(&generate, bytes, sizeof(bytes));
	assert_true(n > 0);
	assert_int_equal(msg_generate_decode(codec, bytes, (size_t)n, &again, &detail), 0);
	assert_int_equal(again.logits.buffer, 7);
	assert_int_equal(again.logits.offset, 4096);
	assert_int_equal(again.flags, generate.flags);
}

static void test_place_for_what_is_not_asked_for_is_refused(void **state)
{
	const struct msg_step steps[] = {
		{.n_rows = 1, .outputs = MIMEO_STEP_TOKENS, .logits = {1, 0}},
		{.n_rows = 1, .outputs = MIMEO_STEP_LOGITS, .hidden = {1, 0}},
	};
	const unsigned fields[] = {MSG_LOGITS_BUFFER, MSG_HIDDEN_BUFFER};
	const struct msg_generate generate = {.n_tokens = 1, .max_tokens = 1, .logits = {1, 0}};
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;
	struct msg_step got;
	struct msg_generate again;
	int n;

	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		assert_int_equal(msg_step_encode(&steps[i], bytes, sizeof(bytes)), -EINVAL);
		n = msg_table_write(&msg_step_table, &steps[i], bytes, sizeof(bytes));
		assert_int_equal(msg_step_decode(codec, bytes, (size_t)n, &got, &detail),
			MIMEO_E_INVALID);
		assert_int_equal(detail.values[0], fields[i]);
	}
	assert_int_equal(msg_generate_encode(&generate, bytes, sizeof(bytes)), -EINVAL);
	n = msg_table_write(&msg_generate_table, &generate, bytes, sizeof(bytes));
	assert_int_equal(msg_generate_decode(codec, bytes, (size_t)n, &again, &detail),
		MIMEO_E_INVALID);
	assert_int_equal(detail.values[0], MSG_LOGITS_BUFFER);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls_come_back_as_they_were),
		cmocka_unit_test(test_largest_reply_fits_a_call_s_buffer),
		cmocka_unit_test(test_calls_out_of_range_are_refused_by_name),
		cmocka_unit_test(test_bytes_that_are_no_call_are_the_protocol_s),
		cmocka_unit_test(test_places_come_back_as_they_were),
		cmocka_unit_test(test_place_for_what_is_not_asked_for_is_refused),
	};

	return cmocka_run_group_tests_name("msg_call", tests, setup, teardown);
}
