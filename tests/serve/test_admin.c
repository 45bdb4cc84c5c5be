/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/serve/admin_wire.h"
#include "ipc/socket.h"

/* ---- listings ---- */

static void test_status_says_serving_with_its_counters(void **state)
{
	struct harness *harness = *state;
	struct answer *answer = operator_ask(harness, "status", NULL);

	assert_int_equal(answer->status, 0);
	assert_int_equal(answer->n_rows, 1);
	expect_text(answer, 0, "state", "serving");
	expect_text(answer, 0, "device", "cpu");
	assert_int_equal(answer_count(answer, 0, "pid", 0), getpid());
	assert_int_equal(answer_count(answer, 0, "slots_free", 0), 7);
	assert_int_equal(answer_count(answer, 0, "slots_total", 0), 48);
	assert_int_equal(answer_count(answer, 0, "pages_free", 0), 90);
	/* with the draft's */
	assert_int_equal(answer_count(answer, 0, "weights_bytes", 0), 4600000);
	assert_int_equal(answer_count(answer, 0, "graphs", 0), 3 + FAKE_DRAFT_GRAPHS);
	answer_free(answer);
}

static void test_sessions_lists_who_is_attached(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	await_sessions(harness, 1);
	struct answer *answer = operator_ask(harness, "sessions", NULL);
	assert_int_equal(answer->n_rows, 1);
	assert_int_equal(answer_count(answer, 0, "id", 0), client.welcome.session);
	assert_int_equal(answer_count(answer, 0, "pid", 0), getpid());
	assert_int_equal(answer_count(answer, 0, "tokens", 0), 42);
	expect_text(answer, 0, "name", "test");
	answer_free(answer);
	client_close(&client);
}

static void test_models_says_what_the_mode_was_lowered_to(void **state)
{
	struct answer *answer = operator_ask(*state, "models", NULL);

	assert_int_equal(answer->n_rows, 1);
	expect_text(answer, 0, "name", "tinycalc");
	expect_text(answer, 0, "configured", "FULL");
	expect_text(answer, 0, "resolved", "FULL_DECODE_ONLY");
	expect_text(answer, 0, "reason", "lowered for the test");
	answer_free(answer);
}

static void test_models_says_how_keys_and_values_are_stored(void **state)
{
	struct answer *answer = operator_ask(*state, "models", NULL);

	expect_text(answer, 0, "kv_dtype", "fp8");
	answer_free(answer);
}

static void test_graphs_lists_each_descriptor(void **state)
{
	struct answer *answer = operator_ask(*state, "graphs", NULL);

	for (size_t i = 0; i < 3; i++) {
		expect_text(answer, i, "owner", "target");
		assert_int_equal(answer_count(answer, i, "tokens", 0), i + 1);
		assert_int_equal(answer_count(answer, i, "captures", 0), 1);
		assert_non_null(answer_cell(answer, i, "shared_replays"));
	}
	answer_free(answer);
}

static void test_graphs_lists_those_of_a_draft_and_what_of_it_ran_without(void **state)
{
	static const struct {
		const char *owner, *graph, *state;
		uint64_t n_eager;
	} rows[] = {
		{"draft prefill", "FULL 4x1", "ready", 0},
		{"draft decode", "FULL 5x1", "ready", 0},
		{"draft prefill", "none", "mixed", 6},
		{"draft decode", "none", "mixed", 10},
		{"draft decode", "none", "too_wide", 3},
	};
	struct answer *answer = operator_ask(*state, "graphs", NULL);

	assert_int_equal(answer->n_rows, 3 + sizeof(rows) / sizeof(rows[0]));
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		expect_text(answer, 3 + i, "owner", rows[i].owner);
		expect_text(answer, 3 + i, "graph", rows[i].graph);
		expect_text(answer, 3 + i, "state", rows[i].state);
		assert_int_equal(answer_count(answer, 3 + i, "eager_steps", 0), rows[i].n_eager);
		assert_int_equal(answer_count(answer, 3 + i, "replays", 0), rows[i].n_eager ? 0 : 10);
		/* these are not counted: no number */
		assert_null(answer_cell(answer, 3 + i, "shared_replays"));
	}
	answer_free(answer);
}

