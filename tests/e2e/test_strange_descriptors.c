/* SPDX-License-Identifier: MIT */
/*
 * Clients that send descriptors whose close takes for ever (a socket that lingers), at every place
 * where a daemon could come to close them. Each time somebody else comes afterwards, attaches and
 * asks a question, and when the close ends all is back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "daemon/serve/closer.h"
#include "ipc/socket.h"
#include "ipc/status.h"
#include "tests/device.h"
#include "tests/e2e/questions.h"
#include "tests/e2e/raw.h"
#include "tests/lingering.h"

#define OTHER_USER 1001u

static struct daemon daemon_;

struct scene {
	struct lingering lingering;
	struct holdings before;
};

/* On a kernel where anybody may send descriptors. */
static int start(void **state)
{
	(void)state;
	daemon_init(&daemon_);
	daemon_.takes_rights = true;
	daemon_start(&daemon_);
	return 0;
}

static int end(void **state)
{
	(void)state;
	daemon_deinit(&daemon_);
	return 0;
}

/* With nobody attached any more. */
static struct holdings holdings(struct daemon *daemon)
{
	assert_true(EVENTUALLY(daemon_count(daemon, "sessions") == 0));
	return daemon_holdings(daemon);
}

static struct scene scene_begin(struct daemon *daemon)
{
	struct scene scene = {.before = holdings(daemon)};

	lingering_open(&scene.lingering);
	return scene;
}

static void assert_serves(struct daemon *daemon)
{
	struct question question;
	struct reply reply = {0};
	struct mimeo *m = daemon_connect(daemon, 0, 0);

	questions_make(&question, 1, 7);
	assert_int_equal(question_prepare(m, &question, 0), 0);
	assert_int_equal(mimeo_submit(m), 1);
	assert_int_equal(replies_collect(m, &reply, 1), 0);
	assert_int_equal(replies_wrong(&question, &reply, 1), 0);
	mimeo_close(m);
}

/* The daemon stands still meanwhile: if it were the first to close, ours would be the copy that
 * lingers. */
static void daemon_pause(struct daemon *daemon)
{
	int status;

	assert_int_equal(kill(daemon->pid, SIGSTOP), 0);
	assert_int_equal(waitpid(daemon->pid, &status, WUNTRACED), daemon->pid);
	assert_true(WIFSTOPPED(status));
}

static void daemon_go_on(struct daemon *daemon)
{
	assert_int_equal(kill(daemon->pid, SIGCONT), 0);
}

static void give(struct daemon *daemon, struct lingering *lingering, int socket, const void *bytes,
	size_t n)
{
	daemon_pause(daemon);
	lingering_give(lingering, socket, bytes, n);
	daemon_go_on(daemon);
}

/* The close hangs, nobody else does; then it ends, and nothing is left of it. */
static void scene_end(struct scene *scene, struct daemon *daemon)
{
	assert_serves(daemon);
	lingering_let_go(&scene->lingering);
	daemon_assert_settles(daemon, &scene->before);
}

/* ---- before a session ---- */

static void test_with_hello(void **state)
{
	struct scene scene = scene_begin(&daemon_);
	uint8_t hello[MSG_HEADER_MAX];
	size_t n = raw_hello(hello, sizeof(hello), 4);
	int fd = raw_connect(&daemon_);

	(void)state;
	give(&daemon_, &scene.lingering, fd, hello, n);
	raw_assert_closed(fd);
	close(fd);
	scene_end(&scene, &daemon_);
}

/* The daemon stands still while it is sent, and its sender is gone before it goes on. */
static void test_unread_on_a_connection_that_has_hung_up(void **state)
{
	struct scene scene = scene_begin(&daemon_);
	int fd = raw_connect(&daemon_);

	(void)state;
	daemon_pause(&daemon_);
	lingering_give(&scene.lingering, fd, "x", 1);
	close(fd);
	daemon_go_on(&daemon_);
	scene_end(&scene, &daemon_);
}

