/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_SAMPLING_H
#define MIMEO_KERNELS_CPU_SAMPLING_H

/*
 * Shared by sampling, verification and drafting: noise, the draw, the filters.
 *
 * Noise: splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
 * 2014; finaliser: Stafford's mix 13) as a counter-based generator. Its state after n steps is
 * start + n * GAMMA, so the n-th output is one finaliser: a token's noise is the token-th output
 * of the generator that starts at a hash of (seed, position, purpose).
 *
 * A draw is the arg-max of log weight + Gumbel noise over what may be drawn.
 */

#include <math.h>

#include "kernels/cpu/slots.h"
#include "kernels/ops.h"
#include "kernels/checks.h"

#define NOISE_GAMMA UINT64_C(0x9e3779b97f4a7c15)
#define LN2 0.693147180559945309

/* ---- noise ---- */

static inline uint64_t noise_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static inline uint64_t noise_key(uint64_t seed, uint32_t position, uint32_t purpose)
{
	return noise_mix(noise_mix(seed + NOISE_GAMMA) + ((uint64_t)purpose << 32 | position));
}

/* 52 bits. */
static inline uint64_t noise_hash(uint64_t key, int32_t id)
{
	return noise_mix(key + NOISE_GAMMA * ((uint64_t)id + 1)) >> 12;
}

/* An odd multiple of 2^-53, strictly inside (0, 1). */
static inline double noise_uniform(uint64_t hash)
{
	return ((double)hash + 0.5) * 0x1p-52;
}

/* ---- the draw ---- */

/* The best so far. */
struct draw {
	double score;
	int32_t id; /* -1: none */
	uint64_t key;
};

/*
 * The noise is -log(-log(u)). Nearly no token of a large vocabulary can win, and as -log(u) >= 1 -
 * u, a few leading bits decide: 1 - u is at least 2^-(1 + leading ones of the hash). The slack is
 * for the rounding of score and noise.
 */
static inline void draw_consider(struct draw *draw, double log_weight, int32_t id)
{
	uint64_t hash = noise_hash(draw->key, id);
	int leading_ones = __builtin_clzll(~(hash << 12)); /* of 52 bits; the rest is not zero */
	double score;

	if (draw->id >= 0 && log_weight + (leading_ones + 1) * LN2 < draw->score - 1e-6)
		return;
	score = log_weight - log(-log(noise_uniform(hash)));
	if (draw->id < 0 || score > draw->score || (score == draw->score && id < draw->id)) {
		draw->score = score;
		draw->id = id;
	}
}

/* ---- the filters: filter.c ---- */

struct candidate {
	float logit;
	int32_t id;
};

/* The tokens of a finite row that temperature, top-k, top-p and min-p keep (op_sample). */
struct filter {
	const float *logits; /* [vocab] */
	uint32_t vocab;
	int32_t first;       /* the greatest logit, the lowest id of a tie */
	double top, temperature;
	/* Those kept are listed, kept[0], kept[-1], ... by falling logit; or, with n_kept 0, they
	 * are `first` and all whose scaled logit is at least `least`. */
	const struct candidate *kept;
	uint32_t n_kept;
	double least;
};

/* The same as probabilities. */
struct distribution {
	struct filter filter;  /* first -1: the row is not finite, and nothing is drawn */
	struct candidate last; /* of those kept */
	double total;          /* of their weights, relative to the first's */
};

/* A temperature that is no positive number. */
static inline bool sampling_is_greedy(const struct slot_sampling *s)
{
	return !(s->temperature > 0);
}

/* The lowest id of the greatest logit; -1: they are not finite (op_sample). */
int32_t filter_arg_max(const float *logits, uint32_t vocab);
/* `first` is filter_arg_max's, sampling not greedy. heap[vocab] belongs to the filter while its
 * list is in use. */
void filter_init(struct filter *ret, const float *logits, uint32_t vocab, int32_t first,
	const struct slot_sampling *s, struct candidate *heap);
/* heap[vocab] is free again afterwards. */
void distribution_init(struct distribution *ret, const float *logits, uint32_t vocab,
	const struct slot_sampling *s, struct candidate *heap);
double distribution_at(const struct distribution *d, int32_t id);

/* log of the weight of a token relative to the first's. */
static inline double filter_scaled(const struct filter *f, float logit)
{
	return ((double)logit - f->top) / f->temperature;
}

/* ---- rows: sample.c ---- */

/* A row's token, greedy or drawn; -1: it is not finite. Uses heap[vocab]. */
int32_t sample_row(const float *logits, uint32_t vocab, const struct slot_sampling *s, uint64_t key,
	struct candidate *heap);

/* The last token of a slot after sampling; 0 if none was sampled. */
static inline int32_t last_token(int32_t sampled)
{
	return sampled >= 0 ? sampled : 0;
}

/* The slot of a row that is sampled, or -1. */
static inline int32_t sampled_slot(const struct step_inputs *in, uint32_t r)
{
	return slot_exists(in, in->row_slot[r]) && ((uint32_t)in->row_flags[r] & ROW_SAMPLE)
		       ? in->row_slot[r]
		       : -1;
}

#endif
