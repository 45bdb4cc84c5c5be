/* SPDX-License-Identifier: MIT */
/* A model's files as the library hands them over. */
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "ipc/msg_table.h"
#include "tests/sdk/session.h"

/* What the next call gets, with n copies of a descriptor. */
static void answer_with(struct session *s, const struct msg_reply *reply, size_t n_fds)
{
	const int fds[4] = {STDERR_FILENO, STDERR_FILENO, STDERR_FILENO, STDERR_FILENO};
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_table_write(&msg_reply_table, reply, bytes, sizeof(bytes));

	assert_true(n > 0);
	assert_int_equal(socket_send(s->fake.socket, bytes, (size_t)n, fds, n_fds), 0);
}

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

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void test_all_files_are_the_callers(void **state)
{
	struct session *s = *state;
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;

	answer_with(s, &(struct msg_reply){.files = 7}, 3);
	assert_int_equal(mimeo_model_files(s->m, 1, &files), 0);
	struct msg_call call = heard(s);
	assert_int_equal(call.call, MSG_CALL_MODEL_FILES);
	assert_int_equal(call.model, 1);
	assert_int_equal(files.size, sizeof(files));
	assert_int_equal(files.reserved, -1);
	const int fds[] = {files.tokenizer, files.config, files.chat_template};
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
		assert_int_equal(close(fds[i]), 0);
	}
}

static void test_absent_file_is_no_descriptor(void **state)
{
	struct session *s = *state;
	struct mimeo_model_files files = {.size = sizeof(files), .tokenizer = 77};

	answer_with(s, &(struct msg_reply){.files = MSG_FILE_CONFIG}, 1);
	assert_int_equal(mimeo_model_files(s->m, 0, &files), 0);
	assert_int_equal(files.tokenizer, -1);
	assert_int_equal(files.chat_template, -1);
	assert_true(is_open(files.config));
	close(files.config);
}

static void test_fields_of_a_newer_header_are_no_descriptors(void **state)
{
	struct session *s = *state;
	struct {
		struct mimeo_model_files files;
		int later[2];
	} longer = {.files = {.size = sizeof(longer)}};

	answer_with(s, &(struct msg_reply){.files = 0}, 0);
	assert_int_equal(mimeo_model_files(s->m, 0, &longer.files), 0);
	assert_int_equal(longer.files.size, sizeof(longer));
	assert_int_equal(longer.files.tokenizer, -1);
	assert_int_equal(longer.later[0], -1);
	assert_int_equal(longer.later[1], -1);
}

static void test_what_cannot_be_asked_for_is_refused_here(void **state)
{
	struct session *s = *state;
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT, odd = {.size = 4};

	assert_int_equal(mimeo_model_files(s->m, 2, &files), MIMEO_E_UNKNOWN_MODEL);
	assert_string_equal(mimeo_buffer_message(s->m), "there is no model of that index");
	assert_int_equal(mimeo_model_files(s->m, 0, NULL), MIMEO_E_INVALID);
	assert_int_equal(mimeo_model_files(s->m, 0, &odd), MIMEO_E_INVALID);
	odd.size = SIZE_MAX;
	assert_int_equal(mimeo_model_files(s->m, 0, &odd), MIMEO_E_INVALID);
	assert_non_null(strstr(mimeo_buffer_message(s->m), "MIMEO_MODEL_FILES_INIT"));
	assert_int_equal(files.tokenizer, -1);
}

static void test_daemons_refusal_leaves_the_struct_alone(void **state)
{
	struct session *s = *state;
	struct mimeo_model_files files = {.size = sizeof(files), .tokenizer = 77};

	answer_with(s, &(struct msg_reply){.status = MIMEO_E_UNKNOWN_MODEL, .text = "no"}, 0);
	assert_int_equal(mimeo_model_files(s->m, 0, &files), MIMEO_E_UNKNOWN_MODEL);
	assert_string_equal(mimeo_buffer_message(s->m), "no");
	assert_int_equal(files.tokenizer, 77);
}

/* More or fewer descriptors than the reply says, none of which may stay open. */
static void test_descriptors_that_do_not_match_count_as_a_daemon_that_is_gone(void **state)
{
	static const struct {
		uint32_t files;
		size_t n_fds;
	} cases[] = {{7, 2}, {1, 2}, {0, 1}, {7, 0}, {7, 4}};
	struct session *s = *state;
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	int next = dup(STDERR_FILENO);

	close(next);
	answer_with(s, &(struct msg_reply){.files = cases[s->variant].files}, cases[s->variant].n_fds);
	assert_int_equal(mimeo_model_files(s->m, 0, &files), MIMEO_E_GONE);
	assert_int_equal(files.tokenizer, -1);
	assert_false(is_open(next));
	assert_int_equal(session_peek(s), MIMEO_E_GONE);
}

static void test_process_without_a_descriptor_left_gets_none(void **state)
{
	struct session *s = *state;
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	struct rlimit limit, tight;
	int next = dup(STDERR_FILENO);

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	tight = limit;
	tight.rlim_cur = (rlim_t)next + 2;
	close(next);
	answer_with(s, &(struct msg_reply){.files = 7}, 3);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	int rc = mimeo_model_files(s->m, 0, &files);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(rc, MIMEO_E_NO_MEMORY);
	assert_string_equal(mimeo_buffer_message(s->m), "this process has no descriptor left");
	assert_false(is_open(next));
	assert_false(is_open(next + 1));
	/* The session goes on. */
	answer_with(s, &(struct msg_reply){.files = 0}, 0);
	assert_int_equal(mimeo_model_files(s->m, 0, &files), 0);
}

static void test_call_to_a_daemon_that_hung_up_is_gone(void **state)
{
	struct session *s = *state;
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;

	fake_hang_up(&s->fake);
	assert_int_equal(mimeo_model_files(s->m, 0, &files), MIMEO_E_GONE);
	assert_int_equal(mimeo_model_files(s->m, 0, &files), MIMEO_E_GONE);
}

#define MISMATCH(i) \
	session_test_with(test_descriptors_that_do_not_match_count_as_a_daemon_that_is_gone, .variant = (i))

int main(void)
{
	const struct CMUnitTest tests[] = {
		session_test(test_all_files_are_the_callers),
		session_test(test_absent_file_is_no_descriptor),
		session_test(test_fields_of_a_newer_header_are_no_descriptors),
		session_test(test_what_cannot_be_asked_for_is_refused_here),
		session_test(test_daemons_refusal_leaves_the_struct_alone),
		MISMATCH(0), MISMATCH(1), MISMATCH(2), MISMATCH(3), MISMATCH(4),
		session_test(test_process_without_a_descriptor_left_gets_none),
		session_test(test_call_to_a_daemon_that_hung_up_is_gone),
	};

	return cmocka_run_group_tests_name("model_files", tests, NULL, NULL);
}
