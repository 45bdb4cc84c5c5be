/* SPDX-License-Identifier: MIT */
/* A daemon under a service manager: what it reports, and the sockets that it is passed. */
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/startup.h"

/* A bound datagram socket in the folder, which $NOTIFY_SOCKET names. */
static int notify_socket(const struct daemon *daemon)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", daemon->folder);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	return fd;
}

/* Wait for a message that has the text, and return it; other messages are dropped. */
static const char *await_notice(int fd, const char *text)
{
	static char message[1024];
	struct pollfd readable = {.fd = fd, .events = POLLIN};

	do {
		if (poll(&readable, 1, PATIENCE_MS) <= 0)
			fail_msg("no message \"%s\"", text);
		ssize_t n = recv(fd, message, sizeof(message) - 1, 0);
		message[n > 0 ? n : 0] = '\0';
	} while (!strstr(message, text));
	return message;
}

static uint64_t monotonic_us(void)
{
	return now_ns() / 1000;
}

static void test_service_manager_is_told_of_a_reload(void **state)
{
	struct daemon *daemon = *state;
	int fd = notify_socket(daemon);
	unsigned long long us = 0;
	char path[96];

	snprintf(path, sizeof(path), "%s/c.conf", daemon->folder);
	file_write(path, "[mimeod]\n", 9);
	daemon_option(daemon, "--config", path);
	daemon_start(daemon);
	unsetenv("NOTIFY_SOCKET");
	await_notice(fd, "READY=1");
	uint64_t before = monotonic_us();
	kill(daemon->pid, SIGHUP);
	const char *at = strstr(await_notice(fd, "RELOADING=1"), "MONOTONIC_USEC=");
	assert_non_null(at);
	assert_int_equal(sscanf(at, "MONOTONIC_USEC=%llu", &us), 1);
	assert_in_range(us, before, monotonic_us());
	assert_non_null(strstr(await_notice(fd, "READY=1"), "STATUS=serving; the configuration was reloaded"));
	file_write(path, "bogus\n", 6);
	kill(daemon->pid, SIGHUP);
	await_notice(fd, "RELOADING=1");
	assert_non_null(strstr(await_notice(fd, "READY=1"), "STATUS=serving; the last reload failed"));
	close(fd);
	daemon_stop(daemon);
}

/* Without work, too: the engine sleeps then. */
static void test_watchdog_of_an_idle_daemon_is_fed(void **state)
{
	struct daemon *daemon = *state;
	int fd = notify_socket(daemon);

	setenv("WATCHDOG_USEC", "20000", 1);
	daemon_start(daemon);
	unsetenv("WATCHDOG_USEC");
	unsetenv("NOTIFY_SOCKET");
	for (int i = 0; i < 10; i++)
		await_notice(fd, "WATCHDOG=1");
	close(fd);
	daemon_stop(daemon);
}

/* As a socket unit does. */
static int listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, SOMAXCONN), 0);
	return fd;
}

static void pass_both(struct daemon *daemon)
{
	char admin[128];

	snprintf(admin, sizeof(admin), "%s/m-admin.sock", daemon->folder);
	daemon->passed[0] = listen_at(admin);
	daemon->passed[1] = listen_at(daemon->socket);
	daemon->n_passed = 2;
}

static void test_sockets_of_a_service_manager_are_served_and_stay(void **state)
{
	struct daemon *daemon = *state;

	pass_both(daemon);
	for (int i = 0; i < 2; i++) { /* the second one takes the place of the first */
		daemon_launch(daemon);
		struct mimeo *m = daemon_connect(daemon, 0, 0);
		assert_serves(m, 3);
		mimeo_close(m);
		daemon_stop(daemon);
		assert_int_equal(access(daemon->socket, F_OK), 0);
	}
	close(daemon->passed[0]);
	close(daemon->passed[1]);
}

/* The peer of its connection is who made the socket, which does not end. */
static void test_drain_of_an_activated_daemon_ends_with_it(void **state)
{
	static struct program_output output;
	struct daemon *daemon = *state;

	pass_both(daemon);
	daemon_start(daemon);
	const char *const argv[] = {build_path("daemon/mimeoctl"), "--socket", daemon->socket, "drain", NULL};
	program_run(argv, &output);
	assert_int_equal(output.status, 0);
	assert_non_null(strstr(output.text, "drained: the daemon has exited"));
	assert_int_equal(daemon_wait(daemon), 0);
	close(daemon->passed[0]);
	close(daemon->passed[1]);
}

static void test_socket_of_another_path_is_refused(void **state)
{
	struct daemon *daemon = *state;
	char other[128];

	snprintf(other, sizeof(other), "%s/other.sock", daemon->folder);
	daemon->passed[0] = listen_at(other);
	daemon->n_passed = 1;
	ASSERT_REFUSES(daemon, EXIT_ERROR, "descriptor 3 of the service manager is not a socket that listens at",
		daemon->socket);
	close(daemon->passed[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OWN(test_service_manager_is_told_of_a_reload),
		OWN(test_watchdog_of_an_idle_daemon_is_fed),
		OWN(test_sockets_of_a_service_manager_are_served_and_stay),
		OWN(test_drain_of_an_activated_daemon_ends_with_it),
		OWN(test_socket_of_another_path_is_refused),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("e2e-service", tests, NULL, NULL);
}
