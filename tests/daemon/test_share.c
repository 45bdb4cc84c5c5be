/* SPDX-License-Identifier: MIT */
/* Counters, turns and entitlements of users and their sessions, without an engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/engine/requests/engine_session.h"

enum { SESSIONS = 8 };

static struct accounting accounting;
static struct engine_port ports[SESSIONS];
static struct engine_session sessions[SESSIONS];

static int clear(void **state)
{
	memset(&accounting, 0, sizeof(accounting));
	memset(ports, 0, sizeof(ports));
	memset(sessions, 0, sizeof(sessions));
	return 0;
}

static struct engine_session *attach(uint32_t i, uid_t uid, uint32_t weight)
{
	ports[i].uid = uid;
	ports[i].weight = weight;
	sessions[i].port = &ports[i];
	sessions[i].accounting = &accounting;
	accounting.sessions[accounting.n_sessions++] = &sessions[i];
	share_attach(&accounting, &sessions[i]);
	return &sessions[i];
}

static void detach(struct engine_session *session)
{
	uint32_t i = 0;

	while (accounting.sessions[i] != session)
		i++;
	share_detach(session);
	accounting.sessions[i] = accounting.sessions[--accounting.n_sessions];
}

static void begin(struct engine_session *session)
{
	session->n_in_flight = 1;
	share_begin(&accounting, session);
}

static void end(struct engine_session *session)
{
	session->n_in_flight = 0;
	share_end(session);
}

static void test_part_follows_weight_and_number_of_sessions(void **state)
{
	struct engine_session *a = attach(0, 1, 1), *b = attach(1, 2, 3), *c = attach(2, 2, 3);

	begin(a);
	assert_int_equal(share_entitlement(&accounting, a, 100), 100);
	begin(b);
	assert_int_equal(share_entitlement(&accounting, a, 100), 25);
	assert_int_equal(share_entitlement(&accounting, b, 100), 75);
	begin(c);
	assert_int_equal(share_entitlement(&accounting, b, 100), 37);
	end(b);
	assert_int_equal(share_entitlement(&accounting, c, 100), 75);
	end(c);
	assert_int_equal(share_entitlement(&accounting, a, 100), 100);
}

static void test_part_is_one_at_least(void **state)
{
	struct engine_session *a = attach(0, 1, 1), *b = attach(1, 2, 1000);

	begin(a);
	begin(b);
	assert_int_equal(share_entitlement(&accounting, a, 64), 1);
	assert_int_equal(share_entitlement(&accounting, b, UINT32_MAX), 4290676618u);
}

static void test_new_weight_holds_at_once(void **state)
{
	struct engine_session *a = attach(0, 1, 1), *b = attach(1, 2, 3);

	share_weigh(b, 4); /* has no request */
	begin(a);
	begin(b);
	assert_int_equal(share_entitlement(&accounting, b, 100), 80);
	share_weigh(b, 1);
	assert_int_equal(share_entitlement(&accounting, a, 100), 50);
	share_weigh(a, 3);
	assert_int_equal(share_entitlement(&accounting, a, 100), 75);
	end(a);
	end(b);
	assert_int_equal(accounting.active_weight, 0);
}

static void test_weight_of_a_new_session_is_its_users(void **state)
{
	struct engine_session *a = attach(0, 1, 1), *b = attach(1, 2, 1);

	begin(a);
	begin(b);
	attach(2, 2, 3);
	assert_int_equal(share_entitlement(&accounting, b, 100), 75);
	end(a);
	end(b);
	assert_int_equal(accounting.active_weight, 0);
}

static void test_weight_out_of_range_is_one(void **state)
{
	struct engine_session *a = attach(0, 1, 0), *b = attach(1, 2, 1001);

	assert_int_equal(a->share.user->weight, 1);
	assert_int_equal(b->share.user->weight, 1);
}

static void test_turn_is_the_users_with_least_per_weight_then_the_sessions(void **state)
{
	struct engine_session *a = attach(0, 1, 1), *b = attach(1, 2, 3), *c = attach(2, 2, 3);

	begin(a);
	begin(b);
	begin(c);
	share_charge(a, 100);
	share_charge(b, 297);
	assert_true(share_is_before(b, a));
	assert_true(share_is_before(c, a));
	assert_true(share_is_before(c, b));
	share_charge(c, 6);
	assert_true(share_is_before(a, b));
	assert_true(share_is_before(a, c));
	assert_false(share_is_before(a, a));
}

static void test_who_comes_back_begins_where_the_others_are(void **state)
{
	struct engine_session *a = attach(0, 1, 1), *b = attach(1, 2, 1), *c = attach(2, 2, 1);

	begin(a);
	share_charge(a, 1000);
	begin(b);
	assert_int_equal(b->share.user->counter, a->share.user->counter);
	share_charge(b, 50);
	begin(c);
	assert_int_equal(c->share.counter, b->share.counter);
	end(b);
	end(c);
	share_charge(a, 10);
	begin(b);
	/* Nobody is put back, either. */
	assert_true(b->share.user->counter > a->share.user->counter);
}

static void test_new_session_brings_no_new_account(void **state)
{
	struct engine_session *a = attach(0, 1, 1), *b = attach(1, 2, 1);

	begin(a);
	begin(b);
	share_charge(b, 500);
	end(b);
	detach(b);
	b = attach(2, 2, 1);
	begin(b);
	assert_true(share_is_before(a, b));
}

static void test_entry_of_an_absent_user_is_given_away_last(void **state)
{
	struct engine_session *a = attach(0, 1, 1);

	begin(a);
	share_charge(a, 500);
	end(a);
	detach(a);
	/* As many others come and go as there are entries but one. */
	for (uint32_t uid = 2; uid < ENGINE_SESSIONS_MAX + 500; uid++)
		detach(attach(1, uid, 1));
	a = attach(2, 1, 1);
	assert_int_equal(a->share.user->counter, 500 * SHARE_UNIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_part_follows_weight_and_number_of_sessions, clear),
		cmocka_unit_test_setup(test_part_is_one_at_least, clear),
		cmocka_unit_test_setup(test_new_weight_holds_at_once, clear),
		cmocka_unit_test_setup(test_weight_of_a_new_session_is_its_users, clear),
		cmocka_unit_test_setup(test_weight_out_of_range_is_one, clear),
		cmocka_unit_test_setup(test_turn_is_the_users_with_least_per_weight_then_the_sessions, clear),
		cmocka_unit_test_setup(test_who_comes_back_begins_where_the_others_are, clear),
		cmocka_unit_test_setup(test_new_session_brings_no_new_account, clear),
		cmocka_unit_test_setup(test_entry_of_an_absent_user_is_given_away_last, clear),
	};

	return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
