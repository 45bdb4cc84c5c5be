/* SPDX-License-Identifier: MIT */
#include "kernels/lock.h"

#include <assert.h>
#include <stddef.h>

static _Thread_local const struct lock *lock_lifted; /* this thread's */

bool lock_set(struct lock *lock)
{
	return !atomic_exchange(&lock->locked, true);
}

void lock_lift(const struct lock *lock, bool lifted)
{
	assert(lock_lifted == (lifted ? NULL : lock));
	lock_lifted = lifted ? lock : NULL;
}

bool lock_refuses(const struct lock *lock)
{
	return lock_is_set(lock) && lock_lifted != lock;
}
