/* SPDX-License-Identifier: MIT */
/* How serving ends: drained, out of patience, or without its device. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/serve/admin_wire.h"
#include "ipc/socket.h"

static void configure_short_drain(struct harness *harness)
{
	harness->options.drain_timeout_s = 1;
	harness->options.handshake_timeout_ms = 50; /* and so a fine tick */
}

static void test_drain_refuses_clients_until_nothing_is_in_flight(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client, late;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	await_sessions(harness, 1);
	fake_engine_set_in_flight(harness->engine, 1);
	int fd = operator_connect(harness);
	assert_int_equal(ask_send(fd, &(struct ask){.op = "drain"}), 0);
	struct answer *answer;
	assert_int_equal(ask_receive(fd, &answer), 0);
	assert_string_equal(answer->text, "draining: 1 request in flight");
	assert_int_equal(answer_count(answer, 0, "passed", 1), 0);
	answer_free(answer);

	assert_int_equal(client_attach(harness, &late, &hello), MIMEO_E_DRAINING);
	client_close(&late);
	answer = operator_ask(harness, "status", NULL);
	expect_text(answer, 0, "state", "draining");
	assert_int_equal(answer_count(answer, 0, "sessions", 0), 1);
	answer_free(answer);

	fake_engine_set_in_flight(harness->engine, 0);
	fake_engine_report(harness->engine, ENGINE_DRAINED, NULL, "");
	expect_closed(client.fd);
	assert_int_equal(ask_receive(fd, &answer), 0);
	assert_int_equal(answer->status, 0);
	assert_string_equal(answer->text, "drained");
	answer_free(answer);
	assert_int_equal(harness_join(harness), SERVE_DRAINED);
	expect_closed(fd);
	assert_int_equal(access(harness->socket, F_OK), -1);
	close(fd);
	client_close(&client);
}

static void test_signal_drains(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	assert_int_equal(kill(getpid(), SIGTERM), 0);
	expect_closed(client.fd);
	assert_int_equal(harness_join(harness), SERVE_DRAINED);
	assert_true(harness_log_has(
		harness, "received SIGTERM, draining: requests in flight: 0, sessions: 1\n"));
	assert_int_equal(fake_engine_n_ports(harness->engine), 0);
	client_close(&client);
}

static void test_second_signal_ends_at_once(void **state)
{
	struct harness *harness = *state;

	fake_engine_set_in_flight(harness->engine, 2);
	assert_int_equal(kill(getpid(), SIGTERM), 0);
	struct answer *answer;
	do {
		answer = operator_ask(harness, "status", NULL);
		char buffer[16];
		bool draining = strcmp(answer_text(answer, 0, "state", buffer, sizeof(buffer)),
					"draining") == 0;

		answer_free(answer);
		if (draining)
			break;
	} while (true);
	assert_int_equal(kill(getpid(), SIGTERM), 0);
	assert_int_equal(harness_join(harness), SERVE_DRAINED);
	assert_false(fake_engine_is_aborted(harness->engine));
}

static void configure_endless_drain(struct harness *harness)
{
	harness->options.drain_timeout_s = 0;
	harness->options.handshake_timeout_ms = 40; /* a tick every 10 ms */
}

static void test_drain_timeout_of_0_waits_without_limit(void **state)
{
	struct harness *harness = *state;
	struct client silent;

	fake_engine_set_in_flight(harness->engine, 2);
	struct answer *answer = operator_ask(harness, "drain", NULL);
	answer_free(answer);
	/* Ticks have passed when a client that says nothing has been closed. */
	for (unsigned i = 0; i < 3; i++) {
		silent = (struct client){.fd = client_connect(harness)};
		expect_closed(silent.fd);
		client_close(&silent);
	}
	assert_false(fake_engine_is_aborted(harness->engine));
	fake_engine_set_in_flight(harness->engine, 0);
	fake_engine_report(harness->engine, ENGINE_DRAINED, NULL, "");
	assert_int_equal(harness_join(harness), SERVE_DRAINED);
}

static void test_drain_that_takes_too_long_aborts_with_draining(void **state)
{
	struct harness *harness = *state;

	fake_engine_set_in_flight(harness->engine, 2);
	int fd = operator_connect(harness);
	struct answer *answer;
	assert_int_equal(ask_send(fd, &(struct ask){.op = "drain"}), 0);
	assert_int_equal(ask_receive(fd, &answer), 0);
	answer_free(answer);
	assert_int_equal(ask_receive(fd, &answer), 0);
	assert_int_equal(answer->status, MIMEO_E_DRAINING);
	assert_non_null(strstr(answer->text, "cut off"));
	answer_free(answer);
	close(fd);
	assert_int_equal(harness_join(harness), SERVE_CUT_OFF);
	assert_true(fake_engine_is_aborted(harness->engine));
}

static void test_drain_that_loses_the_device_says_so(void **state)
{
	struct harness *harness = *state;
	struct answer *answer;

	fake_engine_set_in_flight(harness->engine, 2);
	int fd = operator_connect(harness);
	assert_int_equal(ask_send(fd, &(struct ask){.op = "drain"}), 0);
	assert_int_equal(ask_receive(fd, &answer), 0);
	answer_free(answer);
	fake_engine_report(harness->engine, ENGINE_DEVICE_LOST, NULL, "sample launch");
	assert_int_equal(ask_receive(fd, &answer), 0);
	assert_int_equal(answer->status, MIMEO_E_DEVICE_LOST);
	answer_free(answer);
	close(fd);
	assert_int_equal(harness_join(harness), SERVE_DEVICE_LOST);
}

