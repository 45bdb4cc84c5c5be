/* SPDX-License-Identifier: MIT */
/* Weights of users, with a name service of the test's own: alice and bob, and carl in many groups. */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/serve/weights.h"

enum { ALICE = 1001, BOB = 1002, CARL = 1003, STAFF = 20, BATCH = 21, LAST = 5000, MANY = 300 };

static unsigned n_asked;

struct passwd *__wrap_getpwnam(const char *name);
struct passwd *__wrap_getpwnam(const char *name)
{
	static struct passwd user;

	if (strcmp(name, "broken") == 0)
		errno = EIO;
	if (strcmp(name, "alice") != 0)
		return NULL;
	user.pw_uid = ALICE;
	return &user;
}

struct group *__wrap_getgrnam(const char *name);
struct group *__wrap_getgrnam(const char *name)
{
	static struct group group;

	group.gr_gid = strcmp(name, "staff") == 0 ? STAFF : BATCH;
	return strcmp(name, "staff") == 0 || strcmp(name, "batch") == 0 ? &group : NULL;
}

struct passwd *__wrap_getpwuid(uid_t uid);
struct passwd *__wrap_getpwuid(uid_t uid)
{
	static struct passwd user;

	n_asked++;
	user.pw_name = uid == ALICE ? "alice" : uid == BOB ? "bob" : "carl";
	user.pw_gid = 99;
	return uid >= ALICE && uid <= CARL ? &user : NULL;
}

int __wrap_getgrouplist(const char *user, gid_t group, gid_t *groups, int *n);
int __wrap_getgrouplist(const char *user, gid_t group, gid_t *groups, int *n)
{
	const int had = *n;

	*n = strcmp(user, "carl") == 0 ? MANY : strcmp(user, "bob") == 0 ? 3 : 1;
	for (int i = 0; i < *n && i < had; i++)
		groups[i] = i ? *n == MANY ? (gid_t)(LAST - MANY + 1 + i) : (gid_t)(STAFF - 1 + i) : group;
	return had < *n ? -1 : *n;
}

static void test_user_has_the_weight_of_his_own_entry(void **state)
{
	struct weights weights = {0};

	assert_int_equal(weights_add(&weights, "staff", true, 9), 0);
	assert_int_equal(weights_add(&weights, "alice", false, 3), 0);
	assert_int_equal(weights_add(&weights, "1002", false, 2), 0);
	assert_int_equal(weights_of(&weights, ALICE), 3);
	assert_int_equal(weights_of(&weights, BOB), 2);
}

static void test_user_has_the_largest_weight_of_his_groups(void **state)
{
	struct weights weights = {0};

	assert_int_equal(weights_add(&weights, "staff", true, 5), 0);
	assert_int_equal(weights_add(&weights, "batch", true, 7), 0);
	assert_int_equal(weights_add(&weights, "99", true, 1), 0);
	assert_int_equal(weights_of(&weights, BOB), 7);
	assert_int_equal(weights_of(&weights, ALICE), 1);
}

static void test_all_groups_of_a_user_are_looked_at(void **state)
{
	struct weights weights = {0};

	assert_int_equal(weights_add(&weights, "5000", true, 4), 0);
	assert_int_equal(weights_of(&weights, CARL), 4);
}

static void test_user_without_an_entry_has_weight_1(void **state)
{
	struct weights weights = {0};

	n_asked = 0;
	assert_int_equal(weights_of(&weights, BOB), 1);
	assert_int_equal(weights_add(&weights, "alice", false, 3), 0);
	assert_int_equal(weights_of(&weights, BOB), 1);
	/* Nobody is asked for groups where none has a weight. */
	assert_int_equal(n_asked, 0);
	assert_int_equal(weights_add(&weights, "staff", true, 3), 0);
	assert_int_equal(weights_of(&weights, 4242), 1);
}

static void test_name_that_is_not_known_is_refused(void **state)
{
	struct weights weights = {0};

	assert_int_equal(weights_add(&weights, "mallory", false, 3), -ENOENT);
	assert_int_equal(weights_add(&weights, "alice", true, 3), -ENOENT);
	assert_int_equal(weights_add(&weights, "broken", false, 3), -EIO);
	assert_int_equal(weights.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_user_has_the_weight_of_his_own_entry),
		cmocka_unit_test(test_user_has_the_largest_weight_of_his_groups),
		cmocka_unit_test(test_all_groups_of_a_user_are_looked_at),
		cmocka_unit_test(test_user_without_an_entry_has_weight_1),
		cmocka_unit_test(test_name_that_is_not_known_is_refused),
	};

	return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
