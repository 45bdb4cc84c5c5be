/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		fds[i] = client_connect(harness);
	/* of one user 32 may be silent at a time: further ones are refused */
	last = (struct client){.fd = fds[39]};
	client_receive_welcome(&last);
	assert_int_equal(last.welcome.status, MIMEO_E_QUOTA);
	assert_string_equal(last.welcome.text,
		"32 other clients of yours are connecting at this moment; try again");
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

/* ---- limits ---- */

static void test_hello_beyond_a_limit_is_refused_with_the_limit(void **state)
{
	static const struct {
		struct msg_hello more; /* added to a good one */
		int status;
		const char *says;
	} cases[] = {
		{{.version = 95}, MIMEO_E_VERSION,
			"the client speaks protocol version 99, the daemon 4"},
		{{.entries = 248}, MIMEO_E_INVALID, "entries 256 exceeds max_entries 128"},
		{{.entries = 1}, MIMEO_E_INVALID, "entries is not a power of two from 2 to"},
		{{.arena_bytes = (2 << 20) - REGION_ARENA_MIN}, MIMEO_E_INVALID,
			"arena_bytes 2097152 exceeds max_arena_bytes 1048576"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct msg_hello hello = client_hello();
		struct client client;

		hello.version += cases[i].more.version;
		hello.entries += cases[i].more.entries;
		hello.arena_bytes += cases[i].more.arena_bytes;
		assert_int_equal(client_attach(*state, &client, &hello), cases[i].status);
		assert_non_null(strstr(client.welcome.text, cases[i].says));
		expect_closed(client.fd);
		client_close(&client);
	}
}

static void test_session_beyond_a_users_share_is_refused(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client clients[4];

	for (size_t i = 0; i < 3; i++)
		assert_int_equal(client_attach(harness, &clients[i], &hello), 0);
	assert_int_equal(client_attach(harness, &clients[3], &hello), MIMEO_E_QUOTA);
	assert_non_null(strstr(clients[3].welcome.text, "max_sessions_per_uid is 3"));
	client_close(&clients[3]);
	/* a place that becomes free can be taken */
	client_close(&clients[0]);
	await_sessions(harness, 2);
	assert_int_equal(client_attach(harness, &clients[0], &hello), 0);
	for (size_t i = 0; i < 3; i++)
		client_close(&clients[i]);
}

static int welcome_of(struct client *client)
{
	client_receive_welcome(client);
	return client->welcome.status;
}

/* Connect and say that it waits; the daemon has put it in line. */
static void stand_in_line(struct harness *harness, struct client *client, uint32_t wait_ms, uint64_t n)
{
	struct msg_hello hello = client_hello();

	hello.wait_ms = wait_ms;
	*client = (struct client){.fd = client_connect(harness)};
	client_send_hello(client->fd, &hello);
	await_count(harness, "status", "handshakes", n);
}

static void test_clients_that_wait_get_in_one_after_the_other(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client inside[3], waiting[3];

	for (size_t i = 0; i < 3; i++)
		assert_int_equal(client_attach(harness, &inside[i], &hello), 0);
	for (size_t i = 0; i < 3; i++)
		stand_in_line(harness, &waiting[i], PATIENCE_MS, i + 1);
	/* one that leaves the line costs no one a place */
	client_close(&waiting[1]);
	await_count(harness, "status", "handshakes", 2);
	client_close(&inside[2]);
	assert_int_equal(welcome_of(&waiting[0]), 0);
	assert_int_equal(recv(waiting[2].fd, (char[1]){0}, 1, MSG_DONTWAIT), -1);
	client_close(&waiting[0]);
	assert_int_equal(welcome_of(&waiting[2]), 0);
	assert_int_equal(waiting[2].welcome.session, 5);
	client_close(&waiting[2]);
	for (size_t i = 0; i < 2; i++)
		client_close(&inside[i]);
}

static void test_client_that_waited_in_vain_is_refused_with_the_limit(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client inside[3], waiting;

	for (size_t i = 0; i < 3; i++)
		assert_int_equal(client_attach(harness, &inside[i], &hello), 0);
	waiting = (struct client){.fd = client_connect(harness)};
	hello.wait_ms = 30;
	client_send_hello(waiting.fd, &hello);
	assert_int_equal(welcome_of(&waiting), MIMEO_E_QUOTA);
	assert_non_null(strstr(waiting.welcome.text, "max_sessions_per_uid is 3"));
	expect_closed(waiting.fd);
	client_close(&waiting);
	/* what no end of a session can change is refused at once */
	hello.wait_ms = PATIENCE_MS;
	hello.arena_bytes = 1 << 30;
	assert_int_equal(client_attach(harness, &waiting, &hello), MIMEO_E_QUOTA);
	client_close(&waiting);
	for (size_t i = 0; i < 3; i++)
		client_close(&inside[i]);
}

static void test_drain_refuses_those_who_wait(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client inside[3], waiting;

	fake_engine_set_in_flight(harness->engine, 1);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(client_attach(harness, &inside[i], &hello), 0);
	stand_in_line(harness, &waiting, PATIENCE_MS, 1);
	answer_free(operator_ask(harness, "drain", NULL));
	assert_int_equal(welcome_of(&waiting), MIMEO_E_DRAINING);
	client_close(&waiting);
	for (size_t i = 0; i < 3; i++)
		client_close(&inside[i]);
	fake_engine_set_in_flight(harness->engine, 0);
	fake_engine_report(harness->engine, ENGINE_DRAINED, NULL, "");
}

static void configure_few(struct harness *harness)
{
	harness->options.max_sessions = 1;
}

static void test_session_beyond_all_is_refused(void **state)
{
	struct msg_hello hello = client_hello();
	struct client first, second;

	assert_int_equal(client_attach(*state, &first, &hello), 0);
	assert_int_equal(client_attach(*state, &second, &hello), MIMEO_E_QUOTA);
	assert_non_null(strstr(second.welcome.text, "sessions: 1 asked for, 0 left for user "));
	client_close(&second);
	client_close(&first);
}

static void configure_little_memory(struct harness *harness)
{
	/* A user alone may have a half: two sessions' regions, and a little more. */
	harness->options.max_shared_bytes = 2 * (2 * region_bytes(8, REGION_ARENA_MIN) + 4096);
}

static void test_memory_beyond_what_all_may_share_is_refused(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client clients[3];
	char asked[128];

	assert_int_equal(hello.entries, 8);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(client_attach(harness, &clients[i], &hello), 0);
	assert_int_equal(client_attach(harness, &clients[2], &hello), MIMEO_E_QUOTA);
	snprintf(asked, sizeof(asked), "shared memory: %llu bytes asked for, 4096 left for user %u",
		(unsigned long long)region_bytes(8, REGION_ARENA_MIN), (unsigned)geteuid());
	assert_non_null(strstr(clients[2].welcome.text, asked));
	client_close(&clients[2]);
	client_close(&clients[0]);
	await_sessions(harness, 1);
	assert_int_equal(client_attach(harness, &clients[0], &hello), 0);
	client_close(&clients[0]);
	client_close(&clients[1]);
}

static void configure_little_sequence_memory(struct harness *harness)
{
	harness->options.max_sequence_bytes = 4 * 8 * 1024; /* as the fake engine has it for 8 entries */
}

static void test_memory_of_sequences_beyond_a_share_is_refused(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client clients[2];

	hello.entries = 32;
	hello.wait_ms = PATIENCE_MS; /* in vain: it could never fit */
	assert_int_equal(client_attach(harness, &clients[0], &hello), MIMEO_E_QUOTA);
	assert_non_null(strstr(clients[0].welcome.text, "(max_sequence_bytes)"));
	client_close(&clients[0]);
	hello.entries = 16;
	hello.wait_ms = 0;
	assert_int_equal(client_attach(harness, &clients[0], &hello), 0);
	assert_int_equal(client_attach(harness, &clients[1], &hello), MIMEO_E_QUOTA);
	client_close(&clients[1]);
	client_close(&clients[0]);
}

static void configure_few_descriptors(struct harness *harness)
{
	harness->options.max_descriptors = 20;
}

static void test_descriptors_beyond_a_share_are_refused(void **state)
{
	struct msg_hello hello = client_hello();
	struct client clients[3];

	for (size_t i = 0; i < 2; i++)
		assert_int_equal(client_attach(*state, &clients[i], &hello), 0);
	assert_int_equal(client_attach(*state, &clients[2], &hello), MIMEO_E_QUOTA);
	assert_non_null(strstr(clients[2].welcome.text, "descriptors: 5 asked for, 0 left for user "));
	for (size_t i = 0; i < 3; i++)
		client_close(&clients[i]);
}

/* ---- users beside each other ---- */

#define OTHER_USER 54321u

static void configure_hog(struct harness *harness)
{
	harness->options.max_sessions = 1024;
	harness->options.max_sessions_per_uid = 1024;
	harness->options.max_shared_bytes = 20 * region_bytes(8, REGION_ARENA_MIN);
}

/* Only this thread is the other user, and only while it connects. */
static int attach_as_other(struct harness *harness, struct client *client, const struct msg_hello *hello)
{
	assert_int_equal(chmod(harness->folder, 0711), 0);
	assert_int_equal(chmod(harness->socket, 0666), 0);
	assert_int_equal(syscall(SYS_setresuid, -1, OTHER_USER, -1), 0);
	int fd = socket_connect(harness->socket, PATIENCE_MS);
	assert_int_equal(syscall(SYS_setresuid, -1, 0, -1), 0);
	assert_true(fd >= 0);
	*client = (struct client){.fd = fd};
	client_send_hello(fd, hello);
	client_receive_welcome(client);
	return client->welcome.status;
}

static void test_user_with_many_sessions_shuts_no_other_out(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client hog[32], other[4];
	size_t n = 0, n_other = 0;

	if (geteuid() != 0) {
		print_message("# skipped: %s: needs root\n", __func__);
		return;
	}
	while (client_attach(harness, &hog[n], &hello) == 0)
		n++;
	assert_int_equal(n, 10); /* half of the memory for 20 */
	client_close(&hog[n]);
	while (attach_as_other(harness, &other[n_other], &hello) == 0)
		n_other++;
	assert_int_equal(n_other, 3); /* a third of the other half */
	assert_non_null(strstr(other[n_other].welcome.text, "left for user 54321 (max_shared_bytes)"));
	client_close(&other[n_other]);
	/* One who left may have no more than a third of what the other has not. */
	while (n > 0)
		client_close(&hog[--n]);
	await_sessions(harness, n_other);
	while (client_attach(harness, &hog[n], &hello) == 0)
		n++;
	assert_true(n >= 5 && n <= 6);
	client_close(&hog[n]);
	while (n > 0)
		client_close(&hog[--n]);
	while (n_other > 0)
		client_close(&other[--n_other]);
}

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
		harness_test(test_hello_beyond_a_limit_is_refused_with_the_limit),
		harness_test(test_session_beyond_a_users_share_is_refused),
		harness_test(test_clients_that_wait_get_in_one_after_the_other),
		harness_test(test_client_that_waited_in_vain_is_refused_with_the_limit),
		harness_test(test_drain_refuses_those_who_wait),
		harness_test_with(test_session_beyond_all_is_refused,
			configure_few),
		harness_test_with(test_memory_beyond_what_all_may_share_is_refused,
			configure_little_memory),
		harness_test_with(test_memory_of_sequences_beyond_a_share_is_refused,
			configure_little_sequence_memory),
		harness_test_with(
			test_descriptors_beyond_a_share_are_refused, configure_few_descriptors),
		harness_test_with(test_user_with_many_sessions_shuts_no_other_out, configure_hog),
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
