/* SPDX-License-Identifier: MIT */
/* Sequences as a client sees them: opened, forked, cut, appended to, closed. */
#include "tests/e2e/calls.h"
#include "tests/e2e/daemon.h"

#define N_PAGE_TOKENS 16

static int start(void **state)
{
	static const char *const options[] = {"--max-sequences", "6", NULL};

	return group_daemon_start_with(state, options);
}

static void test_forks_diverge_and_both_are_right(void **state)
{
	const struct question first = question_of("rev mimeo\n", "oemim"),
			      second = question_of("rev mimic\n", "cimim");
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint32_t parent, child;

	/* In the shared page: begin, "rev mim"; the rest is each one's own. */
	parent = sequence_of(m);
	assert_int_equal(step(m, parent, first.prompt, 8, NULL), 0);
	assert_int_equal(mimeo_sequence_fork(m, parent, &child), 0);
	assert_steps_answer(m, child, second.prompt + 8, second.n_prompt - 8, &second);
	assert_steps_answer(m, parent, first.prompt + 8, first.n_prompt - 8, &first);
	mimeo_close(m);
}

static void test_fork_shares_its_parents_pages(void **state)
{
	static const int32_t tokens[10 * N_PAGE_TOKENS] = {1};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint32_t parent = sequence_of(m), child;

	assert_int_equal(step(m, parent, tokens, 10 * N_PAGE_TOKENS - 1, NULL), 0);
	assert_int_equal(mimeo_sequence_fork(m, parent, &child), 0);
	/* The child writes into the last page, and only that one is copied. */
	assert_int_equal(step(m, child, tokens, 1, NULL), 0);
	assert_true(EVENTUALLY(daemon_count(*state, "pages_free") == group_idle.pages_free - 11));
	assert_int_equal(mimeo_sequence_close(m, parent), 0);
	assert_int_equal(mimeo_submit(m), 1);
	assert_true(EVENTUALLY(daemon_count(*state, "pages_free") == group_idle.pages_free - 10));
	mimeo_close(m);
}

static void test_truncated_sequence_goes_on_from_what_it_keeps(void **state)
{
	const struct question first = question_of("rev mimeo\n", "oemim"),
			      second = question_of("rev mimic\n", "cimim");
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint32_t sequence = sequence_of(m);

	assert_steps_answer(m, sequence, first.prompt, first.n_prompt, &first);
	assert_int_equal(mimeo_sequence_truncate(m, sequence, 8), 0);
	assert_steps_answer(m, sequence, second.prompt + 8, second.n_prompt - 8, &second);
	mimeo_close(m);
}

static void test_truncate_beyond_the_end_is_refused_by_an_event(void **state)
{
	static const int32_t tokens[] = {1, 65, 66};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint32_t sequence = sequence_of(m);

	assert_int_equal(step(m, sequence, tokens, 3, NULL), 0);
	assert_int_equal(mimeo_sequence_truncate(m, sequence, 4), 0);
	assert_int_equal(mimeo_submit(m), 1);
	struct mimeo_event event = wait_event(m);
	assert_int_equal(event.kind, MIMEO_EVENT_SEQUENCE);
	assert_int_equal(event.sequence, sequence);
	assert_int_equal(event.status, MIMEO_E_INVALID);
	mimeo_event_seen(m, &event);
	mimeo_close(m);
}

static void test_generate_on_a_sequence_appends_prompt_and_output(void **state)
{
	const struct question q = question_of("97+2=", "99");
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = generate_of(q.prompt, q.n_prompt, 20);
	uint32_t sequence = sequence_of(m);

	generate.sequence = sequence;
	submit_generate(m, &generate);
	assert_int_equal(wait_final(m).n_generated, 3);
	/* Six of the prompt, three of the answer: nine can be kept, ten cannot. */
	assert_int_equal(mimeo_sequence_truncate(m, sequence, 10), 0);
	assert_int_equal(mimeo_sequence_truncate(m, sequence, 9), 0);
	assert_int_equal(mimeo_submit(m), 2);
	struct mimeo_event event = wait_event(m);
	assert_int_equal(event.kind, MIMEO_EVENT_SEQUENCE);
	assert_int_equal(event.detail_values[0], 10);
	assert_int_equal(event.detail_values[1], 9);
	mimeo_event_seen(m, &event);
	assert_steps_answer(m, sequence, q.prompt, q.n_prompt, &q);
	mimeo_close(m);
}

static void test_open_sequences_are_bounded_by_quota(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint32_t sequences[7];

	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(mimeo_sequence_open(m, 0, &sequences[i]), 0);
	assert_int_equal(mimeo_sequence_open(m, 0, &sequences[6]), MIMEO_E_QUOTA);
	assert_string_equal(mimeo_sequence_message(m),
		"open sequences: 1 asked for, 0 left for this session (max_sequences)");
	assert_int_equal(mimeo_sequence_fork(m, sequences[0], &sequences[6]), MIMEO_E_QUOTA);
	mimeo_close(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		GROUP_TEST(test_forks_diverge_and_both_are_right),
		GROUP_TEST(test_fork_shares_its_parents_pages),
		GROUP_TEST(test_truncated_sequence_goes_on_from_what_it_keeps),
		GROUP_TEST(test_truncate_beyond_the_end_is_refused_by_an_event),
		GROUP_TEST(test_generate_on_a_sequence_appends_prompt_and_output),
		GROUP_TEST(test_open_sequences_are_bounded_by_quota),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("sequences", tests, start, group_daemon_end);
}
