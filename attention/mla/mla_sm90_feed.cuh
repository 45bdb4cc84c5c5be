/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MLA_MLA_SM90_FEED_CUH
#define MIMEO_ATTENTION_MLA_MLA_SM90_FEED_CUH

/*
 * Stage 1 on 9.0a: a block's walk over its pieces, and the warp that copies their keys into a ring of stages.
 * A stage has two barriers: `full` ends a phase when its boxes have arrived, `empty` when all computing warps
 * have arrived. mla_split_sm90.cu has the overview.
 */

#include "attention/mla/mla_cuda.cuh"
#include "attention/paged/paged_sm90.cuh"

#define GROUP 128 /* threads of the warpgroup */
#define TILE 64   /* keys of a stage */
#define WIDTH (MLA_SM90_RANK + MLA_SM90_ROPE)
#define CHUNKS (WIDTH / 8) /* of 16 bytes, of a row */
#define BOX 32             /* tokens that are copied at a time, at most */

static_assert(BOX % MLA_TILE == 0, "work begins where a box does");

/* The ring of stages, whose keys are bf16 or codes of fp8. */
template <bool CODES> struct mla_form {
	static constexpr uint32_t key = CODES ? WIDTH : WIDTH * 2; /* bytes */
	static constexpr uint32_t stage = TILE * key;
	static constexpr uint32_t n_stages = CODES ? 4 : 2;
};

/* Shared memory of M x 8 heads. */
template <int M> struct mla_shared_sizes {
	static constexpr uint32_t ring = mla_form<false>::n_stages * mla_form<false>::stage;
	static constexpr uint32_t query = M * 8 * WIDTH * 2;
	static constexpr uint32_t weights = M * 8 * TILE * 2;
	static constexpr uint32_t bytes = ring + query + weights + ATOM_ALIGN;
};

static_assert(mla_form<true>::n_stages * mla_form<true>::stage == mla_shared_sizes<2>::ring, "the same memory");

/* The next work of a block: keys [first, end) of a token. */
struct mla_piece {
	int32_t token, row, n_settled;
	int32_t first, end;
	int32_t partial; /* its number, without the head; -1: it is all of the token's keys */
};

/* A block's walk over its pieces; every warp that needs them has one of its own. */
struct mla_walk {
	int32_t at, end; /* items, or tiles of the line */
	int32_t token, slot; /* planned */
};

/* ---- work ---- */

static __device__ __forceinline__ mla_walk walk_begin(const mla_cuda_args &p, uint32_t n_sets)
{
	const mla_args &a = p.a;
	mla_walk w = {};

	if (p.planned) {
		const mla_slot slot = a.work.plan.slots[blockIdx.x / n_sets];

		w.slot = blockIdx.x / n_sets;
		w.at = slot.tile_begin;
		w.end = slot.tile_end;
		w.token = slot.token;
	} else {
		w.at = blockIdx.x / n_sets;
		w.end = a.n_tokens * a.sizes.n_splits;
	}
	return w;
}

/* The next piece that has keys, or where an unplanned token's split has none; false: no more. */
static __device__ __forceinline__ bool walk_next(
	const mla_cuda_args &p, uint32_t n_sets, mla_walk &w, mla_piece &ret)
{
	const mla_args &a = p.a;
	int32_t n_splits = a.sizes.n_splits;

	if (w.at >= w.end)
		return false;
	if (p.planned) {
		mla_token t = a.work.plan.tokens[w.token];
		int32_t tile, tile_end;

		while (t.n_tiles == 0) /* it has no place on the line */
			t = a.work.plan.tokens[++w.token];
		tile = w.at - t.tile_start;
		tile_end = min(t.n_tiles, w.end - t.tile_start);
		ret.token = w.token++;
		ret.row = t.row;
		ret.n_settled = 0;
		ret.first = tile * (int32_t)MLA_TILE;
		ret.end = min(tile_end * (int32_t)MLA_TILE, t.n_keys);
		ret.partial =
			tile == 0 && tile_end == t.n_tiles ? -1 : w.slot * 2 + (tile == 0);
		w.at = t.tile_start + tile_end;
		return true;
	}
	ret.token = w.at / n_splits;
	const mla_seen s = token_find(a, (int32_t)a.first_token + ret.token);
	const int2 keys = split_of(a, s.n_keys, w.at % n_splits);

	ret.row = s.row;
	ret.n_settled = s.n_settled;
	ret.first = keys.x;
	ret.end = keys.y;
	ret.partial = n_splits == 1 ? -1 : w.at % n_splits;
	w.at += gridDim.x / n_sets;
	return true;
}

