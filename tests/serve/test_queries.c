/* SPDX-License-Identifier: MIT */
/* What operators ask that the engine's thread answers: requests, pages, limits. */
#include "harness.h"

#include <string.h>
#include <unistd.h>

#include <mimeo/types.h>

/* ---- requests ---- */

static double number_of(const struct answer *answer, size_t row, const char *key)
{
	const msgpack_object *cell = answer_cell(answer, row, key);

	assert_non_null(cell);
	assert_int_equal(cell->type, MSGPACK_OBJECT_FLOAT64);
	return cell->via.f64;
}

static void test_requests_lists_each_with_its_id_state_and_times(void **state)
{
	struct answer *answer = operator_ask(*state, "requests", NULL);

	assert_int_equal(answer->status, 0);
	assert_int_equal(answer->n_rows, 3);
	assert_int_equal(answer_count(answer, 0, "id", 0), 7);
	expect_text(answer, 0, "model", "tinycalc");
	expect_text(answer, 0, "state", "running");
	assert_int_equal(answer_count(answer, 0, "tokens", 0), 31);
	assert_true(number_of(answer, 0, "age_s") == 1.5);
	assert_true(number_of(answer, 0, "wait_s") == 0.002);
	assert_null(answer_cell(answer, 0, "deadline_s"));
	expect_text(answer, 1, "state", "preempted");
	expect_text(answer, 1, "class", "interactive");
	assert_true(number_of(answer, 1, "deadline_s") == 0.25);
	expect_text(answer, 2, "op", "open");
	expect_text(answer, 2, "model", "");
	assert_null(answer_cell(answer, 2, "age_s"));
	answer_free(answer);
}

static void test_cancel_reaches_the_request_of_that_id_alone(void **state)
{
	struct harness *harness = *state;

	assert_int_equal(operator_order(harness, (struct ask){.op = "cancel", .request = 7, .has_request = true},
		"request 7 of session 1 (chat, pid 100) is cancelled"), 0);
	assert_int_equal(operator_order(harness, (struct ask){.op = "cancel", .request = 8, .has_request = true},
		"no request 8 is in flight: mimeoctl requests lists those that are"), MIMEO_E_INVALID);
	assert_int_equal(operator_order(harness, (struct ask){.op = "cancel", .request = 9, .has_request = true},
		"request 9 is ending already"), MIMEO_E_INVALID);
	assert_int_equal(operator_order(harness, (struct ask){.op = "cancel"}, "cancel needs a request's id"),
		MIMEO_E_INVALID);
	assert_int_equal(fake_engine_n_cancelled(harness->engine), 1);
}

/* The engine may be busy: others are answered meanwhile, and one who does not wait is forgotten. */
static void test_operator_who_waits_for_the_engine_delays_no_other_and_may_leave(void **state)
{
	struct harness *harness = *state;
	int fd = operator_connect(harness);

	fake_engine_hold_queries(harness->engine, true);
	assert_int_equal(ask_send(fd, &(struct ask){.op = "requests"}), 0);
	await_count(harness, "status", "operators", 2);
	close(fd);
	await_count(harness, "status", "operators", 1);
	fake_engine_hold_queries(harness->engine, false);
	struct answer *answer = operator_ask(harness, "status", NULL);
	assert_int_equal(answer->status, 0);
	answer_free(answer);
}

static void test_operator_who_asks_twice_while_the_engine_is_asked_is_closed(void **state)
{
	struct harness *harness = *state;
	int fd = operator_connect(harness);

	fake_engine_hold_queries(harness->engine, true);
	assert_int_equal(ask_send(fd, &(struct ask){.op = "requests"}), 0);
	assert_int_equal(ask_send(fd, &(struct ask){.op = "status"}), 0);
	expect_closed(fd);
	fake_engine_hold_queries(harness->engine, false);
	close(fd);
}

/* ---- pages and limits ---- */

