/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_SPECULATION_H
#define MIMEO_DAEMON_ENGINE_SPECULATION_H

/* Which sequences have draft tokens, and the counts of verified ones (engine.h, engine_speculation). */

#include "daemon/engine/requests/accounting.h"

struct sequence;

/* The sequence's request begins: how many draft tokens its steps may have, or why none. A draft model
 * has causal attention alone, and needs the sequence from its beginning. */
void speculation_begin(struct sequence *sequence);
/* A decode row is launched: counts it if it has no draft tokens. */
void speculation_count_decode(const struct sequence *sequence);
/* Count a verified row: n_accepted of its n_drafts draft tokens were accepted, and its request took `taken`
 * tokens. `ended`: the request ended there; later drafts were not offered. Warns once if few are accepted. */
void speculation_count_verified(
	struct runner *runner, uint32_t n_drafts, uint32_t n_accepted, uint32_t taken, bool ended);
/* From any thread. */
struct engine_speculation speculation_facts(const struct runner *runner);

#endif
