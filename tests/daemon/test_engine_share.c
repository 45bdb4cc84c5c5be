/* SPDX-License-Identifier: MIT */
/*
 * The fair share as requests see it: who gets slots, pages and the step's tokens when several users have more
 * to do than there is room for. On an engine that computes nothing (dry.h), so that each claim is about counts.
 */
#include "tests/daemon/dry.h"

#define USERS 4u

/* A user of one session, who has so many requests in flight all the time. */
struct user {
	struct rig_client client;
	uint32_t n_wanted, n_prompt, n_tokens;
	struct rig_result results[RIG_ENTRIES];
	bool used[RIG_ENTRIES];
	int32_t prompts[RIG_ENTRIES];
	struct rig_request requests[RIG_ENTRIES];
	uint64_t n_ended;
	/* Tokens computed, those that were computed before left out: orders and ends by request index. */
	uint64_t n_computed, orders[RIG_ENTRIES];
	uint32_t ends[RIG_ENTRIES];
};

static struct dry dry;
static struct user users[USERS];

static void count_row(struct dry *in, const struct sequence *sequence, const struct step_row *row)
{
	struct user *user = &users[sequence->session->port->uid];
	const struct request *request = sequence->request;
	const uint32_t end = row->start + row->n_tokens;

	/* A client of a test's own: nobody asks for its counts. */
	if (request->index >= RIG_ENTRIES)
		return;
	if (user->orders[request->index] != request->order)
		user->ends[request->index] = row->start;
	user->orders[request->index] = request->order;
	if (end <= user->ends[request->index])
		return;
	user->n_computed += end - user->ends[request->index];
	user->ends[request->index] = end;
}

static void open_engine(const struct rig_options *options)
{
	memset(users, 0, sizeof(users));
	dry_open(&dry, options);
	dry.on_row = count_row;
}

static void attach(uint32_t uid, uint32_t weight)
{
	dry_attach(&dry, &users[uid].client, RIG_ENTRIES, uid, weight);
}

static void close_engine(void)
{
	for (uint32_t i = 0; i < USERS; i++) {
		if (users[i].client.port)
			dry_detach(&dry, &users[i].client);
	}
	dry_close(&dry);
}

static void submit(struct user *user, uint32_t index)
{
	static uint32_t seed;
	int32_t prompt[512];

	rig_nonsense(prompt, user->n_prompt, 0);
	user->prompts[index] = prompt[0] = 3 + (int32_t)(seed++ % 250);
	user->results[index] = (struct rig_result){0};
	user->used[index] = true;
	user->requests[index] = rig_ask(&user->client, index, 0, prompt, user->n_prompt, user->n_tokens,
		MIMEO_GENERATE_IGNORE_EOS);
	rig_submit(&user->client, user->requests[index]);
}

/* The answer is right; preemption does not change it. */
static void check_answer(struct user *user, uint32_t index)
{
	int32_t prompt[512];

	assert_int_equal(user->results[index].status, 0);
	assert_int_equal(user->results[index].n_generated, user->n_tokens);
	rig_nonsense(prompt, user->n_prompt, 0);
	prompt[0] = user->prompts[index];
	dry_follow(dry_hash(DRY_SEED, prompt, user->n_prompt), rig_tokens(&user->client, &user->requests[index]),
		user->n_tokens);
}

/* Answers are taken, and requests follow them. */
static void go_on(struct user *user)
{
	if (!user->client.port)
		return;
	rig_poll(&user->client, user->results);
	for (uint32_t i = 0; i < RIG_ENTRIES; i++) {
		if (user->used[i] && user->results[i].done) {
			check_answer(user, i);
			user->used[i] = false;
			user->n_ended++;
		}
		if (!user->used[i] && i < user->n_wanted)
			submit(user, i);
	}
}

static void steps(uint32_t n)
{
	while (n--) {
		for (uint32_t i = 0; i < USERS; i++)
			go_on(&users[i]);
		dry_steps(&dry, 1);
	}
}

static void want(uint32_t uid, uint32_t n, uint32_t n_prompt, uint32_t n_tokens)
{
	users[uid].n_wanted = n;
	users[uid].n_prompt = n_prompt;
	users[uid].n_tokens = n_tokens;
}

