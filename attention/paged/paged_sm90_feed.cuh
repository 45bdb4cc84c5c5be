/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_SM90_FEED_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_SM90_FEED_CUH

/*
 * What feeds prefill on 9.0a: the warps that deal work and load tiles, and the rings between them
 * and the warpgroups that compute. The whole is told in paged_prefill_sm90.cu.
 *
 * A ring has two barriers a stage. `full` ends a phase when the stage has been written: one arrival
 * of the writer, and the bytes of its copies. `empty` does when all that read it have arrived. A
 * reader waits for full, a writer for empty; on a new ring, empty counts as ended already.
 */

#include "attention/paged/paged_sm90_rows.cuh"
#include "attention/scan.cuh"

/* A block of packed query rows of one kv head, and the tiles that they see; n_rows 0: there is no
 * more work. */
struct work {
	plan_row row;
	int32_t m_first, n_rows, kv_head;
	int32_t tile_first, tile_end;
};

/* Beside the rings: what was dealt, and who may read or write what. */
struct shared {
	work works[2];
	uint64_t work_full[2], work_empty[2];
	uint64_t full[2][STAGES], empty[2][STAGES]; /* of keys, of values */
	uint64_t edge; /* values that are here, but not clean */
};
enum { OF_KEYS, OF_VALUES };

/* One thread, before a __syncthreads; n_warps: that compute. */
static __device__ void barriers_init(shared *s, int n_warps)
{
	for (int i = 0; i < 2; i++) {
		barrier_init(shared_address(&s->work_full[i]), 1);
		barrier_init(shared_address(&s->work_empty[i]), (n_warps + 2) * 32);
	}
	for (int i = 0; i < 2 * STAGES; i++) {
		barrier_init(shared_address(&s->full[i / STAGES][i % STAGES]), 1);
		barrier_init(shared_address(&s->empty[i / STAGES][i % STAGES]), n_warps);
	}
	barrier_init(shared_address(&s->edge), 1);
	barrier_init_fence();
}

/* ---- dealing ---- */

template <int ROWS, int KEYS>
static __device__ void work_find(const paged_cuda_args &p, int32_t item, work *ret)
{
	int32_t block = item / (int32_t)p.a.n_kv_heads;
	const plan_row row = p.plan.longs[last_begun(p.plan.head->n_long,
		[&](int32_t r) { return p.plan.longs[r].tile_start <= block; })];
	int32_t group = p.a.n_heads / p.a.n_kv_heads, before = row.seq_len - row.n_query;
	int32_t n_blocks = (row.n_query * group + ROWS - 1) / ROWS, first, last;

	ret->row = row;
	ret->kv_head = item % p.a.n_kv_heads;
	ret->m_first = (n_blocks - 1 - (block - row.tile_start)) * ROWS;
	ret->n_rows = min(row.n_query * group - ret->m_first, ROWS);
	last = before + (ret->m_first + ret->n_rows - 1) / group;
	first = window_first(before + ret->m_first / group, p.a.window);
	ret->tile_first = first / KEYS;
	ret->tile_end = last < 0 ? ret->tile_first : last / KEYS + 1;
}

/* One thread. Every block's last ticket finds nothing; then as many have been drawn as there are
 * works, and the ticket has wrapped to 0 for the next launch. */
template <int ROWS, int KEYS> static __device__ void deal(const paged_cuda_args &p, shared *s)
{
	int32_t n_items = p.plan.head->n_blocks * p.a.n_kv_heads;
	place<2> at = {};

	for (int32_t item = blockIdx.x;;) {
		work *to = &s->works[at.index];

		barrier_wait(shared_address(&s->work_empty[at.index]), at.parity ^ 1);
		if (item < n_items)
			work_find<ROWS, KEYS>(p, item, to);
		else
			to->n_rows = 0;
		barrier_arrive(shared_address(&s->work_full[at.index]));
		if (item >= n_items)
			return;
		at.next();
		item = gridDim.x + atomicInc(p.ticket, n_items - 1);
	}
}

/* The next work, for every thread of a warp, which gives the place back at once. */
static __device__ __forceinline__ work work_take(shared *s, place<2> &at)
{
	work w;

	barrier_wait(shared_address(&s->work_full[at.index]), at.parity);
	w = s->works[at.index];
	barrier_arrive(shared_address(&s->work_empty[at.index]));
	at.next();
	return w;
}

