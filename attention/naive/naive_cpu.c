/* SPDX-License-Identifier: MIT */

/*
 * softmax(scale q k^T) v, as the formula says it: all scores of a query, their maximum, the
 * weights, their sum, the weighted values. Of latent attention, keys and values of a head are
 * expanded from the cache first: k = [W_UK c, r], v = W_UV c. Sums are kept in double.
 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "attention/attention_cpu.h"
#include "attention/naive/naive.h"
#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"

#define LANES 8

_Static_assert(sizeof(struct naive_args) <= CPU_ARGS_MAX, "naive_args outgrows a queue node");

/* A dot product in LANES partial sums, which vectorise. */
UNCHECKED_LOOP double naive_dot_loop(const float *a, const float *b, size_t n)
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

static double naive_dot(const float *a, const float *b, size_t n)
{
	check_range(a, n * sizeof(*a));
	check_range(b, n * sizeof(*b));
	return naive_dot_loop(a, b, n);
}

/* Elements of the cache, decoded to `line` if they are codes. */
static const float *naive_read(const struct naive_args *a, size_t at, float factor, size_t n, float *line)
{
	if (!a->fp8)
		return (const float *)a->kv + at;
	kv_decode(line, (const uint8_t *)a->kv + at, factor, n);
	return line;
}

/* The place of a position's key, in rows of the cache; its value is page_tokens rows later. */
static size_t naive_place(const struct naive_args *a, uint32_t position, uint32_t halves)
{
	size_t page = attention_page(a->block_table[position / a->page_tokens], a->n_pages);

	return page * halves * a->page_tokens + position % a->page_tokens;
}

/* Scores of positions [first, last] become weights; returns their sum. */
static double naive_weigh(double *weights, uint32_t first, uint32_t last)
{
	double highest = -INFINITY, total = 0;

	for (uint32_t p = first; p <= last; p++)
		highest = weights[p] > highest ? weights[p] : highest;
	for (uint32_t p = first; p <= last; p++) {
		weights[p] = exp(weights[p] - highest);
		total += weights[p];
	}
	return total;
}

/* The last position that query j sees; false: it is ahead of its sequence, and sees none. */
static bool naive_last(const struct naive_args *a, uint32_t j, uint32_t *ret)
{
	if (a->seq_len == 0 || a->seq_len + j < a->n_query)
		return false;
	*ret = a->seq_len + j - a->n_query;
	return true;
}

/* ---- keys and values ---- */

struct naive_workspace {
	double *sums;    /* [head_dim] */
	double *weights; /* [max_seq_len] */
	float *line;     /* [head_dim] a key or value */
};

static size_t naive_gqa_bytes(const struct naive_args *a)
{
	return ((size_t)a->max_seq_len + a->head_dim) * sizeof(double) + a->head_dim * sizeof(float);
}

static struct naive_workspace naive_gqa_carve(const struct naive_args *a, void *memory)
{
	struct naive_workspace w = { .sums = memory };

	w.weights = w.sums + a->head_dim;
	w.line = (float *)(w.weights + a->max_seq_len);
	return w;
}

static double naive_cap(const struct naive_args *a, double score)
{
	return a->soft_cap != 0 ? (double)a->soft_cap * tanh(score / (double)a->soft_cap) : score;
}

/* One query of one head over the positions [first, last]. */
static void naive_gqa_head(const struct naive_args *a, const float *q, uint32_t kv_head,
	uint32_t first, uint32_t last, const struct naive_workspace *w, float *out)
{
	size_t row = (size_t)a->n_kv_heads * a->head_dim, at = (size_t)kv_head * a->head_dim;
	double total;

	for (uint32_t p = first; p <= last; p++)
		w->weights[p] = naive_cap(a, (double)a->scale * naive_dot(q,
			naive_read(a, naive_place(a, p, 2) * row + at, a->factors.key, a->head_dim, w->line),
			a->head_dim));
	total = naive_weigh(w->weights, first, last);
	memset(w->sums, 0, a->head_dim * sizeof(*w->sums));
	for (uint32_t p = first; p <= last; p++) {
		const float *value = naive_read(a, (naive_place(a, p, 2) + a->page_tokens) * row + at,
			a->factors.value, a->head_dim, w->line);

		for (uint32_t d = 0; d < a->head_dim; d++)
			w->sums[d] += w->weights[p] * (double)value[d];
	}
	for (uint32_t d = 0; d < a->head_dim; d++)
		out[d] = (float)(w->sums[d] / total);
}

static void naive_gqa(const void *args, void *workspace)
{
	const struct naive_args *a = args;
	const struct naive_workspace w = naive_gqa_carve(a, workspace);
	uint32_t group = a->n_heads / a->n_kv_heads;
	size_t width = (size_t)a->n_heads * a->head_dim;

	for (uint32_t j = 0; j < a->n_query; j++) {
		const float *q = (const float *)a->q + (size_t)j * a->q_stride;
		float *out = (float *)a->out + j * width;
		uint32_t first = 0, last;

		if (!naive_last(a, j, &last)) {
			memset(out, 0, width * sizeof(*out));
			continue;
		}
		if (a->window && last >= a->window)
			first = last - a->window + 1;
		for (uint32_t h = 0; h < a->n_heads; h++)
			naive_gqa_head(a, q + (size_t)h * a->head_dim, h / group, first, last, &w,
				out + (size_t)h * a->head_dim);
	}
}