static void test_lost_device_detaches_all_and_has_its_own_result(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	await_sessions(harness, 1);
	fake_engine_report(harness->engine, ENGINE_DEVICE_LOST, NULL, "sample launch");
	expect_closed(client.fd);
	assert_int_equal(harness_join(harness), SERVE_DEVICE_LOST);
	assert_int_equal(fake_engine_n_ports(harness->engine), 0);
	client_close(&client);
}

/* Between the loss and the end of the process, which the engine's last words take. */
static void test_status_and_metrics_tell_of_a_lost_device(void **state)
{
	struct harness *harness = *state;

	fake_engine_set_device_condition(harness->engine, DEVICE_E_ILLEGAL_ADDRESS);
	struct answer *answer = operator_ask(harness, "status", NULL);
	expect_text(answer, 0, "state", "failed");
	answer_free(answer);
	answer = operator_ask(harness, "metrics", NULL);
	assert_non_null(strstr(answer->text, "\nmimeo_device_healthy 0\n"));
	answer_free(answer);
}

static void test_second_daemon_on_a_live_socket_is_refused(void **state)
{
	struct harness *harness = *state;
	int lock_fd;

	assert_int_equal(socket_lock(harness->socket, &lock_fd), -EADDRINUSE);
	await_sessions(harness, 0);
}

static void test_file_in_the_place_of_a_socket_stays(void **state)
{
	struct harness *harness = *state;

	assert_int_equal(unlink(harness->socket), 0);
	int fd = open(harness->socket, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
	kill(getpid(), SIGTERM);
	assert_int_equal(harness_join(harness), SERVE_DRAINED);
	assert_int_equal(unlink(harness->socket), 0);
	assert_int_equal(access(harness->admin_socket, F_OK), -1);
}

/* ---- a load that goes on ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool runs, may_end;
} load = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};

static int load_begin(void *userdata, const char *name, const char *path, const char *settings, void **ret_job,
	char *text, size_t size)
{
	return 0;
}

static int load_run(void *userdata, void *job, struct runner **ret, char *text, size_t size)
{
	pthread_mutex_lock(&load.lock);
	load.runs = true;
	pthread_cond_broadcast(&load.changed);
	while (!load.may_end)
		pthread_cond_wait(&load.changed, &load.lock);
	pthread_mutex_unlock(&load.lock);
	return -ECANCELED;
}

static void configure_full_loader(struct harness *harness)
{
	harness_configure_large(harness);
	harness->options.loader = (struct serve_loader){.begin = load_begin, .run = load_run};
}

static void test_one_model_too_many_is_refused_before_it_is_loaded(void **state)
{
	assert_int_equal(operator_order(*state, (struct ask){.op = "load", .model = "second", .path = "/x"},
				 "32 models are served"), MIMEO_E_QUOTA);
	assert_false(load.runs);
}

static void configure_loader(struct harness *harness)
{
	harness->options.loader = (struct serve_loader){.begin = load_begin, .run = load_run};
}

static void test_serving_ends_while_a_model_is_loaded(void **state)
{
	struct harness *harness = *state;
	int fd = operator_connect(harness);

	assert_int_equal(ask_send(fd, &(struct ask){.op = "load", .model = "second", .path = "/x"}), 0);
	pthread_mutex_lock(&load.lock);
	while (!load.runs)
		pthread_cond_wait(&load.changed, &load.lock);
	pthread_mutex_unlock(&load.lock);
	assert_int_equal(kill(getpid(), SIGTERM), 0);
	assert_int_equal(harness_join(harness), SERVE_LOADING);
	expect_closed(fd);
	close(fd);
	pthread_mutex_lock(&load.lock);
	load.may_end = true;
	pthread_cond_broadcast(&load.changed);
	pthread_mutex_unlock(&load.lock);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		harness_test(test_drain_refuses_clients_until_nothing_is_in_flight),
		harness_test(test_file_in_the_place_of_a_socket_stays),
		harness_test_with(test_signal_drains, harness_configure_logged),
		harness_test(test_second_signal_ends_at_once),
		harness_test_with(test_drain_that_takes_too_long_aborts_with_draining,
			configure_short_drain),
		harness_test_with(test_drain_timeout_of_0_waits_without_limit,
			configure_endless_drain),
		harness_test(test_drain_that_loses_the_device_says_so),
		harness_test(test_lost_device_detaches_all_and_has_its_own_result),
		harness_test(test_status_and_metrics_tell_of_a_lost_device),
		harness_test(test_second_daemon_on_a_live_socket_is_refused),
		harness_test_with(test_one_model_too_many_is_refused_before_it_is_loaded, configure_full_loader),
		harness_test_with(test_serving_ends_while_a_model_is_loaded, configure_loader),
	};

	return cmocka_run_group_tests_name("end", tests, NULL, NULL);
}
