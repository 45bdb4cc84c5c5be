/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/output/log.h"
#include "ipc/msg_table.h"
#include "ipc/region.h"
#include "ipc/socket.h"

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

struct harness *harness_new(void)
{
	struct harness *harness = calloc(1, sizeof(*harness));

	assert_non_null(harness);
	strcpy(harness->folder, "/tmp/mimeo-serve-XXXXXX");
	assert_non_null(mkdtemp(harness->folder));
	snprintf(harness->socket, sizeof(harness->socket), "%s/t.sock", harness->folder);
	assert_int_equal(socket_admin_path(harness->admin_socket, harness->socket), 0);
	harness->engine = fake_engine_new(1, 3);
	harness->options = (struct serve_options){
		.engine = harness->engine,
		.socket = harness->socket,
		.device = "cpu",
		.max_sessions = 8,
		.max_sessions_per_uid = 3,
		.max_entries = 128,
		.max_arena_bytes = 1 << 20,
		.max_shared_bytes = 64 << 20,
		.max_sequence_bytes = 64 << 20,
		.max_sequences = 64,
		.drain_timeout_s = 60,
		.handshake_timeout_ms = PATIENCE_MS,
		.max_greetings = 128,
	};
	return harness;
}

static void *serve_thread(void *argument)
{
	struct harness *harness = argument;

	harness->result = serve_run(harness->serve);
	return NULL;
}

void harness_start(struct harness *harness)
{
	assert_int_equal(socket_lock(harness->socket, &harness->lock_fd), 0);
	assert_int_equal(socket_lock(harness->admin_socket, &harness->admin_lock_fd), 0);
	assert_int_equal(serve_new(&harness->options, &harness->serve), 0);
	assert_int_equal(pthread_create(&harness->thread, NULL, serve_thread, harness), 0);
	int64_t deadline = now_ms() + PATIENCE_MS;
	for (int fd = -1; fd < 0;) {
		assert_true(now_ms() < deadline);
		fd = socket_connect(harness->socket, PATIENCE_MS);
		if (fd >= 0)
			close(fd);
	}
}

int harness_join(struct harness *harness)
{
	assert_int_equal(pthread_join(harness->thread, NULL), 0);
	serve_free(harness->serve);
	harness->serve = NULL;
	close(harness->lock_fd);
	close(harness->admin_lock_fd);
	return harness->result;
}

void harness_free(struct harness *harness)
{
	char name[160];

	if (harness->serve) {
		fake_engine_set_in_flight(harness->engine, 0);
		kill(getpid(), SIGTERM);
		assert_int_equal(harness_join(harness), SERVE_DRAINED);
	}
	engine_free(harness->engine);
	if (harness->log_fd > 0) {
		log_open(STDERR_FILENO);
		close(harness->log_fd);
	}
	snprintf(name, sizeof(name), "%s.lock", harness->socket);
	unlink(name);
	snprintf(name, sizeof(name), "%s.lock", harness->admin_socket);
	unlink(name);
	/* the sockets are gone, or this fails */
	assert_int_equal(rmdir(harness->folder), 0);
	free(harness);
}

int harness_setup(void **state)
{
	const struct harness_fixture *fixture = *state;
	struct harness *harness = harness_new();

	if (fixture)
		fixture->configure(harness);
	harness_start(harness);
	*state = harness;
	return 0;
}

int harness_teardown(void **state)
{
	harness_free(*state);
	return 0;
}

void harness_configure_large(struct harness *harness)
{
	engine_free(harness->engine);
	harness->engine = fake_engine_new(ENGINE_MODELS_MAX, 200);
	harness->options.engine = harness->engine;
}

void harness_configure_logged(struct harness *harness)
{
	harness->log_fd = memfd_create("log", MFD_CLOEXEC);
	assert_true(harness->log_fd > 0);
	log_open(harness->log_fd);
}

bool harness_log_has(const struct harness *harness, const char *text)
{
	static char log[1 << 16];
	ssize_t n = pread(harness->log_fd, log, sizeof(log) - 1, 0);

	assert_true(n >= 0);
	log[n] = '\0';
	return strstr(log, text);
}

