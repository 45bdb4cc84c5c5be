/* SPDX-License-Identifier: MIT */
/*
 * The device is lost at one op after another while two clients are served.
 *
 * A process has one CUDA context, and does not get another when that is lost: there each loss has a
 * process of its own, this program again with arguments. The cpu device counts the ops that its
 * workers run, the cuda device what is launched.
 */
#include "tests/daemon/rig.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cpu/internal.h"
#if defined(MIMEO_HAVE_CUDA) && defined(MIMEO_TEST_FAULTS)
#include "kernels/cuda/cuda.h"
#endif

#define PLACES (test_on_cuda() ? 6u : 40u) /* tried between the first op and the last */

static uint64_t ops_run(const struct rig *rig)
{
#if defined(MIMEO_HAVE_CUDA) && defined(MIMEO_TEST_FAULTS)
	if (test_on_cuda())
		return cuda_forced_fault_count(rig->device);
#endif
	return atomic_load(&((const struct cpu_device *)rig->device)->forced.n_runs);
}

/* ---- a process for each loss ---- */

static bool apart; /* this is such a process */

/* This program with these arguments; it says what went wrong on standard error, and not in TAP. */
static void run_apart(char *const argv[])
{
	extern char **environ;
	posix_spawn_file_actions_t actions;
	int status = -1;
	pid_t pid;

	fflush(NULL);
	setenv("CMOCKA_MESSAGE_OUTPUT", "STDOUT", 1);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
	assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	setenv("CMOCKA_MESSAGE_OUTPUT", "TAP", 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status != 0)
		fail_msg("%s %s: wait status %#x", argv[1], argv[2], status);
}

/* True: the test of that name was run in a process of its own, and is done. */
static bool ran_apart(const char *test)
{
	char *argv[] = {"test_engine_fault", "test", (char *)(uintptr_t)test, NULL};

	if (!test_on_cuda() || apart)
		return false;
	run_apart(argv);
	return true;
}

#define APART()                                                                                    \
	do {                                                                                       \
		if (ran_apart(__func__))                                                           \
			return;                                                                    \
	} while (0)

/* ---- two clients, and a device to lose ---- */

#define N_A 7
#define N_B 3

/* One client is the rig's. */
struct world {
	struct rig rig;
	struct rig_client *b;
	struct rig_result results_b[16];
};

/* kv_pages: 0 for the rig's default. */
static void open_world(struct world *w, const char *fault, uint32_t kv_pages)
{
	*w = (struct world){0};
	setenv(test_fault_variable(), fault, 1);
	rig_open_client(&w->rig, &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE,
		.max_batch_tokens = 8, .kv_pages = kv_pages, .entries = 16});
	unsetenv(test_fault_variable());
	w->b = rig_other(&w->rig, 16);
}

/* Everything there is: sequence calls, a copied page, results that leave the device, chunks. */
static void submit_all(struct world *w)
{
	struct rig_request a[N_A] = {
		rig_call(&w->rig.client, 0, RING_OP_OPEN, 1, 0),
		rig_step_text(&w->rig.client, 1, 1, "sort 52 17", true),
		rig_call(&w->rig.client, 2, RING_OP_FORK, 1, 2),
		rig_ask_text(&w->rig.client, 3, 1, "\n"),
		rig_ask_text(&w->rig.client, 4, 2, " 3\n"),
		rig_step_text(&w->rig.client, 5, 1, "9+8=", false),
		rig_call(&w->rig.client, 6, RING_OP_CLOSE, 1, 0),
	};
	struct rig_request b[N_B] = {
		rig_ask_text(w->b, 0, 0, "347+586="),
		rig_ask_text(w->b, 1, 0, "rev hello\n"),
		rig_ask_text(w->b, 2, 0, "9+8="),
	};

	for (uint32_t i = 0; i < N_A; i++)
		rig_submit(&w->rig.client, a[i]);
	for (uint32_t i = 0; i < N_B; i++)
		rig_submit(w->b, b[i]);
}

