/* SPDX-License-Identifier: MIT */
/* Calls for a model's files: which descriptors come, and how many may wait in a socket. */
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/msg_table.h"

#include "harness.h"

static struct mimeo_model_files files;

struct rig {
	struct harness *harness;
	struct client client;
	struct msg_codec *codec;
};

static int file_of(const char *text)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

static int setup(void **state)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	struct msg_hello hello = client_hello();

	assert_non_null(rig);
	assert_int_equal(msg_codec_new(&rig->codec), 0);
	files = (struct mimeo_model_files)MIMEO_MODEL_FILES_INIT;
	rig->harness = harness_new();
	fake_engine_set_files(rig->harness->engine, &files);
	harness_start(rig->harness);
	assert_int_equal(client_attach(rig->harness, &rig->client, &hello), 0);
	*state = rig;
	return 0;
}

static void close_if_open(int fd)
{
	if (fd >= 0)
		close(fd);
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	client_close(&rig->client);
	await_sessions(rig->harness, 0);
	harness_free(rig->harness);
	msg_codec_free(rig->codec);
	close_if_open(files.tokenizer);
	close_if_open(files.config);
	close_if_open(files.chat_template);
	free(rig);
	return 0;
}

static void call_send(struct rig *rig, uint32_t model)
{
	const struct msg_call call = {.call = MSG_CALL_MODEL_FILES, .model = model};
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_call_encode(&call, bytes, sizeof(bytes));

	assert_true(n > 0);
	assert_int_equal(socket_send(rig->client.fd, bytes, (size_t)n, NULL, 0), 0);
}

static struct msg_reply reply_receive(struct rig *rig, int fds[static MSG_FILES_MAX], size_t *ret_n)
{
	uint8_t bytes[MSG_CALL_MAX];
	struct msg_detail detail;
	struct msg_reply reply;
	ssize_t n = socket_receive(
		rig->client.fd, bytes, sizeof(bytes), fds, MSG_FILES_MAX, ret_n, PATIENCE_MS);

	assert_true(n > 0);
	assert_int_equal(msg_reply_decode(rig->codec, bytes, (size_t)n, &reply, &detail), 0);
	return reply;
}

static void expect_file(int fd, const char *text)
{
	char bytes[32];
	ssize_t n = pread(fd, bytes, sizeof(bytes), 0);

	assert_int_equal(n, strlen(text));
	assert_memory_equal(bytes, text, (size_t)n);
	close(fd);
}

static void test_all_files_come_in_their_order(void **state)
{
	int fds[MSG_FILES_MAX];
	size_t n;

	files.tokenizer = file_of("tokens");
	files.config = file_of("config");
	files.chat_template = file_of("template");
	for (int again = 0; again < 3; again++) {
		call_send(*state, 0);
		struct msg_reply reply = reply_receive(*state, fds, &n);
		assert_int_equal(reply.status, 0);
		assert_int_equal(
			reply.files, MSG_FILE_TOKENIZER | MSG_FILE_CONFIG | MSG_FILE_CHAT_TEMPLATE);
		assert_int_equal(n, 3);
		expect_file(fds[0], "tokens");
		expect_file(fds[1], "config");
		expect_file(fds[2], "template");
	}
}

static void test_absent_files_are_left_out(void **state)
{
	int fds[MSG_FILES_MAX];
	size_t n;

	call_send(*state, 0);
	assert_int_equal(reply_receive(*state, fds, &n).files, 0);
	assert_int_equal(n, 0);
	files.tokenizer = file_of("tokens");
	files.chat_template = file_of("template");
	call_send(*state, 0);
	assert_int_equal(reply_receive(*state, fds, &n).files, MSG_FILE_TOKENIZER | MSG_FILE_CHAT_TEMPLATE);
	assert_int_equal(n, 2);
	expect_file(fds[0], "tokens");
	expect_file(fds[1], "template");
}

static void test_model_without_any_has_none(void **state)
{
	struct rig *rig = *state;
	int fds[MSG_FILES_MAX];
	size_t n;

	fake_engine_set_files(rig->harness->engine, NULL);
	call_send(rig, 0);
	struct msg_reply reply = reply_receive(rig, fds, &n);
	assert_int_equal(reply.status, 0);
	assert_int_equal(reply.files, 0);
	assert_int_equal(n, 0);
}

static void test_unknown_model_is_refused_by_its_index(void **state)
{
	int fds[MSG_FILES_MAX];
	size_t n;

	files.tokenizer = file_of("tokens");
	call_send(*state, 1);
	struct msg_reply reply = reply_receive(*state, fds, &n);
	assert_int_equal(reply.status, MIMEO_E_UNKNOWN_MODEL);
	assert_string_equal(reply.text, "no model has the number 1: it may have been unloaded");
	assert_int_equal(n, 0);
	call_send(*state, UINT32_MAX);
	assert_int_equal(reply_receive(*state, fds, &n).status, MIMEO_E_UNKNOWN_MODEL);
}

/* Descriptors that wait in a socket count against a limit of all the daemon's sockets together. */
static void test_second_call_before_the_reply_is_received_costs_the_session(void **state)
{
	struct rig *rig = *state;
	struct pollfd readable = {.fd = rig->client.fd, .events = POLLIN};

	files.tokenizer = file_of("tokens");
	call_send(rig, 0);
	assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
	call_send(rig, 0);
	await_sessions(rig->harness, 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(test_all_files_come_in_their_order),
		T(test_absent_files_are_left_out),
		T(test_model_without_any_has_none),
		T(test_unknown_model_is_refused_by_its_index),
		T(test_second_call_before_the_reply_is_received_costs_the_session),
	};

	return cmocka_run_group_tests_name("model_files", tests, NULL, NULL);
}