static void test_pages_are_counted_by_model_user_and_session(void **state)
{
	struct answer *answer = operator_ask(*state, "pages", NULL);

	assert_int_equal(answer->n_rows, 3);
	expect_text(answer, 0, "of", "model");
	assert_int_equal(answer_count(answer, 0, "free", 0), 80);
	assert_int_equal(answer_count(answer, 0, "unused", 0), 20);
	assert_int_equal(answer_count(answer, 0, "hits", 0), 12);
	assert_null(answer_cell(answer, 0, "uid"));
	expect_text(answer, 1, "of", "user");
	assert_int_equal(answer_count(answer, 1, "pinned", 0), 4);
	assert_null(answer_cell(answer, 1, "session"));
	assert_null(answer_cell(answer, 1, "free"));
	expect_text(answer, 2, "of", "session");
	expect_text(answer, 2, "client", "agents");
	assert_int_equal(answer_count(answer, 2, "session", 0), 2);
	answer_free(answer);
}

static void test_order_to_drop_pages_is_for_all_models_or_one_that_is_there(void **state)
{
	assert_int_equal(operator_order(*state, (struct ask){.op = "drop_pages"},
		"20 unused pages dropped from the prefix cache"), 0);
	assert_int_equal(operator_order(*state, (struct ask){.op = "drop_pages", .model = "tinycalc"},
		"1 unused page dropped"), 0);
	assert_int_equal(operator_order(*state, (struct ask){.op = "drop_pages", .model = "tinycal"},
		"no model is called tinycal: see mimeoctl models"), MIMEO_E_INVALID);
}

/* The row of a user's resource. */
static size_t limit_of(const struct answer *answer, bool of_user, const char *resource)
{
	char text[64];

	for (size_t i = 0; i < answer->n_rows; i++) {
		if (!answer_cell(answer, i, "uid") == of_user ||
			strcmp(answer_text(answer, i, "resource", text, sizeof(text)), resource) != 0)
			continue;
		if (of_user)
			assert_int_equal(answer_count(answer, i, "uid", 0), geteuid());
		return i;
	}
	fail_msg("no limit of %s", resource);
	return 0;
}

static void test_limits_are_what_a_user_has_and_may_have_and_what_others_may(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;
	struct answer *answer;
	size_t row;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	await_sessions(harness, 1);
	answer = operator_ask(harness, "limits", NULL);
	row = limit_of(answer, true, "sessions");
	assert_int_equal(answer_count(answer, row, "used", 0), 1);
	assert_int_equal(answer_count(answer, row, "limit", 0), 3);
	expect_text(answer, row, "setting", "max_sessions_per_uid");
	row = limit_of(answer, true, "shared memory");
	assert_true(answer_count(answer, row, "used_bytes", 0) >= hello.arena_bytes);
	assert_true(answer_count(answer, row, "limit_bytes", 0) > answer_count(answer, row, "used_bytes", 0));
	row = limit_of(answer, true, "pinned KV pages");
	expect_text(answer, row, "model", "tinycalc");
	assert_int_equal(answer_count(answer, row, "used", 0), 4);
	assert_int_equal(answer_count(answer, row, "limit", 0), 50);
	row = limit_of(answer, false, "sessions");
	assert_int_equal(answer_count(answer, row, "used", 1), 0);
	answer_free(answer);
	client_close(&client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		harness_test(test_requests_lists_each_with_its_id_state_and_times),
		harness_test(test_cancel_reaches_the_request_of_that_id_alone),
		harness_test(test_operator_who_waits_for_the_engine_delays_no_other_and_may_leave),
		harness_test(test_operator_who_asks_twice_while_the_engine_is_asked_is_closed),
		harness_test(test_pages_are_counted_by_model_user_and_session),
		harness_test(test_order_to_drop_pages_is_for_all_models_or_one_that_is_there),
		harness_test(test_limits_are_what_a_user_has_and_may_have_and_what_others_may),
	};

	return cmocka_run_group_tests_name("queries", tests, NULL, NULL);
}