static void test_behind_garbage(void **state)
{
	static const uint8_t garbage[4] = {0xff, 0xff, 0xff, 0xff};
	struct scene scene = scene_begin(&daemon_);
	int fd = raw_connect(&daemon_);

	(void)state;
	daemon_pause(&daemon_);
	assert_int_equal(send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL), sizeof(garbage));
	lingering_give(&scene.lingering, fd, "x", 1);
	daemon_go_on(&daemon_);
	raw_assert_closed(fd);
	close(fd);
	scene_end(&scene, &daemon_);
}

static void test_on_the_operators_socket(void **state)
{
	struct scene scene = scene_begin(&daemon_);
	char path[SOCKET_PATH_MAX];

	(void)state;
	assert_int_equal(socket_admin_path(path, daemon_.socket), 0);
	int fd = socket_connect(path, PATIENCE_MS);
	assert_true(fd >= 0);
	give(&daemon_, &scene.lingering, fd, "x", 1);
	raw_assert_closed(fd);
	close(fd);
	scene_end(&scene, &daemon_);
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

	(void)state;
	assert_int_equal(socket_admin_path(path, daemon_.socket), 0);
	for (int place = 0; place < 3; place++) {
		struct scene scene = scene_begin(&daemon_);

		if (place == 0)
			raw_attach(&raw, &daemon_, 4);
		int fd = place == 0 ? raw.socket
			: socket_connect(place == 1 ? path : daemon_.socket, PATIENCE_MS);
		assert_true(fd >= 0);
		give_out_of_band(&daemon_, &scene.lingering, fd);
		assert_serves(&daemon_);
		if (place == 0)
			raw_detach(&raw);
		else
			close(fd);
		scene_end(&scene, &daemon_);
	}
}

/* ---- in a session ---- */

static size_t import_call(uint8_t *bytes, size_t size)
{
	struct msg_call call = {.call = MSG_CALL_BUFFER_IMPORT};
	const struct handle handle = {.kind = HANDLE_MEMFD, .size = 4096};

	handle_encode(&handle, call.handle);
	return raw_call(&call, bytes, size);
}

static void test_in_a_call(void **state)
{
	struct scene scene = scene_begin(&daemon_);
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct raw raw;

	(void)state;
	raw_attach(&raw, &daemon_, 4);
	give(&daemon_, &scene.lingering, raw.socket, call, n);
	struct msg_reply reply = raw_hear_reply(&raw);
	/* A CUDA device has no memfds at all, and says that first. */
	assert_int_equal(reply.status, test_on_cuda() ? STATUS_E_UNSUPPORTED : STATUS_E_INVALID);
	if (!test_on_cuda())
		assert_string_equal(reply.text, "the descriptor is no memfd's");
	raw_assert_alive(&raw);
	raw_detach(&raw);
	scene_end(&scene, &daemon_);
}

static void test_second_one_in_a_call(void **state)
{
	struct scene scene = scene_begin(&daemon_);
	const int fds[] = {STDERR_FILENO, scene.lingering.fd};
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct raw raw;

	(void)state;
	raw_attach(&raw, &daemon_, 4);
	daemon_pause(&daemon_);
	send_with(raw.socket, call, n, fds, 2);
	close(scene.lingering.fd);
	daemon_go_on(&daemon_);
	raw_assert_closed(raw.socket);
	raw_detach(&raw);
	scene_end(&scene, &daemon_);
}

static void test_unread_in_a_session_that_has_hung_up(void **state)
{
	struct scene scene = scene_begin(&daemon_);
	struct raw raw;

	(void)state;
	raw_attach(&raw, &daemon_, 4);
	daemon_pause(&daemon_);
	assert_int_equal(send(raw.socket, "\xff\xff\xff\xff", 4, MSG_NOSIGNAL), 4);
	lingering_give(&scene.lingering, raw.socket, "x", 1);
	raw_detach(&raw);
	daemon_go_on(&daemon_);
	scene_end(&scene, &daemon_);
}

/* A daemon that maps nobody's memory takes nobody's descriptors. */
static void strict_start(struct daemon *daemon)
{
	daemon_init(daemon);
	daemon->takes_rights = true;
	daemon_option(daemon, "--allow-client-ipc", "no");
	daemon_start(daemon);
}

