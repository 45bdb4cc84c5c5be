/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_SM90_WORKS_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_SM90_WORKS_CUH

/*
 * How prefill kernels on 9.0a are fed, whatever a work is: one warp deals works, two load tiles of
 * keys and of values into rings, and the warpgroups that compute take both. paged_prefill_sm90.cu
 * describes the whole.
 *
 * A ring has two barriers a stage. `full` ends a phase when the stage has been written: one arrival
 * of the writer, and the bytes of its copies. `empty` does when all that read it have arrived. A
 * reader waits for full, a writer for empty; on a new ring, empty counts as ended already.
 */

#include "attention/paged/paged_sm90_rows.cuh"

/* Beside the rings: what was dealt (n_rows 0: there is no more work), and the barriers. */
template <typename Work> struct work_rings {
	Work works[2];
	uint64_t work_full[2], work_empty[2];
	uint64_t full[2][STAGES], empty[2][STAGES]; /* of keys, of values */
};
enum { OF_KEYS, OF_VALUES };

/* One thread, before a __syncthreads, a barrier_init_fence behind it; n_warps: that compute. */
template <typename Work> static __device__ void rings_init(work_rings<Work> *s, int n_warps)
{
	for (int i = 0; i < 2; i++) {
		barrier_init(shared_address(&s->work_full[i]), 1);
		barrier_init(shared_address(&s->work_empty[i]), (n_warps + 2) * 32);
	}
	for (int i = 0; i < 2 * STAGES; i++) {
		barrier_init(shared_address(&s->full[i / STAGES][i % STAGES]), 1);
		barrier_init(shared_address(&s->empty[i / STAGES][i % STAGES]), n_warps);
	}
}

/* One thread. Every block's last ticket finds nothing; then as many have been drawn as there are
 * works, and the ticket has wrapped to 0 for the next launch. */
template <typename Work, typename Item, typename Find>
static __device__ __forceinline__ void deal(
	work_rings<Work> *s, Item n_items, uint32_t *ticket, Find find)
{
	ring_place<2> at = {};

	for (Item item = blockIdx.x;;) {
		Work *to = &s->works[at.index];

		barrier_wait(shared_address(&s->work_empty[at.index]), at.parity ^ 1);
		if (item < n_items)
			find(item, to);
		else
			to->n_rows = 0;
		barrier_arrive(shared_address(&s->work_full[at.index]));
		if (item >= n_items)
			return;
		at.next();
		item = gridDim.x + atomicInc(ticket, n_items - 1);
	}
}

/* The next work, for every thread of a warp, which gives the place back at once. */
template <typename Work>
static __device__ __forceinline__ Work work_take(work_rings<Work> *s, ring_place<2> &at)
{
	Work w;

	barrier_wait(shared_address(&s->work_full[at.index]), at.parity);
	w = s->works[at.index];
	barrier_arrive(shared_address(&s->work_empty[at.index]));
	at.next();
	return w;
}

/* ---- loading, from the paged cache ---- */

/* A lane's box of `rows` tokens from `token` on, keys or values, to row `to` of the tile and to the
 * end of a phase of `barrier`; page -1: the lane has none. */
template <int D, typename Args>
static __device__ __forceinline__ void tile_load(const Args &p, const void *map, int32_t kv_head,
	int32_t rows, int32_t to, int32_t token, int32_t page, int kind, uint32_t memory,
	uint32_t barrier)
{
	uint32_t n = __popc(__ballot_sync(~0u, page >= 0));
	int32_t in_page = token & ((1 << p.page_shift) - 1);

	if (threadIdx.x % 32 == 0)
		barrier_expect(barrier, n * rows * D * 2);
	__syncwarp();
	if (page >= 0)
		copy_box(memory + to * D * 2, map, barrier, kv_head * atom<D>::n,
			(((page * 2 + kind) << p.page_shift) + in_page) / 8);
}

/* Values that come to the end of the phase of `edge` have tokens that are not the row's: clean()
 * makes them zeros, and `barrier` ends its phase. */
template <typename Clean>
static __device__ __forceinline__ void values_clean(
	uint32_t edge, uint32_t parity, uint32_t barrier, Clean clean)
{
	barrier_wait(edge, parity);
	clean();
	stores_fence();
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		barrier_arrive(barrier);
}

