/* SPDX-License-Identifier: MIT */
/* Classes of requests: who starts first, whose prompt is computed first, and who is preempted, on an engine that
 * computes nothing (dry.h). */
#include "tests/daemon/dry.h"

#include "daemon/engine/requests/class.h"

#define USERS 2u

static struct dry dry;
static struct rig_client clients[USERS];
static struct rig_result results[USERS][RIG_ENTRIES];
static struct rig_request requests[USERS][RIG_ENTRIES];
static uint32_t n_prompts[USERS][RIG_ENTRIES];
/* Prompt tokens in the order in which steps computed them: whose request they belong to. */
static struct {
	uint32_t uid, index;
} first_rows[256];
static uint32_t n_first_rows;

static void note_row(struct dry *in, const struct sequence *sequence, const struct step_row *row)
{
	if (row->start || n_first_rows == 256)
		return;
	first_rows[n_first_rows].uid = sequence->session->port->uid;
	first_rows[n_first_rows++].index = sequence->request->index;
}

static void open_engine(const struct rig_options *options)
{
	memset(results, 0, sizeof(results));
	n_first_rows = 0;
	dry_open(&dry, options);
	dry.on_row = note_row;
	for (uint32_t i = 0; i < USERS; i++)
		dry_attach(&dry, &clients[i], RIG_ENTRIES, i, 1);
}

static void close_engine(void)
{
	for (uint32_t i = 0; i < USERS; i++)
		dry_detach(&dry, &clients[i]);
	dry_close(&dry);
}

static void ask(uint32_t uid, uint32_t index, uint32_t request_class, uint32_t n_prompt, uint32_t n_tokens)
{
	int32_t prompt[512];
	struct msg_generate msg = rig_greedy(n_prompt, n_tokens);

	rig_nonsense(prompt, n_prompt, 64 * uid + index);
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.request_class = request_class;
	n_prompts[uid][index] = n_prompt;
	requests[uid][index] = rig_generate(&clients[uid], index, prompt, n_prompt, &msg);
	rig_submit(&clients[uid], requests[uid][index]);
}

static void steps(uint32_t n)
{
	dry_steps(&dry, n);
	for (uint32_t i = 0; i < USERS; i++)
		rig_poll(&clients[i], results[i]);
}

static uint32_t n_running(uint32_t uid, uint32_t request_class)
{
	const struct slots *slots = &dry.rig.runner->slots;
	uint32_t n = 0;

	for (uint32_t i = 0; i < slots->n_running; i++) {
		const struct request *request = slots->running[i]->request;

		n += request->session->port->uid == uid && request->class == request_class;
	}
	return n;
}

static const struct request *request_of(uint32_t uid, uint32_t index)
{
	const struct engine_session *session = clients[uid].port->engine_private;

	return &session->requests[index];
}

static uint32_t n_done(uint32_t uid)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < RIG_ENTRIES; i++)
		n += results[uid][i].done;
	return n;
}

static void assert_right(uint32_t uid, uint32_t index)
{
	int32_t prompt[512];

	assert_true(results[uid][index].done);
	assert_int_equal(results[uid][index].status, 0);
	rig_nonsense(prompt, n_prompts[uid][index], 64 * uid + index);
	dry_follow(dry_hash(DRY_SEED, prompt, n_prompts[uid][index]),
		rig_tokens(&clients[uid], &requests[uid][index]), results[uid][index].n_generated);
}

/* ---- within a user's share ---- */

static void test_interactive_request_starts_before_earlier_ones_of_its_session(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 1});
	for (uint32_t i = 0; i < 4; i++)
		ask(0, i, MIMEO_CLASS_NORMAL, 5, 3);
	ask(0, 4, MIMEO_CLASS_INTERACTIVE, 5, 3);
	steps(40);
	assert_int_equal(n_done(0), 5);
	assert_int_equal(first_rows[0].index, 4);
	close_engine();
}

static void test_interactive_request_waits_for_an_earlier_one_on_its_sequence(void **state)
{
	struct msg_generate msg = rig_greedy(4, 3);
	int32_t tokens[4];

	open_engine(&(struct rig_options){.max_requests = 4});
	rig_submit(&clients[0], rig_call(&clients[0], 10, RING_OP_OPEN, 1, 0));
	rig_nonsense(tokens, 4, 0);
	msg.sequence = 1;
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.request_class = MIMEO_CLASS_BATCH;
	rig_submit(&clients[0], rig_generate(&clients[0], 0, tokens, 4, &msg));
	msg.request_class = MIMEO_CLASS_INTERACTIVE;
	rig_submit(&clients[0], rig_generate(&clients[0], 1, tokens, 4, &msg));
	steps(40);
	assert_int_equal(results[0][0].status, 0);
	assert_int_equal(results[0][0].n_sequence, 7);
	assert_int_equal(results[0][1].n_sequence, 14);
	close_engine();
}

