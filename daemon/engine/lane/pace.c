/* SPDX-License-Identifier: MIT */
#include "daemon/engine/lane/pace.h"

#define PACE_WEIGHT 0.25 /* of the last step in the averages */

static double pace_average(double before, double now)
{
	return before > 0 ? before + PACE_WEIGHT * (now - before) : now;
}

void pace_follow(struct pace *pace, uint64_t ns, uint32_t n_prompt, uint32_t n_decodes)
{
	double prompt_ns;

	/* While prompts wait, no step without them shows that decodes have become faster. */
	if (n_decodes && (!n_prompt || (double)ns < pace->base_ns))
		pace->base_ns = pace_average(pace->base_ns, (double)ns);
	if (n_prompt < PACE_LEAST)
		return;
	prompt_ns = (double)ns - (n_decodes ? pace->base_ns : 0);
	pace->token_ns = pace_average(pace->token_ns, (prompt_ns > 1 ? prompt_ns : 1) / n_prompt);
}

uint32_t pace_tokens(const struct pace *pace, uint64_t target_ns, uint32_t most)
{
	const uint32_t first = PACE_FIRST < most ? PACE_FIRST : most;
	const uint32_t least = PACE_LEAST < most ? PACE_LEAST : most;
	double n;

	if (!target_ns)
		return most;
	if (pace->token_ns <= 0)
		return first;
	n = ((double)target_ns - pace->base_ns) / pace->token_ns;
	return n >= most ? most : n <= least ? least : (uint32_t)n;
}
