/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_SPECULATION_H
#define MIMEO_DAEMON_ENGINE_SPECULATION_H

/* Which sequences have draft tokens, and the counts of verified ones (engine.h, engine_speculation). */

#include "daemon/engine/requests/accounting.h"

struct sequence;

/* The sequence's request begins: how many draft tokens its steps may have, or why none. A draft model
 * has causal attention alone, and needs the sequence from its beginning. */
void speculation_begin(struct sequence *sequence);
/* A row of one token, or of one that verifies, is launched. */
void speculation_count_decode(const struct sequence *sequence);
/* A row had n_drafts, of which n_accepted were accepted; its request took `taken` tokens and, if that
 * ended it, had no use for the drafts behind them. Warns once of a draft model that is hardly ever right. */
void speculation_count_verified(
	struct runner *runner, uint32_t n_drafts, uint32_t n_accepted, uint32_t taken, bool ended);
/* From any thread. */
struct engine_speculation speculation_facts(const struct runner *runner);

#endif
