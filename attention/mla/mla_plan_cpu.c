/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "attention/mla/mla.h"
#include "kernels/cpu/cpu.h"

/* The token's items behind those before it; returns where they end. */
static int32_t plan_token(
	const struct mla_args *a, uint32_t row, uint32_t token, uint32_t n_keys, int32_t n_items)
{
	a->work.plan.token_items[token] = n_items;
	for (uint32_t first = 0, split = 0; first < n_keys; first += a->sizes.split_keys, split++) {
		uint32_t end = first + a->sizes.split_keys;

		a->work.plan.items[n_items++] = (struct mla_item){
			.row = (int32_t)row,
			.token = (int32_t)token,
			.split = (int32_t)split,
			.end = (int32_t)(end < n_keys ? end : n_keys),
		};
	}
	return n_items;
}

static void plan_run(const void *args, void *workspace)
{
	const struct mla_args *a = args;
	uint32_t t = 0;
	int32_t n_items = 0;

	(void)workspace;
	for (uint32_t r = 0; r < a->n_rows; r++) {
		int32_t end = a->query_start[r + 1];

		for (; end > 0 && t < (uint32_t)end && t < a->n_tokens; t++)
			n_items = plan_token(a, r, t, mla_visible(a, r, (uint32_t)end - t), n_items);
	}
	for (; t <= a->n_tokens; t++)
		a->work.plan.token_items[t] = n_items;
}

static const struct cpu_op plan_op = { .name = "mla_plan", .run = plan_run };

int mla_cpu_plan(struct stream *stream, const struct mla_args *a)
{
	if (!a->query_start || !a->seq_lens || !a->work.plan.token_items || !a->work.plan.items)
		return -EINVAL;
	return cpu_launch(stream, &plan_op, a, sizeof(*a), 0);
}
