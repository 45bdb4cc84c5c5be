/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CUDA_ROUTING_H
#define MIMEO_TESTS_KERNELS_CUDA_ROUTING_H

/* Which experts each token of a step has, drawn at random and grouped, on both sides. */

#include "tests/kernels/cuda_ops_fixture.h"

enum spread { RANDOM, TO_ONE, SPARSE, PADDED, SPREADS };

struct routing {
	uint32_t n_tokens, n_active, n_experts;
	struct both experts, start, pairs;
};

/* Distinct experts, as a router has it, but for TO_ONE. */
static inline void choose(const struct routing *r, enum spread spread, uint32_t t, int32_t *ret)
{
	for (uint32_t i = 0; i < r->n_active; i++) {
		bool again = true;

		while (again) {
			ret[i] = spread == TO_ONE ? (int32_t)r->n_experts - 1
						  : (int32_t)random_below(&rng, r->n_experts);
			if (spread == SPARSE && r->n_experts >= 2 * r->n_active)
				ret[i] |= 1;
			ret[i] = ret[i] < (int32_t)r->n_experts ? ret[i] : 1;
			again = false;
			for (uint32_t j = 0; spread != TO_ONE && j < i; j++)
				again = again || ret[j] == ret[i];
		}
	}
	for (uint32_t i = 0; spread == PADDED && t % 3 == 1 && i < r->n_active; i++)
		ret[i] = -1;
}

static inline void routing_fill(struct routing *r, enum spread spread)
{
	int32_t *ids = scratch((size_t)r->n_tokens * r->n_active * sizeof(*ids));
	struct op_moe_group a = {
		.n_tokens = r->n_tokens, .n_active = r->n_active, .n_experts = r->n_experts};

	for (uint32_t t = 0; t < r->n_tokens; t++)
		choose(r, spread, t, ids + (size_t)t * r->n_active);
	both_put(&r->experts, ids);
	for (int side = 0; side < N_SIDES; side++) {
		a.experts = r->experts.at[side];
		a.expert_start = r->start.at[side];
		a.pairs = r->pairs.at[side];
		RUN(side, moe_group, &a);
	}
}

static inline struct routing routing_new(uint32_t n_tokens, uint32_t n_active, uint32_t n_experts)
{
	const size_t pairs = (size_t)n_tokens * n_active;

	return (struct routing){
		.n_tokens = n_tokens,
		.n_active = n_active,
		.n_experts = n_experts,
		.experts = both_new(BYTES, pairs * sizeof(int32_t)),
		.start = both_new(BYTES, ((size_t)n_experts + 1) * sizeof(int32_t)),
		.pairs = both_new(BYTES, pairs * sizeof(int32_t)),
	};
}

#endif
