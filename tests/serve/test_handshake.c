/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/serve/life.h"
#include "ipc/region.h"
#include "ipc/socket.h"

static void configure_impatient(struct harness *harness)
{
	harness->options.handshake_timeout_ms = 50;
}

static void configure_many(struct harness *harness)
{
	harness->options.max_sessions = 128;
	harness->options.max_sessions_per_uid = 64;
}

/* Open descriptors once no other peer is connected. */
static uint64_t settled_fds(struct harness *harness)
{
	for (;;) {
		struct answer *answer = operator_ask(harness, "status", NULL);
		bool settled = answer_count(answer, 0, "sessions", 1) == 0 &&
			answer_count(answer, 0, "handshakes", 1) == 0 &&
			answer_count(answer, 0, "operators", 2) == 1;
		uint64_t n = answer_count(answer, 0, "open_fds", 0);

		answer_free(answer);
		if (settled)
			return n;
	}
}

/* ---- welcome ---- */

static void test_hello_gets_models_limits_and_descriptors(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct region region;
	struct client client;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	assert_true(client.n_fds >= MSG_WELCOME_FDS);
	assert_int_equal(client.welcome.session, 1);
	assert_int_equal(client.welcome.entries, 8);
	assert_int_equal(client.welcome.arena_bytes, REGION_ARENA_MIN);
	assert_int_equal(client.welcome.max_sequences, 64);
	assert_int_equal(client.welcome.n_models, 1);
	assert_string_equal(client.welcome.models[0].name, "tinycalc");
	assert_int_equal(client.welcome.models[0].vocab_size, 256);
	assert_int_equal(client.welcome.models[0].eos[0], 2);
	assert_int_equal(client.welcome.models[0].max_batch_tokens, 2048);
	assert_int_equal(client.welcome.models[0].max_rows, 48);
	assert_int_equal(client.welcome.models[0].masks, 1);
	assert_int_equal(client.welcome.models[0].draft_tokens, 3);
	assert_int_equal(client.welcome.models[0].mask.kind, MIMEO_MASK_WINDOW);
	assert_int_equal(client.welcome.models[0].mask.window, 128);
	assert_int_equal(client.welcome.models[0].mask.sinks, 4);
	assert_int_equal(region_map(&region, client.fds[0]), 0);
	region_deinit(&region);
	client.fds[0] = dup(client.fds[1]);
	client_close(&client);
	await_sessions(harness, 0);
}

static size_t count_life_fds(void)
{
	struct life *life;
	int fds[MSG_LIFE_FDS];

	assert_int_equal(life_new(&life), 0);
	size_t n = life_open(life, fds);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
	life_free(life);
	return n;
}

/* As many as this kernel has. */
static void test_welcome_brings_descriptors_that_report_the_daemons_end(void **state)
{
	struct harness *harness = harness_new();
	struct msg_hello hello = client_hello();
	struct client client;

	harness_start(harness);
	assert_int_equal(client_attach(harness, &client, &hello), 0);
	assert_int_equal(client.n_fds, MSG_WELCOME_FDS + count_life_fds());
	for (unsigned ended = 0; ended < 2; ended++) {
		for (size_t i = MSG_WELCOME_FDS; i < client.n_fds; i++) {
			struct pollfd fd = {.fd = client.fds[i], .events = POLLIN};

			assert_int_equal(poll(&fd, 1, ended ? PATIENCE_MS : 0), ended);
		}
		if (!ended)
			harness_free(harness);
	}
	client_close(&client);
}

static void test_port_has_the_peer_as_the_kernel_knows_it(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	await_sessions(harness, 1);
	struct engine_port *port = fake_engine_port(harness->engine);
	assert_int_equal(port->pid, getpid());
	assert_int_equal(port->uid, getuid());
	assert_string_equal(port->name, "test");
	client_close(&client);
}

/* A HELLO, its length and a byte more. */
static size_t hello_and_more(uint8_t bytes[static 260])
{
	struct msg_hello hello = client_hello();
	int n = msg_hello_encode(&hello, bytes + 4, 256);

	memset(bytes, 0, 4);
	bytes[0] = (uint8_t)n;
	bytes[n + 4] = 0;
	return (size_t)n + 5;
}

