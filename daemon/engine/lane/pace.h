/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_PACE_H
#define MIMEO_DAEMON_ENGINE_PACE_H

/*
 * How many prompt tokens a step takes beside decodes, so that the step, and with it the time to the decodes' next
 * tokens, stays within a target. (Prompts are cut into chunks for the same reason by Sarathi-Serve, Agrawal et al.,
 * OSDI 2024, arXiv:2403.02310; here the size of a chunk follows measured times.)
 *
 * The time of a step is taken as base + prompt tokens * time per token. Both are moving averages: the base of steps
 * without prompt tokens, and of faster ones with them; the time per token of steps with PACE_LEAST or more.
 * Hot path: no allocation, no lock, no system call.
 */

#include <stdint.h>

#define PACE_LEAST 8u /* prompt tokens that a step may have in any case */
#define PACE_FIRST 256u /* prompt tokens while their time is not known */

struct pace {
	double base_ns, token_ns; /* 0: not known */
};

/* A step with so many prompt tokens and decodes took so long on the device. */
void pace_follow(struct pace *pace, uint64_t ns, uint32_t n_prompt, uint32_t n_decodes);
/* Prompt tokens for a step that has decodes; `most` without a target (0). */
uint32_t pace_tokens(const struct pace *pace, uint64_t target_ns, uint32_t most);

#endif
