/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_FLEX_MIXED_FEED_CUH
#define MIMEO_ATTENTION_FLEX_FLEX_MIXED_FEED_CUH

/*
 * Long blocks on 9.0a: handing out work items, and the warps that load their tiles. flex_mixed_sm90.cu has
 * the overview; the rings are those of paged_sm90_works.cuh.
 */

#include "attention/flex/flex_split.cuh" /* first: what follows defines STAGES */
#include "attention/paged/paged_sm90_works.cuh"

#define WGS 2
#define MERGED 8 /* pieces that are merged at a time */

static_assert(WGS * 64 == FLEX_PACKED, "a block of queries is a work");

/* A block of queries with one kv head, or a piece of its list; n_rows 0: no work is left. */
struct flex_task {
	flex_block block;
	slot_mask mask;
	int32_t index, entry, n_entries, n_rows, kv_head;
	int32_t piece, first, n_pieces; /* n_pieces 1: the list is not divided */
};

/* The tasks that were handed out, and the entries of the tiles. */
template <int ENTRIES> struct flex_shared : work_rings<flex_task> {
	uint64_t edge; /* values that have arrived, with rows past the sequence still to be cleared */
	int32_t entries[STAGES][ENTRIES]; /* of the keys */
	mask_view views[FLEX_PACKED];
	uint32_t done[WGS]; /* pieces */
	float factors[WGS][MERGED + 1][64]; /* of the pieces' rows, in a merge */
};
/* ---- dealing ---- */

static __device__ void task_write(flex_task *to, const flex_cuda_args &p, const flex_work &w)
{
	to->block = w.block;
	to->mask = w.mask;
	to->index = w.index;
	to->n_rows = w.block.n_tokens * (int32_t)(p.a.n_heads / p.a.n_kv_heads);
}

static __device__ void task_find(
	const flex_cuda_args &p, const flex_head &head, uint32_t item, flex_task *to)
{
	int32_t n_kv_heads = p.a.n_kv_heads;

	if (head.n_pieces) {
		const flex_piece piece = p.from.pieces[item];

		task_write(to, p, p.from.longs[piece.work]);
		to->kv_head = piece.kv_head;
		to->entry = piece.entry;
		to->n_entries = piece.end - piece.entry;
		to->piece = (int32_t)item;
		to->first = piece.first;
		to->n_pieces = piece.n;
	} else {
		const flex_work w = p.from.longs[head.n_long - 1 - (int32_t)item / n_kv_heads];

		task_write(to, p, w);
		to->kv_head = (int32_t)item % n_kv_heads;
		to->entry = 0;
		to->n_entries = w.n_entries;
		to->n_pieces = 1;
	}
}

/* One thread. */
static __device__ void tasks_deal(const flex_cuda_args &p, work_rings<flex_task> *s)
{
	const flex_head head = *p.from.head;
	uint32_t n_items = head.n_pieces ? (uint32_t)head.n_pieces
					 : (uint32_t)head.n_long * p.a.n_kv_heads;

	deal(s, n_items, p.ticket,
		[&](uint32_t item, flex_task *to) { task_find(p, head, item, to); });
}

/* Wait for the task at a place. The place is released when every thread of the warp has arrived at its
 * barrier. */
template <int ENTRIES>
static __device__ __forceinline__ const flex_task *task_await(
	flex_shared<ENTRIES> *s, const ring_place<2> &at)
{
	barrier_wait(shared_address(&s->work_full[at.index]), at.parity);
	return &s->works[at.index];
}

/* ---- loading ---- */

/* A lane's part of a tile: a box of `rows` tokens, from `offset` on of the entry `nth`. */
struct entry_box {
	bool used;
	int32_t nth, offset, rows;
};

template <int ENTRIES> static __device__ __forceinline__ entry_box box_of(const flex_cuda_args &p)
{
	int32_t rows = min(1 << p.page_shift, (int32_t)FLEX_TILE);
	int32_t offset = threadIdx.x % 32 * rows;

	static_assert(ENTRIES * FLEX_TILE / 16 <= 32, "a lane a box");
	return { offset < (int32_t)(ENTRIES * FLEX_TILE), offset / (int32_t)FLEX_TILE,
		offset % (int32_t)FLEX_TILE, rows };
}

/* The lane's entry of a tile, -1 if there is none. */
template <int ENTRIES>
static __device__ __forceinline__ int32_t box_entry(
	const flex_task &w, const entry_box &box, const int32_t *list, int32_t tile)
{
	int32_t i = tile * ENTRIES + box.nth;

	return box.used && i < w.n_entries ? __ldg(list + i) : -1;
}

