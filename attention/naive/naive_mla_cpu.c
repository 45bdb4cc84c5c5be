/* SPDX-License-Identifier: MIT */

/*
 * Latent attention as the formula says it: keys and values of all heads are expanded from the cache,
 * k = [W_UK c, r] and v = W_UV c, and then it is softmax(scale q k^T) v. Sums are kept in double.
 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "attention/naive/naive.h"
#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"

_Static_assert(sizeof(struct naive_mla_args) <= CPU_ARGS_MAX, "its arguments outgrow a queue node");

struct expanded {
	double *keys;    /* [max_seq_len, nope] of one head */
	double *values;  /* [max_seq_len, v] */
	double *weights; /* [max_seq_len] */
	double *sums;    /* [v] */
	float *line;     /* [rank] a row of W */
};

static size_t workspace_bytes(const struct naive_mla_args *a)
{
	const struct attention_latent *l = &a->latent;

	return ((size_t)a->max_seq_len * (l->nope + l->v + 1) + l->v) * sizeof(double) +
	       l->rank * sizeof(float);
}

static struct expanded workspace_carve(const struct naive_mla_args *a, void *memory)
{
	struct expanded e = { .keys = memory };

	e.values = e.keys + (size_t)a->max_seq_len * a->latent.nope;
	e.weights = e.values + (size_t)a->max_seq_len * a->latent.v;
	e.sums = e.weights + a->max_seq_len;
	e.line = (float *)(e.sums + a->latent.v);
	return e;
}

static const float *cached(const struct naive_mla_args *a, uint32_t position)
{
	int32_t page = a->block_table[position / a->page_tokens];

	if (page < 0 || (a->n_pages && (uint32_t)page >= a->n_pages))
		page = 0;
	return (const float *)a->kv +
	       ((size_t)page * a->page_tokens + position % a->page_tokens) *
		       (a->latent.rank + a->latent.rope);
}

static double dot(const float *a, const float *b, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)a[i] * (double)b[i];
	return sum;
}

/* Column i of all keys (or values), which row `row` of W makes of the latents. */
static void expand_column(const struct naive_mla_args *a, uint32_t row, const struct expanded *e,
	double *column, size_t stride)
{
	weight_to_f32(e->line, &a->kv_b, (size_t)row * a->latent.rank, a->latent.rank);
	for (uint32_t p = 0; p < a->seq_len; p++)
		column[p * stride] = dot(e->line, cached(a, p), a->latent.rank);
}

static void expand_head(const struct naive_mla_args *a, uint32_t head, const struct expanded *e)
{
	const struct attention_latent *l = &a->latent;
	uint32_t row = head * (l->nope + l->v);

	for (uint32_t i = 0; i < l->nope; i++)
		expand_column(a, row + i, e, e->keys + i, l->nope);
	for (uint32_t i = 0; i < l->v; i++)
		expand_column(a, row + l->nope + i, e, e->values + i, l->v);
}

/* One query of one head over the positions [0, last]. */
static void attend(const struct naive_mla_args *a, const float *q, uint32_t last,
	const struct expanded *e, float *out)
{
	const struct attention_latent *l = &a->latent;
	double highest = -INFINITY, total = 0;

	for (uint32_t p = 0; p <= last; p++) {
		double score = dot(q + l->nope, cached(a, p) + l->rank, l->rope);

		for (uint32_t i = 0; i < l->nope; i++)
			score += (double)q[i] * e->keys[(size_t)p * l->nope + i];
		e->weights[p] = (double)a->scale * score;
		highest = e->weights[p] > highest ? e->weights[p] : highest;
	}
	memset(e->sums, 0, l->v * sizeof(*e->sums));
	for (uint32_t p = 0; p <= last; p++) {
		double weight = exp(e->weights[p] - highest);

		total += weight;
		for (uint32_t i = 0; i < l->v; i++)
			e->sums[i] += weight * e->values[(size_t)p * l->v + i];
	}
	for (uint32_t i = 0; i < l->v; i++)
		out[i] = (float)(e->sums[i] / total);
}

static void naive_mla_op_run(const void *args, void *workspace)
{
	const struct naive_mla_args *a = args;
	const struct attention_latent *l = &a->latent;
	const struct expanded e = workspace_carve(a, workspace);

	for (uint32_t h = 0; h < a->n_heads; h++) {
		expand_head(a, h, &e);
		for (uint32_t j = 0; j < a->n_query; j++) {
			const float *q = (const float *)a->q + (size_t)j * a->q_stride;
			float *out = (float *)a->out + ((size_t)j * a->n_heads + h) * l->v;

			if (a->seq_len == 0 || a->seq_len + j < a->n_query)
				memset(out, 0, l->v * sizeof(*out));
			else
				attend(a, q + (size_t)h * (l->nope + l->rope),
					a->seq_len + j - a->n_query, &e, out);
		}
	}
}

static const struct cpu_op naive_mla_op = { .name = "naive_mla", .run = naive_mla_op_run };

int naive_mla_cpu_run(struct stream *stream, const struct naive_mla_args *a)
{
	if (a->seq_len > a->max_seq_len)
		return -EINVAL;
	return cpu_launch(stream, &naive_mla_op, a, sizeof(*a), workspace_bytes(a));
}
