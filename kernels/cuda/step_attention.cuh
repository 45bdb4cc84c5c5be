/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_ATTENTION_CUH
#define MIMEO_KERNELS_CUDA_STEP_ATTENTION_CUH

/*
 * Units of attention: one kv head's queries, 8 at most, over a piece of one row's history. Norms of
 * heads, the rotation and the write of the new key and value are in it. A warp takes a page, 16
 * tokens, at a time: scores are keys times queries, mma's A being the page as it lies in shared
 * memory and B the queries, so that the eight columns are full; the weights, transposed within the
 * warp, are B of values times weights. The step's own token is a ninth share beside the warps'.
 */

#include "kernels/cuda/step_page.cuh"

/* ---- a unit ---- */

/* Shares in shared memory: [share][head][DIM + 4] floats, then [share][head] of {top, total}. */
template <int DIM> STEP_INLINE uint32_t step_share_at(const step_args &a, const step_worker &k, uint32_t share, uint32_t head)
{
	return k.at.merge + (share * (a.n_heads / a.n_kv_heads) + head) * (DIM + 4) * 4;
}

template <int DIM> STEP_INLINE uint32_t step_stats_at(const step_args &a, const step_worker &k, uint32_t share, uint32_t head)
{
	return step_share_at<DIM>(a, k, STEP_WORKERS + 1, 0) + (share * STEP_COLUMNS + head) * 8;
}

template <int DIM>
STEP_INLINE void step_share_leave(const step_args &a, const step_worker &k, step_share<DIM> &share)
{
	const uint32_t group = a.n_heads / a.n_kv_heads;

#pragma unroll
	for (int e = 0; e < 2; e++) {
		const uint32_t head = k.q * 2 + e;

		share.total[e] += step_xor(share.total[e], 4);
		share.total[e] += step_xor(share.total[e], 8);
		share.total[e] += step_xor(share.total[e], 16);
		if (head >= group)
			continue;
#pragma unroll
		for (int i = 0; i < DIM / 16; i++) {
			const uint32_t to = step_share_at<DIM>(a, k, k.warp, head) + (i * 16 + k.r8) * 4;

			step_sts_4f(to, share.out[i][e]);
			step_sts_4f(to + 32, share.out[i][2 + e]);
		}
		if (k.r8 == 0)
			step_sts_8f(step_stats_at<DIM>(a, k, k.warp, head), share.top[e], share.total[e]);
	}
}

/* The step's own token: its share, and its place in the cache. Of one warp. */
template <int DIM>
STEP_INLINE void step_newest(const step_args &a, const step_worker &k, const step_unit &u, uint32_t layer,
	const step_head<DIM> &q, const step_angles (&by)[DIM / 64], step_head<DIM> &key, const step_head<DIM> &value)
{
	const int32_t slot = (int32_t)step_lds_4(k.at.rows + u.row * STEP_ROW_BYTES(DIM) + 4);
	float score = 0;

	if (a.k_norm.data)
		step_head_norm<DIM>(a, k, key, a.k_norm.data + layer * a.k_norm.stride);
	step_head_turn<DIM>(key, by);
#pragma unroll
	for (int i = 0; i < DIM / 8; i++) {
		const uint32_t x = step_word(q.v[i / 8][i / 4 % 2], i % 4);
		const uint32_t y = step_word(key.v[i / 8][i / 4 % 2], i % 4);

		score += step_low(x) * step_low(y) + step_high(x) * step_high(y);
	}
	score += step_xor(score, 1);
	score += step_xor(score, 2);
	if (k.r8 < a.n_heads / a.n_kv_heads) {
#pragma unroll
		for (int i = 0; i < DIM / 8; i++) {
			const uint32_t w = step_word(value.v[i / 8][i / 4 % 2], i % 4);

			step_sts_8f(step_share_at<DIM>(a, k, STEP_WORKERS, k.r8) +
					(i / 4 * 32 + k.q * 8 + i % 4 * 2) * 4,
				step_low(w), step_high(w));
		}
		if (k.q == 0)
			step_sts_8f(step_stats_at<DIM>(a, k, STEP_WORKERS, k.r8), score * a.scale_log2, 1.0f);
	}
	if (slot >= 0 && k.r8 < 2) {
		step_bf16 *to = a.cache[layer] +
				((((size_t)slot / STEP_PAGE * 2 + k.r8) * STEP_PAGE + slot % STEP_PAGE) *
						a.n_kv_heads + u.head) * DIM + k.q * 8;

#pragma unroll
		for (int i = 0; i < DIM / 32; i++)
			*(uint4 *)(to + i * 32) = k.r8 ? value.v[i / 2][i % 2] : key.v[i / 2][i % 2];
	}
}