static void test_interactive_requests_take_no_more_than_their_users_share(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 8});
	for (uint32_t i = 0; i < 16; i++) {
		ask(0, i, MIMEO_CLASS_INTERACTIVE, 20, 400);
		ask(1, i, MIMEO_CLASS_NORMAL, 20, 400);
	}
	steps(100);
	assert_int_equal(n_running(0, MIMEO_CLASS_INTERACTIVE), 4);
	assert_int_equal(n_running(1, MIMEO_CLASS_NORMAL), 4);
	close_engine();
}

static void test_interactive_request_takes_a_slot_of_its_users_normal_ones(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 4});
	for (uint32_t i = 0; i < 4; i++)
		ask(0, i, MIMEO_CLASS_NORMAL, 20, 300);
	steps(20);
	ask(0, 10, MIMEO_CLASS_INTERACTIVE, 20, 5);
	ask(0, 11, MIMEO_CLASS_NORMAL, 20, 5);
	steps(15);
	assert_right(0, 10);
	assert_int_equal(n_done(0), 1);
	/* The youngest of those that ran. */
	assert_true(request_of(0, 3)->preempted);
	close_engine();
}

static void test_interactive_requests_are_preempted_after_others_of_their_session(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 4});
	ask(0, 0, MIMEO_CLASS_NORMAL, 20, 300);
	ask(0, 1, MIMEO_CLASS_NORMAL, 20, 300);
	ask(0, 2, MIMEO_CLASS_INTERACTIVE, 20, 300);
	ask(0, 3, MIMEO_CLASS_INTERACTIVE, 20, 300);
	steps(20);
	ask(1, 0, MIMEO_CLASS_NORMAL, 20, 5);
	steps(15);
	assert_right(1, 0);
	assert_false(request_of(0, 2)->preempted);
	assert_false(request_of(0, 3)->preempted);
	assert_true(request_of(0, 1)->preempted);
	close_engine();
}

/* ---- batch ---- */

static void test_batch_requests_use_slots_that_nobody_else_wants(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 8});
	for (uint32_t i = 0; i < 16; i++)
		ask(0, i, MIMEO_CLASS_BATCH, 20, 30);
	steps(20);
	assert_int_equal(n_running(0, MIMEO_CLASS_BATCH), 8);
	steps(200);
	assert_int_equal(n_done(0), 16);
	close_engine();
}

static void test_batch_requests_give_their_slots_to_others_and_end_later(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 8});
	for (uint32_t i = 0; i < 8; i++)
		ask(0, i, MIMEO_CLASS_BATCH, 20, 60);
	steps(20);
	assert_int_equal(n_running(0, MIMEO_CLASS_BATCH), 8);
	for (uint32_t i = 0; i < 8; i++)
		ask(1, i, MIMEO_CLASS_NORMAL, 20, 60);
	/* Slots return from two launched steps, for one request after the other. */
	steps(20);
	assert_int_equal(n_running(1, MIMEO_CLASS_NORMAL), 7);
	assert_int_equal(n_running(0, MIMEO_CLASS_BATCH), 1);
	steps(400);
	for (uint32_t i = 0; i < 8; i++) {
		assert_right(0, i);
		assert_right(1, i);
	}
	close_engine();
}

static void test_batch_requests_give_way_to_their_own_users_others(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 4});
	for (uint32_t i = 0; i < 4; i++)
		ask(0, i, MIMEO_CLASS_BATCH, 20, 200);
	steps(20);
	ask(0, 10, MIMEO_CLASS_NORMAL, 20, 5);
	steps(15);
	assert_right(0, 10);
	assert_int_equal(n_done(0), 1);
	close_engine();
}

static void test_batch_keeps_one_slot_of_sixteen_among_others_that_want_all(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 32});
	for (uint32_t i = 0; i < RIG_ENTRIES; i++) {
		ask(0, i, MIMEO_CLASS_BATCH, 20, 200);
		ask(1, i, MIMEO_CLASS_NORMAL, 20, 200);
	}
	for (uint32_t i = 0; i < 10; i++) {
		steps(15);
		assert_int_equal(n_running(0, MIMEO_CLASS_BATCH), 2);
	}
	/* None started to be preempted. */
	assert_int_equal(dry.rig.runner->n_preempted, 0);
	close_engine();
}

static void test_batch_requests_give_their_pages_to_others(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 8, .kv_pages = 60});
	for (uint32_t i = 0; i < 8; i++)
		ask(0, i, MIMEO_CLASS_BATCH, 100, 300);
	steps(150);
	assert_true(n_running(0, MIMEO_CLASS_BATCH) > 1);
	for (uint32_t i = 0; i < 4; i++)
		ask(1, i, MIMEO_CLASS_NORMAL, 100, 100);
	steps(40);
	assert_int_equal(n_running(1, MIMEO_CLASS_NORMAL), 4);
	steps(3000);
	for (uint32_t i = 0; i < 8; i++)
		assert_right(0, i);
	for (uint32_t i = 0; i < 4; i++)
		assert_right(1, i);
	close_engine();
}

