/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SAMPLE_TEAM_CUH
#define MIMEO_KERNELS_CUDA_SAMPLE_TEAM_CUH

/*
 * A row by a team of 1, 2, 4 or 8 blocks, which are a cluster: several passes over the same logits,
 * each decided by the one before, without a launch a pass. Blocks exchange what they find through
 * the stream's workspace, between barriers of the cluster, and all take the same decisions from it.
 *
 * The team's size depends on the number of rows; results must not. Tops and draws are maxima of
 * total orders. Floating-point sums are over TEAM_PARTS parts of the vocabulary whatever the size:
 * a block adds a part in an order of its own, and the parts are added in theirs. The filters run in
 * the first block alone (sample_filter.cuh).
 */

#include "kernels/cuda/sample_filter.cuh"
#include "kernels/checks.h"

enum { TEAM_PARTS = 8, TEAM_MAX = TEAM_PARTS };
/* A verification has two distributions, the target's and the draft's. */
enum side { SIDE_P, SIDE_Q, N_SIDES };

/*
 * Of one team. The first index is the parity of the turn: what one turn wrote is read before the
 * barrier of the next, and written again behind that.
 */
struct exchange {
	uint64_t tops[2][N_SIDES][TEAM_MAX];
	uint64_t last[2][N_SIDES]; /* place kept */
	double sums[2][N_SIDES][TEAM_PARTS];
	struct choice draws[TEAM_MAX];
};

struct team {
	struct exchange *exchange;
	uint32_t row, rank, size;
};

/* ---- device ---- */

__device__ static inline struct team team_of(struct exchange *exchanges, uint32_t size)
{
	const uint32_t row = blockIdx.x / size;

	return {exchanges + row, row, blockIdx.x % size, size};
}

/* Barrier of the team's threads but those that have exited; orders writes before it ahead of reads
 * behind it. */
__device__ static inline void team_sync(const struct team &team)
{
#if __CUDA_ARCH__ >= 900
	if (team.size > 1) {
		asm volatile("barrier.cluster.arrive.release;\n\t"
			     "barrier.cluster.wait.acquire;" ::
				     : "memory");
		return;
	}
#endif
	__syncthreads();
}

/* Parts begin at multiples of 4, where rows are aligned if the vocabulary is. */
__device__ static inline uint32_t part_begin(uint32_t n, uint32_t part)
{
	const uint64_t size = (((uint64_t)n - 1) / TEAM_PARTS + 4) / 4 * 4;

	return (uint32_t)min(part * size, (uint64_t)n);
}

/* Where the part of this block, or of one behind it, begins: TEAM_PARTS / size parts each. */
__device__ static inline uint32_t share_begin(const struct team &team, uint32_t n, uint32_t rank)
{
	return part_begin(n, rank * (TEAM_PARTS / team.size));
}

/* This block's top of the row; behind a barrier team_top is the row's; 0: it is not finite. */
__device__ static inline void find_top(
	const struct team &team, uint32_t parity, enum side side, const float *logits, uint32_t n)
{
	const uint64_t top = block_top(logits, share_begin(team, n, team.rank),
		share_begin(team, n, team.rank + 1));

	if (threadIdx.x == 0)
		team.exchange->tops[parity][side][team.rank] = top;
}

__device__ static inline uint64_t team_top(
	const struct team &team, uint32_t parity, enum side side)
{
	uint64_t top = 0;

	for (uint32_t i = 0; i < team.size; i++)
		top = max(top, (uint64_t)__ldcg((const unsigned long long *)&team.exchange
						       ->tops[parity][side][i]));
	return row_top(top);
}

/* The best of the blocks' draws, in every thread; a row's last turn. Only warp 0's `best`
 * counts. */
__device__ static inline struct choice team_best(const struct team &team, struct choice best)
{
	if (threadIdx.x == 0)
		team.exchange->draws[team.rank] = best;
	team_sync(team);
	for (uint32_t i = 0; i < team.size; i++) {
		const double score = __ldcg(&team.exchange->draws[i].score);
		const int32_t id = __ldcg(&team.exchange->draws[i].id);

		if (i == 0 || beats(score, id, best))
			best = {score, id, 0};
	}
	return best;
}

/* This block's share of the row, of which no filter but min-p takes any; in warp 0. */
__device__ static inline struct choice draw_range(
	const struct sample_row &row, uint32_t begin, uint32_t end)
{
	struct thread_draw draw = draw_begin(row);

	for_each_logit(
		row.logits, begin, end, -FLT_MAX,
		[&](float logit, uint32_t id) { draw_consider(draw, row, logit, (int32_t)id); },
		[&] { draw_share(draw); });
	return block_best(draw.best);
}

/* The row's draw, by all blocks of the team; the first one's warp 0 has it. */
__device__ static int32_t team_draw(const struct team &team, const struct sample_row &row,
	struct block_filter &f, const struct slot_sampling &s)
{
	struct choice best;

	if (is_filtered(row, s))
		return team.rank ? -1 : draw_filtered(row, f, s.top_k, s.top_p).id;
	best = draw_range(row, share_begin(team, row.vocab, team.rank),
		share_begin(team, row.vocab, team.rank + 1));
	return team_best(team, best).id;
}

/* ---- host ---- */

/*
 * A team a row; no rows: one, which finds none. As many blocks as there are multiprocessors, or
 * until a part of a row of n_cols is not worth one.
 */
template <typename Args>
static inline int teams_launch(struct stream *stream,
	void (*kernel)(const Args, struct exchange *, uint32_t), uint32_t n_rows, uint32_t max_rows,
	uint32_t n_cols, const Args &args)
{
	const struct cuda_limits *limits = cuda_limits(stream);
	uint32_t size = limits->arch >= 90 && limits->code_arch >= 90 ? TEAM_MAX : 1;
	void *exchanges; /* [max_rows] */
	void *params[] = {(void *)&args, &exchanges, &size};
	int rc = cuda_workspace(stream, (size_t)max_rows * sizeof(struct exchange), &exchanges);

	if (rc)
		return rc;
	while (size > 1 && ((uint64_t)size * n_rows > limits->n_sms ||
				   n_cols / size < 4 * SAMPLE_THREADS))
		size /= 2;
	cuda_launch_clusters(stream, (const void *)kernel, (n_rows ? n_rows : 1) * size,
		SAMPLE_THREADS, size, 0, params);
	return 0;
}

#endif
