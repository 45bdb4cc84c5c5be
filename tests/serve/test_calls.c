/* SPDX-License-Identifier: MIT */
/*
 * Calls on a session's socket over a builder whose device is a fake CUDA one: it makes nothing, and
 * takes as long as the test likes.
 */
#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "ipc/handle.h"
#include "ipc/msg_table.h"
#include "ipc/socket.h"

#include "harness.h"

static const uint8_t uuid[16] = {1, 2, 3};
static char block[64];
static sem_t entered, go;
static _Atomic bool slow;
static _Atomic int n_live, n_events;
static _Atomic uint32_t n_in_lane;

static int fake_alloc(
	struct device *device, size_t bytes, void **ret, struct device_handle *ret_handle)
{
	if (atomic_load(&slow)) {
		sem_post(&entered);
		sem_wait(&go);
	}
	atomic_fetch_add(&n_live, 1);
	*ret = block;
	*ret_handle = (struct device_handle){.fd = -1, .bytes = {5}};
	return 0;
}

static void fake_free(struct device *device, void *memory)
{
	atomic_fetch_sub(&n_live, 1);
}

static int fake_import(struct device *device, const struct device_handle *handle, void **ret)
{
	atomic_fetch_add(&n_live, 1);
	*ret = block;
	return 0;
}

static uint64_t fake_import_bytes(struct device *device, const void *memory)
{
	return 4096;
}

static int fake_event(struct device *device, struct event **ret, struct device_handle *ret_handle)
{
	atomic_fetch_add(&n_events, 1);
	*ret = (struct event *)block;
	*ret_handle = (struct device_handle){.fd = -1, .bytes = {6}};
	return 0;
}

static void fake_event_free(struct event *event)
{
	atomic_fetch_sub(&n_events, 1);
}

static const struct device_ops ops = {
	.export_ipc_alloc = fake_alloc,
	.export_ipc_free = fake_free,
	.import = fake_import,
	.import_bytes = fake_import_bytes,
	.import_free = fake_free,
	.event_new_shared = fake_event,
	.event_free = fake_event_free,
};
static struct device device = {.ops = &ops};

struct rig {
	struct harness *harness;
	struct builder *builder;
	struct client client;
};

static int reload_forbids(void *userdata, struct serve_options *options, FILE *out)
{
	options->allow_client_ipc = SERVE_CLIENT_IPC_NO;
	return 0;
}

static int setup(void **state)
{
	struct rig *rig = calloc(1, sizeof(*rig));

	sem_init(&entered, 0, 0);
	sem_init(&go, 0, 0);
	atomic_store(&slow, false);
	atomic_store(&n_in_lane, 0);
	rig->harness = harness_new();
	assert_int_equal(builder_new(&device, &n_in_lane, &rig->builder), 0);
	rig->harness->options.builder = rig->builder;
	rig->harness->options.device_kind = "cuda";
	memcpy(rig->harness->options.device_uuid, uuid, sizeof(uuid));
	rig->harness->options.max_client_buffers = 4;
	rig->harness->options.buffer_granularity = 4096;
	rig->harness->options.max_client_buffer_bytes = 1 << 20;
	rig->harness->options.max_buffer_bytes = 2 << 20;
	rig->harness->options.allow_client_ipc = SERVE_CLIENT_IPC_SAME_UID;
	rig->harness->options.reload = reload_forbids;
	harness_start(rig->harness);
	struct msg_hello hello = client_hello();
	assert_int_equal(client_attach(rig->harness, &rig->client, &hello), 0);
	*state = rig;
	return 0;
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	client_close(&rig->client);
	await_sessions(rig->harness, 0);
	await_count(rig->harness, "status", "buffers_closing", 0);
	assert_int_equal(builder_bytes(rig->builder), 0);
	harness_free(rig->harness);
	builder_free(rig->builder);
	assert_int_equal(atomic_load(&n_live), 0);
	assert_int_equal(atomic_load(&n_events), 0);
	free(rig);
	return 0;
}

