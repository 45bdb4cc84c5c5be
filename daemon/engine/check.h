/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_CHECK_H
#define MIMEO_DAEMON_ENGINE_CHECK_H

struct engine;

/* Verify all of the engine's bookkeeping, and abort at the first contradiction. The engine's thread, at
 * the end of each turn that did something. In builds without -Dtest_faults=true it is empty. */
#ifdef MIMEO_TEST_FAULTS
void engine_check(struct engine *engine);
#else
static inline void engine_check(struct engine *engine)
{
}
#endif

#endif
