/* SPDX-License-Identifier: MIT */
/* Users' shares of sessions, memory and descriptors. */
#include "daemon/serve/quota.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/ipc/test.h"

#define N_USERS 12u
#define ROUNDS 300

static uint64_t random_state = 7;

static uint64_t random_below(uint64_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % n;
}

static struct quota *quota_of(uint64_t sessions, uint64_t shared_bytes)
{
	struct quota *quota;

	assert_int_equal(quota_new(&(struct quota_amounts){.of = {
		[QUOTA_SESSIONS] = sessions, [QUOTA_SHARED_BYTES] = shared_bytes}}, &quota), 0);
	return quota;
}

static struct quota_amounts of_sessions(uint64_t n)
{
	return (struct quota_amounts){.of = {[QUOTA_SESSIONS] = n}};
}

/* All that the user may have. */
static uint64_t take_all(struct quota *quota, uid_t uid)
{
	uint64_t left = quota_left(quota, uid, QUOTA_SESSIONS);
	struct quota_amounts amounts = of_sessions(left), more = of_sessions(left + 1);

	assert_int_equal(quota_charge(quota, uid, &more), -EDQUOT);
	assert_int_equal(quota_charge(quota, uid, &amounts), 0);
	return left;
}

static void test_user_alone_may_have_a_half(void **state)
{
	static const struct {
		uint64_t total, half;
	} cases[] = {{0, 0}, {1, 1}, {2, 1}, {3, 2}, {64, 32}, {UINT64_MAX, UINT64_C(1) << 63}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct quota *quota = quota_of(cases[i].total, 0);

		assert_int_equal(take_all(quota, 1000), cases[i].half);
		assert_int_equal(quota_left(quota, 1000, QUOTA_SESSIONS), 0);
		quota_free(quota);
	}
}

static void test_each_further_user_may_have_a_share_of_what_is_left(void **state)
{
	struct quota *quota = quota_of(120, 0);

	for (unsigned n = 1; n <= 4; n++)
		assert_int_equal(take_all(quota, n), 120 / (n * (n + 1)));
	quota_free(quota);
}

static uint64_t used_by_all(const struct quota *quota, unsigned *ret_n_users)
{
	uint64_t sum = 0;

	*ret_n_users = 0;
	for (uid_t uid = 0; uid < N_USERS; uid++) {
		uint64_t used = quota_used_by(quota, uid, QUOTA_SESSIONS);

		sum += used;
		*ret_n_users += used > 0;
	}
	return sum;
}

/* Users charge and release in any order; who holds nothing may always have 1 of n * (n + 1) parts. */
static void run_randomly(uint64_t total)
{
	struct quota *quota = quota_of(total, 0);
	unsigned n_users;

	for (int round = 0; round < ROUNDS; round++) {
		uid_t uid = (uid_t)random_below(N_USERS);
		uint64_t used = quota_used_by(quota, uid, QUOTA_SESSIONS);
		uint64_t left = quota_left(quota, uid, QUOTA_SESSIONS);
		uint64_t sum = used_by_all(quota, &n_users);

		assert_int_equal(sum, quota_used(quota, QUOTA_SESSIONS));
		assert_true(sum <= total);
		if (used == 0) {
			uint64_t n = n_users + 1, least = total / (n * (n + 1));

			assert_true(left + n >= least);
			assert_true(left >= 1 || sum == total);
		}
		if (left > 0 && random_below(2)) {
			struct quota_amounts more = of_sessions(
				random_below(3) ? left : 1 + random_below(left));

			assert_int_equal(quota_charge(quota, uid, &more), 0);
		} else if (used > 0) {
			struct quota_amounts less = of_sessions(
				random_below(2) ? used : 1 + random_below(used));

			quota_release(quota, uid, &less);
		}
	}
	for (uid_t uid = 0; uid < N_USERS; uid++) {
		struct quota_amounts all = of_sessions(quota_used_by(quota, uid, QUOTA_SESSIONS));

		quota_release(quota, uid, &all);
	}
	assert_int_equal(quota_used(quota, QUOTA_SESSIONS), 0);
	/* nobody counts as a user any more */
	assert_int_equal(quota_left(quota, 1, QUOTA_SESSIONS), total / 2 + total % 2);
	quota_free(quota);
}

