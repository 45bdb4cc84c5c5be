/* SPDX-License-Identifier: MIT */

/*
 * Two kernels. `find_top`: grid (splits, rows), each block the arg-max of its part of a row.
 * `sample`: the same grid; each block merges the row's parts, and a greedy row is done. A row with
 * a temperature alone is drawn by all its blocks, the last of which merges; one with top-k or top-p
 * by its first block (sample_filter.cuh), and the others return. Which case a row is stands in
 * device memory, so that a recorded graph serves every mixture of rows.
 *
 * Block: 1024 threads; splits: two blocks for each of 132 multiprocessors, no second wave, and at
 * least 4 logits a thread; shared memory: 46 KB in `sample`. Bytes: rows * vocab * 4 from memory,
 * once; the second kernel reads from the L2. The arg-max is a launch of its own because scores are
 * relative to the top and the filters need it first.
 *
 * Measured on an H200, 128256 tokens, us: greedy 5 for one row, 10.6 for 64 (bandwidth floor: 8);
 * with a temperature 12 and 40 to 58, the time of hashing each token; k = 50 with top-p 47 for 64
 * rows.
 */

#include "kernels/cuda/adjust.cuh"
#include "kernels/cuda/sample_filter.cuh"

enum { SPREAD = 264, MIN_PART = 4 * SAMPLE_THREADS };

/* [rows, splits] the first two, [rows] the third */
struct sample_parts {
	uint64_t *tops; /* block_top's */
	struct choice *draws;
	uint32_t *n_drawn;
	uint32_t n_splits;
};

/* Parts begin at multiples of 4, where rows are aligned if the vocabulary is. */
__device__ static uint32_t part_begin(
	const struct op_sample &a, const struct sample_parts &parts, uint32_t split)
{
	const uint64_t size = (((uint64_t)a.vocab - 1) / parts.n_splits + 4) / 4 * 4;

	return (uint32_t)min(split * size, (uint64_t)a.vocab);
}

static __global__ void __launch_bounds__(SAMPLE_THREADS)
	find_top(const struct op_sample a, const struct sample_parts parts)
{
	const uint32_t r = blockIdx.y;
	const uint32_t begin = part_begin(a, parts, blockIdx.x);
	const uint32_t end = part_begin(a, parts, blockIdx.x + 1);
	uint64_t top;

	overlap_begin();
	if (r >= a.n_rows)
		return;
	if (blockIdx.x == 0 && threadIdx.x == 0)
		parts.n_drawn[r] = 0;
	if (sampled_slot(a.inputs, r) < 0)
		return;
	top = block_top(a.logits + (size_t)r * a.vocab, begin, end);
	if (threadIdx.x == 0)
		parts.tops[(size_t)r * parts.n_splits + blockIdx.x] = top;
}

/* token -1: the row is not finite. */
__device__ static void finish(const struct op_sample &a, uint32_t r, int32_t token)
{
	if (threadIdx.x != 0)
		return;
	a.sampled[r] = token;
	a.inputs.slot_last_token[a.inputs.row_slot[r]] = max(token, 0);
	settle(a.inputs, r, 0, a.logits + (size_t)r * a.vocab, token);
}

/* This block's part of the row; the last block to finish merges all. */
__device__ static void draw_part(const struct op_sample &a, const struct sample_parts &parts,
	uint32_t r, const struct sample_row &row)
{
	const uint32_t begin = part_begin(a, parts, blockIdx.x);
	const uint32_t end = part_begin(a, parts, blockIdx.x + 1);
	struct choice *draws = parts.draws + (size_t)r * parts.n_splits;
	struct thread_draw draw = draw_begin(row);
	struct choice best;
	uint32_t n_before = 0;

	for_each_logit(
		row.logits, begin, end, -FLT_MAX,
		[&](float logit, uint32_t id) { draw_consider(draw, row, logit, (int32_t)id); },
		[&] { draw_share(draw); });
	best = block_best(draw.best);
	if (threadIdx.x >= WARP)
		return;
	if (threadIdx.x == 0) {
		draws[blockIdx.x] = best;
		__threadfence();
		n_before = atomicAdd(&parts.n_drawn[r], 1u);
	}
	if (__shfl_sync(~0u, n_before, 0) != parts.n_splits - 1)
		return;
	__threadfence();
	for (uint32_t i = threadIdx.x; i < parts.n_splits; i += WARP) {
		const double score = __ldcg(&draws[i].score);
		const int32_t id = __ldcg(&draws[i].id);

		if (beats(score, id, best))
			best = {score, id, 0};
	}
	finish(a, r, warp_best(best).id);
}

static __global__ void __launch_bounds__(SAMPLE_THREADS)
	sample(const __grid_constant__ struct op_sample a, const struct sample_parts parts)
{
	__shared__ struct block_filter filter;
	const uint32_t r = blockIdx.y;
	uint64_t top = 0;
	struct slot_sampling s;
	struct sample_row row;

	overlap_begin();
	if (r >= a.n_rows)
		return;
	if (sampled_slot(a.inputs, r) < 0) {
		if (blockIdx.x == 0 && threadIdx.x == 0)
			a.sampled[r] = -1;
		return;
	}
	for (uint32_t i = threadIdx.x % WARP; i < parts.n_splits; i += WARP)
		top = max(top, parts.tops[(size_t)r * parts.n_splits + i]);
	top = row_top(warp_max(top));
	s = a.inputs.slot_sampling[a.inputs.row_slot[r]];
	if (top == 0 || is_greedy(s)) {
		if (blockIdx.x == 0)
			finish(a, r, top == 0 ? -1 : (int32_t)~(uint32_t)top);
		return;
	}
	row = sample_row_of(a.logits + (size_t)r * a.vocab, a.vocab, top, s,
		noise_key(s.seed, (uint32_t)a.inputs.seq_lens[r], a.purpose));
	if (is_filtered(row, s)) {
		if (blockIdx.x == 0)
			finish(a, r, draw_filtered(row, filter, s.top_k, s.top_p).id);
		return;
	}
	draw_part(a, parts, r, row);
}

/* Memory for all parts of max_rows rows: splits are SPREAD / rows, and at least one. */
static int sample_parts_take(
	struct stream *stream, const struct op_sample *a, struct sample_parts *ret)
{
	const size_t max_rows = a->inputs.max_rows, n = max_rows + SPREAD;
	void *memory;
	int rc = cuda_workspace(stream,
		n * (sizeof(*ret->draws) + sizeof(*ret->tops)) + max_rows * sizeof(*ret->n_drawn),
		&memory);

	if (rc)
		return rc;
	ret->draws = (struct choice *)memory;
	ret->tops = (uint64_t *)(ret->draws + n);
	ret->n_drawn = (uint32_t *)(ret->tops + n);
	ret->n_splits = a->n_rows && a->n_rows < SPREAD ? SPREAD / a->n_rows : 1;
	if (ret->n_splits > (a->vocab - 1) / MIN_PART + 1)
		ret->n_splits = (a->vocab - 1) / MIN_PART + 1;
	return 0;
}

static int sample_launch(struct stream *stream, const struct op_sample *a)
{
	struct sample_parts parts;
	dim3 grid;
	int rc = sample_parts_take(stream, a, &parts);

	if (rc)
		return rc;
	grid = dim3(parts.n_splits, a->n_rows ? a->n_rows : 1);
	launch(stream, find_top, grid, SAMPLE_THREADS, 0, *a, parts);
	launch(stream, sample, grid, SAMPLE_THREADS, 0, *a, parts);
	return 0;
}

CUDA_OP(sample, sample)
