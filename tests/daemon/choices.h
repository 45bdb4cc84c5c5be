/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_CHOICES_H
#define MIMEO_TESTS_DAEMON_CHOICES_H

/*
 * An engine of a model with a draft of which every choice of a graph is recorded, the target's and those of
 * its draft's two managers: a pass each. Programs are linked with --wrap=graph_set_dispatch.
 */

#include "tests/daemon/rig.h"

enum { K = 4, Q = 1 + K, ROWS = 16, TOKENS = 64, CHOICES_MAX = 8192 };

struct choice {
	const struct graph_set *set;
	struct batch_shape shape;
	struct descriptor descriptor; /* mode NONE: eager */
};

/* On the engine's thread; read while it has nothing to do. */
extern struct choice choices[CHOICES_MAX];
extern uint32_t n_choices; /* there were; those past CHOICES_MAX are not kept */

/* With n_drafts 0 it is K. What set-up chooses does not count. */
void choices_open(struct rig *rig, const struct rig_options *o);
/* A fixture: *state is the options, then such an engine. */
int choices_setup(void **state);
#define CHOICES_TEST(test, ...)                                                                    \
	{#test, test, choices_setup, rig_teardown, &(struct rig_options){__VA_ARGS__}}
/* The lane has nothing more to do: what was counted may be read. */
void choices_settle(struct rig *rig);
/* n requests of `max_tokens` tokens each, all at once. */
void choices_run_many(struct rig *rig, uint32_t n, uint32_t max_tokens);
uint32_t choices_count(const struct graph_set *set, enum graph_mode mode, uint32_t query_len);

#endif