/* Requests of the user that run; pages that these have. */
static uint32_t held(uint32_t uid, bool pages)
{
	const struct slots *slots = &dry.rig.runner->slots;
	uint32_t n = 0;

	for (uint32_t i = 0; i < slots->n_running; i++) {
		const struct sequence *s = slots->running[i];

		if (s->session->port->uid == uid)
			n += pages ? s->table.n_pages : 1;
	}
	return n;
}

static uint64_t counter_of(uint32_t uid)
{
	const struct engine_session *session = users[uid].client.port->engine_private;

	return session->share.user->counter;
}

/* ---- slots and pages ---- */

/* Each row of the step may end before the next one begins: its slot goes to others. */
static void test_step_with_a_row_for_every_slot_keeps_no_other_out_longer_than_a_row(void **state)
{
	enum { ROWS = 8, LONG = 100, STEP_TOKENS = 10 };
	static int32_t tokens[ROWS * LONG];
	struct msg_step msg = {.n_rows = ROWS, .outputs = MIMEO_STEP_TOKENS};
	struct msg_row rows[ROWS];
	struct rig_request step;

	open_engine(&(struct rig_options){.max_requests = ROWS, .max_batch_tokens = STEP_TOKENS});
	attach(0, 1);
	attach(1, 1);
	for (uint32_t i = 0; i < ROWS; i++) {
		rows[i] = (struct msg_row){i + 1, LONG};
		rig_submit(&users[0].client, rig_call(&users[0].client, i, RING_OP_OPEN, i + 1, 0));
	}
	dry_settle(&dry);
	rig_nonsense(tokens, ROWS * LONG, 0);
	rig_poll(&users[0].client, users[0].results);
	users[0].results[20] = (struct rig_result){0};
	step = rig_step(&users[0].client, 20, &msg, rows, tokens);
	rig_submit(&users[0].client, step);
	dry_steps(&dry, 3);
	assert_int_equal(held(0, false), ROWS);
	want(1, 1, 20, 5);
	steps(LONG / STEP_TOKENS + 12);
	assert_true(users[1].n_ended > 0);
	want(1, 0, 20, 5);
	dry_settle(&dry);
	rig_poll(&users[0].client, users[0].results);
	assert_int_equal(users[0].results[20].status, 0);
	assert_int_equal(users[0].results[20].n_sequence, LONG);
	for (uint32_t i = 0; i < ROWS; i++)
		assert_int_equal(rig_tokens(&users[0].client, &step)[i],
			dry_sample(dry_hash(DRY_SEED, tokens + i * LONG, LONG)));
	close_engine();
}

static void test_wide_step_beside_requests_of_others_takes_its_part_of_the_slots(void **state)
{
	enum { ROWS = 8 };
	struct msg_step msg = {.n_rows = ROWS, .outputs = MIMEO_STEP_TOKENS};
	struct msg_row rows[ROWS];
	int32_t tokens[ROWS * 50];
	uint32_t most = 0;

	open_engine(&(struct rig_options){.max_requests = ROWS, .max_batch_tokens = 64});
	attach(0, 1);
	attach(1, 1);
	for (uint32_t i = 0; i < ROWS; i++) {
		rows[i] = (struct msg_row){i + 1, 50};
		rig_submit(&users[0].client, rig_call(&users[0].client, i, RING_OP_OPEN, i + 1, 0));
	}
	want(1, 20, 20, 40);
	steps(20);
	assert_int_equal(held(1, false), ROWS);
	rig_nonsense(tokens, ROWS * 50, 0);
	rig_poll(&users[0].client, users[0].results);
	users[0].results[20] = (struct rig_result){0};
	rig_submit(&users[0].client, rig_step(&users[0].client, 20, &msg, rows, tokens));
	for (uint32_t i = 0; i < 60; i++) {
		dry_steps(&dry, 1);
		go_on(&users[1]);
		most = held(0, false) > most ? held(0, false) : most;
	}
	assert_in_range(most, 1, ROWS / 2);
	rig_poll(&users[0].client, users[0].results);
	assert_true(users[0].results[20].done);
	close_engine();
}

