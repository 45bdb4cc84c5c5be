/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_DISTRIBUTION_H
#define MIMEO_TESTS_KERNELS_DISTRIBUTION_H

/*
 * Distributions by the book, for what is drawn from them: the filters one after the other over a
 * small vocabulary, the noise by the words of the op's head, and Pearson's test with its
 * probability.
 */

#include <math.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { SMALL_VOCAB_MAX = 64 };

/* Rank of a token: how many come before it, by falling logit, ties by id. */
static inline uint32_t rank_of(const float *logits, uint32_t vocab, uint32_t id)
{
	uint32_t rank = 0;

	for (uint32_t i = 0; i < vocab; i++)
		rank += logits[i] > logits[id] || (logits[i] == logits[id] && i < id);
	return rank;
}

static inline void renormalise(double *p, uint32_t vocab)
{
	double sum = 0;

	for (uint32_t i = 0; i < vocab; i++)
		sum += p[i];
	for (uint32_t i = 0; i < vocab; i++)
		p[i] /= sum;
}

/* Temperature, top-k, top-p, min-p, one after the other and renormalised between. Logits are finite
 * or -inf. */
static inline void filtered_distribution(
	const float *logits, uint32_t vocab, const struct slot_sampling *s, double *p)
{
	double removed[SMALL_VOCAB_MAX], top = 0;

	for (uint32_t i = 0; i < vocab; i++)
		p[i] = exp((double)logits[i] / (double)s->temperature);
	for (uint32_t i = 0; i < vocab; i++)
		if (s->top_k && rank_of(logits, vocab, i) >= s->top_k)
			p[i] = 0;
	renormalise(p, vocab);
	for (uint32_t i = 0; i < vocab; i++) {
		double before = 0;

		for (uint32_t j = 0; j < vocab; j++)
			if (rank_of(logits, vocab, j) < rank_of(logits, vocab, i))
				before += p[j];
		removed[i] = s->top_p < 1 && before >= (double)s->top_p;
	}
	for (uint32_t i = 0; i < vocab; i++)
		if (removed[i])
			p[i] = 0;
	renormalise(p, vocab);
	for (uint32_t i = 0; i < vocab; i++)
		top = p[i] > top ? p[i] : top;
	for (uint32_t i = 0; i < vocab; i++)
		if (p[i] < (double)s->min_p * top)
			p[i] = 0;
	renormalise(p, vocab);
}

/* ---- noise ---- */

static inline uint64_t finalise(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* The uniform number of a token, strictly inside (0, 1). */
static inline double plain_uniform(uint64_t seed, uint32_t position, uint32_t purpose, uint32_t id)
{
	const uint64_t gamma = 0x9e3779b97f4a7c15u;
	uint64_t state = finalise(finalise(seed + gamma) + ((uint64_t)purpose << 32 | position));

	return ((double)(finalise(state + gamma * (id + 1)) >> 12) + 0.5) / 4503599627370496.0;
}

/* A draw by weights, which need not add up to one: Gumbel noise for every token. */
static inline int32_t weighted_draw(const double *weights, uint32_t vocab, uint64_t seed,
	uint32_t position, uint32_t purpose)
{
	double best = -HUGE_VAL;
	int32_t best_id = -1;

	for (uint32_t i = 0; i < vocab; i++) {
		double score;

		if (!(weights[i] > 0))
			continue;
		score = log(weights[i]) - log(-log(plain_uniform(seed, position, purpose, i)));
		if (score > best) {
			best = score;
			best_id = (int32_t)i;
		}
	}
	return best_id;
}

/* ---- Pearson's test ---- */

/* The probability of a chi-square of so many degrees of freedom above x: its closed forms. */
static inline double chi_square_above(double x, uint32_t freedom)
{
	double half = x / 2, term, sum;

	if (freedom % 2) {
		sum = erfc(sqrt(half));
		term = exp(-half) * sqrt(half / acos(-1.0)) * 2;
		for (uint32_t j = 3; j <= freedom; j += 2) {
			sum += term;
			term *= x / j;
		}
		return sum;
	}
	sum = 0;
	term = exp(-half);
	for (uint32_t j = 2; j <= freedom; j += 2) {
		sum += term;
		term *= x / j;
	}
	return sum;
}

/*
 * The probability of counts at least as far from n draws of p. Bins that expect less than 5 are
 * merged, and with the smallest of the others if even they together do. 0: a bin of no
 * probability was hit.
 */
static inline double goodness_of_fit(const uint32_t *counts, const double *p, uint32_t n_bins)
{
	double statistic = 0, rest = 0, rest_count = 0, draws = 0;
	uint32_t n = 0, smallest = n_bins;

	for (uint32_t i = 0; i < n_bins; i++)
		draws += counts[i];
	for (uint32_t i = 0; i < n_bins; i++) {
		if (!(p[i] > 0) && counts[i])
			return 0;
		if (p[i] * draws >= 5 && (smallest == n_bins || p[i] < p[smallest]))
			smallest = i;
		if (p[i] * draws < 5) {
			rest += p[i] * draws;
			rest_count += counts[i];
		}
	}
	if (rest > 0 && rest < 5 && smallest < n_bins) {
		rest += p[smallest] * draws;
		rest_count += counts[smallest];
	} else {
		smallest = n_bins;
	}
	for (uint32_t i = 0; i < n_bins; i++) {
		double expected = p[i] * draws;

		if (expected < 5 || i == smallest)
			continue;
		statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
		n++;
	}
	if (rest > 0) {
		statistic += (rest_count - rest) * (rest_count - rest) / rest;
		n++;
	}
	return n < 2 ? 1 : chi_square_above(statistic, n - 1);
}

#endif
