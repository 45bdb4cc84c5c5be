/* SPDX-License-Identifier: MIT */
/* Clients that are killed in mid-stream: all that they held comes back, and nobody else notices. */
#include <signal.h>
#include <stdatomic.h>

#include "tests/e2e/daemon.h"
#include "tests/e2e/questions.h"

#define N_KILLS 100
#define N_ASKED 4
#define N_STREAMS 3

struct victim {
	const struct daemon *daemon;
	unsigned round;
	_Atomic uint32_t *n_tokens; /* seen so far */
};

/* Hold a bit of everything: streams, sequences with pages, a fork, a step under way. */
static int be_a_victim(void *arg)
{
	static const int32_t tokens[40] = {1};
	const struct victim *victim = arg;
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = 40, .tokens = tokens};
	struct mimeo_event event;
	uint32_t child;
	struct mimeo *m = daemon_connect_child(victim->daemon, victim->round % 2 ? 0 : MIMEO_SPIN_FOREVER);

	CHILD_EXPECT(mimeo_sequence_open(m, 0, &row.sequence) == 0);
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_TOKENS;
	CHILD_EXPECT(mimeo_request_prep_step(mimeo_request_get(m), &step) == 0);
	CHILD_EXPECT(mimeo_sequence_fork(m, row.sequence, &child) == 0);
	for (unsigned i = 0; i < N_STREAMS; i++)
		CHILD_EXPECT(endless_submit(m, 1500, i, NULL) == 0);
	while (mimeo_event_wait(m, &event, -1) == 1) {
		atomic_fetch_add(victim->n_tokens, event.n_tokens);
		mimeo_event_seen(m, &event);
	}
	return 1;
}

static void test_kills_of_a_client_give_all_back_and_disturb_nobody(void **state)
{
	struct daemon *daemon = *state;
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	struct victim victim = {.daemon = daemon, .n_tokens = shared_new(sizeof(uint32_t))};
	struct question questions[N_ASKED];
	struct reply replies[N_ASKED];
	const struct holdings before = daemon_holdings(daemon);

	for (victim.round = 0; victim.round < N_KILLS; victim.round++) {
		questions_make(questions, N_ASKED, victim.round);
		memset(replies, 0, sizeof(replies));
		atomic_store(victim.n_tokens, 0);
		pid_t pid = process_run(be_a_victim, &victim);
		/* The bystander's requests run while the victim streams and while it dies. */
		assert_true(EVENTUALLY(atomic_load(victim.n_tokens) > 2 + victim.round % 7));
		for (uint32_t i = 0; i < N_ASKED; i++)
			assert_int_equal(question_prepare(m, &questions[i], i), 0);
		assert_int_equal(mimeo_submit(m), N_ASKED);
		process_kill(pid);
		assert_int_equal(replies_collect(m, replies, N_ASKED), 0);
		assert_int_equal(replies_wrong(questions, replies, N_ASKED), 0);
		daemon_assert_settles(daemon, &before);
	}
	mimeo_close(m);
	shared_free(victim.n_tokens, sizeof(uint32_t));
	daemon_stop(daemon);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kills_of_a_client_give_all_back_and_disturb_nobody),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name(
		"kill_client", tests, group_daemon_start, group_daemon_end);
}