/* ---- loading ---- */

/* A lane's part of a tile: a box of `rows` tokens from `offset` on. */
struct lane_box {
	bool used;
	int32_t offset, rows;
};

template <int KEYS> static __device__ __forceinline__ lane_box box_of(const paged_cuda_args &p)
{
	int32_t rows = min(1 << p.page_shift, KEYS), offset = threadIdx.x % 32 * rows;

	static_assert(KEYS / 16 <= 32, "a lane a box");
	return { offset < KEYS, offset, rows };
}

/* The page of a lane's box, -1 if the row has no token there that a query sees. */
static __device__ __forceinline__ int32_t box_page(
	const paged_cuda_args &p, const work &w, const lane_box &box, int32_t token)
{
	token += box.offset;
	if (!box.used || token >= w.row.seq_len || token + box.rows <= w.row.first)
		return -1;
	return page_clamp(__ldg(p.a.block_table + (size_t)w.row.row * p.a.max_pages +
				(token >> p.page_shift)),
		p.a.n_pages);
}

/* Keys or values of a tile, to the end of a phase of `barrier`. */
template <int D>
static __device__ __forceinline__ void tile_load(const paged_cuda_args &p, const work &w,
	const void *map, const lane_box &box, int32_t page, int32_t token, int kind,
	uint32_t memory, uint32_t barrier)
{
	uint32_t n = __popc(__ballot_sync(~0u, page >= 0));
	int32_t in_page = (token + box.offset) & ((1 << p.page_shift) - 1);

	if (threadIdx.x % 32 == 0)
		barrier_arrive_bytes(barrier, n * box.rows * D * 2);
	__syncwarp();
	if (page >= 0)
		copy_box(memory + box.offset * D * 2, map, barrier, w.kv_head * atom<D>::n,
			(((page * 2 + kind) << p.page_shift) + in_page) / 8);
}

/* Rows of a tile that hold no token of the row: zeros. */
template <int D, int KEYS>
static __device__ void tile_clean(const work &w, int32_t token, uint32_t memory)
{
	for (int e = threadIdx.x % 32; e < KEYS * D / 8; e += 32) {
		int32_t t = token + e / D * 8 + e / atom<D>::chunks % 8;

		if (t < w.row.first || t >= w.row.seq_len)
			asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
					     memory + e * 16),
				"r"(0)
				: "memory");
	}
}

/* Values of a tile with tokens that are not the row's: they come, and are cleaned. */
template <int D, int KEYS>
static __device__ void edge_load(const paged_cuda_args &p, const work &w, const void *map,
	const lane_box &box, int32_t page, int32_t token, uint32_t memory, uint32_t barrier,
	uint32_t edge, uint32_t parity)
{
	tile_load<D>(p, w, map, box, page, token, OF_VALUES, memory, edge);
	barrier_wait(edge, parity);
	tile_clean<D, KEYS>(w, token, memory);
	stores_fence();
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		barrier_arrive(barrier);
}

/* One warp: all tiles of keys, or of values, of all works. */
template <int D, int KEYS, int WGS>
static __device__ void load_tiles(
	const paged_cuda_args &p, const void *map, shared *s, int kind, uint32_t ring)
{
	const lane_box box = box_of<KEYS>(p);
	place<STAGES> at = {};
	place<2> dealt = {};
	uint32_t edges = 0;

	for (;;) {
		work w = work_take(s, dealt);
		int32_t tile = w.tile_end - 1, page, next = -1;

		if (w.n_rows == 0)
			return;
		page = box_page(p, w, box, tile * KEYS);
		for (; tile >= w.tile_first; tile--, at.next(), page = next) {
			int32_t token = tile * KEYS;
			uint32_t to = ring + at.index * sizes<D, KEYS, WGS>::tile_bytes;
			uint32_t full = shared_address(&s->full[kind][at.index]);

			if (tile > w.tile_first)
				next = box_page(p, w, box, token - KEYS);
			barrier_wait(shared_address(&s->empty[kind][at.index]), at.parity ^ 1);
			if (kind == OF_KEYS ||
				(token >= w.row.first && token + KEYS <= w.row.seq_len))
				tile_load<D>(p, w, map, box, page, token, kind, to, full);
			else
				edge_load<D, KEYS>(p, w, map, box, page, token, to, full,
					shared_address(&s->edge), edges++ & 1);
		}
	}
}

#endif