static void test_hello_in_single_bytes_is_welcome(void **state)
{
	struct harness *harness = *state;
	uint8_t buffer[260];
	struct client client = {.fd = client_connect(harness)};

	size_t n = hello_and_more(buffer) - 1;
	for (size_t i = 0; i < n; i++)
		assert_int_equal(send(client.fd, buffer + i, 1, MSG_NOSIGNAL), 1);
	client_receive_welcome(&client);
	assert_int_equal(client.welcome.status, 0);
	client_close(&client);
}

/* ---- what is not a HELLO ---- */

static void test_bytes_that_are_no_hello_are_answered_and_the_connection_closed(void **state)
{
	/* an array that claims 2^32 - 1 values */
	static const uint8_t bomb[] = {5, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff};
	uint8_t hello[260];
	const struct {
		const void *bytes;
		size_t n;
		const char *says;
	} cases[] = {
		{"GET / HTTP/1.1\r\n\r\n", 18, "1024"},
		{bomb, sizeof(bomb), ""},
		{hello, hello_and_more(hello), "bytes after HELLO"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct client client = {.fd = client_connect(*state)};

		assert_int_equal(send(client.fd, cases[i].bytes, cases[i].n, MSG_NOSIGNAL),
			cases[i].n);
		client_receive_welcome(&client);
		assert_int_equal(client.welcome.status, MIMEO_E_PROTOCOL);
		assert_non_null(strstr(client.welcome.text, cases[i].says));
		expect_closed(client.fd);
		client_close(&client);
	}
}

static void test_flood_is_cut_off(void **state)
{
	struct harness *harness = *state;
	static char flood[1 << 16];
	int fd = client_connect(harness);

	memset(flood, 1, sizeof(flood));
	while (send(fd, flood, sizeof(flood), MSG_NOSIGNAL) > 0)
		continue;
	expect_closed(fd);
	close(fd);
	await_sessions(harness, 0);
}

static void test_half_a_hello_times_out(void **state)
{
	struct harness *harness = *state;
	static const uint8_t half[] = {60, 0, 0, 0, 0x85};
	struct client client = {.fd = client_connect(harness)};

	assert_int_equal(send(client.fd, half, sizeof(half), MSG_NOSIGNAL), sizeof(half));
	client_receive_welcome(&client);
	assert_int_equal(client.welcome.status, MIMEO_E_PROTOCOL);
	expect_closed(client.fd);
	client_close(&client);
}

static void test_silence_times_out(void **state)
{
	struct harness *harness = *state;
	int fd = client_connect(harness);

	expect_closed(fd);
	close(fd);
}

static void test_silent_crowd_leaves_no_place_and_no_descriptor(void **state)
{
	struct harness *harness = *state;
	uint64_t before = settled_fds(harness);
	int fds[40];
	struct client last;
	char text[MSG_TEXT_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		fds[i] = client_connect(harness);
	/* of one user 32 may be silent at a time: further ones are refused */
	last = (struct client){.fd = fds[39]};
	client_receive_welcome(&last);
	assert_int_equal(last.welcome.status, MIMEO_E_QUOTA);
	snprintf(text, sizeof(text), "clients that are connecting: 1 asked for, 0 left for user %u (32 for each user)",
		(unsigned)geteuid());
	assert_string_equal(last.welcome.text, text);
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		close(fds[i]);
	assert_int_equal(settled_fds(harness), before);
}

static void test_descriptors_that_come_with_hello_cost_the_connection(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	uint64_t before = settled_fds(harness);
	uint8_t buffer[256];
	int four[4] = {0, 0, 0, 0};
	struct client client = {.fd = client_connect(harness)};

	int n = msg_hello_encode(&hello, buffer, sizeof(buffer));
	int r = socket_send(client.fd, buffer, (size_t)n, four, 4);
	/* Since Linux 6.16 they do not even come. */
	assert_true(r == 0 || r == -EPERM);
	if (r == 0) {
		client_receive_welcome(&client);
		assert_int_equal(client.welcome.status, MIMEO_E_PROTOCOL);
		assert_string_equal(client.welcome.text, "descriptors came with HELLO");
		expect_closed(client.fd);
	}
	client_close(&client);
	await_sessions(harness, 0);
	assert_int_equal(settled_fds(harness), before);
}

/* ---- what the engine refuses ---- */

static void test_session_that_the_engine_refuses_gets_one_answer(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;
	char byte;

	fake_engine_refuse_attach(harness->engine, -ENOMEM);
	assert_int_equal(client_attach(harness, &client, &hello), MIMEO_E_NO_MEMORY);
	assert_int_equal(client.n_fds, 0);
	assert_int_equal(recv(client.fd, &byte, 1, 0), 0);
	client_close(&client);
	fake_engine_refuse_attach(harness->engine, 0);
	assert_int_equal(client_attach(harness, &client, &hello), 0);
	client_close(&client);
}

/* ---- the end of a session ---- */

/* Nothing that a call can begin with. */
static void test_junk_after_welcome_ends_that_session_only(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client good, bad;

	assert_int_equal(client_attach(harness, &good, &hello), 0);
	assert_int_equal(client_attach(harness, &bad, &hello), 0);
	assert_int_equal(send(bad.fd, "junk", 4, MSG_NOSIGNAL), 4);
	expect_closed(bad.fd);
	await_sessions(harness, 1);
	assert_int_equal(recv(good.fd, (char[1]){0}, 1, MSG_DONTWAIT), -1);
	client_close(&bad);
	client_close(&good);
}

static void test_broken_rings_end_that_session(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	await_sessions(harness, 1);
	fake_engine_report(harness->engine, ENGINE_PROTOCOL, fake_engine_port(harness->engine),
		"submission tail jumped");
	expect_closed(client.fd);
	await_sessions(harness, 0);
	client_close(&client);
}

/* The client's socket is open in the test as well, so only the pidfd reports the death. */
static void test_death_is_seen_though_the_socket_stays_open(void **state)
{
	struct harness *harness = *state;
	int pipe_fds[2];
	char byte;

	assert_int_equal(pipe(pipe_fds), 0);
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pid_t child = fork();
	if (child == 0) {
		struct client client;
		struct msg_hello hello = client_hello();

		client_attach(harness, &client, &hello);
		_exit(socket_send(pair[1], "x", 1, &client.fd, 1) == 0 &&
				read(pipe_fds[0], &byte, 1) == 1
			? 0
			: 1);
	}
	int fd, status;
	size_t n_fds;
	assert_int_equal(
		socket_receive(pair[0], &byte, 1, &fd, 1, &n_fds, PATIENCE_MS), 1);
	await_sessions(harness, 1);
	assert_int_equal(write(pipe_fds[1], "x", 1), 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	await_sessions(harness, 0);
	close(fd);
	close(pair[0]);
	close(pair[1]);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

static void test_descriptors_return_to_their_count_after_200_sessions(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	uint64_t before = settled_fds(harness);

	for (unsigned i = 0; i < 200; i++) {
		struct client client = {.fd = client_connect(harness)};

		/* every third leaves before its WELCOME, every third breaks the protocol */
		client_send_hello(client.fd, &hello);
		if (i % 3 != 0)
			client_receive_welcome(&client);
		if (i % 3 == 1)
			assert_int_equal(send(client.fd, "x", 1, MSG_NOSIGNAL), 1);
		client_close(&client);
		if (i % 16 == 0)
			await_sessions(harness, 0);
	}
	await_sessions(harness, 0);
	assert_int_equal(settled_fds(harness), before);
	assert_int_equal(fake_engine_n_ports(harness->engine), 0);
}

static void test_welcome_holds_32_models(void **state)
{
	struct msg_hello hello = client_hello();
	struct client client;

	assert_int_equal(client_attach(*state, &client, &hello), 0);
	assert_int_equal(client.welcome.n_models, 32);
	client_close(&client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		harness_test(test_hello_gets_models_limits_and_descriptors),
		cmocka_unit_test(test_welcome_brings_descriptors_that_report_the_daemons_end),
		harness_test(test_port_has_the_peer_as_the_kernel_knows_it),
		harness_test(test_hello_in_single_bytes_is_welcome),
		harness_test(
			test_bytes_that_are_no_hello_are_answered_and_the_connection_closed),
		harness_test(test_flood_is_cut_off),
		harness_test_with(test_half_a_hello_times_out,
			configure_impatient),
		harness_test_with(test_silence_times_out,
			configure_impatient),
		harness_test(test_silent_crowd_leaves_no_place_and_no_descriptor),
		harness_test(test_descriptors_that_come_with_hello_cost_the_connection),
		harness_test(test_session_that_the_engine_refuses_gets_one_answer),
		harness_test(test_junk_after_welcome_ends_that_session_only),
		harness_test(test_broken_rings_end_that_session),
		harness_test(test_death_is_seen_though_the_socket_stays_open),
		harness_test_with(test_descriptors_return_to_their_count_after_200_sessions,
			configure_many),
		harness_test_with(test_welcome_holds_32_models,
			harness_configure_large),
	};

	return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