/* Requests of the user that were preempted since the last look. */
static uint32_t newly_preempted(uint32_t uid, bool before[RIG_ENTRIES])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < RIG_ENTRIES; i++) {
		const bool now = request_of(uid, i)->state != REQUEST_FREE && request_of(uid, i)->preempted;

		n += now && !before[i];
		before[i] = now;
	}
	return n;
}

static void test_decodes_take_pages_of_spare_batch_requests_first(void **state)
{
	bool before[USERS][RIG_ENTRIES] = {0};
	uint32_t n_batch, n_normal = 0, n_all = 0;

	open_engine(&(struct rig_options){.max_requests = 8, .kv_pages = 40});
	for (uint32_t i = 0; i < 6; i++)
		ask(0, i, MIMEO_CLASS_BATCH, 20, 200);
	for (uint32_t i = 0; i < 3; i++)
		ask(1, i, MIMEO_CLASS_NORMAL, 20, 180);
	for (uint32_t round = 0; round < 400; round++) {
		n_batch = n_running(0, MIMEO_CLASS_BATCH);
		steps(1);
		n_batch -= newly_preempted(0, before[0]);
		n_normal = newly_preempted(1, before[1]);
		assert_false(n_normal && n_batch > 1);
		n_all += n_normal;
	}
	assert_true(dry.rig.runner->n_preempted > n_all);
	close_engine();
}

static void test_prompts_of_spare_batch_requests_come_last_in_a_step(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 32, .max_batch_tokens = 32});
	for (uint32_t i = 0; i < 8; i++)
		ask(0, i, MIMEO_CLASS_BATCH, 32, 5);
	for (uint32_t i = 0; i < 8; i++)
		ask(1, i, MIMEO_CLASS_NORMAL, 32, 5);
	steps(60);
	assert_true(n_first_rows >= 16);
	/* Two batch requests are no spare ones; and in one of 16 steps a spare one comes first. */
	for (uint32_t i = 0, n = 0; i < 10; i++) {
		n += first_rows[i].uid == 0;
		assert_true(n <= 3);
	}
	steps(200);
	assert_int_equal(n_done(0), 8);
	close_engine();
}

static void test_large_batch_request_that_is_passed_stops_no_others(void **state)
{
	uint32_t n_ended = 0;

	open_engine(&(struct rig_options){.max_requests = 8, .kv_pages = 40});
	ask(0, 0, MIMEO_CLASS_BATCH, 20, 300);
	for (uint32_t round = 0; round < 200; round++) {
		for (uint32_t i = 0; i < 4; i++) {
			n_ended += results[1][i].done;
			if (round && !results[1][i].done)
				continue;
			results[1][i] = (struct rig_result){0};
			ask(1, i, MIMEO_CLASS_NORMAL, 60 + 7 * i, 10 + 3 * i);
		}
		steps(1);
		/* It needs more pages than there are beside the others. */
		if (!round)
			ask(0, 1, MIMEO_CLASS_BATCH, 480, 20);
		assert_true(!round || n_running(1, MIMEO_CLASS_NORMAL) > 0);
	}
	/* With the head's rights it would stop them when it was passed 32 times. */
	assert_false(results[0][1].done);
	assert_true(n_ended > 36);
	steps(2000);
	assert_right(0, 0);
	assert_right(0, 1);
	close_engine();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_interactive_request_starts_before_earlier_ones_of_its_session),
		cmocka_unit_test(test_interactive_request_waits_for_an_earlier_one_on_its_sequence),
		cmocka_unit_test(test_interactive_requests_take_no_more_than_their_users_share),
		cmocka_unit_test(test_interactive_request_takes_a_slot_of_its_users_normal_ones),
		cmocka_unit_test(test_interactive_requests_are_preempted_after_others_of_their_session),
		cmocka_unit_test(test_batch_requests_use_slots_that_nobody_else_wants),
		cmocka_unit_test(test_batch_requests_give_their_slots_to_others_and_end_later),
		cmocka_unit_test(test_batch_requests_give_way_to_their_own_users_others),
		cmocka_unit_test(test_batch_keeps_one_slot_of_sixteen_among_others_that_want_all),
		cmocka_unit_test(test_batch_requests_give_their_pages_to_others),
		cmocka_unit_test(test_decodes_take_pages_of_spare_batch_requests_first),
		cmocka_unit_test(test_prompts_of_spare_batch_requests_come_last_in_a_step),
		cmocka_unit_test(test_large_batch_request_that_is_passed_stops_no_others),
	};

	return cmocka_run_group_tests_name("engine class", tests, NULL, NULL);
}