static void wait_all(struct world *w)
{
	for (uint32_t i = 0; i < N_A; i++)
		rig_wait(&w->rig.client, w->rig.results, i);
	for (uint32_t i = 0; i < N_B; i++)
		rig_wait(w->b, w->results_b, i);
}

static uint32_t count_status(const struct world *w, int status)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < N_A; i++)
		n += w->rig.results[i].status == status;
	for (uint32_t i = 0; i < N_B; i++)
		n += w->results_b[i].status == status;
	return n;
}

static void assert_lost(struct world *w, const char *call)
{
	struct rig_request again = rig_ask_text(w->b, 4, 0, "9+8=");
	struct rig_request close = rig_call(&w->rig.client, 7, RING_OP_CLOSE, 2, 0);
	struct engine_report report = rig_report(&w->rig, ENGINE_DEVICE_LOST);
	struct rig_result result = rig_do(w->b, again);

	/* Work on a GPU fails asynchronously: the next call is named. */
	if (!strstr(report.text, test_on_cuda() ? "cudaError" : call))
		fail_msg("%s does not name %s", report.text, call);
	assert_null(report.port);
	assert_int_equal(result.status, MIMEO_E_DEVICE_LOST);
	assert_int_equal(result.finish, MIMEO_FINISH_ERROR);
	assert_int_equal(rig_do(&w->rig.client, close).status, MIMEO_E_DEVICE_LOST);
	assert_int_not_equal(engine_stats(w->rig.engine)->device_condition, 0);
	assert_false(engine_report_take(w->rig.engine, &report));
	assert_int_equal(w->rig.n_reports, 0);
}

static void lose_at(const char *fault, const char *call)
{
	char *argv[] = {"test_engine_fault", "lose", (char *)(uintptr_t)fault, NULL};
	struct world w;

	if (test_on_cuda() && !apart) {
		run_apart(argv);
		return;
	}
	open_world(&w, fault, 0);
	submit_all(&w);
	wait_all(&w);
	/* Each request has this failure, and no other. */
	assert_true(count_status(&w, MIMEO_E_DEVICE_LOST) > 0);
	assert_int_equal(count_status(&w, MIMEO_E_DEVICE_LOST) + count_status(&w, 0), N_A + N_B);
	assert_lost(&w, call);
	rig_close(&w.rig);
}

static void test_device_lost_at_any_op_ends_each_request_once(void **state)
{
	struct world w;
	uint64_t first, last, stride;
	char fault[64];

	open_world(&w, "launch:1000000000", 0);
	first = ops_run(&w.rig);
	submit_all(&w);
	wait_all(&w);
	assert_int_equal(count_status(&w, 0), N_A + N_B);
	/* Those behind the last result may go unnoticed, and timing shifts a few. */
	last = first + (ops_run(&w.rig) - first) / 2;
	rig_close(&w.rig);
	assert_true(last > first + PLACES);
	stride = (last - first) / PLACES;
	for (uint64_t at = first + 1; at < last; at += stride) {
		snprintf(fault, sizeof(fault), "launch:%llu", (unsigned long long)at);
		lose_at(fault, " launch");
	}
}

static void test_report_names_the_op(void **state)
{
	/* Set-up runs one outbox, and copies no pages but the warm-up's. */
	lose_at("op:outbox:2", "outbox launch");
	lose_at("op:outbox:5", "outbox launch");
	lose_at("op:copy_pages:2", "copy_pages launch");
}

static void assert_all_lost(struct rig_client *client, struct rig_result *results, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		rig_wait(client, results, i);
		assert_int_equal(results[i].status, MIMEO_E_DEVICE_LOST);
	}
}

/* The lane stands still while the device goes: the engine sleeps over two launched steps. */
static void test_sleeping_engine_notices_the_loss(void **state)
{
	struct world w;

	APART();
	open_world(&w, "op:outbox:2", 0);
	rig_gate_close(&w.rig);
	rig_submit(w.b, rig_ask_text(w.b, 0, 0, "347+586="));
	rig_wait_steps(&w.rig, 2);
	rig_gate_open(&w.rig);
	assert_all_lost(w.b, w.results_b, 1);
	assert_int_equal(w.results_b[0].n_generated, 0);
	assert_lost(&w, "outbox launch");
	rig_close(&w.rig);
}

