/* SPDX-License-Identifier: MIT */

/*
 * softmax(scale q k^T) v, as the formula says it: all scores of a query, their maximum, the
 * weights, their sum, the weighted values. Sums are kept in double.
 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "attention/naive/naive.h"
#include "kernels/cpu/cpu.h"

#define LANES 8

_Static_assert(sizeof(struct naive_args) <= CPU_ARGS_MAX, "naive_args outgrows a queue node");

/* A dot product in LANES partial sums, which vectorise. */
static double dot(const float *a, const float *b, size_t n)
{
	double lanes[LANES] = { 0 }, sum = 0;
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lanes[j] += (double)a[i + j] * (double)b[i + j];
	for (; i < n; i++)
		sum += (double)a[i] * (double)b[i];
	for (size_t j = 0; j < LANES; j++)
		sum += lanes[j];
	return sum;
}

/* The K row of a position and head; V is page_tokens rows further. */
static const float *key_at(const struct naive_args *a, uint32_t position, uint32_t kv_head)
{
	int32_t page = a->block_table[position / a->page_tokens];
	size_t row = (size_t)a->n_kv_heads * a->head_dim;

	if (page < 0 || (a->n_pages && (uint32_t)page >= a->n_pages))
		page = 0;
	return (const float *)a->kv +
	       ((size_t)page * 2 * a->page_tokens + position % a->page_tokens) * row +
	       (size_t)kv_head * a->head_dim;
}

/* One query of one head over the positions [first, last]. */
static void attend(const struct naive_args *a, const float *q, uint32_t kv_head, uint32_t first,
	uint32_t last, double *weights, double *sums, float *out)
{
	size_t to_value = (size_t)a->page_tokens * a->n_kv_heads * a->head_dim;
	double highest = -INFINITY, total = 0;

	for (uint32_t p = first; p <= last; p++) {
		weights[p] = (double)a->scale * dot(q, key_at(a, p, kv_head), a->head_dim);
		if (weights[p] > highest)
			highest = weights[p];
	}
	for (uint32_t p = first; p <= last; p++) {
		weights[p] = exp(weights[p] - highest);
		total += weights[p];
	}
	memset(sums, 0, a->head_dim * sizeof(*sums));
	for (uint32_t p = first; p <= last; p++) {
		const float *value = key_at(a, p, kv_head) + to_value;

		for (uint32_t d = 0; d < a->head_dim; d++)
			sums[d] += weights[p] * (double)value[d];
	}
	for (uint32_t d = 0; d < a->head_dim; d++)
		out[d] = (float)(sums[d] / total);
}

static void naive_cpu_op_run(const void *args, void *workspace)
{
	const struct naive_args *a = args;
	double *sums = workspace, *weights = sums + a->head_dim;
	uint32_t group = a->n_heads / a->n_kv_heads;
	size_t width = (size_t)a->n_heads * a->head_dim;

	for (uint32_t j = 0; j < a->n_query; j++) {
		const float *q = (const float *)a->q + (size_t)j * a->q_stride;
		float *out = (float *)a->out + j * width;
		uint32_t first = 0, last;

		if (a->seq_len + j < a->n_query || a->seq_len == 0) {
			memset(out, 0, width * sizeof(*out));
			continue;
		}
		last = a->seq_len + j - a->n_query;
		if (a->window && last >= a->window)
			first = last - a->window + 1;
		for (uint32_t h = 0; h < a->n_heads; h++)
			attend(a, q + (size_t)h * a->head_dim, h / group, first, last, weights,
				sums, out + (size_t)h * a->head_dim);
	}
}

static const struct cpu_op naive_op = { .name = "naive_attention", .run = naive_cpu_op_run };

static int naive_cpu_run(struct stream *stream, const struct naive_args *a)
{
	if (a->seq_len > a->max_seq_len)
		return -EINVAL;
	return cpu_launch(stream, &naive_op, a, sizeof(*a),
		((size_t)a->max_seq_len + a->head_dim) * sizeof(double));
}

const struct naive_kernels naive_cpu_kernels = {
	.run = naive_cpu_run,
	.run_mla = naive_mla_cpu_run,
};