static void test_where_none_are_taken_the_call_is_refused_once_it_has_closed(void **state)
{
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct daemon strict;
	struct raw raw;

	(void)state;
	strict_start(&strict);
	struct scene scene = scene_begin(&strict);
	raw_attach(&raw, &strict, 4);
	/* In two halves, each with one. */
	give(&strict, &scene.lingering, raw.socket, call, 3);
	send_with(raw.socket, call + 3, n - 3, &(int){STDERR_FILENO}, 1);
	assert_serves(&strict);
	raw_assert_alive(&raw);
	lingering_let_go(&scene.lingering);
	assert_int_equal(raw_hear_reply(&raw).status, STATUS_E_DENIED);
	raw_assert_alive(&raw);
	raw_detach(&raw);
	daemon_assert_settles(&strict, &scene.before);
	daemon_stop(&strict);
	daemon_deinit(&strict);
}

static void test_where_none_are_taken_a_session_can_end_meanwhile(void **state)
{
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct daemon strict;
	struct raw raw;

	(void)state;
	strict_start(&strict);
	struct scene scene = scene_begin(&strict);
	/* While it is dropped, and at once. */
	raw_attach(&raw, &strict, 4);
	give(&strict, &scene.lingering, raw.socket, call, n);
	assert_serves(&strict);
	raw_detach(&raw);
	assert_true(EVENTUALLY(daemon_count(&strict, "sessions") == scene.before.sessions));
	scene_end(&scene, &strict);
	scene = scene_begin(&strict);
	raw_attach(&raw, &strict, 4);
	daemon_pause(&strict);
	lingering_give(&scene.lingering, raw.socket, call, n);
	raw_detach(&raw);
	daemon_go_on(&strict);
	assert_true(EVENTUALLY(daemon_count(&strict, "sessions") == scene.before.sessions));
	scene_end(&scene, &strict);
	daemon_stop(&strict);
	daemon_deinit(&strict);
}

/* ---- too many, and the end ---- */

static void connect_refused(struct daemon *daemon, const char *why)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	char message[256];
	struct mimeo *m;

	config.socket_path = daemon->socket;
	config.message = message;
	config.message_size = sizeof(message);
	assert_int_equal(mimeo_connect(&m, &config), MIMEO_E_QUOTA);
	assert_non_null(strstr(message, why));
}

/* So many connections, of which the first n_hanging take for ever to close; all at once, because a stop
 * of the daemon interrupts what hangs already. */
static void flood(struct lingering *lingering, uint32_t n_hanging, uint32_t n)
{
	for (uint32_t i = 0; i < n_hanging; i++)
		lingering_open(&lingering[i]);
	daemon_pause(&daemon_);
	for (uint32_t i = 0; i < n; i++) {
		int fd = raw_connect(&daemon_);

		if (i < n_hanging)
			lingering_give(&lingering[i], fd, "x", 1);
		else
			send_with(fd, "x", 1, &(int){STDERR_FILENO}, 1);
		close(fd);
	}
}

/* With bytes unread at the other end the connection is reset, and there is nothing to linger for. */
static void flood_end(struct lingering *lingering, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		close(lingering[i].peer);
}

static void test_user_with_too_many_is_refused_until_they_close(void **state)
{
	const struct holdings before = holdings(&daemon_);
	struct lingering lingering[3 * CLOSER_MAX_PER_UID];
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct raw raw;

	(void)state;
	raw_attach(&raw, &daemon_, 4);
	flood(lingering, 3 * CLOSER_MAX_PER_UID, 3 * CLOSER_MAX_PER_UID);
	daemon_go_on(&daemon_);
	connect_refused(&daemon_, "descriptors that your clients sent do not close");
	/* Who is attached is served on, but for what it sends. */
	raw_assert_alive(&raw);
	send_with(raw.socket, call, n, &(int){STDERR_FILENO}, 1);
	assert_int_equal(daemon_count(&daemon_, "sessions"), 1); /* it has been looked at by now */
	flood_end(lingering, 3 * CLOSER_MAX_PER_UID);
	assert_int_equal(raw_hear_reply(&raw).status, STATUS_E_QUOTA);
	raw_assert_alive(&raw);
	raw_detach(&raw);
	daemon_assert_settles(&daemon_, &before);
	assert_serves(&daemon_);
}