static void test_waiting_requests_and_idle_sequences_survive_the_loss_until_detach(void **state)
{
	struct world w;
	struct rig_client *client = &w.rig.client;
	int32_t tokens[80];

	APART();
	open_world(&w, "op:outbox:4", 7);
	rig_ok(client, 0, RING_OP_OPEN, 1, 0);
	rig_must(client, rig_step_text(client, 0, 1, "9+8=", true));
	rig_gate_close(&w.rig);
	rig_nonsense(tokens, 80, 1);
	for (uint32_t i = 0; i < 4; i++)
		rig_submit(client, rig_ask(client, i, 0, tokens, 80, 10, 0));
	rig_wait_waiting(&w.rig, 3);
	rig_gate_open(&w.rig);
	assert_all_lost(client, w.rig.results, 4);
	assert_int_equal(engine_stats(w.rig.engine)->n_sequences, 1);
	rig_report(&w.rig, ENGINE_DEVICE_LOST);
	rig_close(&w.rig);
}

static void test_loss_before_a_detach_is_done_does_not_hold_it_up(void **state)
{
	struct world w;

	APART();
	open_world(&w, "op:outbox:2", 0);
	rig_gate_close(&w.rig);
	rig_submit(w.b, rig_ask_text(w.b, 0, 0, "347+586="));
	rig_wait_steps(&w.rig, 2);
	assert_int_equal(engine_post_detach(w.rig.engine, w.b->port), 0);
	RIG_AWAIT(!engine_stats(w.rig.engine)->n_running);
	rig_gate_open(&w.rig);
	rig_detached(w.b);
	rig_close(&w.rig);
}

static void test_page_whose_copy_was_not_launched_comes_back_after_the_loss(void **state)
{
	struct world w;

	APART();
	open_world(&w, "op:outbox:3", 0);
	rig_ok(&w.rig.client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&w.rig.client, rig_step_text(&w.rig.client, 0, 1, "9+8", true));
	rig_ok(&w.rig.client, 0, RING_OP_FORK, 1, 2);
	rig_gate_close(&w.rig);
	rig_submit(&w.rig.client, rig_ask_text(&w.rig.client, 0, 0, "347+586="));
	rig_wait_steps(&w.rig, 3);
	rig_submit(&w.rig.client, rig_ask_text(&w.rig.client, 1, 2, "="));
	RIG_AWAIT(engine_stats(w.rig.engine)->n_running == 2);
	rig_gate_open(&w.rig);
	assert_all_lost(&w.rig.client, w.rig.results, 2);
	assert_lost(&w, "outbox launch");
	rig_close(&w.rig);
}

/* ---- in a capture beside requests ---- */

/* Which no step replays. */
static bool spare_graph_is(const struct rig *rig, const char *state, uint32_t *ret)
{
	struct engine_graph_facts facts;

	for (*ret = 0; engine_graph_facts(rig->engine, 0, *ret, &facts); ++*ret) {
		if (strcmp(facts.name, "FULL 4x1") == 0)
			return strcmp(facts.state, state) == 0;
	}
	fail_msg("no graph is called FULL 4x1");
	return false;
}

static void order_spare_graph(struct rig *rig, enum engine_graph_order what, const char *state)
{
	struct engine_graphs_order order = {.order = what};

	(void)spare_graph_is(rig, state, &order.graph);
	assert_int_equal(engine_post_graphs(rig->engine, &order), 0);
	RIG_AWAIT(spare_graph_is(rig, state, &order.graph));
}

static const struct device_ops *real;
static _Atomic uint64_t n_before_recording;
static struct rig *recording_rig;

static int counting_begin(struct stream *stream)
{
	atomic_store(&n_before_recording, ops_run(recording_rig));
	return real->capture_begin(stream);
}

