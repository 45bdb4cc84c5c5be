/* SPDX-License-Identifier: MIT */
/* Clients that send on a session's socket what the library would not. */
#include <sys/socket.h>

#include <mimeo/types.h>

#include "ipc/msg_table.h"
#include "ipc/socket.h"
#include "tests/e2e/buffers.h"
#include "tests/e2e/raw.h"
#include "tests/lingering.h"

static void test_bytes_that_are_no_call_cost_the_session(void **state)
{
	static const uint8_t junk[][8] = {
		{4, 0, 0, 0, 0xc1, 1, 2, 3}, /* not msgpack */
		{0, 0, 0, 0, 0, 0, 0, 0},    /* no length */
		{0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0},
		{1, 0, 0, 0, 0x80, 0x80, 0, 0}, /* more than one call */
	};

	for (unsigned i = 0; i < sizeof(junk) / sizeof(junk[0]); i++) {
		struct raw raw;

		raw_attach(&raw, *state, 4);
		assert_int_equal(send(raw.socket, junk[i], 8, MSG_NOSIGNAL), 8);
		raw_assert_closed(raw.socket);
		raw_detach(&raw);
	}
}

static void test_second_call_ahead_of_the_first_one_s_reply_costs_the_session(void **state)
{
	const struct msg_call call = {.call = MSG_CALL_BUFFER_ALLOC, .bytes = 4096};
	uint8_t bytes[256];
	size_t n = raw_call(&call, bytes, sizeof(bytes));
	struct raw raw;

	raw_attach(&raw, *state, 4);
	memcpy(bytes + n, bytes, n);
	assert_int_equal(send(raw.socket, bytes, 2 * n, MSG_NOSIGNAL), 2 * n);
	raw_assert_closed(raw.socket);
	raw_detach(&raw);
}

static void test_descriptors_beyond_one_are_dropped_with_the_session(void **state)
{
	const struct msg_call call = {.call = MSG_CALL_BUFFER_CLOSE, .buffer = 1};
	const int fds[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_table_write(&msg_call_table, &call, bytes, sizeof(bytes));
	struct raw raw;

	raw_attach(&raw, *state, 4);
	assert_int_equal(socket_send(raw.socket, bytes, (size_t)n, fds, 3), 0);
	raw_assert_closed(raw.socket);
	raw_detach(&raw);
}

/* The first byte brings one, the rest another. */
static void test_descriptors_come_once_a_call(void **state)
{
	const struct msg_call call = {.call = MSG_CALL_BUFFER_CLOSE, .buffer = 1};
	uint8_t bytes[4 + MSG_CALL_MAX];
	size_t n = raw_call(&call, bytes, sizeof(bytes));
	struct raw raw;

	raw_attach(&raw, *state, 4);
	send_with(raw.socket, bytes, 1, &(int){STDERR_FILENO}, 1);
	send_with(raw.socket, bytes + 1, n - 2, &(int){STDERR_FILENO}, 1);
	raw_assert_closed(raw.socket);
	raw_detach(&raw);
}

/* A reply, its status; fields that the library would not send. */
static int32_t raw_reply(struct raw *raw, const struct msg_call *call, int fd)
{
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_table_write(&msg_call_table, call, bytes, sizeof(bytes));

	assert_int_equal(socket_send(raw->socket, bytes, (size_t)n, &fd, fd >= 0), 0);
	return raw_hear_reply(raw).status;
}

static void test_calls_that_the_library_would_not_send_are_refused_alone(void **state)
{
	struct msg_call import = {.call = MSG_CALL_BUFFER_IMPORT};
	struct mimeo_handle handle = {.kind = MIMEO_HANDLE_MEMFD, .bytes = 4096};
	struct msg_call close_unknown = {.call = MSG_CALL_BUFFER_CLOSE, .buffer = 3};
	struct msg_call far = {.call = MSG_CALL_FENCE, .request = 4};
	struct msg_call unknown = {.call = 9}, nothing = {.call = MSG_CALL_BUFFER_ALLOC};
	struct msg_call huge = {.call = MSG_CALL_BUFFER_ALLOC, .bytes = UINT64_MAX};
	struct raw raw;

	raw_attach(&raw, *state, 4);
	assert_int_equal(raw_reply(&raw, &close_unknown, -1), MIMEO_E_UNKNOWN_BUFFER);
	close_unknown.buffer = UINT32_MAX;
	assert_int_equal(raw_reply(&raw, &close_unknown, -1), MIMEO_E_UNKNOWN_BUFFER);
	assert_int_equal(raw_reply(&raw, &far, -1), MIMEO_E_INVALID);
	assert_int_equal(raw_reply(&raw, &unknown, -1), MIMEO_E_INVALID);
	assert_int_equal(raw_reply(&raw, &nothing, -1), MIMEO_E_INVALID);
	assert_int_equal(raw_reply(&raw, &huge, -1), MIMEO_E_QUOTA);
	/* No handle; one without its descriptor; a memfd with a device's uuid; too large for 63 bits. */
	assert_int_equal(raw_reply(&raw, &import, -1), MIMEO_E_INVALID);
	handle_encode(&handle, import.handle);
	assert_int_equal(raw_reply(&raw, &import, -1), MIMEO_E_INVALID);
	handle.uuid[0] = 1;
	handle_encode(&handle, import.handle);
	assert_int_equal(raw_reply(&raw, &import, STDIN_FILENO), MIMEO_E_INVALID);
	handle = (struct mimeo_handle){.kind = MIMEO_HANDLE_MEMFD, .bytes = INT64_MAX, .offset = 64};
	handle_encode(&handle, import.handle);
	assert_int_equal(raw_reply(&raw, &import, STDIN_FILENO), MIMEO_E_INVALID);
	/* Another device's memory. */
	handle = (struct mimeo_handle){.kind = MIMEO_HANDLE_VMM_FD, .bytes = 4096, .uuid = {1}};
	handle_encode(&handle, import.handle);
	assert_int_equal(raw_reply(&raw, &import, STDIN_FILENO), MIMEO_E_UNSUPPORTED);
	raw_assert_alive(&raw);
	raw_detach(&raw);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(test_bytes_that_are_no_call_cost_the_session),
		T(test_second_call_ahead_of_the_first_one_s_reply_costs_the_session),
		T(test_descriptors_beyond_one_are_dropped_with_the_session),
		T(test_descriptors_come_once_a_call),
		T(test_calls_that_the_library_would_not_send_are_refused_alone),
	};

	RUN("buffers_bad", tests);
}
