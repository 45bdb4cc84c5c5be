/* SPDX-License-Identifier: MIT */
/* One set of graphs for everybody: captured once, replayed with rows of several processes. */
#include <jansson.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/questions.h"

#define N_COMERS 20
#define N_AT_ONCE 4
#define N_QUESTIONS 4

struct visitor {
	const struct daemon *daemon;
	uint64_t seed;
};

/* Come, ask, go. */
static int visit(void *arg)
{
	const struct visitor *visitor = arg;
	struct question questions[N_QUESTIONS];
	struct reply replies[N_QUESTIONS];
	struct mimeo *m = daemon_connect_child(visitor->daemon, MIMEO_SPIN_DEFAULT);

	questions_make(questions, N_QUESTIONS, visitor->seed);
	CHILD_EXPECT(questions_ask(m, questions, N_QUESTIONS, N_QUESTIONS, replies) == 0);
	CHILD_EXPECT(replies_wrong(questions, replies, N_QUESTIONS) == 0);
	mimeo_close(m);
	return 0;
}

/* `what`, `which`: further words, or NULL. */
static json_t *mimeoctl_order(
	struct daemon *daemon, const char *command, const char *what, const char *which)
{
	static struct program_output output;
	const char *const argv[] = {build_path("daemon/mimeoctl"), "--socket", daemon->socket,
		"--json", command, what, which, NULL};

	program_run(argv, &output);
	assert_int_equal(output.status, 0);
	json_t *json = json_loads(output.text, 0, NULL);
	assert_non_null(json);
	return json;
}

static json_t *mimeoctl(struct daemon *daemon, const char *command)
{
	return mimeoctl_order(daemon, command, NULL, NULL);
}

static void test_each_graph_is_captured_once_however_many_clients_come_and_go(void **state)
{
	static const int sizes[] = {8, 4, 2, 1};
	json_int_t replays = 0;
	size_t n_graphs = 0;
	json_t *row;
	size_t i;

	for (unsigned n = 0; n < N_COMERS; n++) {
		struct visitor visitor = {.daemon = *state, .seed = n};
		pid_t pid = process_run(visit, &visitor);

		assert_int_equal(process_exit_status(pid, PATIENCE_MS), 0);
	}
	json_t *graphs = mimeoctl(*state, "graphs");
	json_array_foreach(graphs, i, row)
	{
		bool known = false;

		/* prompts wider than the widest have a row of their own, and nothing else has */
		if (!json_is_integer(json_object_get(row, "captures"))) {
			assert_string_equal(
				json_string_value(json_object_get(row, "state")), "too_wide");
			continue;
		}
		n_graphs++;
		assert_int_equal(json_integer_value(json_object_get(row, "captures")), 1);
		for (unsigned k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
			known |= json_integer_value(json_object_get(row, "tokens")) == sizes[k];
		assert_true(known);
		replays += json_integer_value(json_object_get(row, "replays"));
	}
	/* of each size one for decodes and one in pieces */
	assert_int_equal(n_graphs, 2 * sizeof(sizes) / sizeof(sizes[0]));
	assert_true(replays > 0);
	assert_int_equal(replays, daemon_count(*state, "replays"));
	json_decref(graphs);
}

/* Endless requests of several processes that have all begun must meet in a step. */
static int talk_until_killed(void *arg)
{
	struct mimeo_event event;
	struct mimeo *m = daemon_connect_child(arg, MIMEO_SPIN_DEFAULT);

	CHILD_EXPECT(endless_submit(m, 1000, 0, NULL) == 0);
	while (mimeo_event_wait(m, &event, -1) == 1) {
		bool last = event.kind == MIMEO_EVENT_FINAL;

		mimeo_event_seen(m, &event);
		if (last)
			CHILD_EXPECT(endless_submit(m, 1000, 0, NULL) == 0);
	}
	return 1;
}

static void test_replays_carry_rows_of_several_processes(void **state)
{
	struct daemon *daemon = *state;
	pid_t pids[N_AT_ONCE];

	for (unsigned i = 0; i < N_AT_ONCE; i++)
		pids[i] = process_run(talk_until_killed, daemon);
	assert_true(EVENTUALLY(daemon_count(daemon, "shared_replays") >= 100));
	for (unsigned i = 0; i < N_AT_ONCE; i++)
		process_kill(pids[i]);
	/* Rows of four processes fit the graph of four, and no wider one was ever needed. */
	json_t *graphs = mimeoctl(daemon, "graphs"), *row;
	json_int_t shared = 0;
	size_t i;

	json_array_foreach(graphs, i, row)
	{
		json_int_t n = json_integer_value(json_object_get(row, "shared_replays"));

		assert_true(n == 0 || json_integer_value(json_object_get(row, "tokens")) > 1);
		shared += n;
	}
	assert_true(shared >= 100);
	json_decref(graphs);
}

static size_t count_graphs(const json_t *graphs, const char *state)
{
	json_t *row;
	size_t i, n = 0;

	json_array_foreach(graphs, i, row)
		n += strcmp(json_string_value(json_object_get(row, "state")), state) == 0;
	return n;
}

static void test_operator_drops_and_captures_graphs_while_clients_run(void **state)
{
	struct daemon *daemon = *state;
	pid_t pids[2];

	for (unsigned i = 0; i < 2; i++)
		pids[i] = process_run(talk_until_killed, daemon);
	assert_true(EVENTUALLY(daemon_count(daemon, "running") == 2));
	json_t *graphs = mimeoctl_order(daemon, "graphs", "drop", "PIECEWISE 8");
	assert_true(count_graphs(graphs, "empty") >= 1);
	json_decref(graphs);
	json_decref(mimeoctl_order(daemon, "graphs", "drop", "all"));
	graphs = mimeoctl_order(daemon, "graphs", "capture", "all");
	assert_int_equal(count_graphs(graphs, "ready"), 8);
	json_decref(graphs);
	assert_int_equal(daemon_count(daemon, "graphs_ready"), 8);
	assert_true(daemon_count(daemon, "late_captures") >= 8);
	json_int_t replays = daemon_count(daemon, "shared_replays");
	assert_true(EVENTUALLY(daemon_count(daemon, "shared_replays") > replays));
	for (unsigned i = 0; i < 2; i++)
		process_kill(pids[i]);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_graph_is_captured_once_however_many_clients_come_and_go),
		cmocka_unit_test(test_replays_carry_rows_of_several_processes),
		cmocka_unit_test(test_operator_drops_and_captures_graphs_while_clients_run),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("sharing", tests, group_daemon_start, group_daemon_end);
}