static void test_every_user_gets_a_share_in_any_order(void **state)
{
	static const uint64_t totals[] = {1, 2, 3, 10, 64, 1000, UINT64_C(2) << 30, UINT64_MAX};

	for (int i = 0; i < 50; i++)
		run_randomly(totals[(size_t)i % (sizeof(totals) / sizeof(totals[0]))]);
}

static void test_charge_is_granted_whole_or_not_at_all(void **state)
{
	struct quota *quota = quota_of(10, 1000);
	struct quota_amounts both = {.of = {[QUOTA_SESSIONS] = 1, [QUOTA_SHARED_BYTES] = 501}};
	char text[256];

	assert_false(quota_fits(quota, 5, &both, text, sizeof(text)));
	assert_int_equal(quota_charge(quota, 5, &both), -EDQUOT);
	assert_int_equal(quota_used(quota, QUOTA_SESSIONS), 0);
	assert_false(quota_may_fit(quota, &both));
	both.of[QUOTA_SHARED_BYTES] = 500;
	assert_true(quota_may_fit(quota, &both));
	assert_true(quota_fits(quota, 5, &both, text, sizeof(text)));
	assert_int_equal(quota_charge(quota, 5, &both), 0);
	assert_int_equal(quota_used_by(quota, 5, QUOTA_SESSIONS), 1);
	assert_int_equal(quota_used_by(quota, 5, QUOTA_SHARED_BYTES), 500);
	/* it is too much now, and would not be if the other were gone */
	assert_int_equal(quota_charge(quota, 6, &both), -EDQUOT);
	assert_true(quota_may_fit(quota, &both));
	quota_release(quota, 5, &both);
	assert_int_equal(quota_charge(quota, 6, &both), 0);
	quota_free(quota);
}

static void test_users_of_one_resource_leave_the_shares_of_another(void **state)
{
	struct quota *quota = quota_of(10, 1000);
	struct quota_amounts sessions = of_sessions(1);

	for (uid_t uid = 1; uid < 4; uid++)
		assert_int_equal(quota_charge(quota, uid, &sessions), 0);
	assert_int_equal(quota_left(quota, 9, QUOTA_SHARED_BYTES), 500);
	assert_int_equal(quota_left(quota, 9, QUOTA_SESSIONS), 2);
	quota_free(quota);
}

static void test_refusal_says_what_is_asked_for_and_what_is_left(void **state)
{
	struct quota *quota = quota_of(1, 2 << 20);
	struct quota_amounts memory = {.of = {[QUOTA_SHARED_BYTES] = 256 << 20}};
	struct quota_amounts session = of_sessions(1);
	char text[256];

	assert_false(quota_fits(quota, 1000, &memory, text, sizeof(text)));
	assert_string_equal(text, "shared memory: 268435456 bytes asked for, 1048576 left for user 1000 "
				  "(max_shared_bytes)");
	assert_int_equal(quota_charge(quota, 0, &session), 0);
	assert_false(quota_fits(quota, 1000, &session, text, sizeof(text)));
	assert_string_equal(text, "sessions: 1 asked for, 0 left for user 1000 (max_sessions)");
	quota_free(quota);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_user_alone_may_have_a_half),
		cmocka_unit_test(test_each_further_user_may_have_a_share_of_what_is_left),
		cmocka_unit_test(test_every_user_gets_a_share_in_any_order),
		cmocka_unit_test(test_charge_is_granted_whole_or_not_at_all),
		cmocka_unit_test(test_users_of_one_resource_leave_the_shares_of_another),
		cmocka_unit_test(test_refusal_says_what_is_asked_for_and_what_is_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
