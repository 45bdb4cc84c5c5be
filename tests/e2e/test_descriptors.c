/* SPDX-License-Identifier: MIT */
/*
 * Clients that send descriptors whose close takes for ever (a socket that lingers), at every place
 * where a daemon could come to close them. Each time another client attaches afterwards and asks a
 * question, and when the close ends all is back.
 */
#include <sys/resource.h>

#include "tests/device.h"
#include "tests/e2e/descriptors.h"

struct scene {
	struct lingering lingering;
	struct holdings before;
};

static struct scene scene_begin(struct daemon *daemon)
{
	struct scene scene = {.before = holdings(daemon)};

	lingering_open(&scene.lingering);
	return scene;
}

/* The close hangs, and no other client does; then it ends, and nothing is left of it. */
static void scene_end(struct scene *scene, struct daemon *daemon)
{
	assert_serves_others(daemon);
	lingering_let_go(&scene->lingering);
	daemon_assert_settles(daemon, &scene->before);
}

/* ---- before a session ---- */

static void test_with_hello(void **state)
{
	struct scene scene = scene_begin(&group_daemon);
	uint8_t hello[MSG_HEADER_MAX];
	size_t n = raw_hello(hello, sizeof(hello), 4);
	int fd = raw_connect(&group_daemon);

	give(&group_daemon, &scene.lingering, fd, hello, n);
	raw_assert_ends(fd);
	scene_end(&scene, &group_daemon);
}

/* The daemon stands still while it is sent, and its sender is gone before it goes on. */
static void test_unread_on_a_connection_that_has_hung_up(void **state)
{
	struct scene scene = scene_begin(&group_daemon);
	int fd = raw_connect(&group_daemon);

	daemon_pause(&group_daemon);
	lingering_give(&scene.lingering, fd, "x", 1);
	close(fd);
	daemon_go_on(&group_daemon);
	scene_end(&scene, &group_daemon);
}

static void test_behind_garbage(void **state)
{
	static const uint8_t garbage[4] = {0xff, 0xff, 0xff, 0xff};
	struct scene scene = scene_begin(&group_daemon);
	int fd = raw_connect(&group_daemon);

	daemon_pause(&group_daemon);
	assert_int_equal(send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL), sizeof(garbage));
	lingering_give(&scene.lingering, fd, "x", 1);
	daemon_go_on(&group_daemon);
	raw_assert_ends(fd);
	scene_end(&scene, &group_daemon);
}

static void test_on_the_operators_socket(void **state)
{
	struct scene scene = scene_begin(&group_daemon);
	char path[SOCKET_PATH_MAX];

	assert_int_equal(socket_admin_path(path, group_daemon.socket), 0);
	int fd = socket_connect(path, PATIENCE_MS);
	assert_true(fd >= 0);
	give(&group_daemon, &scene.lingering, fd, "x", 1);
	raw_assert_ends(fd);
	scene_end(&scene, &group_daemon);
}

/* An out-of-band byte, which brings the descriptor, ahead of bytes that are no more. */
static void give_out_of_band(struct daemon *daemon, struct lingering *lingering, int fd)
{
	daemon_pause(daemon);
	send_with_flags(fd, "x", 1, &lingering->fd, 1, MSG_OOB);
	close(lingering->fd);
	assert_int_equal(send(fd, "yz", 2, MSG_NOSIGNAL), 2);
	daemon_go_on(daemon);
}

static void test_out_of_band(void **state)
{
	char path[SOCKET_PATH_MAX];
	struct raw raw;

	assert_int_equal(socket_admin_path(path, group_daemon.socket), 0);
	for (int place = 0; place < 3; place++) {
		struct scene scene = scene_begin(&group_daemon);

		if (place == 0)
			raw_attach(&raw, &group_daemon, 4);
		int fd = place == 0 ? raw.socket
			: socket_connect(place == 1 ? path : group_daemon.socket, PATIENCE_MS);
		assert_true(fd >= 0);
		give_out_of_band(&group_daemon, &scene.lingering, fd);
		assert_serves_others(&group_daemon);
		if (place == 0)
			raw_detach(&raw);
		else
			close(fd);
		scene_end(&scene, &group_daemon);
	}
}

