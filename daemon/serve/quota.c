/* SPDX-License-Identifier: MIT */
#include "daemon/serve/quota.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <uthash.h>

#include "daemon/engine/quota_rule.h"

/* One who holds something. */
struct quota_user {
	uid_t uid;
	struct quota_amounts used;
	UT_hash_handle hh;
};

struct quota {
	struct quota_amounts totals, used;
	uint32_t n_users[QUOTA_N]; /* who hold something of it */
	struct quota_user *users;
};

static const struct {
	const char *what, *unit, *limit;
} quota_names[QUOTA_N] = {
	[QUOTA_SESSIONS] = {"sessions", "", "max_sessions"},
	[QUOTA_SHARED_BYTES] = {"shared memory", " bytes", "max_shared_bytes"},
	[QUOTA_SEQUENCE_BYTES] = {"memory for sequences", " bytes", "max_sequence_bytes"},
	[QUOTA_BUFFER_BYTES] = {"device buffers", " bytes", "max_buffer_bytes"},
	[QUOTA_DESCRIPTORS] = {"descriptors", "", "the daemon's RLIMIT_NOFILE"},
};

int quota_new(const struct quota_amounts *totals, struct quota **ret)
{
	struct quota *quota = calloc(1, sizeof(*quota));

	if (!quota)
		return -ENOMEM;
	quota->totals = *totals;
	*ret = quota;
	return 0;
}

void quota_set_totals(struct quota *quota, const struct quota_amounts *totals)
{
	quota->totals = *totals;
}

static void quota_forget(struct quota *quota, struct quota_user *user)
{
	HASH_DEL(quota->users, user);
	free(user);
}

void quota_free(struct quota *quota)
{
	struct quota_user *user, *next;

	if (!quota)
		return;
	HASH_ITER (hh, quota->users, user, next)
		quota_forget(quota, user);
	free(quota);
}

static struct quota_user *quota_find(const struct quota *quota, uid_t uid)
{
	struct quota_user *user;

	HASH_FIND(hh, quota->users, &uid, sizeof(uid), user);
	return user;
}

static uint64_t quota_left_of(
	const struct quota *quota, const struct quota_user *user, enum quota_resource resource)
{
	return quota_rule_left(quota->totals.of[resource], quota->used.of[resource],
		user ? user->used.of[resource] : 0, quota->n_users[resource]);
}

uint64_t quota_left(const struct quota *quota, uid_t uid, enum quota_resource resource)
{
	return quota_left_of(quota, quota_find(quota, uid), resource);
}

void quota_refuse(const struct msg_quota *refusal, uid_t uid, char *text, size_t size)
{
	struct msg_quota of_user = *refusal;
	char whom[32];

	snprintf(whom, sizeof(whom), "user %u", (unsigned)uid);
	of_user.whom = whom;
	msg_quota_explain(&of_user, text, size);
}

void quota_refuse_one(const char *what, uint32_t most, uid_t uid, char *text, size_t size)
{
	char limit[32];

	snprintf(limit, sizeof(limit), "%u for each user", most);
	quota_refuse(&(struct msg_quota){.what = what, .unit = "", .asked = 1, .limit = limit}, uid, text, size);
}

bool quota_fits(const struct quota *quota, uid_t uid, const struct quota_amounts *amounts, char *text,
	size_t size)
{
	const struct quota_user *user = quota_find(quota, uid);

	for (unsigned i = 0; i < QUOTA_N; i++) {
		uint64_t left = quota_left_of(quota, user, i);

		if (amounts->of[i] <= left)
			continue;
		quota_refuse(&(struct msg_quota){
			.what = quota_names[i].what, .unit = quota_names[i].unit, .asked = amounts->of[i],
			.left = left, .limit = quota_names[i].limit}, uid, text, size);
		return false;
	}
	return true;
}

bool quota_may_fit(const struct quota *quota, const struct quota_amounts *amounts)
{
	for (unsigned i = 0; i < QUOTA_N; i++) {
		if (amounts->of[i] > quota_rule_left(quota->totals.of[i], 0, 0, 0))
			return false;
	}
	return true;
}

static struct quota_user *quota_add(struct quota *quota, uid_t uid)
{
	struct quota_user *user = calloc(1, sizeof(*user));

	if (user) {
		user->uid = uid;
		HASH_ADD(hh, quota->users, uid, sizeof(uid), user);
	}
	return user;
}

int quota_charge(struct quota *quota, uid_t uid, const struct quota_amounts *amounts)
{
	struct quota_user *user = quota_find(quota, uid);
	bool any = false;

	for (unsigned i = 0; i < QUOTA_N; i++) {
		any |= amounts->of[i] > 0;
		if (amounts->of[i] > quota_left_of(quota, user, i))
			return -EDQUOT;
	}
	if (!any)
		return 0;
	if (!user)
		user = quota_add(quota, uid);
	if (!user)
		return -ENOMEM;
	for (unsigned i = 0; i < QUOTA_N; i++) {
		quota->n_users[i] += amounts->of[i] > 0 && user->used.of[i] == 0;
		user->used.of[i] += amounts->of[i];
		quota->used.of[i] += amounts->of[i];
	}
	return 0;
}

void quota_release(struct quota *quota, uid_t uid, const struct quota_amounts *amounts)
{
	struct quota_user *user = quota_find(quota, uid);
	bool any = false;

	for (unsigned i = 0; i < QUOTA_N; i++) {
		if (amounts->of[i] == 0)
			continue;
		assert(user && amounts->of[i] <= user->used.of[i]);
		user->used.of[i] -= amounts->of[i];
		quota->used.of[i] -= amounts->of[i];
		quota->n_users[i] -= user->used.of[i] == 0;
	}
	for (unsigned i = 0; user && i < QUOTA_N; i++)
		any |= user->used.of[i] > 0;
	if (user && !any)
		quota_forget(quota, user);
}

uint64_t quota_used(const struct quota *quota, enum quota_resource resource)
{
	return quota->used.of[resource];
}

uint64_t quota_used_by(const struct quota *quota, uid_t uid, enum quota_resource resource)
{
	const struct quota_user *user = quota_find(quota, uid);

	return user ? user->used.of[resource] : 0;
}

void quota_each(const struct quota *quota, void (*each)(void *userdata, uid_t uid), void *userdata)
{
	struct quota_user *user, *next;

	HASH_ITER (hh, quota->users, user, next)
		each(userdata, user->uid);
}

const char *quota_name(enum quota_resource resource)
{
	return quota_names[resource].what;
}

const char *quota_setting(enum quota_resource resource)
{
	return quota_names[resource].limit;
}

bool quota_in_bytes(enum quota_resource resource)
{
	return quota_names[resource].unit[0] != '\0';
}
