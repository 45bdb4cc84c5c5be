/* SPDX-License-Identifier: MIT */

/*
 * Sampling. A row is either the lowest id of its greatest logit (temperature 0), or the arg-max of
 * logit / temperature + Gumbel noise over the tokens that the filters keep, which is a draw from
 * their renormalised softmax.
 *
 * The filters all keep a prefix of the tokens in falling order (ties: lowest id first). top-k: the
 * first k. top-p: of those, up to and with the one at which their share reaches p. min-p: of those,
 * the ones with at least min_p times the first one's probability. At least the first is kept.
 * The order comes from a heap, built in O(vocab), from which only what is kept is taken. Without
 * top-k and top-p nothing is ordered: min-p is a threshold and a row is one pass over its logits.
 *
 * Noise: splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
 * 2014; finaliser: Stafford's mix 13) as a counter-based generator. Its state after n steps is
 * start + n * GAMMA, so the n-th output is one finaliser: a token's noise is the token-th output
 * of the generator that starts at a hash of (seed, position, purpose).
 *
 * A row without a finite logit gets token 0.
 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/launchers.h"

#define GAMMA UINT64_C(0x9e3779b97f4a7c15)
#define LN2 0.693147180559945309

CPU_ARGS_FIT(op_sample);

struct candidate {
	float logit;
	int32_t id;
};

/* The best draw so far. */
struct draw {
	double score;
	int32_t id; /* -1: none */
	uint64_t key;
};

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static uint64_t noise_key(uint64_t seed, uint32_t position, uint32_t purpose)
{
	return mix(mix(seed + GAMMA) + ((uint64_t)purpose << 32 | position));
}

/*
 * u is a multiple of 2^-53, strictly inside (0, 1); the noise is -log(-log(u)). Nearly no token of
 * a large vocabulary can win, and as -log(u) >= 1 - u, a few leading bits tell: 1 - u is at least
 * 2^-(1 + leading ones of the hash). The slack is for the rounding of score and noise.
 */
static void draw_consider(struct draw *draw, double scaled, int32_t id)
{
	uint64_t hash = mix(draw->key + GAMMA * ((uint64_t)id + 1)) >> 12;
	int leading_ones = __builtin_clzll(~(hash << 12)); /* of 52 bits; the rest is not zero */
	double score;

	if (draw->id >= 0 && scaled + (leading_ones + 1) * LN2 < draw->score - 1e-6)
		return;
	score = scaled - log(-log(((double)hash + 0.5) * 0x1p-52));
	if (draw->id < 0 || score > draw->score || (score == draw->score && id < draw->id)) {
		draw->score = score;
		draw->id = id;
	}
}

/* -1 if no logit is finite. */
static int32_t arg_max(const float *logits, uint32_t n)
{
	int32_t best = -1;

	for (uint32_t i = 0; i < n; i++)
		if (isfinite(logits[i]) && (best < 0 || logits[i] > logits[best]))
			best = (int32_t)i;
	return best;
}

static bool comes_before(const struct candidate *a, const struct candidate *b)
{
	return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(struct candidate *heap, uint32_t n, uint32_t at)
{
	struct candidate moved = heap[at];
	uint32_t child;

	while ((child = 2 * at + 1) < n) {
		if (child + 1 < n && comes_before(&heap[child + 1], &heap[child]))
			child++;
		if (!comes_before(&heap[child], &moved))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = moved;
}

static uint32_t heap_fill(struct candidate *heap, const float *logits, uint32_t vocab)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < vocab; i++)
		if (isfinite(logits[i]))
			heap[n++] = (struct candidate){.logit = logits[i], .id = (int32_t)i};
	for (uint32_t i = n / 2; i-- > 0;)
		sift_down(heap, n, i);
	return n;
}

/* Moves the heap's first to its end, the new *n; from there on lie those taken, the last first. */
static const struct candidate *heap_take(struct candidate *heap, uint32_t *n)
{
	struct candidate first = heap[0];

	heap[0] = heap[--*n];
	if (*n)
		sift_down(heap, *n, 0);
	heap[*n] = first;
	return &heap[*n];
}