/* The client ends, and nothing of it is left; another takes its place. */
static void replace_client(struct rig *rig)
{
	struct msg_hello hello = client_hello();

	client_close(&rig->client);
	await_sessions(rig->harness, 0);
	await_count(rig->harness, "status", "buffers_closing", 0);
	assert_int_equal(atomic_load(&n_live), 0);
	assert_int_equal(atomic_load(&n_events), 0);
	assert_int_equal(builder_bytes(rig->builder), 0);
	assert_int_equal(client_attach(rig->harness, &rig->client, &hello), 0);
}

static void call_send(struct rig *rig, const struct msg_call *call)
{
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_table_write(&msg_call_table, call, bytes, sizeof(bytes));

	assert_true(n > 0);
	assert_int_equal(socket_send(rig->client.fd, bytes, (size_t)n, NULL, 0), 0);
}

static struct msg_reply reply_receive(struct rig *rig)
{
	uint8_t bytes[MSG_CALL_MAX];
	struct msg_codec *codec;
	struct msg_detail detail;
	struct msg_reply reply;
	ssize_t n = socket_receive(
		rig->client.fd, bytes, sizeof(bytes), NULL, 0, NULL, PATIENCE_MS);

	assert_true(n > 0);
	assert_int_equal(msg_codec_new(&codec), 0);
	assert_int_equal(msg_reply_decode(codec, bytes, (size_t)n, &reply, &detail), 0);
	msg_codec_free(codec);
	return reply;
}

static struct msg_reply call(struct rig *rig, const struct msg_call *msg)
{
	call_send(rig, msg);
	return reply_receive(rig);
}

static const struct msg_call alloc_call = {
	.call = MSG_CALL_BUFFER_ALLOC, .kind = MIMEO_HANDLE_CUDA_IPC, .bytes = 4096};

static struct msg_call import_call(uint64_t size, uint64_t offset)
{
	struct mimeo_handle handle = {.kind = MIMEO_HANDLE_CUDA_IPC, .bytes = size, .offset = offset};
	struct msg_call msg = {.call = MSG_CALL_BUFFER_IMPORT};

	memcpy(handle.uuid, uuid, sizeof(handle.uuid));
	handle.opaque[9] = 1;
	handle_encode(&handle, msg.handle);
	return msg;
}

static void test_handle_has_the_devices_uuid(void **state)
{
	struct msg_reply reply = call(*state, &alloc_call);
	struct mimeo_handle handle;

	assert_int_equal(reply.status, 0);
	assert_int_equal(reply.buffer, 1);
	assert_int_equal(handle_decode(reply.handle, sizeof(reply.handle), &handle), HANDLE_OK);
	assert_int_equal(handle.kind, MIMEO_HANDLE_CUDA_IPC);
	assert_int_equal(handle.bytes, 4096);
	assert_memory_equal(handle.uuid, uuid, sizeof(uuid));
	assert_int_equal(handle.opaque[0], 5);
}

static void test_memory_of_another_device_is_refused(void **state)
{
	struct msg_call msg = import_call(64, 0);
	struct mimeo_handle handle;

	assert_int_equal(handle_decode(msg.handle, sizeof(msg.handle), &handle), HANDLE_OK);
	handle.uuid[15] ^= 1;
	handle_encode(&handle, msg.handle);
	struct msg_reply reply = call(*state, &msg);
	assert_int_equal(reply.status, MIMEO_E_INVALID);
	assert_non_null(strstr(reply.text, "uuid"));
	assert_int_equal(atomic_load(&n_live), 0);
}

static void test_handle_that_says_more_than_there_is_is_refused(void **state)
{
	struct msg_call most = import_call(4096, 0), more = import_call(4096, 64);

	assert_int_equal(call(*state, &more).status, MIMEO_E_INVALID);
	await_count(((struct rig *)*state)->harness, "status", "buffers_closing", 0);
	assert_int_equal(atomic_load(&n_live), 0);
	assert_int_equal(call(*state, &most).status, 0);
}

