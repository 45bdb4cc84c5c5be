/* SPDX-License-Identifier: MIT */
/* Device buffers and fences as the library sees them: a daemon whose replies the test has ready. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "ipc/handle.h"
#include "ipc/msg_table.h"
#include "tests/sdk/session.h"

/* What the next call gets. */
static void answer_with(struct session *s, const struct msg_reply *reply)
{
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_table_write(&msg_reply_table, reply, bytes, sizeof(bytes));

	assert_true(n > 0);
	assert_int_equal(socket_send(s->fake.socket, bytes, (size_t)n, NULL, 0), 0);
}

static struct mimeo_handle ipc_handle(void)
{
	struct mimeo_handle handle = {.kind = MIMEO_HANDLE_CUDA_IPC, .bytes = 4096, .offset = 512};

	memset(handle.uuid, 0xab, sizeof(handle.uuid));
	memset(handle.opaque, 0xcd, sizeof(handle.opaque));
	return handle;
}

static uint32_t buffer_of(struct session *s, uint32_t id)
{
	struct mimeo_handle handle = ipc_handle();
	struct msg_reply reply = {.buffer = id};
	uint32_t buffer = 0;

	handle_encode(&handle, reply.handle);
	answer_with(s, &reply);
	assert_int_equal(mimeo_buffer_alloc(s->m, MIMEO_HANDLE_CUDA_IPC, 4096, &buffer), 0);
	assert_int_equal(buffer, id);
	return buffer;
}

/* The call that the library sent last. */
static struct msg_call heard(struct session *s)
{
	uint8_t bytes[MSG_CALL_MAX];
	struct msg_detail detail;
	struct msg_call call;
	ssize_t n = socket_receive(s->fake.socket, bytes, sizeof(bytes), NULL, 0, NULL, 10000);

	assert_true(n > 0);
	assert_int_equal(msg_call_decode(s->fake.codec, bytes, (size_t)n, &call, &detail), 0);
	return call;
}

static void test_handle_passes_through_as_it_is(void **state)
{
	struct session *s = *state;
	const struct mimeo_handle expected = ipc_handle();
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	void *memory;

	uint32_t buffer = buffer_of(s, 7);
	struct msg_call call = heard(s);
	assert_int_equal(call.call, MSG_CALL_BUFFER_ALLOC);
	assert_int_equal(call.kind, MIMEO_HANDLE_CUDA_IPC);
	assert_int_equal(call.bytes, 4096);
	assert_int_equal(mimeo_buffer_handle(s->m, buffer, &handle), 0);
	assert_int_equal(handle.size, sizeof(handle));
	assert_int_equal(handle.kind, MIMEO_HANDLE_CUDA_IPC);
	assert_int_equal(handle.fd, -1);
	assert_int_equal(handle.bytes, 4096);
	assert_int_equal(handle.offset, 512);
	assert_memory_equal(handle.uuid, expected.uuid, sizeof(handle.uuid));
	assert_memory_equal(handle.opaque, expected.opaque, sizeof(handle.opaque));
	assert_int_equal(mimeo_buffer_map(s->m, buffer, &memory), MIMEO_E_UNSUPPORTED);
	assert_int_equal(mimeo_buffer_handle(s->m, 8, &handle), MIMEO_E_UNKNOWN_BUFFER);
	/* A caller that knows less of it has what it knows, and one that says nothing has nothing. */
	struct mimeo_handle known = MIMEO_HANDLE_INIT;
	known.size = offsetof(struct mimeo_handle, opaque);
	memset(known.opaque, 7, sizeof(known.opaque));
	assert_int_equal(mimeo_buffer_handle(s->m, buffer, &known), 0);
	assert_int_equal(known.size, offsetof(struct mimeo_handle, opaque));
	assert_int_equal(known.offset, 512);
	assert_int_equal(known.opaque[0], 7);
	known.size = 0;
	assert_int_equal(mimeo_buffer_handle(s->m, buffer, &known), MIMEO_E_INVALID);
	assert_int_equal(mimeo_buffer_handle(s->m, buffer, NULL), MIMEO_E_INVALID);
	answer_with(s, &(struct msg_reply){.status = 0});
	assert_int_equal(mimeo_buffer_close(s->m, buffer), 0);
	assert_int_equal(heard(s).buffer, 7);
	assert_int_equal(mimeo_buffer_handle(s->m, buffer, &handle), MIMEO_E_UNKNOWN_BUFFER);
}