/* ---- clients ---- */

int client_connect(struct harness *harness)
{
	int fd = socket_connect(harness->socket, PATIENCE_MS);

	assert_true(fd >= 0);
	return fd;
}

struct msg_hello client_hello(void)
{
	return (struct msg_hello){
		.version = MSG_PROTOCOL_VERSION,
		.entries = 8,
		.arena_bytes = REGION_ARENA_MIN,
		.name = "test",
	};
}

void client_send_hello(int fd, const struct msg_hello *hello)
{
	uint8_t buffer[256];
	int n = msg_table_write(&msg_hello_table, hello, buffer, sizeof(buffer));

	assert_true(n > 0);
	assert_int_equal(socket_send(fd, buffer, (size_t)n, NULL, 0), 0);
}

void client_receive_welcome(struct client *client)
{
	static uint8_t buffer[MSG_SOCKET_MAX];
	struct msg_codec *codec;
	struct msg_detail detail;

	ssize_t n = socket_receive(client->fd, buffer, sizeof(buffer), client->fds,
		SOCKET_FDS_MAX, &client->n_fds, PATIENCE_MS);
	assert_true(n > 0);
	assert_int_equal(msg_codec_new(&codec), 0);
	assert_int_equal(
		msg_welcome_decode(codec, buffer, (size_t)n, &client->welcome, &detail), 0);
	msg_codec_free(codec);
}

int client_attach(struct harness *harness, struct client *client, const struct msg_hello *hello)
{
	*client = (struct client){.fd = client_connect(harness)};
	client_send_hello(client->fd, hello);
	client_receive_welcome(client);
	return client->welcome.status;
}

void client_close(struct client *client)
{
	for (size_t i = 0; i < client->n_fds; i++)
		close(client->fds[i]);
	client->n_fds = 0;
	close(client->fd);
	client->fd = -1;
}

void expect_closed(int fd)
{
	char buffer[4096];
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	for (;;) {
		assert_int_equal(poll(&poll_fd, 1, PATIENCE_MS), 1);
		ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return;
		assert_true(n > 0);
	}
}

/* ---- operators ---- */

int operator_connect(struct harness *harness)
{
	int fd = socket_connect(harness->admin_socket, PATIENCE_MS);

	assert_true(fd >= 0);
	return fd;
}

struct answer *operator_ask(struct harness *harness, const char *op, const uint64_t *session)
{
	struct answer *answer;
	int fd = operator_connect(harness);

	const struct ask ask = {
		.op = op, .has_session = session != NULL, .session = session ? *session : 0};

	assert_int_equal(ask_send(fd, &ask), 0);
	assert_int_equal(ask_receive(fd, &answer), 0);
	close(fd);
	return answer;
}

void await_count(struct harness *harness, const char *op, const char *key, uint64_t value)
{
	int64_t deadline = now_ms() + PATIENCE_MS;

	for (;;) {
		struct answer *answer = operator_ask(harness, op, NULL);
		uint64_t now = answer_count(answer, 0, key, UINT64_MAX);

		answer_free(answer);
		if (now == value)
			return;
		assert_true(now_ms() < deadline);
	}
}

void await_sessions(struct harness *harness, uint64_t n)
{
	await_count(harness, "status", "sessions", n);
}

void expect_text(const struct answer *answer, size_t row, const char *key, const char *text)
{
	char buffer[256];

	assert_string_equal(answer_text(answer, row, key, buffer, sizeof(buffer)), text);
}

int operator_order(struct harness *harness, struct ask ask, const char *says)
{
	int fd = operator_connect(harness);
	struct answer *answer;

	assert_int_equal(ask_once(fd, &ask, &answer), 0);
	int status = answer->status;
	assert_int_equal(answer->n_rows, 0);
	if (!strstr(answer->text, says))
		fail_msg("not \"%s\" but \"%s\"", says, answer->text);
	answer_free(answer);
	close(fd);
	return status;
}
