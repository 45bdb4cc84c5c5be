/* SPDX-License-Identifier: MIT */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"

/* ---- routing ---- */

struct moe_workspace {
	float *bias;   /* [n_experts] */
	float *scores; /* [n_experts] */
	float *choice; /* [n_experts] what is chosen by; -inf: out of the running */
	float *groups; /* [n_groups] likewise */
};

static struct moe_workspace moe_route_carve(void *memory, const struct op_moe_route *a)
{
	struct moe_workspace ws = {.bias = memory};

	ws.scores = ws.bias + a->n_experts;
	ws.choice = ws.scores + a->n_experts;
	ws.groups = ws.choice + a->n_experts;
	return ws;
}

static void moe_score(const struct op_moe_route *a, const float *logits, float *scores)
{
	float highest = -INFINITY;
	double sum = 0;

	if (a->score == MOE_SIGMOID) {
		for (uint32_t e = 0; e < a->n_experts; e++)
			scores[e] = 1.0f / (1.0f + expf(-logits[e]));
		return;
	}
	for (uint32_t e = 0; e < a->n_experts; e++)
		highest = fmaxf(highest, logits[e]);
	for (uint32_t e = 0; e < a->n_experts; e++) {
		scores[e] = expf(logits[e] - highest);
		sum += (double)scores[e];
	}
	for (uint32_t e = 0; e < a->n_experts; e++)
		scores[e] = (float)((double)scores[e] / sum);
}

/* The first of the highest. Nothing is ahead of -inf: from all that are out, the first. */
static uint32_t moe_highest_of(const float *values, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++) {
		if (values[i] > values[best])
			best = i;
	}
	return best;
}

static float moe_group_score(const struct op_moe_route *a, const float *choice, uint32_t n)
{
	uint32_t first = moe_highest_of(choice, n);
	float second = -INFINITY;

	if (!a->group_top_two)
		return choice[first];
	for (uint32_t e = 0; e < n; e++) {
		if (e != first)
			second = fmaxf(second, choice[e]);
	}
	return fminf(choice[first] + second, FLT_MAX); /* not keep_groups' mark */
}

/* Leaves in `choice` the experts of the n_groups_active highest groups. */
static void moe_keep_groups(const struct op_moe_route *a, const struct moe_workspace *ws)
{
	uint32_t n = a->n_experts / a->n_groups;

	for (uint32_t g = 0; g < a->n_groups; g++)
		ws->groups[g] = moe_group_score(a, ws->choice + (size_t)g * n, n);
	/* Groups that are kept are marked with +inf. */
	for (uint32_t i = 0; i < a->n_groups_active; i++) {
		uint32_t best = a->n_groups;

		for (uint32_t g = 0; g < a->n_groups; g++) {
			if (ws->groups[g] != INFINITY &&
				(best == a->n_groups || ws->groups[g] > ws->groups[best]))
				best = g;
		}
		ws->groups[best] = INFINITY;
	}
	for (uint32_t e = 0; e < a->n_experts; e++) {
		if (ws->groups[e / n] != INFINITY)
			ws->choice[e] = -INFINITY;
	}
}

static void moe_route_token(const struct op_moe_route *a, const struct moe_workspace *ws,
	const float *logits, int32_t *experts, float *weights)
{
	float sum = 0;

	moe_score(a, logits, ws->scores);
	for (uint32_t e = 0; e < a->n_experts; e++) {
		float choice = ws->scores[e] + (a->bias.data ? ws->bias[e] : 0.0f);

		/* a number that all comparisons know, and no mark */
		ws->choice[e] = isfinite(choice) ? choice : -FLT_MAX;
	}
	if (a->n_groups_active < a->n_groups)
		moe_keep_groups(a, ws);
	for (uint32_t i = 0; i < a->n_active; i++) {
		uint32_t best = moe_highest_of(ws->choice, a->n_experts);

		experts[i] = (int32_t)best;
		weights[i] = ws->scores[best];
		sum += weights[i];
		ws->choice[best] = -INFINITY;
	}
	for (uint32_t i = 0; i < a->n_active; i++)
		weights[i] = (a->normalise ? weights[i] / (sum + 1e-20f) : weights[i]) * a->scale;
}

static void moe_route_run(const void *args, void *workspace)
{
	const struct op_moe_route *a = args;
	const struct moe_workspace ws = moe_route_carve(workspace, a);

	if (a->bias.data)
		weight_to_f32(ws.bias, &a->bias, 0, a->n_experts);
	for (size_t t = 0; t < a->n_tokens; t++) {
		int32_t *experts = a->experts + t * a->n_active;
		float *weights = a->weights + t * a->n_active;

		if (a->slot_mapping[t] >= 0) {
			moe_route_token(a, &ws, a->logits + t * a->n_experts, experts, weights);
			continue;
		}
		for (uint32_t i = 0; i < a->n_active; i++) {
			experts[i] = -1;
			weights[i] = 0;
		}
	}
}

CPU_OP(moe_route, ((size_t)3 * a->n_experts + a->n_groups) * sizeof(float))

/* ---- grouping ---- */

/* A counting sort. Ids that are none of an expert's count as none. */
static void moe_group_run(const void *args, void *workspace)
{
	const struct op_moe_group *a = args;
	uint32_t n_pairs = a->n_tokens * a->n_active;
	int32_t *next = workspace;

	memset(a->expert_start, 0, ((size_t)a->n_experts + 1) * sizeof(*a->expert_start));
	for (uint32_t p = 0; p < n_pairs; p++) {
		if (a->experts[p] >= 0 && (uint32_t)a->experts[p] < a->n_experts)
			a->expert_start[a->experts[p] + 1]++;
	}
	for (uint32_t e = 0; e < a->n_experts; e++) {
		a->expert_start[e + 1] += a->expert_start[e];
		next[e] = a->expert_start[e];
	}
	for (uint32_t p = 0; p < n_pairs; p++) {
		if (a->experts[p] >= 0 && (uint32_t)a->experts[p] < a->n_experts)
			a->pairs[next[a->experts[p]]++] = (int32_t)p;
	}
	for (uint32_t p = (uint32_t)a->expert_start[a->n_experts]; p < n_pairs; p++)
		a->pairs[p] = -1;
}

CPU_OP(moe_group, a->n_experts * sizeof(int32_t))

/* ---- combining ---- */

static void moe_combine_run(const void *args, void *workspace)
{
	const struct op_moe_combine *a = args;
	size_t cols = a->cols;

	for (size_t t = 0; t < a->n_tokens; t++) {
		float *out = (float *)a->out + t * cols;

		if (!a->base)
			memset(out, 0, cols * sizeof(*out));
		else if (a->base != a->out)
			memcpy(out, (const float *)a->base + t * cols, cols * sizeof(*out));
		for (size_t p = t * a->n_active; p < (t + 1) * a->n_active; p++) {
			const float *y = (const float *)a->y + p * cols;

			for (size_t i = 0; a->experts[p] >= 0 && i < cols; i++)
				out[i] += a->weights[p] * y[i];
		}
	}
}

CPU_OP(moe_combine, 0)