static void test_refused_call_has_the_daemons_message(void **state)
{
	struct session *s = *state;
	const struct msg_reply no = {.status = MIMEO_E_QUOTA, .text = "max_buffer_bytes is 1G"};
	uint32_t buffer = 99;

	answer_with(s, &no);
	assert_int_equal(mimeo_buffer_alloc(s->m, 0, 1 << 20, &buffer), MIMEO_E_QUOTA);
	assert_string_equal(mimeo_buffer_message(s->m), "max_buffer_bytes is 1G");
	assert_int_equal(buffer, 99);
	/* The session goes on, and the next call has its own message. */
	assert_int_equal(session_peek(s), 0);
	buffer_of(s, 1);
	assert_string_equal(mimeo_buffer_message(s->m), "");
}

static void test_reply_that_cannot_be_counts_as_a_daemon_that_is_gone(void **state)
{
	static const uint8_t junk[] = {3, 0, 0, 0, 0xc1, 0xc1, 0xc1};
	struct session *s = *state;
	struct mimeo_handle handle = ipc_handle();
	struct msg_reply replies[3] = {{.buffer = 1}, {.buffer = 0}, {.buffer = 1}};
	uint32_t buffer;

	/* A handle of a descriptor, and no descriptor; no id; no handle. */
	handle_encode(&handle, replies[1].handle);
	handle = (struct mimeo_handle){.kind = MIMEO_HANDLE_MEMFD, .bytes = 64};
	handle_encode(&handle, replies[0].handle);
	if (s->variant == 3)
		fake_say(&s->fake, junk, sizeof(junk));
	else
		answer_with(s, &replies[s->variant]);
	assert_int_equal(mimeo_buffer_alloc(s->m, 0, 64, &buffer), MIMEO_E_GONE);
	assert_int_equal(mimeo_buffer_alloc(s->m, 0, 64, &buffer), MIMEO_E_GONE);
	assert_int_equal(session_peek(s), MIMEO_E_GONE);
}

static void test_calls_to_a_daemon_that_hung_up_are_gone(void **state)
{
	struct session *s = *state;
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	const struct mimeo_handle *fence;
	uint32_t buffer, mine;

	mine = buffer_of(s, 3);
	fake_hang_up(&s->fake);
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.fd = STDIN_FILENO;
	handle.bytes = 1;
	assert_int_equal(mimeo_buffer_alloc(s->m, 0, 64, &buffer), MIMEO_E_GONE);
	assert_int_equal(mimeo_buffer_import(s->m, &handle, &buffer), MIMEO_E_GONE);
	assert_int_equal(mimeo_request_fence(mimeo_request_get(s->m), &fence), MIMEO_E_GONE);
	assert_int_equal(mimeo_buffer_close(s->m, mine), MIMEO_E_GONE);
	assert_int_equal(mimeo_buffer_close(s->m, mine), MIMEO_E_UNKNOWN_BUFFER);
}

static void test_import_refuses_what_the_daemon_refuses(void **state)
{
	struct session *s = *state;
	struct mimeo_handle good = MIMEO_HANDLE_INIT, handle;
	uint32_t buffer;

	good.kind = MIMEO_HANDLE_MEMFD;
	good.fd = STDIN_FILENO;
	good.bytes = 64;
#define REFUSES(change)                                                                            \
	do {                                                                                       \
		handle = good;                                                                     \
		change;                                                                            \
		assert_int_equal(mimeo_buffer_import(s->m, &handle, &buffer), MIMEO_E_INVALID);     \
		assert_string_not_equal(mimeo_buffer_message(s->m), "");                            \
	} while (0)
	REFUSES(handle.fd = 1000); /* not open */
	REFUSES(handle.offset = 4);
	REFUSES(handle.offset = 63);
	REFUSES(handle.size = 8);
	REFUSES(handle.kind = 0);
	REFUSES(handle.kind = 4);
	REFUSES(handle.fd = -1);
	REFUSES(handle.bytes = 0);
	REFUSES(handle.offset = UINT64_MAX);
	REFUSES(handle.uuid[0] = 1);
	REFUSES(handle.opaque[63] = 1);
#undef REFUSES
	assert_int_equal(mimeo_buffer_import(s->m, NULL, &buffer), MIMEO_E_INVALID);
	assert_int_equal(mimeo_buffer_alloc(s->m, 4, 64, &buffer), MIMEO_E_INVALID);
	assert_int_equal(mimeo_buffer_alloc(s->m, 0, 0, &buffer), MIMEO_E_INVALID);
	/* Nothing was sent. */
	char byte;
	assert_int_equal(recv(s->fake.socket, &byte, 1, MSG_DONTWAIT), -1);
	/* And the session goes on. */
	buffer_of(s, 1);
}

