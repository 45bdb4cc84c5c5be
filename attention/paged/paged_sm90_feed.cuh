/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_SM90_FEED_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_SM90_FEED_CUH

/*
 * Prefill on 9.0a: handing out work items, and the warps that load their tiles. paged_prefill_sm90.cu has the
 * overview.
 */

#include "attention/paged/paged_sm90_works.cuh"
#include "attention/scan.cuh"

/* A block of packed query rows of one kv head, and the tiles that they see; n_rows 0: there is no
 * more work. */
struct prefill_work {
	paged_row row;
	int32_t m_first, n_rows, kv_head;
	int32_t tile_first, tile_end;
};

struct prefill_rings : work_rings<prefill_work> {
	uint64_t edge; /* values that are here, but not clean */
};

/* ---- dealing ---- */

template <int ROWS, int KEYS>
static __device__ void work_find(const paged_cuda_args &p, int32_t item, prefill_work *ret)
{
	int32_t block = item / (int32_t)p.a.n_kv_heads;
	const paged_row row = p.plan.longs[last_begun(p.plan.head->n_long,
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

/* ---- loading ---- */

/* A lane's part of a tile: a box of `rows` tokens from `offset` on. */
struct page_box {
	bool used;
	int32_t offset, rows;
};

template <int KEYS> static __device__ __forceinline__ page_box box_of(const paged_cuda_args &p)
{
	int32_t rows = min(1 << p.page_shift, KEYS), offset = threadIdx.x % 32 * rows;

	static_assert(KEYS / 16 <= 32, "a lane a box");
	return { offset < KEYS, offset, rows };
}

/* The page of a lane's box, -1 if the row has no token there that a query sees. */
static __device__ __forceinline__ int32_t box_page(
	const paged_cuda_args &p, const prefill_work &w, const page_box &box, int32_t token)
{
	token += box.offset;
	if (!box.used || token >= w.row.seq_len || token + box.rows <= w.row.first)
		return -1;
	return page_clamp(__ldg(p.a.block_table + (size_t)w.row.row * p.a.max_pages +
				(token >> p.page_shift)),
		p.a.n_pages);
}

/* Rows of a tile that hold no token of the row: zeros. */
template <int D, int KEYS>
static __device__ void tile_clean(const prefill_work &w, int32_t token, uint32_t memory)
{
	for (int e = threadIdx.x % 32; e < KEYS * D / 8; e += 32) {
		int32_t t = token + e / D * 8 + e / atom<D>::chunks % 8;

		if (t < w.row.first || t >= w.row.seq_len)
			clear_16(memory + e * 16);
	}
}

/* One warp: all tiles of keys, or of values, of all works. */
template <int D, int KEYS, int WGS>
static __device__ void load_tiles(
	const paged_cuda_args &p, const void *map, prefill_rings *s, int kind, uint32_t ring)
{
	const page_box box = box_of<KEYS>(p);
	ring_place<STAGES> at = {};
	ring_place<2> dealt = {};
	uint32_t edges = 0, edge = shared_address(&s->edge);

	for (;;) {
		prefill_work w = work_take(s, dealt);
		int32_t tile = w.tile_end - 1, page, next = -1;

		if (w.n_rows == 0)
			return;
		page = box_page(p, w, box, tile * KEYS);
		for (; tile >= w.tile_first; tile--, at.next(), page = next) {
			int32_t token = tile * KEYS;
			uint32_t to = ring + at.index * tile_sizes<D, KEYS, WGS>::tile_bytes;
			uint32_t full = shared_address(&s->full[kind][at.index]);

			if (tile > w.tile_first)
				next = box_page(p, w, box, token - KEYS);
			barrier_wait(shared_address(&s->empty[kind][at.index]), at.parity ^ 1);
			bool clean = kind == OF_KEYS ||
				(token >= w.row.first && token + KEYS <= w.row.seq_len);

			tile_load<D>(p, map, w.kv_head, box.rows, box.offset, token + box.offset,
				page, kind, to, clean ? full : edge);
			if (!clean)
				values_clean(edge, edges++ & 1, full,
					[&] { tile_clean<D, KEYS>(w, token, to); });
		}
	}
}

#endif