/* A place's offset counts from the buffer's start: kernels would read and write misaligned. */
static void test_buffer_that_starts_misaligned_is_refused(void **state)
{
	static const uint64_t offsets[] = {1, 4, 32, 65};

	for (unsigned i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		struct msg_call msg = import_call(64, offsets[i]);
		struct msg_reply reply = call(*state, &msg);

		assert_int_equal(reply.status, MIMEO_E_INVALID);
		assert_non_null(strstr(reply.text, "no multiple of 64"));
	}
	assert_int_equal(atomic_load(&n_live), 0);
	/* Nor as more of memory that is there already. */
	struct msg_call whole = import_call(4096, 0), part = import_call(64, 8);
	assert_int_equal(call(*state, &whole).status, 0);
	assert_int_equal(call(*state, &part).status, MIMEO_E_INVALID);
}

static void test_unsupported_kind_is_refused_before_all_other_checks(void **state)
{
	struct mimeo_handle memfd = {.kind = MIMEO_HANDLE_MEMFD, .bytes = 0, .offset = 3, .uuid = {9}};
	struct msg_call msg = {.call = MSG_CALL_BUFFER_IMPORT};

	handle_encode(&memfd, msg.handle);
	assert_int_equal(call(*state, &msg).status, MIMEO_E_UNSUPPORTED);
}

static void test_same_ipc_handle_is_opened_once(void **state)
{
	struct rig *rig = *state;
	struct msg_call whole = import_call(4096, 0), part = import_call(100, 512);

	assert_int_equal(call(rig, &whole).buffer, 1);
	assert_int_equal(call(rig, &part).buffer, 2);
	assert_int_equal(atomic_load(&n_live), 1);
	await_count(rig->harness, "status", "buffer_bytes", 4096);
	await_count(rig->harness, "status", "buffers", 2);
}

static void test_metrics_count_buffers(void **state)
{
	struct rig *rig = *state;
	struct answer *answer;

	assert_int_equal(call(rig, &alloc_call).status, 0);
	assert_int_equal(call(rig, &alloc_call).status, 0);
	answer = operator_ask(rig->harness, "metrics", NULL);
	assert_non_null(strstr(answer->text, "\nmimeo_buffers 2\n"));
	assert_non_null(strstr(answer->text, "\nmimeo_buffer_bytes 8192\n"));
	assert_non_null(strstr(answer->text, "\nmimeo_buffers_closing 0\n"));
	answer_free(answer);
}

/* With the builder at work for the session. */
static void test_call_while_one_is_worked_on_costs_the_session(void **state)
{
	struct rig *rig = *state;

	atomic_store(&slow, true);
	call_send(rig, &alloc_call);
	sem_wait(&entered);
	call_send(rig, &alloc_call);
	/* The session stays until the builder has finished its job. */
	await_count(rig->harness, "sessions", "id", 1);
	atomic_store(&slow, false);
	sem_post(&go);
	await_sessions(rig->harness, 0);
	replace_client(rig);
}

static void test_client_that_dies_meanwhile_leaves_nothing(void **state)
{
	struct rig *rig = *state;

	atomic_store(&slow, true);
	call_send(rig, &alloc_call);
	sem_wait(&entered);
	shutdown(rig->client.fd, SHUT_RDWR);
	atomic_store(&slow, false);
	sem_post(&go);
	replace_client(rig);
}

static void test_fences_end_with_their_session(void **state)
{
	struct rig *rig = *state;
	struct msg_call fence = {.call = MSG_CALL_FENCE, .request = 7};

	assert_int_equal(call(rig, &fence).status, 0);
	assert_int_equal(call(rig, &fence).status, MIMEO_E_INVALID);
	fence.request = 8; /* of 8 entries */
	assert_int_equal(call(rig, &fence).status, MIMEO_E_INVALID);
	assert_int_equal(atomic_load(&n_events), 1);
	replace_client(rig);
}

static void test_closed_ipc_memory_counts_until_the_lane_is_empty(void **state)
{
	struct rig *rig = *state;
	struct msg_hello hello = client_hello();

	assert_int_equal(call(rig, &alloc_call).status, 0);
	atomic_store(&n_in_lane, 1);
	client_close(&rig->client);
	await_sessions(rig->harness, 0);
	await_count(rig->harness, "status", "buffers_closing", 1);
	assert_int_equal(builder_bytes(rig->builder), 4096);
	atomic_store(&n_in_lane, 0);
	await_count(rig->harness, "status", "buffers_closing", 0);
	assert_int_equal(client_attach(rig->harness, &rig->client, &hello), 0);
}

