/* SPDX-License-Identifier: MIT */
/*
 * Who may send descriptors, and how many that do not close: a user has a share, all have a limit, and
 * where the kernel can refuse them it does.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/serve/closer.h"
#include "tests/device.h"
#include "tests/e2e/descriptors.h"

#define OTHER_USER 1001u

/* ---- too many ---- */

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
	daemon_pause(&group_daemon);
	for (uint32_t i = 0; i < n; i++) {
		int fd = raw_connect(&group_daemon);

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
	const struct holdings before = holdings(&group_daemon);
	struct lingering lingering[3 * CLOSER_MAX_PER_UID];
	uint8_t call[4 + MSG_CALL_MAX];
	size_t n = import_call(call, sizeof(call));
	struct raw raw;

	raw_attach(&raw, &group_daemon, 4);
	flood(lingering, 3 * CLOSER_MAX_PER_UID, 3 * CLOSER_MAX_PER_UID);
	daemon_go_on(&group_daemon);
	connect_refused(&group_daemon, "pending closes of descriptors: 1 asked for, 0 left for user ");
	/* Who is attached is served on, but for what it sends. */
	raw_assert_alive(&raw);
	send_with(raw.socket, call, n, &(int){STDERR_FILENO}, 1);
	assert_int_equal(daemon_count(&group_daemon, "sessions"), 1); /* it has been looked at by now */
	flood_end(lingering, 3 * CLOSER_MAX_PER_UID);
	assert_int_equal(raw_hear_reply(&raw).status, MIMEO_E_QUOTA);
	raw_assert_alive(&raw);
	raw_detach(&raw);
	daemon_assert_settles(&group_daemon, &before);
	assert_serves_others(&group_daemon);
}

/* Of one user so many threads hang, and what else has to be closed waits behind them. */
static void test_with_too_many_nobody_is_accepted_until_some_close(void **state)
{
	const struct holdings before = holdings(&group_daemon);
	struct lingering lingering[CLOSER_MAX_PER_UID];
	uint8_t hello[MSG_HEADER_MAX];
	size_t n = raw_hello(hello, sizeof(hello), 4);
	struct pollfd late = {.events = POLLIN};

	flood(lingering, CLOSER_MAX_PER_UID, CLOSER_MAX + 200);
	late.fd = raw_connect(&group_daemon);
	assert_int_equal(send(late.fd, hello, n, MSG_NOSIGNAL), n);
	daemon_go_on(&group_daemon);
	assert_true(EVENTUALLY(daemon_log_has(&group_daemon, "no connection is accepted until some complete")));
	assert_true(daemon_count(&group_daemon, "sessions") >= 0); /* operators are */
	assert_int_equal(poll(&late, 1, 200), 0);
	flood_end(lingering, CLOSER_MAX_PER_UID);
	assert_int_equal(poll(&late, 1, (int)PATIENCE_MS), 1);
	close(late.fd);
	daemon_assert_settles(&group_daemon, &before);
	assert_serves_others(&group_daemon);
}

/* Its user is held to account for what hangs, not for memory that was imported and is given back. */
static void test_client_with_much_memory_to_give_back_is_no_burden_to_the_next(void **state)
{
	const struct holdings before = holdings(&group_daemon);
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	uint32_t buffer;

	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 4096;
	for (int round = 0; round < 10; round++) {
		struct mimeo *m = daemon_connect(&group_daemon, 0, 0);

		for (uint32_t i = 0; i < CLOSER_MAX_PER_UID; i++) {
			handle.fd = memfd_of(4096, MEMFD_SEALS);
			assert_int_equal(mimeo_buffer_import(m, &handle, &buffer), 0);
			close(handle.fd);
		}
		mimeo_close(m);
		for (int i = 0; i < 20; i++)
			mimeo_close(daemon_connect(&group_daemon, 0, 0));
		daemon_assert_settles(&group_daemon, &before); /* else the rounds' sessions add up */
	}
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
	struct daemon *strict = *state;
	uint32_t buffer;

	daemon_stop(strict);
	strict->takes_rights = false;
	daemon_start(strict);
	assert_int_equal(socket_admin_path(path, strict->socket), 0);
	assert_true(is_refused(raw_connect(strict)));
	assert_true(is_refused(socket_connect(path, PATIENCE_MS)));
	struct mimeo *m = daemon_connect(strict, 0, 0);
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 4096;
	handle.fd = STDERR_FILENO;
	assert_int_equal(mimeo_buffer_import(m, &handle, &buffer), MIMEO_E_DENIED);
	assert_non_null(strstr(mimeo_buffer_message(m), "allow_client_ipc"));
	mimeo_close(m);
	assert_serves_others(strict);
}

/* As another user: what the daemon allocates it may have, and what it brings is refused. */
static int other_user(void *arg)
{
	const struct daemon *daemon = arg;
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	uint32_t buffer;

	CHILD_EXPECT(setresgid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
	CHILD_EXPECT(setresuid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
	struct mimeo *m = daemon_connect_child(daemon, MIMEO_SPIN_DEFAULT);
	CHILD_EXPECT(mimeo_buffer_alloc(m, 0, 4096, &buffer) == 0);
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 4096;
	handle.fd = memfd_of(0, 0);
	CHILD_EXPECT(mimeo_buffer_import(m, &handle, &buffer) == MIMEO_E_DENIED);
	CHILD_EXPECT(!daemon->takes_rights || strcmp(mimeo_buffer_message(m),
		"allow_client_ipc is same-uid, and yours is another") == 0);
	mimeo_close(m);
	return 0;
}

static void test_another_user_s_memory_is_not_mapped_by_default(void **state)
{
	struct daemon daemon;

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
	bool has = setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &(int){0}, sizeof(int)) == 0;

	close(fd);
	return has;
}

#define TESTS_MAX 8

int main(void)
{
	static const struct CMUnitTest always[] = {
		cmocka_unit_test(test_user_with_too_many_is_refused_until_they_close),
		cmocka_unit_test(test_with_too_many_nobody_is_accepted_until_some_close),
	};
	const struct {
		struct CMUnitTest test;
		bool possible;
		const char *needs;
	} some[] = {
		{STRICT(test_who_may_not_send_descriptors_is_told_so_by_the_kernel),
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
	int failed = _cmocka_run_group_tests("descriptor_senders", tests, n, start, group_daemon_end);
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		if (!some[i].possible)
			printf("# skipped: %s: needs %s\n", some[i].test.name, some[i].needs);
	}
	return failed;
}