/* ---- in a session ---- */

static void test_in_a_call(void **state)
{
	struct scene scene = scene_begin(&group_daemon);
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct raw raw;

	raw_attach(&raw, &group_daemon, 4);
	give(&group_daemon, &scene.lingering, raw.socket, call, n);
	struct msg_reply reply = raw_hear_reply(&raw);
	/* A CUDA device has no memfds at all, and says that first. */
	assert_int_equal(reply.status, test_on_cuda() ? MIMEO_E_UNSUPPORTED : MIMEO_E_INVALID);
	if (!test_on_cuda())
		assert_string_equal(reply.text, "the descriptor is no memfd's");
	raw_assert_alive(&raw);
	raw_detach(&raw);
	scene_end(&scene, &group_daemon);
}

static void test_second_one_in_a_call(void **state)
{
	struct scene scene = scene_begin(&group_daemon);
	const int fds[] = {STDERR_FILENO, scene.lingering.fd};
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct raw raw;

	raw_attach(&raw, &group_daemon, 4);
	daemon_pause(&group_daemon);
	send_with(raw.socket, call, n, fds, 2);
	close(scene.lingering.fd);
	daemon_go_on(&group_daemon);
	raw_assert_closed(raw.socket);
	raw_detach(&raw);
	scene_end(&scene, &group_daemon);
}

static void test_unread_in_a_session_that_has_hung_up(void **state)
{
	struct scene scene = scene_begin(&group_daemon);
	struct raw raw;

	raw_attach(&raw, &group_daemon, 4);
	daemon_pause(&group_daemon);
	assert_int_equal(send(raw.socket, "\xff\xff\xff\xff", 4, MSG_NOSIGNAL), 4);
	lingering_give(&scene.lingering, raw.socket, "x", 1);
	raw_detach(&raw);
	daemon_go_on(&group_daemon);
	scene_end(&scene, &group_daemon);
}

static void test_where_none_are_taken_the_call_is_refused_while_the_close_hangs(void **state)
{
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct daemon *strict = *state;
	struct raw raw;

	struct scene scene = scene_begin(strict);
	raw_attach(&raw, strict, 4);
	/* In two halves, each with one. */
	give(strict, &scene.lingering, raw.socket, call, 3);
	send_with(raw.socket, call + 3, n - 3, &(int){STDERR_FILENO}, 1);
	/* The refusal does not wait for the close. */
	assert_int_equal(raw_hear_reply(&raw).status, MIMEO_E_DENIED);
	raw_assert_alive(&raw);
	raw_detach(&raw);
	scene_end(&scene, strict);
}

static void test_where_none_are_taken_a_session_can_end_meanwhile(void **state)
{
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct daemon *strict = *state;
	struct raw raw;

	struct scene scene = scene_begin(strict);
	/* While it is dropped, and at once. */
	raw_attach(&raw, strict, 4);
	give(strict, &scene.lingering, raw.socket, call, n);
	assert_serves_others(strict);
	raw_detach(&raw);
	assert_true(EVENTUALLY(daemon_count(strict, "sessions") == scene.before.sessions));
	scene_end(&scene, strict);
	scene = scene_begin(strict);
	raw_attach(&raw, strict, 4);
	daemon_pause(strict);
	lingering_give(&scene.lingering, raw.socket, call, n);
	raw_detach(&raw);
	daemon_go_on(strict);
	assert_true(EVENTUALLY(daemon_count(strict, "sessions") == scene.before.sessions));
	scene_end(&scene, strict);
}

/* ---- no free descriptor ---- */

/* The lowest number that no descriptor of the process has: with it as its limit of open files, the process
 * gets no other. */
