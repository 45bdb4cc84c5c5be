/* SPDX-License-Identifier: MIT */
/*
 * Requests with one prompt that come together: it is computed once, whatever happens to the one that computes it, and
 * none waits for ever. A page holds 16 tokens. On an engine that computes nothing (dry.h), which sees it if a request
 * reads what was not written.
 */
#include "tests/daemon/dry.h"

enum { N = 6, LONG = 300, N_TOKENS = 5, WHOLE = LONG / 16 * 16 };

static struct dry dry;
static struct rig_client client;
static struct rig_request requests[RIG_ENTRIES];
static struct rig_result results[RIG_ENTRIES];
static int32_t prompt[512];
static uint64_t n_computed; /* prompt tokens */

static void count_row(struct dry *in, const struct sequence *sequence, const struct step_row *row)
{
	if (row->start < sequence->prompt_end && !(row->flags & ROW_FROM_SLOT))
		n_computed += row->n_tokens;
}

static void open_engine(const struct rig_options *options)
{
	memset(results, 0, sizeof(results));
	n_computed = 0;
	dry_open(&dry, options);
	dry.on_row = count_row;
	dry_attach(&dry, &client, RIG_ENTRIES, 1, 1);
}

static void close_engine(void)
{
	dry_detach(&dry, &client);
	dry_close(&dry);
}

static void submit_of(struct rig_client *of, uint32_t index, uint32_t n_prompt)
{
	requests[index] = rig_ask(of, index, 0, prompt, n_prompt, N_TOKENS, MIMEO_GENERATE_IGNORE_EOS);
	results[index] = (struct rig_result){0};
	rig_submit(of, requests[index]);
}

static void submit_all(uint32_t n, uint32_t n_prompt)
{
	rig_nonsense(prompt, n_prompt, 1);
	for (uint32_t i = 0; i < n; i++)
		submit_of(&client, i, n_prompt);
}

static void check_answer(struct rig_client *of, uint32_t index, uint32_t n_prompt)
{
	rig_poll(of, results);
	assert_true(results[index].done);
	assert_int_equal(results[index].status, 0);
	assert_int_equal(results[index].n_generated, N_TOKENS);
	dry_follow(dry_hash(DRY_SEED, prompt, n_prompt), rig_tokens(of, &requests[index]), N_TOKENS);
}

static const struct rig_options sharing = {.prefix_sharing = ENGINE_PREFIX_USER};

/* ---- */

static void test_samples_of_one_prompt_compute_it_once(void **state)
{
	static const uint32_t lengths[] = {17, 64, 70, LONG};

	for (uint32_t i = 0; i < 4; i++) {
		const uint32_t n = lengths[i], shared = (n - 1) / 16 * 16;

		open_engine(&sharing);
		submit_all(N, n);
		dry_settle(&dry);
		for (uint32_t k = 0; k < N; k++) {
			check_answer(&client, k, n);
			assert_int_equal(results[k].n_cached, k ? shared : 0);
		}
		assert_int_equal(n_computed, n + (N - 1) * (n - shared));
		close_engine();
	}
}

/* Others start as soon as it is launched, before a step has ended. */
static void test_samples_go_on_behind_the_launch_of_their_prompt(void **state)
{
	open_engine(&sharing);
	submit_all(N, 64);
	dry_turns(&dry);
	assert_int_equal(dry.rig.runner->launched, 2);
	assert_int_equal(dry.rig.runner->completed, 0);
	assert_int_equal(dry.rig.runner->slots.n_running, N);
	dry_settle(&dry);
	close_engine();
}

/* More than there are slots: the others find it in the cache. */
static void test_more_samples_than_slots_compute_it_once(void **state)
{
	struct rig_options options = sharing;

	options.max_requests = 4;
	open_engine(&options);
	submit_all(20, LONG);
	dry_settle(&dry);
	for (uint32_t k = 0; k < 20; k++)
		check_answer(&client, k, LONG);
	assert_int_equal(n_computed, LONG + 19 * (LONG - WHOLE));
	close_engine();
}

static void test_a_prompt_of_less_than_a_page_is_not_waited_for(void **state)
{
	open_engine(&sharing);
	submit_all(N, 16);
	dry_turns(&dry);
	assert_int_equal(dry.rig.runner->slots.n_running, N);
	dry_settle(&dry);
	close_engine();
}

