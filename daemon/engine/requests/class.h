/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_CLASS_H
#define MIMEO_DAEMON_ENGINE_CLASS_H

/*
 * Classes of requests (enum mimeo_class). They order the requests of a user, and let batch work run in what others
 * leave; they do not change users' shares (share.h).
 *
 * Batch requests have CLASS_BATCH_PART of a model's slots with the rights of NORMAL ones. Further batch requests are
 * spare: they start where no other request can, their prompts come last in a step, but for each CLASS_BATCH_TURN-th,
 * and they are preempted first.
 *
 * The engine's thread alone. Hot path: no allocation, no lock, no system call.
 */

#include <stdbool.h>
#include <stdint.h>

#include <mimeo/types.h>

#define CLASS_BATCH_PART 16 /* one slot of so many, at least one */
#define CLASS_BATCH_TURN 16 /* steps */

struct request;
struct runner;

/* The slots in which batch requests have the rights of others. */
uint32_t class_batch_slots(const struct runner *runner);
/* Is it a batch request beyond these slots: do more of them run, or would they if it started now? */
bool class_is_spare(const struct request *request);
/* Requests of class a come before those of class b, of one user. */
static inline bool class_is_before(uint32_t a, uint32_t b)
{
	return a != b && (a == MIMEO_CLASS_INTERACTIVE || b == MIMEO_CLASS_BATCH);
}
/* Is a's prompt computed before b's? By users, then classes, then sessions, then order of submission. */
bool class_computes_before(const struct request *a, const struct request *b);

#endif