/* 16 bytes of zeros in shared memory. */
static __device__ __forceinline__ void clear_16(uint32_t to)
{
	asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

/* ---- computing ---- */

/* Queue the copies of a warpgroup's queries; packed rows that don't exist are zeros. */
template <int D, typename Args>
static __device__ __forceinline__ void queries_load(const Args &a, int32_t query_first,
	int32_t kv_head, int32_t m_first, int32_t n_rows, uint32_t memory)
{
	constexpr int chunks = D / 8;
	int32_t group = a.n_heads / a.n_kv_heads, first = warpgroup() * 64;

#pragma unroll 4
	for (int c = threadIdx.x % GROUP; c < 64 * chunks; c += GROUP) {
		int r = c / chunks, col = c % chunks, m = m_first + first + r;
		bool there = first + r < n_rows;
		const bf16 *src = (const bf16 *)a.q;

		if (there)
			src += (size_t)(query_first + m / group) * a.q_stride +
			       (size_t)(kv_head * group + m % group) * D + col * 8;
		copy_16(memory + atom<D>::place(r, col), src, there);
	}
	copy_commit();
}

/* Tiles [first, end) of a work, the last first, but for the last values, which run.weights are
 * waiting for. score(stage) and add(stage, to what the sums are) issue products, look(stage) runs
 * under those of the scores, weigh(tile) makes weights of them. */
template <int WGS, typename Rings, typename Run, typename Score, typename Add, typename Look,
	typename Weigh>
static __device__ __forceinline__ void tiles_compute(Rings *s, int32_t first, int32_t end,
	ring_place<STAGES> &keys_at, ring_place<STAGES> &values_at, Run &run, Score score, Add add,
	Look look, Weigh weigh)
{
	int32_t tile = end - 1;

	barrier_wait(shared_address(&s->full[OF_KEYS][keys_at.index]), keys_at.parity);
	turn_await<WGS>();
	products_fence();
	score(keys_at.index);
	turn_pass<WGS>();
	look(keys_at.index);
	products_wait<0>();
	settle(run.scores);
	give_back(&s->empty[OF_KEYS][keys_at.index]);
	keys_at.next();
	weigh(tile);
	weights_pack(run);
	while (--tile >= first) {
		barrier_wait(shared_address(&s->full[OF_KEYS][keys_at.index]), keys_at.parity);
		turn_await<WGS>();
		products_fence();
		score(keys_at.index);
		barrier_wait(shared_address(&s->full[OF_VALUES][values_at.index]),
			values_at.parity);
		add(values_at.index, tile + 2 < end);
		turn_pass<WGS>();
		look(keys_at.index);
		products_wait<1>();
		settle(run.scores);
		give_back(&s->empty[OF_KEYS][keys_at.index]);
		keys_at.next();
		weigh(tile);
		products_wait<0>();
		settle(run.sums);
		give_back(&s->empty[OF_VALUES][values_at.index]);
		values_at.next();
		sums_scale(run);
		weights_pack(run);
	}
}

/* The last values' products. */
template <typename Rings, typename Run, typename Add>
static __device__ __forceinline__ void last_values_add(
	Rings *s, ring_place<STAGES> &at, bool more, Run &run, Add add)
{
	barrier_wait(shared_address(&s->full[OF_VALUES][at.index]), at.parity);
	products_fence();
	add(at.index, more);
	products_wait<0>();
	settle(run.sums);
	give_back(&s->empty[OF_VALUES][at.index]);
	at.next();
}

/* A warpgroup's sums to the output. */
template <int D, int KEYS, typename Args>
static __device__ __forceinline__ void out_store(const Args &a, int32_t query_first, int32_t kv_head,
	int32_t m_first, int32_t n_rows, const tile_rows<D, KEYS> &run)
{
	int32_t group = a.n_heads / a.n_kv_heads;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;
		int32_t m = m_first + r;
		float sum = quad_sum(run.sum[half]);
		float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
		bf16 *out = (bf16 *)a.out +
			    ((size_t)(query_first + m / group) * a.n_heads + kv_head * group +
				    m % group) * D + threadIdx.x % 4 * 2;

		if (r >= n_rows)
			continue;
#pragma unroll
		for (int n = 0; n < D / 8; n++)
			*(uint32_t *)(out + n * 8) = pack(run.sums[n][half * 2] * factor,
				run.sums[n][half * 2 + 1] * factor);
	}
}

#endif