static void test_what_is_not_shared_is_not_waited_for(void **state)
{
	static const enum engine_prefix_sharing modes[] = {
		ENGINE_PREFIX_NONE, ENGINE_PREFIX_USER, ENGINE_PREFIX_ALL};

	for (int i = 0; i < 3; i++) {
		struct rig_client other;

		open_engine(&(struct rig_options){.prefix_sharing = modes[i]});
		dry_attach(&dry, &other, RIG_ENTRIES, 2, 1);
		rig_nonsense(prompt, LONG, 1);
		submit_of(&client, 0, LONG);
		dry_turns(&dry);
		submit_of(&other, 1, LONG);
		dry_turns(&dry);
		assert_int_equal(dry.rig.runner->slots.n_running, modes[i] == ENGINE_PREFIX_ALL ? 1 : 2);
		dry_settle(&dry);
		check_answer(&client, 0, LONG);
		check_answer(&other, 1, LONG);
		dry_detach(&dry, &other);
		close_engine();
	}
}

/* The second page is the same, the first one is not, and is in the cache. */
static void test_a_page_behind_another_beginning_is_not_waited_for(void **state)
{
	open_engine(&sharing);
	rig_nonsense(prompt, LONG, 1);
	submit_of(&client, 0, 17);
	dry_settle(&dry);
	prompt[3]++;
	submit_of(&client, 1, LONG);
	prompt[3]--;
	submit_of(&client, 2, LONG);
	dry_turns(&dry);
	assert_int_equal(dry.rig.runner->slots.n_running, 2);
	dry_settle(&dry);
	check_answer(&client, 2, LONG);
	assert_int_equal(results[2].n_cached, 16);
	close_engine();
}

/* They begin alike; what comes behind is everyone's own. */
static void test_prompts_that_differ_wait_for_what_they_share(void **state)
{
	open_engine(&sharing);
	rig_nonsense(prompt, LONG, 1);
	submit_of(&client, 0, LONG);
	prompt[200]++;
	submit_of(&client, 1, LONG);
	prompt[3]++;
	submit_of(&client, 2, LONG);
	dry_turns(&dry);
	assert_int_equal(dry.rig.runner->slots.n_running, 2);
	dry_settle(&dry);
	check_answer(&client, 2, LONG);
	prompt[3]--;
	check_answer(&client, 1, LONG);
	assert_int_equal(results[1].n_cached, 192);
	assert_int_equal(n_computed, LONG + LONG - 192 + LONG);
	prompt[200]--;
	check_answer(&client, 0, LONG);
	close_engine();
}

/* ---- the one that computes it ends ---- */

static void end_leader(bool cancel)
{
	/* A step has 64 tokens: after two, which may be one more than have ended, it is cancelled. */
	open_engine(&sharing);
	submit_all(N, LONG);
	dry_steps(&dry, 1);
	assert_int_equal(dry.rig.runner->slots.n_running, 1);
	if (cancel)
		rig_cancel(&client, N, &requests[0]);
	else
		dry_now_ns += UINT64_C(2000000000);
	dry_settle(&dry);
	rig_poll(&client, results);
	assert_int_equal(results[0].status, cancel ? MIMEO_E_CANCELLED : 0);
	for (uint32_t k = 1; k < N; k++)
		check_answer(&client, k, LONG);
	/* What was launched for it was not in vain: the next one goes on from there. */
	assert_int_equal(n_computed, LONG + (N - 1 - cancel) * (LONG - WHOLE));
	close_engine();
}

static void test_a_request_that_ends_hands_on_what_it_computed(void **state)
{
	end_leader(true);
	end_leader(false);
}

static void test_a_waiting_request_ends_by_cancel_and_deadline(void **state)
{
	struct msg_generate late = rig_greedy(LONG, N_TOKENS);

	open_engine(&sharing);
	submit_all(2, LONG);
	late.deadline_ms = 5;
	rig_submit(&client, rig_generate(&client, 2, prompt, LONG, &late));
	dry_steps(&dry, 1);
	assert_int_equal(dry.rig.runner->slots.n_running, 1);
	rig_cancel(&client, 3, &requests[1]);
	dry_now_ns += UINT64_C(10000000);
	dry_turns(&dry);
	rig_poll(&client, results);
	assert_int_equal(results[1].status, MIMEO_E_CANCELLED);
	assert_int_equal(results[2].status, MIMEO_E_DEADLINE);
	assert_false(results[0].done);
	dry_settle(&dry);
	check_answer(&client, 0, LONG);
	close_engine();
}