/* Not the daemon's, of another call. */
static void test_librarys_own_refusals_have_their_own_message(void **state)
{
	struct session *s = *state;
	const struct msg_reply no = {.status = MIMEO_E_QUOTA, .text = "max_buffer_bytes is 1G"};
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	const struct mimeo_handle fence = {.kind = MIMEO_HANDLE_CUDA_IPC}, *unused;
	uint32_t id;
	void *memory;

	uint32_t mine = buffer_of(s, 1);
#define SAYS(call, status, text)                                                                   \
	do {                                                                                       \
		answer_with(s, &no);                                                              \
		assert_int_equal(mimeo_buffer_alloc(s->m, 0, 64, &id), MIMEO_E_QUOTA);              \
		assert_int_equal(call, status);                                                    \
		assert_non_null(strstr(mimeo_buffer_message(s->m), text));                          \
	} while (0)
	SAYS(mimeo_buffer_alloc(s->m, 9, 64, &id), MIMEO_E_INVALID, "kind");
	SAYS(mimeo_buffer_alloc(s->m, 0, 0, &id), MIMEO_E_INVALID, "size");
	SAYS(mimeo_buffer_import(s->m, &handle, &id), MIMEO_E_INVALID, "MIMEO_HANDLE_DEFAULT");
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 64;
	SAYS(mimeo_buffer_import(s->m, &handle, &id), MIMEO_E_INVALID, "no descriptor");
	handle.fd = 1000;
	SAYS(mimeo_buffer_import(s->m, &handle, &id), MIMEO_E_INVALID, "not open");
	handle.offset = 8;
	SAYS(mimeo_buffer_import(s->m, &handle, &id), MIMEO_E_INVALID, "offset");
	SAYS(mimeo_buffer_close(s->m, 77), MIMEO_E_UNKNOWN_BUFFER, "buffer 77");
	SAYS(mimeo_buffer_handle(s->m, 77, &handle), MIMEO_E_UNKNOWN_BUFFER, "buffer 77");
	SAYS(mimeo_buffer_map(s->m, mine, &memory), MIMEO_E_UNSUPPORTED, "mimeo_cuda_map");
	SAYS(mimeo_request_fence(mimeo_request_get(s->m), NULL), MIMEO_E_INVALID, "fence");
	SAYS(mimeo_fence_wait(s->m, &fence, 0), MIMEO_E_UNSUPPORTED, "fence");
#undef SAYS
	/* And what goes well has none. */
	answer_with(s, &no);
	assert_int_equal(mimeo_request_fence(mimeo_request_get(s->m), &unused), MIMEO_E_QUOTA);
	assert_int_equal(mimeo_buffer_handle(s->m, mine, &handle), 0);
	assert_string_equal(mimeo_buffer_message(s->m), "");
}

/* ---- fences ---- */

/* A step with a fence, popped. */
static struct ring_sqe step_with_fence(struct session *s, uint32_t flags)
{
	const int32_t token = 5;
	struct mimeo_step_row row = {.n_tokens = 1, .tokens = &token};
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_request *request = mimeo_request_get(s->m);

	assert_int_equal(mimeo_sequence_open(s->m, 0, &row.sequence), 0);
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_TOKENS;
	step.flags = flags;
	mimeo_request_set_data(request, 77);
	assert_int_equal(mimeo_request_prep_step(request, &step), 0);
	assert_int_equal(mimeo_submit(s->m), 2);
	struct ring_sqe open = session_pop(s);
	struct ring_cqe opened = fake_final(&open);
	fake_push(&s->fake, &opened);
	return session_pop(s);
}