static void test_orders_about_graphs_reach_the_engine_as_they_are_meant(void **state)
{
	static const struct {
		struct ask ask;
		struct engine_graphs_order order;
	} orders[] = {
		{{.op = "capture", .graph = "all"}, {ENGINE_GRAPH_CAPTURE, ENGINE_ALL, ENGINE_ALL}},
		{{.op = "drop", .graph = "all", .model = "tinycalc"},
			{ENGINE_GRAPH_DROP, 0, ENGINE_ALL}},
		{{.op = "drop", .graph = "idle"}, {ENGINE_GRAPH_DROP_IDLE, ENGINE_ALL, ENGINE_ALL}},
		{{.op = "drop", .graph = "full 2X1"}, {ENGINE_GRAPH_DROP, 0, 1}},
		{{.op = "capture", .graph = "FULL 3x1", .model = "tinycalc"},
			{ENGINE_GRAPH_CAPTURE, 0, 2}},
	};
	struct harness *harness = *state;

	for (unsigned i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		struct engine_graphs_order last;

		assert_int_equal(operator_order(harness, orders[i].ask, orders[i].ask.graph), 0);
		assert_int_equal(fake_engine_orders(harness->engine, &last), i + 1);
		assert_int_equal(last.order, orders[i].order.order);
		assert_int_equal(last.model, orders[i].order.model);
		assert_int_equal(last.graph, orders[i].order.graph);
	}
}

static void test_orders_about_missing_graphs_are_refused_with_the_reason(void **state)
{
	static const struct {
		struct ask ask;
		const char *says;
	} orders[] = {
		{{.op = "drop", .graph = "FULL 6x1"},
			"no graph of any model is called \"FULL 6x1\": see mimeoctl graphs"},
		{{.op = "drop", .graph = "full 4x1", .model = "tinycalc"},
			"\"full 4x1\" is a graph of a draft model: these are captured when the model is "
			"loaded, and kept"},
		{{.op = "capture", .graph = "FULL 5x1", .model = "tinycalc"}, "is a graph of a draft"},
		{{.op = "drop", .graph = ""}, "is called \"\""},
		{{.op = "drop"}, "is called \"\""},
		{{.op = "capture", .graph = "idle"}, "graphs capture does not take 'idle'"},
		{{.op = "drop", .graph = "idle", .model = "tinycalc"},
			"graphs drop idle does not take --model"},
		{{.op = "capture", .graph = "all", .model = "other"}, "no model is called other"},
	};
	struct harness *harness = *state;
	struct engine_graphs_order last;

	for (unsigned i = 0; i < sizeof(orders) / sizeof(orders[0]); i++)
		assert_int_equal(operator_order(harness, orders[i].ask, orders[i].says),
			MIMEO_E_INVALID);
	assert_int_equal(fake_engine_orders(harness->engine, &last), 0);
}

static void test_reply_of_many_messages_has_every_row_once(void **state)
{
	struct answer *answer = operator_ask(*state, "graphs", NULL);
	const size_t n = 200 + FAKE_DRAFT_GRAPHS, n_of_model = n + FAKE_DRAFT_REASONS;

	assert_true(answer->n_messages > 1);
	assert_int_equal(answer->n_rows, n_of_model * ENGINE_MODELS_MAX);
	for (size_t i = 0; i < answer->n_rows; i++)
		assert_int_equal(answer_count(answer, i, "rows", 0),
			i % n_of_model < n ? i % n_of_model + 1 : 0);
	/* and its text stands above them, of all models */
	assert_memory_equal(answer->text, "tinycalc: graph mode ", 21);
	assert_non_null(strstr(answer->text, "\nmodel-31-with-a-name"));
	answer_free(answer);
}


/* ---- bad operators ---- */

static void test_unknown_operation_is_refused(void **state)
{
	struct answer *answer = operator_ask(*state, "reboot", NULL);

	assert_int_equal(answer->status, MIMEO_E_UNSUPPORTED);
	answer_free(answer);
}

static void test_garbage_from_an_operator_closes_it(void **state)
{
	int fd = operator_connect(*state);

	assert_int_equal(send(fd, "\xff\xff\xff\xff????", 8, MSG_NOSIGNAL), 8);
	expect_closed(fd);
	close(fd);
}

static void test_request_that_is_no_map_closes_the_operator(void **state)
{
	int fd = operator_connect(*state);

	assert_int_equal(socket_send(fd, "\x93\x01\x02\x03", 4, NULL, 0), 0);
	expect_closed(fd);
	close(fd);
}

