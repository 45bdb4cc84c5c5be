/* SPDX-License-Identifier: MIT */

/*
 * The filters all keep a prefix of the tokens in falling order (ties: lowest id first). top-k: the
 * first k. top-p: of those, up to and with the one at which their share reaches p. min-p: of those,
 * the ones with at least min_p times the first one's probability. At least the first is kept.
 * The order comes from a heap, built in O(vocab), from which only what is kept is taken. Without
 * top-k and top-p nothing is ordered: min-p is a threshold and a row is one pass over its logits.
 *
 * A prefix is known by its last member: a distribution compares any token with that.
 */

#include <float.h>

#include "kernels/cpu/sampling.h"

int32_t filter_arg_max(const float *logits, uint32_t vocab)
{
	float top = -INFINITY;
	int32_t first = -1;

	for (uint32_t i = 0; i < vocab; i++) {
		if (!(logits[i] <= FLT_MAX))
			return -1;
		if (logits[i] > top) {
			top = logits[i];
			first = (int32_t)i;
		}
	}
	return first;
}

static bool filter_comes_before(const struct candidate *a, const struct candidate *b)
{
	return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* ---- the heap ---- */

static void filter_sift_down(struct candidate *heap, uint32_t n, uint32_t at)
{
	struct candidate moved = heap[at];
	uint32_t child;

	while ((child = 2 * at + 1) < n) {
		if (child + 1 < n && filter_comes_before(&heap[child + 1], &heap[child]))
			child++;
		if (!filter_comes_before(&heap[child], &moved))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = moved;
}

static uint32_t filter_heap_fill(struct candidate *heap, const float *logits, uint32_t vocab)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < vocab; i++)
		if (isfinite(logits[i]))
			heap[n++] = (struct candidate){.logit = logits[i], .id = (int32_t)i};
	for (uint32_t i = n / 2; i-- > 0;)
		filter_sift_down(heap, n, i);
	return n;
}

/* Moves the heap's first to its end, the new *n; from there on lie those taken, the last first. */
static const struct candidate *filter_heap_take(struct candidate *heap, uint32_t *n)
{
	struct candidate first = heap[0];

	heap[0] = heap[--*n];
	if (*n)
		filter_sift_down(heap, *n, 0);
	heap[*n] = first;
	return &heap[*n];
}

/* ---- what is kept ---- */

static double filter_weight_sum(const struct filter *f, const struct candidate *c, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += exp(filter_scaled(f, c[i].logit));
	return sum;
}

static void filter_keep_ordered(
	struct filter *f, struct candidate *heap, const struct slot_sampling *s)
{
	const uint32_t n_heap = filter_heap_fill(heap, f->logits, f->vocab);
	uint32_t n = n_heap, left = n_heap, i;
	double total, before = 0;

	if (s->top_k && s->top_k < n) {
		while (n_heap - left < s->top_k)
			filter_heap_take(heap, &left);
		n = s->top_k;
	}
	total = filter_weight_sum(f, left < n_heap ? heap + left : heap, n);
	for (i = 0; i < n; i++) {
		const struct candidate *c =
			n_heap - left > i ? &heap[n_heap - 1 - i] : filter_heap_take(heap, &left);
		double weight = exp(filter_scaled(f, c->logit));

		if (i && ((s->top_p < 1.0f && before >= (double)s->top_p * total) ||
				 weight < (double)s->min_p))
			break;
		before += weight;
	}
	f->kept = &heap[n_heap - 1];
	f->n_kept = i;
}

void filter_init(struct filter *ret, const float *logits, uint32_t vocab, int32_t first,
	const struct slot_sampling *s, struct candidate *heap)
{
	*ret = (struct filter){
		.logits = logits,
		.vocab = vocab,
		.first = first,
		.top = (double)logits[first],
		/* An infinite one is the largest. */
		.temperature = isinf(s->temperature) ? 0x1p127 : (double)s->temperature,
		.least = s->min_p > 0 ? log((double)s->min_p) : -(double)INFINITY,
	};
	if ((s->top_k && s->top_k < vocab) || s->top_p < 1.0f)
		filter_keep_ordered(ret, heap, s);
}

/* ---- probabilities ---- */

static void filter_sum_unordered(struct distribution *d)
{
	const struct filter *f = &d->filter;

	d->last = (struct candidate){.logit = f->logits[f->first], .id = f->first};
	d->total = 1;
	for (uint32_t i = 0; i < f->vocab; i++) {
		double scaled = filter_scaled(f, f->logits[i]);

		if ((int32_t)i == f->first || !isfinite(f->logits[i]) || !(scaled >= f->least))
			continue;
		d->total += exp(scaled);
		d->last.logit = fminf(d->last.logit, f->logits[i]);
		d->last.id = INT32_MAX;
	}
}

void distribution_init(struct distribution *ret, const float *logits, uint32_t vocab,
	const struct slot_sampling *s, struct candidate *heap)
{
	int32_t first = filter_arg_max(logits, vocab);
	const struct candidate *last;

	*ret = (struct distribution){.filter.first = first};
	if (first < 0)
		return;
	filter_init(&ret->filter, logits, vocab, first, s, heap);
	if (!ret->filter.n_kept) {
		filter_sum_unordered(ret);
		return;
	}
	last = ret->filter.kept - (ret->filter.n_kept - 1);
	ret->last = *last;
	ret->total = filter_weight_sum(&ret->filter, last, ret->filter.n_kept);
	ret->filter.kept = NULL;
}

double distribution_at(const struct distribution *d, int32_t id)
{
	const struct filter *f = &d->filter;
	struct candidate c = {.id = id};

	if (f->first < 0)
		return 0;
	c.logit = f->logits[id];
	if (!isfinite(c.logit) || filter_comes_before(&d->last, &c))
		return 0;
	return exp(filter_scaled(f, c.logit)) / d->total;
}
