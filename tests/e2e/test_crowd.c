/* SPDX-License-Identifier: MIT */
/* Many processes that connect at the same time: floods, and crowds that wait in line. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <mimeo/mimeo.h>

#include "ipc/socket.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/questions.h"
#include "tests/e2e/raw.h"

#define N_FLOODERS 2
#define N_SILENT 300 /* more than one user may have */
#define N_CROWD 64
#define WAIT_MS 2000 /* on a machine with other work; quiet: 50 */

/* ---- floods ---- */

static int flood(void *arg)
{
	const struct daemon *daemon = arg;
	/* Otherwise a busy machine gives the flood more time than the daemon. */
	int rc = nice(10);
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	strcpy(address.sun_path, daemon->socket);
	for (;;) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

		if (fd < 0)
			continue;
		(void)!connect(fd, (const struct sockaddr *)&address, sizeof(address));
		close(fd);
	}
	return rc;
}

static void test_connections_of_a_flood_delay_a_client_by_a_bounded_time(void **state)
{
	struct daemon *daemon = *state;
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	pid_t flooders[N_FLOODERS];
	uint64_t longest = 0;
	char why[256] = "";
	int rc = 0;

	config.socket_path = daemon->socket;
	config.message = why;
	config.message_size = sizeof(why);
	for (unsigned i = 0; i < N_FLOODERS; i++)
		flooders[i] = process_run(flood, daemon);
	pause_ms(500);
	for (unsigned i = 0; i < 8 && rc == 0; i++) {
		uint64_t start = now_ms(), took;
		struct mimeo *m = NULL;

		rc = mimeo_connect(&m, &config);
		took = now_ms() - start;
		longest = took > longest ? took : longest;
		mimeo_close(m);
	}
	for (unsigned i = 0; i < N_FLOODERS; i++)
		process_kill(flooders[i]);
	/* Behind it no connection of the flood is left. */
	mimeo_close(daemon_connect(daemon, 0, 0));
	printf("# attached within %llu ms\n", (unsigned long long)longest);
	assert_string_equal(why, "");
	assert_int_equal(rc, 0);
	assert_true(longest < WAIT_MS);
}

/* The HELLO lies in the socket before the daemon accepts it. */
static void test_hello_sent_at_once_needs_no_place_among_silent_connections(void **state)
{
	struct daemon *daemon = *state;
	int silent[N_SILENT], fd;
	struct msg_welcome *welcome = malloc(sizeof(*welcome));
	uint8_t *bytes = malloc(MSG_SOCKET_MAX), hello[128];
	size_t n = raw_hello(hello, sizeof(hello), 8);
	int fds[SOCKET_FDS_MAX];
	struct msg_detail detail;
	struct msg_codec *codec;
	size_t n_fds;

	daemon_pause(daemon);
	for (unsigned i = 0; i < N_SILENT; i++)
		silent[i] = raw_connect(daemon);
	fd = raw_connect(daemon);
	assert_int_equal(send(fd, hello, n, MSG_NOSIGNAL), n);
	daemon_go_on(daemon);
	ssize_t got = socket_receive(
		fd, bytes, MSG_SOCKET_MAX, fds, SOCKET_FDS_MAX, &n_fds, PATIENCE_MS);
	assert_true(got > 0);
	assert_int_equal(msg_codec_new(&codec), 0);
	assert_int_equal(msg_welcome_decode(codec, bytes, (size_t)got, welcome, &detail), 0);
	assert_string_equal(welcome->text, "");
	assert_int_equal(welcome->status, 0);
	while (n_fds > 0)
		close(fds[--n_fds]);
	close(fd);
	for (unsigned i = 0; i < N_SILENT; i++)
		close(silent[i]);
	msg_codec_free(codec);
	free(bytes);
	free(welcome);
}

/* ---- crowds ---- */

/* What every rank of a parallel program does. */
static int ask_one_question(void *arg)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	const struct daemon *daemon = arg;
	struct question question;
	struct reply reply = {0};
	char why[256] = "";
	struct mimeo *m;

	config.socket_path = daemon->socket;
	config.connect_timeout_ms = PATIENCE_MS;
	config.message = why;
	config.message_size = sizeof(why);
	questions_make(&question, 1, (uint64_t)getpid());
	if (mimeo_connect(&m, &config) != 0) {
		fprintf(stderr, "child: %s\n", why);
		return 1;
	}
	CHILD_EXPECT(questions_ask(m, &question, 1, 1, &reply) == 0);
	mimeo_close(m);
	return 0;
}

/* Twice as many as one user may have attached. */
static void test_processes_that_connect_at_once_wait_in_line(void **state)
{
	pid_t crowd[N_CROWD];
	unsigned n_failed = 0;

	for (unsigned i = 0; i < N_CROWD; i++)
		crowd[i] = process_run(ask_one_question, *state);
	for (unsigned i = 0; i < N_CROWD; i++)
		n_failed += process_exit_status(crowd[i], 2 * PATIENCE_MS) != 0;
	assert_int_equal(n_failed, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GROUP_TEST(test_connections_of_a_flood_delay_a_client_by_a_bounded_time),
		GROUP_TEST(test_hello_sent_at_once_needs_no_place_among_silent_connections),
		GROUP_TEST(test_processes_that_connect_at_once_wait_in_line),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("crowd", tests, group_daemon_start, group_daemon_end);
}