static rlim_t lowest_free_descriptor(pid_t pid)
{
	char path[64];
	rlim_t n = 0;

	do
		snprintf(path, sizeof(path), "/proc/%d/fd/%llu", (int)pid, (unsigned long long)n++);
	while (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
	return n - 1;
}

static void take_free_descriptors(const struct daemon *daemon, struct rlimit *ret_before)
{
	struct rlimit full;

	assert_int_equal(prlimit(daemon->pid, RLIMIT_NOFILE, NULL, ret_before), 0);
	full = (struct rlimit){lowest_free_descriptor(daemon->pid), ret_before->rlim_max};
	assert_true(full.rlim_cur > 3);
	assert_int_equal(prlimit(daemon->pid, RLIMIT_NOFILE, &full, NULL), 0);
}

static void give_free_descriptors(const struct daemon *daemon, const struct rlimit *before)
{
	assert_int_equal(prlimit(daemon->pid, RLIMIT_NOFILE, before, NULL), 0);
}

static void test_call_with_a_descriptor_waits_while_the_daemon_has_none_free(void **state)
{
	struct holdings before = holdings(&group_daemon);
	struct mimeo *other = daemon_connect(&group_daemon, 0, 0);
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct rlimit limit;
	struct raw raw;

	raw_attach(&raw, &group_daemon, 4);
	assert_int_equal(daemon_count(&group_daemon, "sessions"), 2);
	take_free_descriptors(&group_daemon, &limit);
	send_with(raw.socket, call, n, &(int){STDERR_FILENO}, 1);
	bool logged = EVENTUALLY(daemon_log_has(&group_daemon, "no free file descriptor"));
	/* Requests do not need one, of this session and of another. */
	raw_assert_alive(&raw);
	assert_serves(other, 7);
	give_free_descriptors(&group_daemon, &limit);
	assert_true(logged);
	/* No memory; a CUDA device has no memfds at all. */
	assert_int_equal(raw_hear_reply(&raw).status,
		test_on_cuda() ? MIMEO_E_UNSUPPORTED : MIMEO_E_INVALID);
	raw_assert_alive(&raw);
	raw_detach(&raw);
	mimeo_close(other);
	assert_serves_others(&group_daemon);
	daemon_assert_settles(&group_daemon, &before);
}

static void test_buffer_is_refused_while_the_daemon_has_no_descriptor_free(void **state)
{
	if (test_on_cuda())
		return; /* the driver has descriptors of its own */
	struct holdings before = holdings(&group_daemon);
	struct mimeo *m = daemon_connect(&group_daemon, 0, 0);
	struct rlimit limit;
	uint32_t buffer;

	assert_int_equal(daemon_count(&group_daemon, "sessions"), 1);
	take_free_descriptors(&group_daemon, &limit);
	int status = mimeo_buffer_alloc(m, MIMEO_HANDLE_DEFAULT, 4096, &buffer);
	assert_serves(m, 7);
	give_free_descriptors(&group_daemon, &limit);
	assert_int_equal(status, MIMEO_E_NO_MEMORY);
	assert_int_equal(mimeo_buffer_alloc(m, MIMEO_HANDLE_DEFAULT, 4096, &buffer), 0);
	assert_serves(m, 8);
	mimeo_close(m);
	daemon_assert_settles(&group_daemon, &before);
}

/* ---- the end ---- */

static void test_daemon_ends_in_order_over_one_that_hangs(void **state)
{
	struct scene scene = scene_begin(&group_daemon);
	int fd = raw_connect(&group_daemon);

	give(&group_daemon, &scene.lingering, fd, "x", 1);
	raw_assert_ends(fd);
	daemon_stop(&group_daemon);
	lingering_let_go(&scene.lingering);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_with_hello),
		cmocka_unit_test(test_unread_on_a_connection_that_has_hung_up),
		cmocka_unit_test(test_behind_garbage),
		cmocka_unit_test(test_on_the_operators_socket),
		cmocka_unit_test(test_out_of_band),
		cmocka_unit_test(test_in_a_call),
		cmocka_unit_test(test_second_one_in_a_call),
		cmocka_unit_test(test_unread_in_a_session_that_has_hung_up),
		STRICT(test_where_none_are_taken_the_call_is_refused_while_the_close_hangs),
		STRICT(test_where_none_are_taken_a_session_can_end_meanwhile),
		cmocka_unit_test(test_call_with_a_descriptor_waits_while_the_daemon_has_none_free),
		cmocka_unit_test(test_buffer_is_refused_while_the_daemon_has_no_descriptor_free),
		cmocka_unit_test(test_daemon_ends_in_order_over_one_that_hangs),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("descriptors", tests, start, group_daemon_end);
}
