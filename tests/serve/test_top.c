/* SPDX-License-Identifier: MIT */
/* mimeoctl top: its rows, made from two readings of a daemon's counters. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/ctl/top_rows.h"
#include "daemon/serve/reply.h"
#include "tests/ipc/test.h"

#define SECOND UINT64_C(1000000000)

static struct top_reading before, now;
static struct top_rows rows;

/* The answer that a daemon's reply becomes. */
static struct answer *answer_of(struct reply *reply)
{
	struct answer *answer;
	int fds[2];

	assert_int_equal(reply_end(reply), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	assert_int_equal(send(fds[0], reply->out.data, reply->out.size, 0), reply->out.size);
	assert_int_equal(ask_receive(fds[1], &answer), 0);
	reply_deinit(reply);
	close(fds[0]);
	close(fds[1]);
	return answer;
}

/* What a session's counters are. */
struct session {
	uint64_t id, uid, tokens, firsts, prompt, cached, in_flight, waiting;
	double first_s, between_s;
};

static struct answer *sessions_of(const struct session *sessions, size_t n)
{
	struct reply reply;

	reply_init(&reply);
	for (size_t i = 0; i < n; i++)
		REPLY_ROW(&reply, CELL_COUNT("id", sessions[i].id), CELL_COUNT("uid", sessions[i].uid),
			CELL_TEXT("name", sessions[i].id == 1 ? "chat" : "agents"), CELL_TEXT("state", "open"),
			CELL_COUNT("tokens", sessions[i].tokens), CELL_COUNT("first_tokens", sessions[i].firsts),
			CELL_NUMBER("first_token_s", sessions[i].first_s),
			CELL_NUMBER("between_tokens_s", sessions[i].between_s),
			CELL_COUNT("prompt_tokens", sessions[i].prompt),
			CELL_COUNT("cached_tokens", sessions[i].cached),
			CELL_COUNT("in_flight", sessions[i].in_flight), CELL_COUNT("waiting", sessions[i].waiting),
			CELL_COUNT("pages", 10 * sessions[i].id));
	return answer_of(&reply);
}

static struct answer *status_of(uint64_t steps, uint64_t n_rows, uint64_t replays, uint64_t tokens, double busy_s)
{
	struct reply reply;

	reply_init(&reply);
	REPLY_ROW(&reply, CELL_TEXT("state", "serving"), CELL_TEXT("device", "cpu"), CELL_COUNT("steps", steps),
		CELL_COUNT("rows", n_rows), CELL_COUNT("replays", replays), CELL_COUNT("tokens_out", tokens),
		CELL_COUNT("tokens_in", tokens + 500), CELL_NUMBER("device_busy_s", busy_s),
		CELL_COUNT("pages_total", 100), CELL_COUNT("pages_free", 60));
	return answer_of(&reply);
}

static struct answer *models_of(uint64_t steps, uint64_t eager, uint64_t tokens)
{
	struct reply reply;

	reply_init(&reply);
	REPLY_ROW(&reply, CELL_TEXT("name", "tiny"), CELL_COUNT("steps", steps), CELL_COUNT("rows", 4 * steps),
		CELL_COUNT("eager_steps", eager), CELL_COUNT("tokens_out", tokens), CELL_COUNT("pages_total", 100),
		CELL_COUNT("pages_free", 60));
	return answer_of(&reply);
}

static struct answer *requests_of(void)
{
	static const char *const states[] = {"running", "queued", "preempted", "running"};
	struct reply reply;

