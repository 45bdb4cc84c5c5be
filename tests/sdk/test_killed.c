/* SPDX-License-Identifier: MIT */

/* A daemon process that is killed while something else keeps its end of the socket open, as io_uring
 * does for a while: the client learns of the death all the same. */

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sdk/session.h"

struct victim {
	pid_t pid;
	int kept; /* the daemon's end of the session's socket */
	struct fake fake; /* what the parent knows of it: where it listens */
	struct mimeo *m;
};

/* The daemon: reports its path, passes its end of the session on, waits to be killed. */
static void be_the_daemon(int line)
{
	struct fake fake;

	fake_init(&fake, NULL);
	if (socket_send(line, &fake, sizeof(fake), NULL, 0) < 0)
		_exit(1);
	fake_session(&fake);
	if (socket_send(line, "", 1, &fake.socket, 1) < 0)
		_exit(1);
	for (;;)
		pause();
}

static void victim_start(struct victim *v, uint32_t spin_us)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	int line[2];
	size_t n_fds;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
	v->pid = fork();
	assert_true(v->pid >= 0);
	if (v->pid == 0)
		be_the_daemon(line[1]);
	assert_int_equal(socket_receive(line[0], &v->fake, sizeof(v->fake), NULL, 0, NULL, 30000),
		sizeof(v->fake));
	config.socket_path = v->fake.path;
	config.spin_us = spin_us;
	assert_int_equal(mimeo_connect(&v->m, &config), 0);
	assert_int_equal(socket_receive(line[0], &byte, 1, &v->kept, 1, &n_fds, 30000), 1);
	assert_int_equal(n_fds, 1);
	close(line[0]);
	close(line[1]);
}

static void victim_kill(struct victim *v)
{
	kill(v->pid, SIGKILL);
	assert_int_equal(waitpid(v->pid, NULL, 0), v->pid);
}

static void victim_bury(struct victim *v)
{
	char byte;

	/* It was not the socket: both ends of it are still open. */
	assert_int_equal(recv(v->kept, &byte, 1, MSG_DONTWAIT), -1);
	mimeo_close(v->m);
	assert_int_equal(recv(v->kept, &byte, 1, MSG_DONTWAIT), 0);
	close(v->kept);
	fake_folder_remove(&v->fake);
}

static void test_wait_ends_when_the_daemon_is_killed_and_its_socket_stays_open(void **state)
{
	static const uint32_t spins[] = {0, MIMEO_SPIN_FOREVER};

	for (size_t i = 0; i < sizeof(spins) / sizeof(spins[0]); i++) {
		struct mimeo_event event;
		struct victim v;

		victim_start(&v, spins[i]);
		victim_kill(&v);
		assert_int_equal(mimeo_event_wait(v.m, &event, 30000), MIMEO_E_GONE);
		victim_bury(&v);
	}
}

static void test_fd_polls_readable_when_the_daemon_is_killed_and_its_socket_stays_open(void **state)
{
	struct mimeo_event event;
	struct victim v;
	int r;

	victim_start(&v, 0);
	struct pollfd fd = {.fd = mimeo_fd(v.m), .events = POLLIN};
	assert_int_equal(mimeo_event_peek(v.m, &event), 0);
	victim_kill(&v);
	assert_int_equal(poll(&fd, 1, 30000), 1);
	while ((r = mimeo_event_peek(v.m, &event)) == 0)
		;
	assert_int_equal(r, MIMEO_E_GONE);
	victim_bury(&v);
}

/* Kernels before 5.3 have no pidfds, and some sandboxes forbid them. */
static bool has_pidfds(void)
{
	struct socket_peer peer;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return false;
	bool has = socket_peer(pair[0], &peer) == 0 && peer.pidfd >= 0;
	if (has)
		close(peer.pidfd);
	close(pair[0]);
	close(pair[1]);
	return has;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_wait_ends_when_the_daemon_is_killed_and_its_socket_stays_open),
		cmocka_unit_test(
			test_fd_polls_readable_when_the_daemon_is_killed_and_its_socket_stays_open),
	};

	if (!has_pidfds()) {
		puts("1..0 # SKIP no pidfds here");
		return 0;
	}
	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