/* Of 2 MiB a user alone may have one, in however many sessions. */
static void test_share_of_memory_comes_back_when_the_builder_has_closed_it(void **state)
{
	struct rig *rig = *state;
	struct msg_hello hello = client_hello();
	struct msg_call large = alloc_call;

	large.bytes = 1 << 20;
	assert_int_equal(call(rig, &large).status, 0);
	atomic_store(&n_in_lane, 1);
	client_close(&rig->client);
	await_sessions(rig->harness, 0);
	assert_int_equal(client_attach(rig->harness, &rig->client, &hello), 0);
	struct msg_reply reply = call(rig, &alloc_call);
	assert_int_equal(reply.status, MIMEO_E_QUOTA);
	assert_non_null(strstr(reply.text, "device buffers: 4096 bytes asked for, 0 left for user "));
	atomic_store(&n_in_lane, 0);
	await_count(rig->harness, "status", "buffers_closing", 0);
	/* The loop has the closed thing one turn later. */
	while (call(rig, &large).status != 0)
		;
}

/* So much of the device is gone, whatever was asked. */
static void test_memory_counts_as_the_device_takes_it(void **state)
{
	struct rig *rig = *state;
	struct msg_call odd = alloc_call;

	odd.bytes = 1;
	assert_int_equal(call(rig, &odd).status, 0);
	await_count(rig->harness, "status", "buffer_bytes", 4096);
	odd.bytes = (1 << 20) - 4096 + 1;
	struct msg_reply reply = call(rig, &odd);
	assert_int_equal(reply.status, MIMEO_E_QUOTA);
	assert_string_equal(reply.text, "device buffers: 1048576 bytes asked for, 1044480 left for this session "
		"(max_client_buffer_bytes)");
	odd.bytes = INT64_MAX;
	assert_int_equal(call(rig, &odd).status, MIMEO_E_QUOTA);
	odd.bytes = (1 << 20) - 4096;
	assert_int_equal(call(rig, &odd).status, 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

/* The kernel refuses its descriptors, too, as those of a client that attaches later. */
static void test_reload_forbids_descriptors_of_sessions_that_are_there(void **state)
{
	struct rig *rig = *state;
	struct msg_call msg = import_call(64, 0);
	uint8_t bytes[MSG_CALL_MAX];
	int value = 1, fd = rig->client.fd;
	socklen_t length = sizeof(value);

	if (getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, &length) < 0) {
		print_message("# skipped: descriptors: needs Linux 6.16\n");
		return;
	}
	assert_int_equal(operator_order(rig->harness, (struct ask){.op = "reload"}, ""), 0);
	int n = msg_table_write(&msg_call_table, &msg, bytes, sizeof(bytes));
	assert_int_equal(socket_send(fd, bytes, (size_t)n, &fd, 1), -EPERM);
	assert_int_equal(call(rig, &msg).status, MIMEO_E_DENIED);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(test_handle_has_the_devices_uuid),
		T(test_memory_of_another_device_is_refused),
		T(test_handle_that_says_more_than_there_is_is_refused),
		T(test_buffer_that_starts_misaligned_is_refused),
		T(test_unsupported_kind_is_refused_before_all_other_checks),
		T(test_same_ipc_handle_is_opened_once),
		T(test_share_of_memory_comes_back_when_the_builder_has_closed_it),
		T(test_memory_counts_as_the_device_takes_it),
		T(test_metrics_count_buffers),
		T(test_call_while_one_is_worked_on_costs_the_session),
		T(test_client_that_dies_meanwhile_leaves_nothing),
		T(test_fences_end_with_their_session),
		T(test_closed_ipc_memory_counts_until_the_lane_is_empty),
		T(test_reload_forbids_descriptors_of_sessions_that_are_there),
	};

	return cmocka_run_group_tests_name("calls", tests, NULL, NULL);
}
