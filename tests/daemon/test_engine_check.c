/* SPDX-License-Identifier: MIT */
/*
 * The check of the engine's bookkeeping finds each count that is wrong. A child has a copy of a live
 * engine, changes one count and runs the check, which must abort and name that count.
 */
#include "tests/daemon/rig.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attention/kv_cache.h"
#include "daemon/engine/check.h"

/* ---- a count each ---- */

static struct engine_session *session_of(struct engine *engine)
{
	return engine->accounting.sessions[0];
}

static void change_nothing(struct engine *engine)
{
}

static void change_requests_in_flight(struct engine *engine)
{
	session_of(engine)->n_in_flight++;
}

static void change_waiting_requests(struct engine *engine)
{
	session_of(engine)->n_waiting++;
}

static void change_open_sequences(struct engine *engine)
{
	session_of(engine)->n_open--;
}

static void change_pages_of_session(struct engine *engine)
{
	atomic_fetch_add(&session_of(engine)->port->n_pages, 1);
}

static void change_payload_bytes(struct engine *engine)
{
	session_of(engine)->payloads.used -= 4;
}

static void change_held_entries(struct engine *engine)
{
	session_of(engine)->n_held++;
}

static void change_all_requests(struct engine *engine)
{
	engine->accounting.n_requests--;
}

static void change_deadlines(struct engine *engine)
{
	engine->accounting.n_deadlines++;
}

static void change_sessions(struct engine *engine)
{
	atomic_fetch_add(&engine->stats.n_sessions, 1);
}

static void change_launched_steps(struct engine *engine)
{
	engine->accounting.launched++;
}

static void change_steps_of_model(struct engine *engine)
{
	engine->runners.all[0]->completed++;
}

static void change_running_slots(struct engine *engine)
{
	engine->runners.all[0]->slots.n_running--;
}

static void change_page_references(struct engine *engine)
{
	struct engine_session *session = session_of(engine);

	for (uint32_t i = 0; i < engine_session_n_sequences(session); i++) {
		if (session->sequences[i].table.n_pages) {
			kv_release(engine->runners.all[0]->kv, session->sequences[i].table.pages, 1);
			return;
		}
	}
	_exit(2);
}

static void change_free_pages(struct engine *engine)
{
	atomic_fetch_add(&engine->runners.all[0]->pages_free, 1);
}

static void change_wanted_graphs(struct engine *engine)
{
	graph_entry_set_state(&engine->runners.all[0]->graphs.entries[0], GRAPH_WANTED);
}

struct change {
	const char *name;
	void (*make)(struct engine *engine);
	const char *assertion; /* part of it; NULL: none fails */
};

#define CHANGE(name, assertion) {#name, change_##name, assertion}

static const struct change changes[] = {
	CHANGE(nothing, NULL),
	CHANGE(requests_in_flight, "n_in_flight == session->n_in_flight"),
	CHANGE(waiting_requests, "n_waiting == session->n_waiting"),
	CHANGE(open_sequences, "n_open == session->n_open"),
	CHANGE(pages_of_session, "n_pages == atomic_load(&session->port->n_pages)"),
	CHANGE(payload_bytes, "used == pool->used"),
	CHANGE(held_entries, "!n_held"),
	CHANGE(all_requests, "n_requests == accounting->n_requests"),
	CHANGE(deadlines, "n_deadlines == accounting->n_deadlines"),
	CHANGE(sessions, "accounting->n_sessions == atomic_load(&engine->stats.n_sessions)"),
	CHANGE(launched_steps, "accounting->launched - accounting->completed == engine->lane.n_inflight"),
	CHANGE(steps_of_model, "runner->launched - runner->completed == n_inflight"),
	CHANGE(running_slots, "uses[i] == 1"),
	CHANGE(page_references, "kv_references(runner->kv, page) == uses[page]"),
	CHANGE(free_pages, "n_free == atomic_load(&runner->pages_free)"),
	CHANGE(wanted_graphs, "!n_wanted && !n_dropping"),
};

/* ---- in a child ---- */

/* It says nothing but what the check says, leaves no core, and never returns into cmocka. */
static _Noreturn void check_changed(struct engine *engine, const struct change *change, int said)
{
	setrlimit(RLIMIT_CORE, &(struct rlimit){0});
	signal(SIGSEGV, SIG_DFL);
	dup2(said, STDERR_FILENO);
	change->make(engine);
	engine_check(engine);
	_exit(0);
}

static void assert_found(struct engine *engine, const struct change *change)
{
	char text[4096];
	int said[2], status;
	size_t n = 0;
	ssize_t got;
	pid_t pid;

	assert_int_equal(pipe(said), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		check_changed(engine, change, said[1]);
	close(said[1]);
	while ((got = read(said[0], text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)got;
	text[n] = '\0';
	close(said[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!change->assertion && status != 0)
		fail_msg("%s changed: %s", change->name, text);
	if (!change->assertion)
		return;
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
		fail_msg("%s changed: no abort, but wait status %#x: %s", change->name, status, text);
	if (!strstr(text, change->assertion))
		fail_msg("%s changed: not \"%s\" but: %s", change->name, change->assertion, text);
}

/* One request runs, with two steps in flight; another waits; a sequence is open. The engine sleeps. */
static void test_check_names_the_count_that_is_wrong(void **state)
{
	struct rig *rig = *state;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig->client, rig_step_text(&rig->client, 0, 1, "9+8=", true));
	rig_gate_close(rig);
	rig_submit(&rig->client, rig_endless(&rig->client, 0, 0, 40));
	rig_wait_steps(rig, 3);
	rig_submit(&rig->client, rig_endless(&rig->client, 1, 0, 40));
	rig_wait_waiting(rig, 1);
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
		assert_found(rig->engine, &changes[i]);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	rig_wait(&rig->client, rig->results, 1);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(test_check_names_the_count_that_is_wrong,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_requests = 1),
	};

	return cmocka_run_group_tests_name("engine check", tests, NULL, NULL);
}