/* ---- latent ---- */

struct naive_expanded {
	double *keys;    /* [max_seq_len, nope] of one head */
	double *values;  /* [max_seq_len, v] */
	double *weights; /* [max_seq_len] */
	double *sums;    /* [v] */
	float *line;     /* [rank] a row of W */
	float *cached;   /* [rank + rope] a row of the cache */
};

static size_t naive_latent_bytes(const struct naive_args *a)
{
	const struct attention_latent *l = &a->latent;

	return ((size_t)a->max_seq_len * (l->nope + l->v + 1) + l->v) * sizeof(double) +
	       (2 * (size_t)l->rank + l->rope) * sizeof(float);
}

static struct naive_expanded naive_latent_carve(const struct naive_args *a, void *memory)
{
	struct naive_expanded e = { .keys = memory };

	e.values = e.keys + (size_t)a->max_seq_len * a->latent.nope;
	e.weights = e.values + (size_t)a->max_seq_len * a->latent.v;
	e.sums = e.weights + a->max_seq_len;
	e.line = (float *)(e.sums + a->latent.v);
	e.cached = e.line + a->latent.rank;
	return e;
}

static const float *naive_latent_cached(
	const struct naive_args *a, uint32_t position, const struct naive_expanded *e)
{
	size_t row = (size_t)a->latent.rank + a->latent.rope;

	return naive_read(a, naive_place(a, position, 1) * row, a->factors.key, row, e->cached);
}

/* Column i of all keys (or values): row `row` of W times the latents. */
static void naive_expand_column(const struct naive_args *a, uint32_t row,
	const struct naive_expanded *e, double *column, size_t stride)
{
	weight_to_f32(e->line, &a->kv_b, (size_t)row * a->latent.rank, a->latent.rank);
	for (uint32_t p = 0; p < a->seq_len; p++)
		column[p * stride] =
			naive_dot(e->line, naive_latent_cached(a, p, e), a->latent.rank);
}

static void naive_expand_head(
	const struct naive_args *a, uint32_t head, const struct naive_expanded *e)
{
	const struct attention_latent *l = &a->latent;
	uint32_t row = head * (l->nope + l->v);

	for (uint32_t i = 0; i < l->nope; i++)
		naive_expand_column(a, row + i, e, e->keys + i, l->nope);
	for (uint32_t i = 0; i < l->v; i++)
		naive_expand_column(a, row + l->nope + i, e, e->values + i, l->v);
}

/* One query of one head over the positions [0, last]. */
static void naive_latent_head(const struct naive_args *a, const float *q, uint32_t last,
	const struct naive_expanded *e, float *out)
{
	const struct attention_latent *l = &a->latent;
	double total;

	for (uint32_t p = 0; p <= last; p++) {
		double score =
			naive_dot(q + l->nope, naive_latent_cached(a, p, e) + l->rank, l->rope);

		for (uint32_t i = 0; i < l->nope; i++)
			score += (double)q[i] * e->keys[(size_t)p * l->nope + i];
		e->weights[p] = (double)a->scale * score;
	}
	total = naive_weigh(e->weights, 0, last);
	memset(e->sums, 0, l->v * sizeof(*e->sums));
	for (uint32_t p = 0; p <= last; p++)
		for (uint32_t i = 0; i < l->v; i++)
			e->sums[i] += e->weights[p] * e->values[(size_t)p * l->v + i];
	for (uint32_t i = 0; i < l->v; i++)
		out[i] = (float)(e->sums[i] / total);
}

static void naive_latent(const void *args, void *workspace)
{
	const struct naive_args *a = args;
	const struct attention_latent *l = &a->latent;
	const struct naive_expanded e = naive_latent_carve(a, workspace);

	for (uint32_t h = 0; h < a->n_heads; h++) {
		naive_expand_head(a, h, &e);
		for (uint32_t j = 0; j < a->n_query; j++) {
			const float *q = (const float *)a->q + (size_t)j * a->q_stride;
			float *out = (float *)a->out + ((size_t)j * a->n_heads + h) * l->v;
			uint32_t last;

			if (naive_last(a, j, &last))
				naive_latent_head(
					a, q + (size_t)h * (l->nope + l->rope), last, &e, out);
			else
				memset(out, 0, l->v * sizeof(*out));
		}
	}
}

static const struct cpu_op naive_gqa_op = { .name = "naive_attention", .run = naive_gqa };
static const struct cpu_op naive_latent_op = { .name = "naive_mla", .run = naive_latent };

int naive_cpu_run(struct stream *stream, const struct naive_args *a)
{
	if (a->seq_len > a->max_seq_len)
		return -EINVAL;
	if (a->latent.rank)
		return cpu_launch(
			stream, &naive_latent_op, a, sizeof(*a), naive_latent_bytes(a));
	return cpu_launch(stream, &naive_gqa_op, a, sizeof(*a), naive_gqa_bytes(a));
}
