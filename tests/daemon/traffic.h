/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_TRAFFIC_H
#define MIMEO_TESTS_DAEMON_TRAFFIC_H

/*
 * The general oracle: short and long requests of several clients, arriving in the middle of each
 * other's steps, against each of them alone without graphs.
 *
 * On the cpu device prompts are well-formed or noise of hundreds of tokens. On cuda, where a row's
 * logits depend on how many share the step, they are well-formed, so that margins are wide.
 */

#include "tests/daemon/rig.h"

/* Make up the requests, and answer each alone, eager. model: a folder, or NULL: tinycalc; attention
 * as in struct rig_options. */
void traffic_make(const char *model, const char *attention);
/* By such an engine. */
void traffic_make_by(const struct rig_options *options);

struct traffic_ladder {
	const char *name;
	uint32_t n, sizes[3]; /* n 0: the default */
};
#define TRAFFIC_LADDERS 3u
extern const struct traffic_ladder traffic_ladders[TRAFFIC_LADDERS];

/* Run the load all together, and every ninth request, from count % 9 on, alone: the same tokens. Steps
 * have `chunk` tokens at most. With the default ladder, nothing is eager that the mode has graphs for. With
 * options->preempt_every, requests are preempted. */
void traffic_run(const struct rig_options *options, enum graph_mode resolved,
	const struct traffic_ladder *ladder, uint32_t chunk, uint32_t count);

#endif