/* The index of a head's partial. */
static __device__ __forceinline__ size_t partial_at(
	const mla_cuda_args &p, const mla_piece &now, uint32_t head)
{
	if (p.planned)
		return (size_t)now.partial * p.a.n_heads + head;
	return ((size_t)now.token * p.a.n_heads + head) * p.a.sizes.n_splits + now.partial;
}

/* ---- the warp that copies ---- */

template <bool CODES> struct mla_ring {
	uint32_t memory, full, empty; /* addresses in shared memory */
	uint32_t stage, parity;

	__device__ __forceinline__ uint32_t keys(void) const
	{
		return memory + stage * mla_form<CODES>::stage;
	}

	__device__ __forceinline__ void next(void)
	{
		if (++stage == mla_form<CODES>::n_stages) {
			stage = 0;
			parity ^= 1;
		}
	}
};

static __device__ __forceinline__ void copies_after_others(bool *waited)
{
	if (*waited)
		return;
	overlap_wait();
	/* ordinary stores of kernels before this come before the copy engine's reads */
	asm volatile("fence.proxy.async.global;" ::: "memory");
	*waited = true;
}

/* A lane's box of a group of 32: the eight of tokens that it begins with. */
static __device__ __forceinline__ int32_t box_find(
	const mla_cuda_args &p, const mla_piece &now, int32_t box_tokens, int32_t box)
{
	const mla_args &a = p.a;
	int32_t position = now.first + box * box_tokens, page;

	if (position >= now.end)
		return 0;
	page = page_clamp(
		__ldg(a.block_table + (size_t)now.row * a.max_pages + (position >> p.page_shift)),
		a.n_pages);
	return (int32_t)((((int64_t)page << p.page_shift) +
				 (position & ((1 << p.page_shift) - 1))) /
			 8);
}

template <bool CODES>
static __device__ void copy_keys(
	const mla_cuda_args &p, const void *map, mla_ring<CODES> at, uint32_t n_sets)
{
	constexpr uint32_t key_bytes = mla_form<CODES>::key;
	const int32_t box_tokens = min((int32_t)p.a.page_tokens, BOX), per = TILE / box_tokens;
	const int32_t lane = threadIdx.x % 32;
	bool waited = !p.early;
	mla_walk w = walk_begin(p, n_sets);
	mla_piece now;

	while (walk_next(p, n_sets, w, now)) {
		int32_t n_tiles = (now.end - now.first + TILE - 1) / TILE, eights = 0, later;

		later = box_find(p, now, box_tokens, lane);
		for (int32_t i = 0; i < n_tiles; i++) {
			int32_t n = min(now.end - now.first - i * TILE, TILE);
			int32_t n_boxes = (n + box_tokens - 1) / box_tokens;
			int32_t mine = lane - i * per % 32;

			if (i * per % 32 == 0) {
				eights = later;
				later = box_find(p, now, box_tokens, i * per + 32 + lane);
			}
			if (now.first + i * TILE + n > now.n_settled)
				copies_after_others(&waited);
			barrier_wait(at.empty + at.stage * 8, at.parity ^ 1);
			if (lane == 0)
				barrier_expect(at.full + at.stage * 8,
					n_boxes * box_tokens * key_bytes);
			__syncwarp();
			if (mine >= 0 && mine < n_boxes)
				copy_box(at.keys() + mine * box_tokens * key_bytes, map,
					at.full + at.stage * 8, 0, eights);
			at.next();
		}
	}
	copies_after_others(&waited);
}

#endif