static double weight_sum(const struct candidate *c, uint32_t n, float top, double temperature)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += exp(((double)c[i].logit - (double)top) / temperature);
	return sum;
}

static void draw_ordered(struct draw *draw, struct candidate *heap, uint32_t n_heap,
	const struct slot_sampling *s, double temperature)
{
	uint32_t n = n_heap, left = n_heap;
	float top = heap[0].logit;
	double total, before = 0;

	if (s->top_k && s->top_k < n) {
		while (n_heap - left < s->top_k)
			heap_take(heap, &left);
		n = s->top_k;
	}
	total = left < n_heap ? weight_sum(heap + left, n, top, temperature)
			      : weight_sum(heap, n, top, temperature);
	for (uint32_t i = 0; i < n; i++) {
		const struct candidate *c =
			n_heap - left > i ? &heap[n_heap - 1 - i] : heap_take(heap, &left);
		double scaled = ((double)c->logit - (double)top) / temperature;
		double weight = exp(scaled);

		if (i && ((s->top_p < 1.0f && before >= (double)s->top_p * total) ||
				 weight < (double)s->min_p))
			break;
		draw_consider(draw, scaled, c->id);
		before += weight;
	}
}

static void draw_unordered(struct draw *draw, const float *logits, uint32_t vocab, int32_t first,
	double min_p, double temperature)
{
	double top = (double)logits[first];
	double least = min_p > 0 ? log(min_p) : -INFINITY;

	draw_consider(draw, 0, first);
	for (uint32_t i = 0; i < vocab; i++) {
		double scaled = ((double)logits[i] - top) / temperature;

		if (isfinite(logits[i]) && scaled >= least)
			draw_consider(draw, scaled, (int32_t)i);
	}
}

static int32_t sample_row(const float *logits, uint32_t vocab, const struct slot_sampling *s,
	uint64_t key, struct candidate *heap)
{
	/* A temperature that is no positive number is greedy; an infinite one is the largest. */
	double temperature = isinf(s->temperature) ? 0x1p127 : (double)s->temperature;
	struct draw draw = {.id = -1, .key = key};
	int32_t first = arg_max(logits, vocab);

	if (first < 0)
		return 0;
	if (!(s->temperature > 0))
		return first;
	if ((s->top_k && s->top_k < vocab) || s->top_p < 1.0f)
		draw_ordered(&draw, heap, heap_fill(heap, logits, vocab), s, temperature);
	else
		draw_unordered(&draw, logits, vocab, first, (double)s->min_p, temperature);
	return draw.id;
}

static void sample_run(const void *args, void *workspace)
{
	const struct op_sample *a = args;
	const struct step_inputs *in = &a->inputs;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		int32_t slot = in->row_slot[r];
		const struct slot_sampling *s;

		a->sampled[r] = -1;
		if (slot < 0 || (uint32_t)slot >= in->max_slots ||
			!((uint32_t)in->row_flags[r] & ROW_SAMPLE))
			continue;
		s = &in->slot_sampling[slot];
		a->sampled[r] = sample_row(a->logits + (size_t)r * a->vocab, a->vocab, s,
			noise_key(s->seed, (uint32_t)in->seq_lens[r], a->purpose), workspace);
		in->slot_last_token[slot] = a->sampled[r];
	}
}

static const struct cpu_op sample_op = {.name = "sample", .run = sample_run};

int cpu_sample(struct stream *stream, const struct op_sample *a)
{
	const struct step_inputs *in = &a->inputs;

	if (!a->logits || !a->sampled || !a->vocab || a->vocab > INT32_MAX)
		return -EINVAL;
	if (a->n_rows > in->max_rows || !in->max_slots || a->purpose > SAMPLE_RESIDUAL)
		return -EINVAL;
	if (!in->row_slot || !in->row_flags || !in->seq_lens || !in->slot_sampling ||
		!in->slot_last_token)
		return -EINVAL;
	return CPU_LAUNCH(stream, &sample_op, a, (size_t)a->vocab * sizeof(struct candidate));
}