/* Of one user so many threads hang, and what else has to be closed waits behind them. */
static void test_with_too_many_nobody_is_accepted_until_some_close(void **state)
{
	const struct holdings before = holdings(&daemon_);
	struct lingering lingering[CLOSER_MAX_PER_UID];
	uint8_t hello[MSG_HEADER_MAX];
	size_t n = raw_hello(hello, sizeof(hello), 4);
	struct pollfd late = {.events = POLLIN};

	(void)state;
	flood(lingering, CLOSER_MAX_PER_UID, CLOSER_MAX + 200);
	late.fd = raw_connect(&daemon_);
	assert_int_equal(send(late.fd, hello, n, MSG_NOSIGNAL), n);
	daemon_go_on(&daemon_);
	assert_true(EVENTUALLY(daemon_log_has(&daemon_, "accepting nobody before some do")));
	assert_true(daemon_count(&daemon_, "sessions") >= 0); /* operators are */
	assert_int_equal(poll(&late, 1, 200), 0);
	flood_end(lingering, CLOSER_MAX_PER_UID);
	assert_int_equal(poll(&late, 1, (int)PATIENCE_MS), 1);
	close(late.fd);
	daemon_assert_settles(&daemon_, &before);
	assert_serves(&daemon_);
}

/* Its user is held to account for what hangs, not for memory that was imported and is given back. */
static void test_client_with_much_memory_to_give_back_is_no_burden_to_the_next(void **state)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	uint32_t buffer;

	(void)state;
	daemon_start(&daemon_); /* the test before has ended it */
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 4096;
	for (int round = 0; round < 10; round++) {
		struct mimeo *m = daemon_connect(&daemon_, 0, 0);

		for (uint32_t i = 0; i < CLOSER_MAX_PER_UID; i++) {
			handle.fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
			assert_int_equal(ftruncate(handle.fd, 4096), 0);
			assert_int_equal(fcntl(handle.fd, F_ADD_SEALS,
				F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
			assert_int_equal(mimeo_buffer_import(m, &handle, &buffer), 0);
			close(handle.fd);
		}
		mimeo_close(m);
		for (int i = 0; i < 20; i++)
			mimeo_close(daemon_connect(&daemon_, 0, 0));
	}
}

static void test_daemon_ends_in_order_over_one_that_hangs(void **state)
{
	struct scene scene = scene_begin(&daemon_);
	int fd = raw_connect(&daemon_);

	(void)state;
	give(&daemon_, &scene.lingering, fd, "x", 1);
	raw_assert_closed(fd);
	close(fd);
	daemon_stop(&daemon_);
	lingering_let_go(&scene.lingering);
}

/* ---- where the kernel lets a socket refuse descriptors ---- */

static bool is_refused(int socket)
{
	bool refused = send_with_flags_status(socket, "x", 1, &(int){STDERR_FILENO}, 1, 0) == -EPERM;

	close(socket);
	return refused;
}

static void test_who_may_not_send_descriptors_is_told_so_by_the_kernel(void **state)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	char path[SOCKET_PATH_MAX];
	struct daemon strict;
	uint32_t buffer;

	(void)state;
	strict_start(&strict);
	daemon_stop(&strict);
	strict.takes_rights = false;
	daemon_start(&strict);
	assert_int_equal(socket_admin_path(path, strict.socket), 0);
	assert_true(is_refused(raw_connect(&strict)));
	assert_true(is_refused(socket_connect(path, PATIENCE_MS)));
	struct mimeo *m = daemon_connect(&strict, 0, 0);
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 4096;
	handle.fd = STDERR_FILENO;
	assert_int_equal(mimeo_buffer_import(m, &handle, &buffer), MIMEO_E_DENIED);
	assert_non_null(strstr(mimeo_buffer_message(m), "allow_client_ipc"));
	mimeo_close(m);
	assert_serves(&strict);
	daemon_stop(&strict);
	daemon_deinit(&strict);
}

