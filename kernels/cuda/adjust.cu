/* SPDX-License-Identifier: MIT */

/*
 * Grid: (1 + K tokens, rows), one block for the logits of one token; block: 1024 threads; shared memory: 46 KB.
 * A block whose row has neither flag returns after two loads, which is the cost in a graph of rows without
 * adjustment. Bytes of a row that is adjusted: 4 to read a logit, 2 for its count, a bit of the mask, and 4 to
 * write a logit that changes; with biases alone only their entries. Log-probabilities read the row from the L2
 * several times more (logprobs.cuh), before any logit changes.
 *
 * One block per token is enough: few rows of a step are adjusted. All tokens of a row are adjusted in this launch
 * because verification may read any of them.
 */

#include "kernels/cuda/adjust.cuh"
#include "kernels/cuda/logprobs.cuh"

struct adjusted_logits {
	struct adjustment a;
	float *logits;         /* [vocab] */
	uint32_t vocab;
	const int32_t *drafts; /* [n_drafts] ahead of it */
	uint32_t n_drafts;
	uint64_t position;     /* of the token that they give */
};

__device__ static uint32_t count_behind(const struct adjusted_logits &l, uint32_t id)
{
	uint32_t count = l.a.counts[id];

	for (uint32_t i = 0; i < l.n_drafts; i++)
		count = (uint32_t)l.drafts[i] == id ? count_one_more(count) : count;
	return count;
}

__device__ static void bias_logits(const struct adjusted_logits &l)
{
	for (uint32_t i = threadIdx.x; i < n_biases(l.a); i += SAMPLE_THREADS) {
		const struct token_bias b = l.a.bias[i];

		if ((uint32_t)b.token < l.vocab && isfinite(l.logits[b.token]))
			l.logits[b.token] = add_bias(l.logits[b.token], b.bias);
	}
}

__device__ static void change_logits(const struct adjusted_logits &l, bool counts, bool masked)
{
#pragma unroll 4
	for (uint32_t id = threadIdx.x; id < l.vocab; id += SAMPLE_THREADS) {
		const float before = l.logits[id];
		float after = before;

		if (!isfinite(before))
			continue;
		if (counts)
			after = penalised(*l.a.slot, before, count_behind(l, id));
		if (masked && !(l.a.allowed[id / 32] >> id % 32 & 1))
			after = -INFINITY;
		if (after != before)
			l.logits[id] = after;
	}
}

__device__ static void ban_ends(const struct adjusted_logits &l)
{
	const uint32_t i = threadIdx.x;

	if (l.position >= l.a.slot->min_position || i >= min(l.a.slot->n_ends, SLOT_ENDS_MAX))
		return;
	const uint32_t end = (uint32_t)l.a.slot->ends[i];
	if (end < l.vocab && isfinite(l.logits[end]))
		l.logits[end] = -INFINITY;
}

__device__ static void adjust_logits(const struct adjusted_logits &l)
{
	const bool counts = penalises(*l.a.slot), masked = l.a.slot->masked;

	bias_logits(l);
	__syncthreads();
	if (counts || masked)
		change_logits(l, counts, masked);
	__syncthreads();
	ban_ends(l);
}

/* Whether verification or sampling may read the logits of the row's token i. It reads none after a missing draft. */
__device__ static bool has_token(const struct op_adjust &a, uint32_t r, uint32_t i, bool verifies,
	const int32_t *drafts)
{
	const struct step_inputs &in = a.inputs;

	if (i == 0)
		return !verifies || in.query_start[r + 1] > in.query_start[r];
	if (!verifies || (int64_t)i >= (int64_t)in.query_start[r + 1] - in.query_start[r])
		return false;
	for (uint32_t k = 0; k < i; k++)
		if (drafts[k] < 0 || (uint32_t)drafts[k] >= a.vocab)
			return false;
	return true;
}

__device__ static void adjust_token(const struct op_adjust &a, uint32_t r, uint32_t i,
	int32_t slot, struct block_logprobs &b, struct block_filter &f)
{
	const struct step_inputs &in = a.inputs;
	const uint32_t flags = (uint32_t)in.row_flags[r];
	const bool verifies = in.max_drafts && !a.last_only && (flags & ROW_VERIFY);
	const int32_t *drafts = in.slot_drafts + (size_t)slot * in.max_drafts;
	struct adjusted_logits l = {adjustment_of(in, slot)};

	if (!has_token(a, r, i, verifies, drafts))
		return;
	l.logits = a.logits + ((size_t)r * gridDim.x + i) * a.vocab;
	l.vocab = a.vocab;
	l.drafts = drafts;
	l.n_drafts = i;
	l.position = verifies ? (uint64_t)max(in.slot_length[slot], 0) + 1 + i
			      : (uint64_t)in.seq_lens[r];
	if (flags & ROW_LOGPROBS) {
		struct token_logprob *out = logprobs_of(in, r, i);
		const double log_sum =
			row_logprobs(l.logits, a.vocab, l.a.slot->n_top, out, b, f);

		if (threadIdx.x == 0)
			*(double *)out = log_sum;
		__syncthreads(); /* all have read the logits */
	}
	if (flags & ROW_ADJUST)
		adjust_logits(l);
}

static __global__ void __launch_bounds__(SAMPLE_THREADS)
	adjust(const __grid_constant__ struct op_adjust a)
{
	__shared__ struct block_filter filter;
	__shared__ struct block_logprobs logprobs;
	const uint32_t r = blockIdx.y;
	int32_t slot;

	overlap_begin();
	if (r >= a.n_rows)
		return;
	slot = sampled_slot(a.inputs, r);
	if (slot >= 0 && ((uint32_t)a.inputs.row_flags[r] & (ROW_ADJUST | ROW_LOGPROBS)))
		adjust_token(a, r, blockIdx.x, slot, logprobs, filter);
}

static int adjust_launch(struct stream *stream, const struct op_adjust *a)
{
	const uint32_t width = a->last_only ? 1 : 1 + a->inputs.max_drafts;

	launch(stream, adjust, dim3(width, a->n_rows ? a->n_rows : 1), SAMPLE_THREADS, 0, *a);
	return 0;
}

CUDA_OP(adjust, adjust)
