/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_UPDATES_H
#define MIMEO_DAEMON_ENGINE_UPDATES_H

/*
 * What a request says about its logits goes to its slot ahead of the step that samples its first token: parameters,
 * bias and token mask, and with penalties the tokens so far, in parts of INPUTS_UPDATE_TOKENS a step for all slots
 * together, beside the chunks of the prompt. From then on the device counts. Hot path: no allocation, no lock, no
 * system call.
 */

#include "daemon/graph/inputs.h"
#include "daemon/engine/requests/sequence.h"

/* Add to the step what the sequence's slot still needs, as far as the step has capacity. True: it has all. */
bool updates_add(struct inputs_slot *slot, struct sequence *sequence);
/* Flags of a row of the request that samples. */
uint32_t updates_row_flags(const struct request *request);

#endif