/* As another user: what the daemon allocates it may have, and what it brings is refused. */
static int other_user(void *arg)
{
	const struct daemon *daemon = arg;
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	struct mimeo *m;
	uint32_t buffer;

	CHILD_EXPECT(setresgid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
	CHILD_EXPECT(setresuid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
	config.socket_path = daemon->socket;
	CHILD_EXPECT(mimeo_connect(&m, &config) == 0);
	CHILD_EXPECT(mimeo_buffer_alloc(m, 0, 4096, &buffer) == 0);
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 4096;
	handle.fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHILD_EXPECT(mimeo_buffer_import(m, &handle, &buffer) == MIMEO_E_DENIED);
	CHILD_EXPECT(!daemon->takes_rights || strcmp(mimeo_buffer_message(m),
		"allow_client_ipc is same-uid, and yours is another") == 0);
	mimeo_close(m);
	return 0;
}

static void test_another_user_s_memory_is_not_mapped_by_default(void **state)
{
	struct daemon daemon;

	(void)state;
	for (int old = 0; old <= 1; old++) {
		daemon_init(&daemon);
		daemon.takes_rights = old;
		daemon_start(&daemon);
		assert_int_equal(chmod(daemon.folder, 0711), 0);
		assert_int_equal(chmod(daemon.socket, 0666), 0);
		assert_int_equal(
			process_exit_status(process_run(other_user, &daemon), PATIENCE_MS), 0);
		daemon_stop(&daemon);
		daemon_deinit(&daemon);
	}
}

static bool kernel_has_pass_rights(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool has = setsockopt(fd, SOL_SOCKET, 83, &(int){0}, sizeof(int)) == 0;

	close(fd);
	return has;
}

#define TESTS_MAX 32

int main(void)
{
	static const struct CMUnitTest always[] = {
		cmocka_unit_test(test_with_hello),
		cmocka_unit_test(test_unread_on_a_connection_that_has_hung_up),
		cmocka_unit_test(test_behind_garbage),
		cmocka_unit_test(test_on_the_operators_socket),
		cmocka_unit_test(test_out_of_band),
		cmocka_unit_test(test_in_a_call),
		cmocka_unit_test(test_second_one_in_a_call),
		cmocka_unit_test(test_unread_in_a_session_that_has_hung_up),
		cmocka_unit_test(
			test_where_none_are_taken_the_call_is_refused_once_it_has_closed),
		cmocka_unit_test(test_where_none_are_taken_a_session_can_end_meanwhile),
		cmocka_unit_test(test_user_with_too_many_is_refused_until_they_close),
		cmocka_unit_test(test_with_too_many_nobody_is_accepted_until_some_close),
		cmocka_unit_test(test_daemon_ends_in_order_over_one_that_hangs),
	};
	const struct {
		struct CMUnitTest test;
		bool possible;
		const char *needs;
	} some[] = {
		{cmocka_unit_test(
			 test_who_may_not_send_descriptors_is_told_so_by_the_kernel),
			kernel_has_pass_rights(), "Linux 6.16"},
		{cmocka_unit_test(test_another_user_s_memory_is_not_mapped_by_default),
			geteuid() == 0, "root, to be another user"},
		{cmocka_unit_test(
			 test_client_with_much_memory_to_give_back_is_no_burden_to_the_next),
			!test_on_cuda(), "memfds for buffers, which the cpu device has"},
	};
	struct CMUnitTest tests[TESTS_MAX];
	size_t n = sizeof(always) / sizeof(always[0]);

	memcpy(tests, always, sizeof(always));
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		if (some[i].possible)
			tests[n++] = some[i].test;
	}
	watchdog(WATCHDOG_SECONDS);
	int failed = _cmocka_run_group_tests("strange_descriptors", tests, n, start, end);
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		if (!some[i].possible)
			printf("# skipped: %s: needs %s\n", some[i].test.name, some[i].needs);
	}
	return failed;
}