/* All shares together: output of the piece, and its log-sum-exp. */
template <int DIM>
STEP_INLINE void step_merge_shares(const step_args &a, const step_worker &k, const step_unit &u, uint32_t *region)
{
	const step_region r = step_region_of<DIM>(a, k.division.serial);
	const uint32_t group = a.n_heads / a.n_kv_heads, n = u.newest ? STEP_WORKERS + 1 : STEP_WORKERS;
	const uint32_t at = u.piece * a.rows + u.row;

#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < group * (DIM / 2); i += STEP_WORKERS * 32) {
		const uint32_t head = i / (DIM / 2), pair = i % (DIM / 2), all = u.head * group + head;
		float top = -INFINITY, total = 0, x = 0, y = 0;
		float2 stats[STEP_WORKERS + 1];

#pragma unroll
		for (uint32_t s = 0; s <= STEP_WORKERS; s++)
			stats[s] = s < n ? step_lds_8f(step_stats_at<DIM>(a, k, s, head))
					 : make_float2(-INFINITY, 0);
#pragma unroll
		for (uint32_t s = 0; s <= STEP_WORKERS; s++)
			top = fmaxf(top, stats[s].x);
#pragma unroll
		for (uint32_t s = 0; s <= STEP_WORKERS; s++) {
			const float f = stats[s].x == -INFINITY ? 0.0f : step_exp2(stats[s].x - top);
			const float2 v = s < n ? step_lds_8f(step_share_at<DIM>(a, k, s, head) + pair * 8)
					       : make_float2(0, 0);

			total += f * stats[s].y;
			x += f * v.x;
			y += f * v.y;
		}
		if (total > 0)
			x /= total, y /= total;
		step_put(region + r.pieces + at * (a.n_heads * DIM / 2) + all * (DIM / 2) + pair,
			step_pack(x, y));
		if (pair == 0)
			step_put(region + r.lse + at * a.n_heads + all,
				step_bits(total > 0 ? top + step_log2(total) : -INFINITY));
	}
}

/* Each warp's pages of the stages that the unit has, in turn. */
template <int DIM>
STEP_INLINE void step_unit_pages(const step_args &a, step_worker &k, const step_unit &u, const step_head<DIM> &q,
	step_share<DIM> &share)
{
	constexpr uint32_t BYTES = DIM * 64, PAGES = STEP_STAGE / BYTES, TURNS = STEP_WORKERS / PAGES;
	uint32_t turn = 0;

#pragma unroll 1
	for (uint32_t p = 0; p < u.n_pages; p += PAGES) {
		const uint32_t page = p + k.warp % PAGES, first = (u.page + page) * STEP_PAGE;

		step_wait(k.at.full + k.stage.index * 8, k.stage.parity, 5);
		if (turn == k.warp / PAGES && page < u.n_pages)
			step_page<DIM>(a, k, q, k.at.ring + k.stage.index * STEP_STAGE + k.warp % PAGES * BYTES,
				u.history - first < STEP_PAGE ? u.history - first : STEP_PAGE, share);
		step_meet_warp();
		if (k.lane == 0)
			step_arrive(k.at.empty + k.stage.index * 8);
		step_next(k.stage, a.n_stages);
		turn = turn + 1 == TURNS ? 0 : turn + 1;
	}
}

template <int DIM>
STEP_INLINE void step_attend(const step_args &a, step_worker &k, uint32_t *region, uint32_t layer, const step_unit &u)
{
	const uint32_t group = a.n_heads / a.n_kv_heads, half = DIM / 2;
	const uint32_t *row = region + u.row * ((a.n_heads + 2 * a.n_kv_heads) * half);
	const uint32_t *q_at = row + (u.head * group + k.r8) * half, *k_at = row + (a.n_heads + u.head) * half;
	const bool own = u.newest && k.warp == STEP_WORKERS - 1;
	step_share<DIM> share = {{-INFINITY, -INFINITY}, {0, 0}, {}};
	step_head<DIM> q, key, value;
	step_angles by[DIM / 64];

	step_head_load<DIM>(k, q, q_at, (u.n_pages || u.newest) && k.r8 < group);
	step_head_load<DIM>(k, key, k_at, own);
	step_head_load<DIM>(k, value, k_at + a.n_kv_heads * half, own);
#pragma unroll
	for (int i = 0; i < DIM / 64; i++)
		by[i] = step_angles_load<DIM>(k, u.row, i * 32 + k.q * 8);
	step_head_ensure<DIM>(a, k, q, q_at);
	step_head_ensure<DIM>(a, k, key, k_at);
	step_head_ensure<DIM>(a, k, value, k_at + a.n_kv_heads * half);
	if (a.q_norm.data)
		step_head_norm<DIM>(a, k, q, a.q_norm.data + layer * a.q_norm.stride);
	step_head_turn<DIM>(q, by);
	if (own)
		step_newest<DIM>(a, k, u, layer, q, by, key, value);
	step_unit_pages<DIM>(a, k, u, q, share);
	step_share_leave<DIM>(a, k, share);
	step_meet<1, STEP_WORKERS * 32>();
	step_merge_shares<DIM>(a, k, u, region);
	step_meet<1, STEP_WORKERS * 32>(); /* the block may have a further unit */
}

template <int DIM>
STEP_INLINE void step_attention(
	const step_args &a, step_worker &k, uint32_t *region, uint32_t layer, const step_range &r)
{
#pragma unroll 1
	for (uint32_t j = 0; j < step_n_of(r); j++) {
		const uint32_t i = step_thing(r, j);
		const step_unit u = step_unit_of(a, k.division, i, step_row_len<DIM>(k, step_row_of_unit(a, k.division.serial, i)));

		if (step_gathers(k.division.serial) && !u.n_pages && !u.newest)
			continue; /* nobody looks for it */
		step_attend<DIM>(a, k, region, layer, u);
	}
}

#endif