static __device__ __forceinline__ int32_t box_token(const entry_box &box, int32_t entry)
{
	return (int32_t)(FLEX_ENTRY_BLOCK(entry) * FLEX_TILE) + box.offset;
}

/* The page of a lane's box, -1 if the row has no token there. */
static __device__ __forceinline__ int32_t box_page(
	const flex_cuda_args &p, const flex_task &w, const entry_box &box, int32_t entry)
{
	int32_t token = box_token(box, entry);

	if (entry < 0 || token >= w.block.seq_len)
		return -1;
	return page_clamp(__ldg(p.a.block_table + (size_t)w.block.row * p.a.max_pages +
				(token >> p.page_shift)),
		p.a.n_pages);
}

/* Clear the parts of a tile that are past the end of the sequence. */
template <int D, int ENTRIES>
static __device__ void tile_clean(
	const flex_cuda_args &p, const flex_task &w, int32_t entry, uint32_t memory)
{
	int32_t boxes = max((int32_t)FLEX_TILE >> p.page_shift, 1); /* lanes of an entry */

	for (int nth = 0; nth < ENTRIES; nth++) {
		int32_t here = __shfl_sync(~0u, entry, nth * boxes);
		int32_t first = here < 0 ? 0 : w.block.seq_len -
					       (int32_t)(FLEX_ENTRY_BLOCK(here) * FLEX_TILE);

		for (int e = threadIdx.x % 32; e < (int)FLEX_TILE * D / 8; e += 32) {
			int32_t t = e / D * 8 + e / atom<D>::chunks % 8;

			if (t >= first)
				clear_16(memory + nth * FLEX_TILE * D * 2 + e * 16);
		}
	}
}

/* Write a tile's entries for the warps that apply the mask, before the lane arrives at the tile's barrier. */
template <int ENTRIES>
static __device__ __forceinline__ void entries_write(
	const flex_cuda_args &p, int32_t entry, int32_t *to)
{
	int32_t boxes = max((int32_t)FLEX_TILE >> p.page_shift, 1);

#pragma unroll
	for (int nth = 0; nth < ENTRIES; nth++) {
		int32_t here = __shfl_sync(~0u, entry, nth * boxes);

		if (threadIdx.x % 32 == 0)
			to[nth] = here;
	}
}

/* For one warp: load all tiles of keys, or of values, of all tasks. */
template <int D, int KEYS>
static __device__ void load_tiles(const flex_cuda_args &p, const void *map,
	flex_shared<KEYS / FLEX_TILE> *s, int kind, uint32_t ring)
{
	constexpr int entries = KEYS / FLEX_TILE;
	const entry_box box = box_of<entries>(p);
	ring_place<STAGES> at = {};
	ring_place<2> dealt = {};
	uint32_t edges = 0, edge = shared_address(&s->edge);

	for (;;) {
		flex_task w = work_take(s, dealt);
		const int32_t *list = list_of(p.a, w.index) + w.entry;
		int32_t n = (w.n_entries + entries - 1) / entries, entry, page, ahead;

		if (w.n_rows == 0)
			return;
		entry = box_entry<entries>(w, box, list, 0);
		page = box_page(p, w, box, entry);
		ahead = box_entry<entries>(w, box, list, 1);
		for (int32_t tile = 0; tile < n; tile++, at.next()) {
			uint32_t to = ring + at.index * tile_sizes<D, KEYS, WGS>::tile_bytes;
			uint32_t full = shared_address(&s->full[kind][at.index]);
			int32_t next = box_page(p, w, box, ahead);
			int32_t later = box_entry<entries>(w, box, list, tile + 2);
			bool clean = kind == OF_KEYS || !__any_sync(~0u, box.used &&
				(entry < 0 || box_token(box, entry) + box.rows > w.block.seq_len));

			barrier_wait(shared_address(&s->empty[kind][at.index]), at.parity ^ 1);
			if (kind == OF_KEYS)
				entries_write<entries>(p, entry, s->entries[at.index]);
			tile_load<D>(p, map, w.kv_head, box.rows, box.nth * FLEX_TILE + box.offset,
				box_token(box, entry), page, kind, to, clean ? full : edge);
			if (!clean)
				values_clean(edge, edges++ & 1, full,
					[&] { tile_clean<D, entries>(p, w, entry, to); });
			entry = ahead;
			page = next;
			ahead = later;
		}
	}
}

#endif
