/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_POSITIONS_H
#define MIMEO_DAEMON_ENGINE_POSITIONS_H

/*
 * Results of more positions of a row than its last: logits, hidden states, their mean, log-probabilities of the
 * row's own tokens. They are computed behind the step's pass and behind the tokens of its other rows, eagerly, from
 * the hidden states that the pass leaves: the head's product for max_rows positions at a time, in the memory of the
 * pass's logits. A step takes POSITIONS_STEP of them, so that it ends in time for others. Hot path: no allocation,
 * no lock, no system call.
 */

#include <stdint.h>

#define POSITIONS_STEP 512u

struct inflight;
struct inflight_row;
struct inputs_slot;
struct lane;
struct request;
struct sequence;

/* Of a row of a step. */
struct positions {
	uint32_t n;        /* positions, 0: none */
	uint32_t token;    /* the first one's token among the step's */
	uint32_t index;    /* among the tokens of all rows of its request */
	uint32_t n_scores; /* leading ones whose next token is the row's own, too */
	uint32_t score;    /* the first one's in the inputs slot's scores */
	uint32_t result;   /* the first one's in its logits and hidden, if they go through the outbox */
};

/* How many of the sequence's next n tokens the step has capacity for, 0 ... n; whole: more than POSITIONS_STEP if the
 * step has no others. */
uint32_t positions_capacity(const struct inputs_slot *slot, const struct sequence *s, uint32_t n, bool whole);
/* Reserve what the row of n_tokens more tokens needs, which the step has capacity for; `first`: its first token among
 * the step's. */
struct positions positions_begin(
	struct inputs_slot *slot, const struct sequence *s, uint32_t n_tokens, uint32_t first);
/* Queue the results of the step's rows. 0, or the device's answer. */
int positions_launch(struct lane *lane, struct inflight *inflight);
/* The step has ended: copy the row's results to the request's output. */
void positions_take(const struct inflight *inflight, const struct inflight_row *row, struct request *request);

#endif