static void test_user_with_requests_in_every_slot_keeps_no_other_out(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 4});
	attach(0, 1);
	attach(1, 1);
	want(0, 20, 20, 400);
	steps(30);
	assert_int_equal(held(0, false), 4);
	want(1, 1, 20, 5);
	/* A slot has to come back from two launched steps; then a chunk, and five tokens. */
	steps(12);
	assert_true(users[1].n_ended > 0);
	assert_int_equal(users[0].n_ended, 0);
	assert_true(dry.rig.runner->n_preempted > 0);
	close_engine();
}

static void test_user_with_all_pages_keeps_no_other_out(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 8, .kv_pages = 60});
	attach(0, 1);
	attach(1, 1);
	want(0, 20, 100, 400);
	steps(150);
	assert_true(kv_pages_free(dry.rig.runner->kv) < 5);
	assert_true(held(0, false) < 8);
	/* Its prompt takes five steps; the oldest of the other's requests may have it preempted once. */
	want(1, 1, 200, 5);
	steps(30);
	assert_true(users[1].n_ended > 0);
	close_engine();
}

static void test_old_request_that_grows_takes_no_pages_of_a_user_below_his_part(void **state)
{
	uint64_t before;

	open_engine(&(struct rig_options){.max_requests = 8, .kv_pages = 60});
	attach(0, 1);
	attach(1, 1);
	want(0, 20, 100, 400);
	steps(150);
	want(1, 2, 200, 100);
	steps(30);
	/* They take pages of their own user's younger ones: 7 end. With those of whoever is the youngest, 4. */
	before = dry.rig.runner->n_preempted;
	steps(600);
	if (users[1].n_ended < 6)
		fail_msg("%lu ended, %lu preempted", (unsigned long)users[1].n_ended,
			(unsigned long)(dry.rig.runner->n_preempted - before));
	close_engine();
}

static void test_oldest_request_ends_beside_a_flood_of_small_ones(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 8, .kv_pages = 32});
	attach(0, 1);
	attach(1, 1);
	/* In the end it has 31 pages, which is far more than its user's part. */
	want(0, 1, 90, 400);
	steps(10);
	want(1, 40, 30, 20);
	steps(600);
	assert_true(users[0].n_ended > 0);
	assert_true(users[1].n_ended > 20);
	close_engine();
}

static void test_slots_are_divided_by_weight(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 8, .max_seq_len = 1024});
	attach(0, 1);
	attach(1, 3);
	want(0, 20, 10, 450);
	steps(20);
	assert_int_equal(held(0, false), 8);
	want(1, 20, 10, 450);
	steps(20);
	assert_int_equal(held(0, false), 2);
	assert_int_equal(held(1, false), 6);
	/* Nobody who is entitled to them is preempted. */
	steps(200);
	assert_int_equal(dry.rig.runner->n_preempted, 6);
	close_engine();
}

static void test_sessions_of_a_user_divide_his_part(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 8, .max_seq_len = 1024});
	attach(0, 1);
	attach(1, 1);
	dry_attach(&dry, &users[2].client, RIG_ENTRIES, 0, 1);
	want(0, 20, 10, 450);
	want(2, 20, 10, 450);
	steps(20);
	assert_int_equal(held(0, false), 8);
	want(1, 20, 10, 450);
	steps(20);
	assert_int_equal(held(1, false), 4);
	assert_int_equal(held(0, false), 4);
	close_engine();
}

/* ---- tokens ---- */

/* The tokens of user 1 are three times those of user 0, in so many steps. */
static void assert_one_to_three(uint32_t n_steps)
{
	uint64_t before[2];
	double part;

	steps(500);
	before[0] = users[0].n_computed;
	before[1] = users[1].n_computed;
	steps(n_steps);
	part = (double)(users[1].n_computed - before[1]) / (double)(users[0].n_computed - before[0]);
	if (part < 3 * 0.95 || part > 3 * 1.05)
		fail_msg("tokens of weight 3 to those of weight 1: %.3f", part);
}

static void test_tokens_follow_the_weights_though_one_floods_with_long_prompts(void **state)
{
	/* Either could fill the steps alone: tokens are what they share. */
	open_engine(&(struct rig_options){.max_requests = 8, .max_batch_tokens = 16, .kv_pages = 400});
	attach(0, 1);
	attach(1, 3);
	want(0, 40, 400, 10);
	want(1, 40, 100, 10);
	assert_one_to_three(8000);
	close_engine();
}

