/* SPDX-License-Identifier: MIT */
/* HELLOs beyond a limit: refused with the limit, or in line until a place is free. */
#include "harness.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "ipc/region.h"
#include "ipc/socket.h"

static void test_hello_beyond_a_limit_is_refused_with_the_limit(void **state)
{
	static const struct {
		struct msg_hello more; /* added to a good one */
		int status;
		const char *says;
	} cases[] = {
		{{.version = 93}, MIMEO_E_VERSION,
			"the client speaks protocol version 99, the daemon 6"},
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
	assert_non_null(strstr(clients[3].welcome.text, "sessions: 1 asked for, 0 left for user "));
	assert_non_null(strstr(clients[3].welcome.text, "(max_sessions_per_uid)"));
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
	assert_non_null(strstr(waiting.welcome.text, "(max_sessions_per_uid)"));
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

static int reload_weighs(void *userdata, struct serve_options *options, FILE *out)
{
	options->weights.entries[0] = (struct user_weight){.id = geteuid(), .weight = 7};
	options->weights.n = 1;
	return 0;
}

static void configure_weighing_reload(struct harness *harness)
{
	harness->options.reload = reload_weighs;
}

static void test_reload_gives_the_engine_the_weight_of_a_user_who_is_there(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	assert_int_equal(fake_engine_port(harness->engine)->weight, 1);
	assert_int_equal(operator_order(harness, (struct ask){.op = "reload"}, ""), 0);
	assert_int_equal(fake_engine_port(harness->engine)->weight, 7);
	client_close(&client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
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
		harness_test_with(test_reload_gives_the_engine_the_weight_of_a_user_who_is_there,
			configure_weighing_reload),
	};

	return cmocka_run_group_tests_name("serve limits", tests, NULL, NULL);
}