static void test_recorded_is_an_event_and_not_the_last(void **state)
{
	struct session *s = *state;

	struct ring_sqe sqe = step_with_fence(s, MIMEO_STEP_FENCE);
	struct ring_cqe cqe = fake_final(&sqe);
	cqe.kind = RING_CQE_RECORDED;
	fake_push(&s->fake, &cqe);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_RECORDED);
	assert_int_equal(s->event.user_data, 77);
	assert_int_equal(s->event.status, 0);
	assert_int_equal(s->event.n_tokens, 0);
	assert_null(s->event.logits);
	session_seen(s);
	assert_int_equal(session_peek(s), 0);
	session_final(s, &sqe, 0);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_FINAL);
	assert_int_equal(s->event.n_tokens, 1);
	session_seen(s);
}

static void test_recorded_that_cannot_be_breaks_off(void **state)
{
	struct session *s = *state;
	bool again = s->variant; /* posted a second time, or never requested */

	struct ring_sqe sqe = step_with_fence(s, again ? MIMEO_STEP_FENCE : 0);
	struct ring_cqe cqe = fake_final(&sqe);
	cqe.kind = RING_CQE_RECORDED;
	fake_push(&s->fake, &cqe);
	if (again) {
		assert_int_equal(session_peek(s), 1);
		session_seen(s);
		fake_push(&s->fake, &cqe);
	}
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_FINAL);
	assert_int_equal(s->event.status, MIMEO_E_GONE);
	session_seen(s);
	assert_int_equal(session_peek(s), MIMEO_E_GONE);
}

static void test_fence_is_asked_for_once_a_request(void **state)
{
	struct session *s = *state;
	const struct mimeo_handle handle = ipc_handle();
	const struct mimeo_handle *fence, *again;
	struct msg_reply reply = {.status = 0};

	handle_encode(&handle, reply.handle);
	answer_with(s, &reply);
	struct mimeo_request *request = mimeo_request_get(s->m);
	uint32_t index = (uint32_t)mimeo_request_id(request);
	assert_int_equal(mimeo_request_fence(request, &fence), 0);
	struct msg_call call = heard(s);
	assert_int_equal(call.call, MSG_CALL_FENCE);
	assert_int_equal(call.request, index);
	assert_memory_equal(fence->opaque, handle.opaque, sizeof(handle.opaque));
	mimeo_request_put(request);
	/* The same index again. */
	request = mimeo_request_get(s->m);
	assert_int_equal((uint32_t)mimeo_request_id(request), index);
	assert_int_equal(mimeo_request_fence(request, &again), 0);
	assert_ptr_equal(fence, again);
	assert_int_equal(mimeo_fence_wait(s->m, fence, 0), MIMEO_E_UNSUPPORTED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		session_test(test_handle_passes_through_as_it_is),
		session_test(test_refused_call_has_the_daemons_message),
		session_test_with(test_reply_that_cannot_be_counts_as_a_daemon_that_is_gone, .variant = 0),
		session_test_with(test_reply_that_cannot_be_counts_as_a_daemon_that_is_gone, .variant = 1),
		session_test_with(test_reply_that_cannot_be_counts_as_a_daemon_that_is_gone, .variant = 2),
		session_test_with(test_reply_that_cannot_be_counts_as_a_daemon_that_is_gone, .variant = 3),
		session_test(test_calls_to_a_daemon_that_hung_up_are_gone),
		session_test(test_import_refuses_what_the_daemon_refuses),
		session_test(test_librarys_own_refusals_have_their_own_message),
		session_test(test_recorded_is_an_event_and_not_the_last),
		session_test_with(test_recorded_that_cannot_be_breaks_off, .variant = 0),
		session_test_with(test_recorded_that_cannot_be_breaks_off, .variant = 1),
		session_test(test_fence_is_asked_for_once_a_request),
	};

	return cmocka_run_group_tests_name("sdk_buffers", tests, NULL, NULL);
}
