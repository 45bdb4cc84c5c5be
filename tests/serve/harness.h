/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_SERVE_HARNESS_H
#define MIMEO_TESTS_SERVE_HARNESS_H

/*
 * A serving loop on a thread, over the fake engine, in a folder of its own; clients and operators
 * that the test controls. What fails aborts the test.
 */

#include <pthread.h>

#include "daemon/ctl/ask.h"
#include "daemon/serve/serve.h"
#include "ipc/msg.h"
#include "ipc/socket.h"
#include "tests/ipc/test.h"

#include "fake_engine.h"

#define PATIENCE_MS 60000u /* before a test calls something hung */

struct harness {
	char folder[64], socket[108], admin_socket[108];
	struct engine *engine;
	struct serve *serve;
	int lock_fd, admin_lock_fd, log_fd;
	struct serve_options options;
	pthread_t thread;
	int result;
};

/* Options with small limits (8 sessions, 3 a user, 128 entries, 1 MiB), and an engine of one model.
 */
struct harness *harness_new(void);
void harness_start(struct harness *harness);
/* Waits for serve_run to return its result. */
int harness_join(struct harness *harness);
/* Drain it if it still runs, and free all. */
void harness_free(struct harness *harness);

/* Fixture: *state, a struct harness_fixture or NULL, becomes a started harness. */
struct harness_fixture {
	void (*configure)(struct harness *harness); /* before it starts */
};
int harness_setup(void **state);
int harness_teardown(void **state);
#define harness_test(test) cmocka_unit_test_setup_teardown(test, harness_setup, harness_teardown)
#define harness_test_with(test, function)                                                          \
	{#test, test, harness_setup, harness_teardown, &(struct harness_fixture){function}}
/* For harness_test_with: as many models, and of as many graphs, as there can be. */
void harness_configure_large(struct harness *harness);
/* ... with a log that can be read. */
void harness_configure_logged(struct harness *harness);
bool harness_log_has(const struct harness *harness, const char *text);

/* ---- clients ---- */

struct client {
	int fd;
	int fds[SOCKET_FDS_MAX]; /* as they came with WELCOME */
	size_t n_fds;
	struct msg_welcome welcome;
};

/* A connected socket. */
int client_connect(struct harness *harness);
struct msg_hello client_hello(void);
void client_send_hello(int fd, const struct msg_hello *hello);
void client_receive_welcome(struct client *client);
/* Connect, HELLO, WELCOME. Its status. */
int client_attach(struct harness *harness, struct client *client, const struct msg_hello *hello);
void client_close(struct client *client);
/* Blocks until the daemon has closed the connection, throwing away what it says. */
void expect_closed(int fd);

/* ---- operators ---- */

int operator_connect(struct harness *harness);
/* One request on a connection of its own. */
struct answer *operator_ask(struct harness *harness, const char *op, const uint64_t *session);
/* The status of an order; its text contains `says`, and it has no rows. */
int operator_order(struct harness *harness, struct ask ask, const char *says);
/* What a row of the answer has under that key, as text. */
void expect_text(const struct answer *answer, size_t row, const char *key, const char *text);
/* Ask until the first row's key has that value. */
void await_count(struct harness *harness, const char *op, const char *key, uint64_t value);
void await_sessions(struct harness *harness, uint64_t n);

#endif