static void test_client_on_the_operators_socket_is_refused_with_the_right_one(void **state)
{
	struct harness *harness = *state;
	struct client client = {.fd = operator_connect(harness)};
	struct msg_hello hello = client_hello();

	client_send_hello(client.fd, &hello);
	client_receive_welcome(&client);
	assert_int_equal(client.welcome.status, MIMEO_E_PROTOCOL);
	assert_non_null(strstr(client.welcome.text, "operators' socket"));
	assert_non_null(strstr(client.welcome.text, harness->socket));
	expect_closed(client.fd);
	assert_true(harness_log_has(harness, ") connected to the operators' socket; use /tmp/"));
	client_close(&client);
}

static void test_operator_that_never_reads_is_cut_off(void **state)
{
	int fd = operator_connect(*state);

	/* each reply has a megabyte: the second request comes while the first is not taken */
	assert_int_equal(ask_send(fd, &(struct ask){.op = "graphs"}), 0);
	while (ask_send(fd, &(struct ask){.op = "graphs"}) == 0)
		continue;
	expect_closed(fd);
	close(fd);
}

static void test_operator_may_ask_twice(void **state)
{
	struct answer *answer;
	int fd = operator_connect(*state);

	for (int i = 0; i < 2; i++) {
		assert_int_equal(ask_send(fd, &(struct ask){.op = "graphs"}), 0);
		assert_int_equal(ask_receive(fd, &answer), 0);
		assert_int_equal(answer->n_rows, 3 + FAKE_DRAFT_GRAPHS + FAKE_DRAFT_REASONS);
		answer_free(answer);
	}
	close(fd);
}

static void test_16_idle_operators_keep_no_other_out(void **state)
{
	struct answer *answer;
	int fds[17];

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		fds[i] = operator_connect(*state);
	assert_int_equal(ask_once(fds[16], &(struct ask){.op = "status"}, &answer), 0);
	assert_int_equal(answer->status, 0);
	assert_int_equal(answer_count(answer, 0, "operators", 0), 16);
	answer_free(answer);
	expect_closed(fds[0]);
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		close(fds[i]);
}

/* ---- kill ---- */

static void test_kill_closes_that_session(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client, other;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	assert_int_equal(client_attach(harness, &other, &hello), 0);
	await_sessions(harness, 2);
	uint64_t id = client.welcome.session;
	struct answer *answer = operator_ask(harness, "kill", &id);
	assert_int_equal(answer->status, 0);
	assert_non_null(strstr(answer->text, "session 1 (test, pid"));
	answer_free(answer);
	expect_closed(client.fd);
	await_sessions(harness, 1);
	client_close(&client);
	client_close(&other);
}

static void test_kill_of_no_session_is_refused(void **state)
{
	uint64_t id = 4711;
	struct answer *answer = operator_ask(*state, "kill", &id);

	assert_int_equal(answer->status, MIMEO_E_INVALID);
	assert_string_equal(answer->text, "no session 4711 is open: mimeoctl sessions lists those that are");
	answer_free(answer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		harness_test(test_status_says_serving_with_its_counters),
		harness_test(test_sessions_lists_who_is_attached),
		harness_test(test_models_says_what_the_mode_was_lowered_to),
		harness_test(test_models_says_how_keys_and_values_are_stored),
		harness_test(test_graphs_lists_each_descriptor),
		harness_test(test_graphs_lists_those_of_a_draft_and_what_of_it_ran_without),
		harness_test(test_orders_about_graphs_reach_the_engine_as_they_are_meant),
		harness_test(test_orders_about_missing_graphs_are_refused_with_the_reason),
		harness_test_with(test_reply_of_many_messages_has_every_row_once,
			harness_configure_large),
		harness_test(test_unknown_operation_is_refused),
		harness_test(test_garbage_from_an_operator_closes_it),
		harness_test(test_request_that_is_no_map_closes_the_operator),
		harness_test_with(
			test_client_on_the_operators_socket_is_refused_with_the_right_one,
			harness_configure_logged),
		harness_test_with(test_operator_that_never_reads_is_cut_off,
			harness_configure_large),
		harness_test(test_operator_may_ask_twice),
		harness_test(test_16_idle_operators_keep_no_other_out),
		harness_test(test_kill_closes_that_session),
		harness_test(test_kill_of_no_session_is_refused),
	};

	return cmocka_run_group_tests_name("admin", tests, NULL, NULL);
}