static void test_a_session_that_ends_leaves_no_one_waiting(void **state)
{
	struct rig_client other;

	open_engine(&(struct rig_options){.prefix_sharing = ENGINE_PREFIX_ALL});
	dry_attach(&dry, &other, RIG_ENTRIES, 2, 1);
	rig_nonsense(prompt, LONG, 1);
	submit_of(&other, 0, LONG);
	dry_steps(&dry, 1);
	submit_of(&client, 1, LONG);
	dry_turns(&dry);
	assert_int_equal(client.port->n_waiting, 1);
	dry_detach(&dry, &other);
	dry_settle(&dry);
	check_answer(&client, 1, LONG);
	close_engine();
}

/* Preempted every so many tokens, in few pages; whoever waits for it goes on. */
static void test_preempted_requests_leave_no_one_waiting(void **state)
{
	for (uint32_t every = 0; every <= 120; every += 40) {
		open_engine(&(struct rig_options){.prefix_sharing = ENGINE_PREFIX_USER, .kv_pages = 30,
			.preempt_every = every});
		submit_all(N, LONG);
		dry_settle(&dry);
		for (uint32_t k = 0; k < N; k++)
			check_answer(&client, k, LONG);
		close_engine();
	}
}

/* ---- bounds ---- */

static uint32_t n_waiting(void)
{
	return client.port->n_waiting;
}

/* Another user's prompts come first in every step: the running one gets too few of its tokens. */
static void test_no_one_waits_longer_than_a_number_of_steps(void **state)
{
	struct rig_client other;
	uint32_t n_steps = 0;

	open_engine(&(struct rig_options){.prefix_sharing = ENGINE_PREFIX_USER, .max_batch_tokens = 16,
		.max_requests = 8});
	dry_attach(&dry, &other, RIG_ENTRIES, 2, 64);
	rig_nonsense(prompt, 512, 1);
	submit_of(&client, 0, LONG);
	submit_of(&client, 1, LONG);
	/* Its share is charged for more than the other user can use up. */
	dry.engine->accounting.users[0].counter = UINT64_MAX / 2;
	for (uint32_t i = 2; i < 6; i++) {
		prompt[0] = 100 + (int32_t)i;
		requests[i] = rig_ask(&other, i, 0, prompt, 500, 2, MIMEO_GENERATE_IGNORE_EOS);
		rig_submit(&other, requests[i]);
	}
	prompt[0] = 1;
	dry_turns(&dry);
	assert_int_equal(n_waiting(), 1);
	while (n_waiting() && n_steps < 200) {
		dry_steps(&dry, 1);
		n_steps++;
	}
	for (uint32_t i = 0; i < dry.rig.runner->slots.n_running; i++) {
		const struct sequence *s = dry.rig.runner->slots.running[i];

		if (s->session->port == client.port)
			assert_in_range(s->n_computed, 0, 288 - 1);
	}
	/* 4 steps, and 4 times the 288 tokens at 16 a step, of which two are launched ahead. No prompt of the other
	 * user, of 500 tokens, ends there. */
	assert_in_range(n_steps, 4 + 4 * 288 / 16 - 2, 4 + 4 * 288 / 16 + 1);
	dry_settle(&dry);
	check_answer(&client, 0, LONG);
	check_answer(&client, 1, LONG);
	dry_detach(&dry, &other);
	close_engine();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_samples_of_one_prompt_compute_it_once),
		cmocka_unit_test(test_samples_go_on_behind_the_launch_of_their_prompt),
		cmocka_unit_test(test_more_samples_than_slots_compute_it_once),
		cmocka_unit_test(test_a_prompt_of_less_than_a_page_is_not_waited_for),
		cmocka_unit_test(test_what_is_not_shared_is_not_waited_for),
		cmocka_unit_test(test_a_page_behind_another_beginning_is_not_waited_for),
		cmocka_unit_test(test_prompts_that_differ_wait_for_what_they_share),
		cmocka_unit_test(test_a_request_that_ends_hands_on_what_it_computed),
		cmocka_unit_test(test_a_waiting_request_ends_by_cancel_and_deadline),
		cmocka_unit_test(test_a_session_that_ends_leaves_no_one_waiting),
		cmocka_unit_test(test_preempted_requests_leave_no_one_waiting),
		cmocka_unit_test(test_no_one_waits_longer_than_a_number_of_steps),
	};

	return cmocka_run_group_tests_name("engine: samples of one prompt", tests, NULL, NULL);
}
