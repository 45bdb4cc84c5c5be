/* SPDX-License-Identifier: MIT */

/*
 * Verification of drafts (Leviathan et al., Fast Inference from Transformers via Speculative
 * Decoding, 2023, arXiv:2211.17192). Why a row's tokens are distributed as the target's own: a
 * draft x from q that stays with probability min(1, p(x) / q(x)) contributes min(p(x), q(x)); what
 * is missing of p(x) is max(p(x) - q(x), 0), and the sum of that over all tokens is the probability
 * of a rejection. That needs the draw of the draft, of the acceptance and of the residual to be
 * independent, hence a purpose each; and a draft to be judged once, hence no draft outlives its
 * verification: one that was rejected or never reached is not a draw from q any more.
 *
 * Without a draft the token is op_sample's draw, with the same noise.
 */

#include "kernels/cpu/adjust.h"
#include "kernels/cpu/launchers.h"
#include "kernels/cpu/sampling.h"

/* One row with drafts. */
struct verification {
	const float *logits;       /* [1 + n_drafts, vocab] */
	const float *draft_logits; /* [n_drafts, vocab] not read by greedy rows */
	const int32_t *drafts;     /* [n_drafts] */
	const struct slot_sampling *sampling;
	struct candidate *heap;    /* [vocab] */
	uint32_t n_drafts, vocab;
	uint32_t position;         /* of the token that token 0's logits give */
};

static uint64_t verify_key_of(const struct verification *v, uint32_t i, enum sample_purpose purpose)
{
	return noise_key(v->sampling->seed, v->position + i, purpose);
}

static int32_t verify_target_token(
	const struct verification *v, uint32_t i, enum sample_purpose purpose)
{
	return sample_row(v->logits + (size_t)i * v->vocab, v->vocab, v->sampling,
		verify_key_of(v, i, purpose), v->heap);
}

/* If rounding leaves no residual, p and q are nearly equal: draw from p. */
static int32_t verify_residual_token(const struct verification *v, uint32_t i,
	const struct distribution *p, const struct distribution *q)
{
	struct draw draw = {.id = -1, .key = verify_key_of(v, i, SAMPLE_RESIDUAL)};

	for (uint32_t id = 0; id < v->vocab; id++) {
		double left = distribution_at(p, (int32_t)id) - distribution_at(q, (int32_t)id);

		if (left > 0)
			draw_consider(&draw, log(left), (int32_t)id);
	}
	return draw.id >= 0 ? draw.id : verify_target_token(v, i, SAMPLE_RESIDUAL);
}

/* The token behind token i, or -1: the target's logits are not finite; and whether it is its draft. */
static int32_t verify_token_behind(const struct verification *v, uint32_t i, bool *ret_held)
{
	const size_t row = (size_t)i * v->vocab;
	int32_t draft = i < v->n_drafts ? v->drafts[i] : -1;
	struct distribution p, q;
	double chance;

	if (sampling_is_greedy(v->sampling)) {
		int32_t token = verify_target_token(v, i, SAMPLE_TARGET);

		*ret_held = token >= 0 && token == draft;
		return token;
	}
	*ret_held = false;
	if (draft < 0 || (uint32_t)draft >= v->vocab)
		return verify_target_token(v, i, SAMPLE_TARGET);
	distribution_init(&q, v->draft_logits + row, v->vocab, v->sampling, v->heap);
	chance = distribution_at(&q, draft);
	if (!(chance > 0)) /* the draft's logits cannot have given it */
		return verify_target_token(v, i, SAMPLE_TARGET);
	distribution_init(&p, v->logits + row, v->vocab, v->sampling, v->heap);
	if (p.filter.first < 0)
		return -1;
	*ret_held = noise_uniform(noise_hash(verify_key_of(v, i, SAMPLE_ACCEPT), draft)) * chance <
		    distribution_at(&p, draft);
	return *ret_held ? draft : verify_residual_token(v, i, &p, &q);
}

/* Writes what held and the token behind it, or all -1; returns how many held. */
static uint32_t verify_tokens(const struct verification *v, int32_t *sampled)
{
	uint32_t i = 0;
	bool held;

	while ((sampled[i] = verify_token_behind(v, i, &held)) >= 0) {
		if (!held)
			return i;
		i++;
	}
	while (i > 0)
		sampled[--i] = -1;
	return 0;
}

static void verify_row(const struct op_verify *a, uint32_t r, int32_t slot,
	struct candidate *heap, int32_t *sampled)
{
	const struct step_inputs *in = &a->inputs;
	const uint64_t capacity = (uint64_t)in->max_pages * in->page_tokens;
	const uint32_t k = in->max_drafts;
	int64_t n_tokens = (int64_t)in->query_start[r + 1] - in->query_start[r];
	int32_t *drafts = in->slot_drafts + (size_t)slot * k;
	uint64_t length = in->slot_length[slot] > 0 ? (uint64_t)in->slot_length[slot] : 0;
	const struct verification v = {
		.logits = a->logits + (size_t)r * (1 + k) * a->vocab,
		.draft_logits = in->slot_draft_logits + (size_t)slot * k * a->vocab,
		.drafts = drafts,
		.sampling = &in->slot_sampling[slot],
		.heap = heap,
		.n_drafts = n_tokens - 1 < (int64_t)k ? (uint32_t)(n_tokens - 1) : k,
		.vocab = a->vocab,
		.position = (uint32_t)length + 1,
	};
	uint32_t n_held;

	if (n_tokens < 1)
		return;
	n_held = verify_tokens(&v, sampled);
	for (uint32_t i = 0; i <= n_held; i++)
		adjust_settle(in, r, i, v.logits + (size_t)i * a->vocab, sampled[i]);
	in->slot_last_token[slot] = last_token(sampled[n_held]);
	length += 1 + n_held;
	length = length < capacity ? length : capacity;
	in->slot_length[slot] = (int32_t)(length < INT32_MAX ? length : INT32_MAX);
	for (uint32_t i = 0; i < k; i++)
		drafts[i] = -1;
}

static void verify_run(const void *args, void *workspace)
{
	const struct op_verify *a = args;
	const struct step_inputs *in = &a->inputs;
	const uint32_t width = 1 + in->max_drafts;
	const size_t stride = (size_t)(a->last_only ? 1 : width) * a->vocab;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		int32_t *sampled = a->sampled + (size_t)r * width;
		int32_t slot = sampled_slot(in, r);
		const struct slot_sampling *s;

		for (uint32_t i = 0; i < width; i++)
			sampled[i] = -1;
		if (slot < 0)
			continue;
		if (!a->last_only && ((uint32_t)in->row_flags[r] & ROW_VERIFY)) {
			verify_row(a, r, slot, workspace, sampled);
			continue;
		}
		s = &in->slot_sampling[slot];
		sampled[0] = sample_row(a->logits + r * stride, a->vocab, s,
			noise_key(s->seed, (uint32_t)in->seq_lens[r], SAMPLE_TARGET), workspace);
		in->slot_last_token[slot] = last_token(sampled[0]);
		adjust_settle(in, r, 0, a->logits + r * stride, sampled[0]);
	}
}

CPU_OP(verify, (size_t)a->vocab * sizeof(struct candidate))
