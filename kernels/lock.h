/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_LOCK_H
#define MIMEO_KERNELS_LOCK_H

/*
 * A device's lock (device.h): it ends set-up for all threads. A thread that sets up a further model lifts it for
 * itself; all others, the one that launches steps among them, are refused as before. Zeroed: not locked.
 */

#include <stdatomic.h>
#include <stdbool.h>

struct lock {
	_Atomic bool locked;
};

/* True if it was not locked before. */
bool lock_set(struct lock *lock);
/* For the calling thread. */
void lock_lift(const struct lock *lock, bool lifted);
/* Is set-up over for the calling thread? */
bool lock_refuses(const struct lock *lock);

static inline bool lock_is_set(const struct lock *lock)
{
	return atomic_load_explicit(&lock->locked, memory_order_acquire);
}

#endif
