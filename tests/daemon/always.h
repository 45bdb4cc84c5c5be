/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_ALWAYS_H
#define MIMEO_TESTS_DAEMON_ALWAYS_H

/*
 * An attention backend whose graphs hold any batch: the level ALWAYS, which none of the built-in
 * ones claims, so that GRAPH_FULL runs mixed batches too. The cpu device's paged kernel, which
 * finds everything about a batch in the persistent inputs, with host numbers of the worst case; so
 * it is for the cpu device alone.
 */

#include "attention/attention.h"

extern const struct attention_backend attention_always;
/* Make the registry know it; once or more. */
void always_register(void);

#endif