	reply_init(&reply);
	for (uint64_t i = 0; i < 4; i++)
		REPLY_ROW(&reply, CELL_COUNT("id", i + 1), CELL_TEXT("model", i == 3 ? "other" : "tiny"),
			CELL_TEXT("state", states[i]), CELL_COUNT("session", 1), CELL_COUNT("uid", 4000000000u));
	return answer_of(&reply);
}

static const struct session earlier[] = {
	{.id = 1, .uid = 4000000000, .tokens = 100, .firsts = 1, .first_s = 1, .between_s = 10, .prompt = 100},
	{.id = 2, .uid = 4000000001, .tokens = 7, .firsts = 1},
};
static const struct session later[] = {
	/* two first tokens in 0.5 s, 98 others in 4.9 s */
	{.id = 1, .uid = 4000000000, .tokens = 200, .firsts = 3, .first_s = 1.5, .between_s = 14.9, .prompt = 500,
		.cached = 100, .in_flight = 5, .waiting = 2},
	{.id = 2, .uid = 4000000001, .tokens = 7, .firsts = 1},
	/* attached since */
	{.id = 3, .uid = 4000000000, .tokens = 100, .firsts = 2, .first_s = 3.5, .between_s = 1, .in_flight = 1},
};

static int setup(void **state)
{
	before = (struct top_reading){.ns = SECOND, .status = status_of(100, 400, 90, 1000, 1),
		.models = models_of(100, 10, 1000), .sessions = sessions_of(earlier, 2), .requests = requests_of()};
	now = (struct top_reading){.ns = 3 * SECOND, .status = status_of(200, 1000, 165, 1400, 2),
		.models = models_of(200, 35, 1400), .sessions = sessions_of(later, 3), .requests = requests_of()};
	return top_rows_make(&rows, &before, &now);
}

static int teardown(void **state)
{
	top_rows_deinit(&rows);
	top_reading_deinit(&before);
	top_reading_deinit(&now);
	return 0;
}

/* The row of that kind and index. */
static const struct top_row *row_of(enum top_kind kind, size_t index)
{
	for (size_t i = 0; i < rows.n; i++) {
		if (rows.rows[i].kind == kind && index-- == 0)
			return &rows.rows[i];
	}
	fail_msg("no such row of kind %d", kind);
	return NULL;
}

static void assert_number(const struct top_row *row, enum top_field field, double expected)
{
	if (!(fabs(row->numbers[field] - expected) < 1e-9))
		fail_msg("%s is %g, not %g", top_field_name(field), row->numbers[field], expected);
}

static void test_rates_are_those_between_the_readings(void **state)
{
	const struct top_row *device = row_of(TOP_DEVICE, 0), *model = row_of(TOP_MODEL, 0);

	assert_number(device, TOP_F_TOKENS_S, 200);
	assert_number(device, TOP_F_STEPS_S, 50);
	assert_number(device, TOP_F_BATCH, 6);
	assert_number(device, TOP_F_GRAPHS, 0.75);
	assert_number(device, TOP_F_BUSY, 0.5);
	assert_number(device, TOP_F_PAGES, 40);
	assert_number(model, TOP_F_BATCH, 4);
	assert_number(model, TOP_F_GRAPHS, 0.75);
	assert_number(model, TOP_F_RUNNING, 1);
	assert_number(model, TOP_F_WAITING, 2);
}

static void test_latencies_are_means_of_first_and_of_other_tokens(void **state)
{
	const struct top_row *session = row_of(TOP_SESSION, 0);

	assert_number(session, TOP_F_TOKENS_S, 50);
	assert_number(session, TOP_F_FIRST, 0.25);
	assert_number(session, TOP_F_TOKEN, 0.05);
	assert_number(session, TOP_F_CACHED, 0.25);
	assert_number(session, TOP_F_RUNNING, 3);
	assert_number(session, TOP_F_WAITING, 2);
	/* since it attached */
	assert_number(row_of(TOP_SESSION, 2), TOP_F_TOKENS_S, 50);
}

static void test_session_that_did_nothing_has_no_latencies(void **state)
{
	const struct top_row *session = row_of(TOP_SESSION, 1);

	assert_number(session, TOP_F_TOKENS_S, 0);
	assert_true(isnan(session->numbers[TOP_F_FIRST]) && isnan(session->numbers[TOP_F_TOKEN]));
	assert_true(isnan(session->numbers[TOP_F_CACHED]));
}

static void test_users_have_the_sums_and_means_of_their_sessions(void **state)
{
	const struct top_row *user = row_of(TOP_USER, 0);

	assert_string_equal(user->texts[TOP_F_OWNER], "4000000000");
	assert_number(user, TOP_F_SESSIONS, 2);
	assert_number(user, TOP_F_TOKENS_S, 100);
	assert_number(user, TOP_F_FIRST, 1); /* 4 s of 4 */
	assert_number(user, TOP_F_TOKEN, 5.9 / 196);
	assert_number(user, TOP_F_PAGES, 40);
	assert_number(row_of(TOP_USER, 1), TOP_F_SESSIONS, 1);
}

static void test_rows_are_sorted_by_a_column_and_then_by_their_numbers(void **state)
{
	top_rows_sort(&rows, TOP_F_WAITING);
	assert_number(row_of(TOP_SESSION, 0), TOP_F_ID, 1);
	top_rows_sort(&rows, TOP_F_FIRST);
	assert_number(row_of(TOP_SESSION, 0), TOP_F_ID, 3);
	assert_number(row_of(TOP_SESSION, 2), TOP_F_ID, 2); /* without a value */
	top_rows_sort(&rows, TOP_F_NAME);
	assert_string_equal(row_of(TOP_SESSION, 0)->texts[TOP_F_NAME], "agents");
	assert_number(row_of(TOP_SESSION, 0), TOP_F_ID, 2);
	top_rows_sort(&rows, TOP_F_STATE);
	assert_string_equal(row_of(TOP_REQUEST, 0)->texts[TOP_F_STATE], "preempted");
}

static void test_filter_leaves_sessions_and_requests_that_have_the_text(void **state)
{
	const size_t n = rows.n;

	top_rows_filter(&rows, "");
	assert_int_equal(rows.n, n);
	top_rows_filter(&rows, "AGENT");
	/* device, model, two users, two sessions */
	assert_int_equal(rows.n, 6);
	assert_number(row_of(TOP_SESSION, 1), TOP_F_ID, 3);
}

static void test_tables_of_large_numbers_have_80_columns_at_most(void **state)
{
	for (size_t i = 0; i < rows.n; i++) {
		struct top_row *row = &rows.rows[i];

		for (int field = TOP_F_ID; field < N_TOP_FIELDS; field++)
			row->numbers[field] = field == TOP_F_FIRST || field == TOP_F_TOKEN ? 0.123456 : 123456;
		memset(row->texts[TOP_F_NAME], 'n', sizeof(row->texts[TOP_F_NAME]) - 1);
		memset(row->texts[TOP_F_OWNER], 'u', sizeof(row->texts[TOP_F_OWNER]) - 1);
	}
	for (int kind = 0; kind < N_TOP_KINDS; kind++) {
		char *text = NULL;
		size_t size;
		FILE *file = open_memstream(&text, &size);

		assert_non_null(file);
		assert_int_equal(top_rows_print(&rows, (enum top_kind)kind, file, TABLE_AS_TEXT), 0);
		fclose(file);
		for (char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
			assert_true(strcspn(at, "\n") <= 80);
		free(text);
	}
}

#define TOP_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

static void test_daemon_without_a_listing_is_told_from_one_that_refuses(void **state)
{
	static const int statuses[][2] = {{MIMEO_E_UNSUPPORTED, -EOPNOTSUPP}, {MIMEO_E_INVALID, -EPROTO}};

	for (int i = 0; i < 2; i++) {
		struct reply reply;
		struct top_reading reading;
		int fds[2];

		reply_init(&reply);
		reply_say(&reply, statuses[i][0], "no");
		assert_int_equal(reply_end(&reply), 0);
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
		assert_int_equal(send(fds[0], reply.out.data, reply.out.size, 0), reply.out.size);
		assert_int_equal(top_read(fds[1], &reading), statuses[i][1]);
		top_reading_deinit(&reading);
		reply_deinit(&reply);
		close(fds[0]);
		close(fds[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TOP_TEST(test_rates_are_those_between_the_readings),
		TOP_TEST(test_latencies_are_means_of_first_and_of_other_tokens),
		TOP_TEST(test_session_that_did_nothing_has_no_latencies),
		TOP_TEST(test_users_have_the_sums_and_means_of_their_sessions),
		TOP_TEST(test_rows_are_sorted_by_a_column_and_then_by_their_numbers),
		TOP_TEST(test_filter_leaves_sessions_and_requests_that_have_the_text),
		TOP_TEST(test_daemon_without_a_listing_is_told_from_one_that_refuses),
		TOP_TEST(test_tables_of_large_numbers_have_80_columns_at_most),
	};

	return cmocka_run_group_tests_name("top", tests, NULL, NULL);
}
