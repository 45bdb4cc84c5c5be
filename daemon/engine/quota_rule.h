/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_QUOTA_RULE_H
#define MIMEO_DAEMON_ENGINE_QUOTA_RULE_H

/*
 * How much a user may have of what all users share.
 *
 * A user may hold one nth of what the others have left, where n is one more than the number of users who
 * hold something (this one included). So the first user may have a half; the second, a third of the rest; the
 * nth user may have 1/(n + 1) of the rest. Every new user gets a share, in any order, and at least 1 while
 * anything is left. A user keeps what it holds when others come. The rule is that of dbus-broker, which
 * describes it in its src/util/user.c ("User Accounting"); here shares are rounded up.
 */

#include <assert.h>
#include <stdint.h>

/* How much more the user may have: used and own are what all users and this one hold, n_holders how many hold some.
 * A total that was lowered may be below what is used. */
static inline uint64_t quota_rule_left(uint64_t total, uint64_t used, uint64_t own, uint64_t n_holders)
{
	const uint64_t left = used < total ? total - used : 0, n = n_holders + (own == 0) + 1;
	uint64_t share;

	assert(own <= used);
	share = (left + own) / n + ((left + own) % n > 0);
	return share <= own ? 0 : share - own < left ? share - own : left;
}

#endif