/*
 * A graph is captured beside two requests: one has run two steps, the other none. Which ops run before the
 * recording, and how many, is the same each time.
 */
static void capture_beside_requests(struct world *w, const char *fault)
{
	struct rig *rig = &w->rig;

	open_world(w, fault, 0);
	order_spare_graph(rig, ENGINE_GRAPH_DROP, "empty");
	rig_gate_close(rig);
	rig_submit(&rig->client, rig_endless(&rig->client, 0, 0, 100));
	rig_wait_steps(rig, 2);
	rig_submit(w->b, rig_endless(w->b, 0, 0, 100));
	RIG_AWAIT(engine_stats(rig->engine)->n_running == 2);
	order_spare_graph(rig, ENGINE_GRAPH_CAPTURE, "wanted");
}

static void test_device_lost_in_a_capture_ends_each_request_once(void **state)
{
	static struct device_ops counting;
	struct rig_result *a, *b;
	struct world w;
	char fault[64];
	uint32_t graph;
	uint64_t last;

	capture_beside_requests(&w, "launch:1000000000");
	recording_rig = &w.rig;
	real = w.rig.device->ops;
	counting = *real;
	counting.capture_begin = counting_begin;
	w.rig.device->ops = &counting;
	rig_gate_open(&w.rig);
	RIG_AWAIT(spare_graph_is(&w.rig, "ready", &graph));
	last = atomic_load(&n_before_recording);
	rig_close(&w.rig);
	assert_true(last > 0);
	/* The warm-up's ops, from the last one back. */
	for (uint64_t at = last; at > last - 25; at -= 6) {
		snprintf(fault, sizeof(fault), "launch:%llu", (unsigned long long)at);
		capture_beside_requests(&w, fault);
		rig_gate_open(&w.rig);
		a = &w.rig.results[0];
		b = &w.results_b[0];
		rig_wait(&w.rig.client, w.rig.results, 0);
		rig_wait(w.b, w.results_b, 0);
		assert_int_equal(a->status, MIMEO_E_DEVICE_LOST);
		assert_int_equal(b->status, MIMEO_E_DEVICE_LOST);
		assert_int_equal(b->n_generated, 0);
		assert_int_equal(engine_stats(w.rig.engine)->n_steps, 2);
		assert_lost(&w, " launch");
		assert_false(spare_graph_is(&w.rig, "building", &graph));
		rig_close(&w.rig);
	}
}

static void lose_at_the_argument(void **state)
{
	lose_at(*state, " launch");
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_device_lost_at_any_op_ends_each_request_once),
		cmocka_unit_test(test_report_names_the_op),
		cmocka_unit_test(test_sleeping_engine_notices_the_loss),
		cmocka_unit_test(
			test_waiting_requests_and_idle_sequences_survive_the_loss_until_detach),
		cmocka_unit_test(
			test_page_whose_copy_was_not_launched_comes_back_after_the_loss),
		cmocka_unit_test(test_loss_before_a_detach_is_done_does_not_hold_it_up),
		cmocka_unit_test(test_device_lost_in_a_capture_ends_each_request_once),
	};
	static struct CMUnitTest one[1];
	struct test_cpu_only only[] = {
		{"test_report_names_the_op", "work on a GPU fails asynchronously"},
		{"test_device_lost_in_a_capture_ends_each_request_once",
			"a GPU counts what is launched, recorded ops too"},
		{test_can_lose_device() ? NULL : "test_", TEST_CANNOT_LOSE},
	};

	if (argc == 3) {
		apart = true;
		one[0] = (struct CMUnitTest)cmocka_unit_test_prestate(
			lose_at_the_argument, argv[2]);
		for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
			if (strcmp(tests[i].name, argv[2]) == 0)
				one[0] = tests[i];
		return cmocka_run_group_tests_name("apart", one, NULL, NULL);
	}
	return TEST_RUN_GROUP("engine fault", tests, only, NULL, NULL);
}