static void test_tokens_follow_the_weights_where_slots_are_short(void **state)
{
	/* A slot of user 0 takes seven times as many tokens as one of user 1. */
	open_engine(&(struct rig_options){.max_requests = 16, .max_batch_tokens = 512, .kv_pages = 400});
	attach(0, 1);
	attach(1, 3);
	want(0, 40, 250, 40);
	want(1, 40, 10, 60);
	assert_one_to_three(8000);
	close_engine();
}

/* User 0 gets half of what n steps carry, after those that pass first. */
static void assert_half(uint32_t n_first, uint32_t n)
{
	uint64_t before;

	steps(n_first);
	before = users[0].n_computed;
	steps(n);
	assert_in_range(users[0].n_computed - before, n * 16 / 2 * 0.9, n * 16 / 2 * 1.1);
}

static void test_absent_user_has_saved_nothing_up(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 6, .max_batch_tokens = 16});
	attach(0, 1);
	attach(1, 1);
	want(0, 20, 100, 5);
	steps(2000);
	want(1, 20, 100, 5);
	assert_half(50, 500);
	close_engine();
}

static void test_user_who_worked_alone_owes_nothing_after_a_pause(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 6, .max_batch_tokens = 16});
	attach(0, 1);
	attach(1, 1);
	want(0, 20, 100, 5);
	steps(2000);
	want(0, 0, 100, 5);
	while (users[0].client.port->n_in_flight)
		steps(1);
	/* Nobody has requests; then one who had none, and the first again. */
	want(1, 20, 100, 5);
	steps(2);
	want(0, 20, 100, 5);
	assert_half(100, 500);
	close_engine();
}

/* A request or two that run all the time do not save a share up either. */
static void test_user_of_one_slow_request_has_saved_little_up(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 6, .max_batch_tokens = 16, .max_seq_len = 4096,
		.kv_pages = 400});
	attach(0, 1);
	attach(1, 1);
	want(1, 1, 10, 3000);
	want(0, 20, 100, 5);
	steps(2000);
	want(1, 20, 100, 5);
	assert_half(200, 500);
	users[1].n_wanted = 0;
	close_engine();
}

static void test_user_pays_once_for_tokens_that_are_computed_twice(void **state)
{
	uint64_t n = 0;

	open_engine(&(struct rig_options){.max_requests = 4, .kv_pages = 40, .max_seq_len = 512});
	attach(0, 1);
	want(0, 6, 30, 300);
	for (uint32_t i = 0; i < users[0].n_wanted; i++)
		submit(&users[0], i);
	dry_settle(&dry);
	users[0].n_wanted = 0;
	go_on(&users[0]);
	assert_int_equal(users[0].n_ended, 6);
	assert_true(dry.rig.runner->n_preempted > 0);
	n = counter_of(0) / SHARE_UNIT;
	/* The last token of each is not computed, and the last one before a preemption comes with those that
	 * are computed once more. */
	assert_in_range(n, 6 * (30 + 299) - dry.rig.runner->n_preempted, 6 * (30 + 299));
	close_engine();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_step_with_a_row_for_every_slot_keeps_no_other_out_longer_than_a_row),
		cmocka_unit_test(test_wide_step_beside_requests_of_others_takes_its_part_of_the_slots),
		cmocka_unit_test(test_user_with_requests_in_every_slot_keeps_no_other_out),
		cmocka_unit_test(test_user_with_all_pages_keeps_no_other_out),
		cmocka_unit_test(test_old_request_that_grows_takes_no_pages_of_a_user_below_his_part),
		cmocka_unit_test(test_oldest_request_ends_beside_a_flood_of_small_ones),
		cmocka_unit_test(test_slots_are_divided_by_weight),
		cmocka_unit_test(test_sessions_of_a_user_divide_his_part),
		cmocka_unit_test(test_tokens_follow_the_weights_though_one_floods_with_long_prompts),
		cmocka_unit_test(test_tokens_follow_the_weights_where_slots_are_short),
		cmocka_unit_test(test_absent_user_has_saved_nothing_up),
		cmocka_unit_test(test_user_who_worked_alone_owes_nothing_after_a_pause),
		cmocka_unit_test(test_user_of_one_slow_request_has_saved_little_up),
		cmocka_unit_test(test_user_pays_once_for_tokens_that_are_computed_twice),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
