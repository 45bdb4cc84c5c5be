/* SPDX-License-Identifier: MIT */

/*
 * Prompts that are not absorbed, on 9.0a: keys of 128 elements a head and 64 that all heads share,
 * values of 128; keys and values lie expanded in the workspace. paged_prefill_sm90.cu describes
 * warpgroups, rings and turns; this kernel has other tiles and another end.
 *
 * Grid at most a block a multiprocessor, which takes one item, 128 queries of a piece and a head, after
 * the other until none is left; block two warpgroups that compute, of 64 queries each, and one that
 * feeds them: warp 0 loads keys, warp 1 values, warp 2 fetches work items. A tile is 128 keys; in
 * shared memory it is PANELS of 64 columns, 128 bytes, one row behind the other, each one box of the
 * copy engine: of keys two from the expanded ones and one from the ropes, of values two. Rows of a tile
 * past a piece's keys are zeros, which gather put there, and no query of the piece sees them.
 *
 * The state that chunks before left is merged at the end, when the sums leave the registers; what
 * the chunk completes is written, the rest kept. Work is handed out by an atomic ticket, the
 * longest of a piece first; the order has no influence on what is computed.
 *
 * Shared memory: 209 KB: queries 48, two stages of keys 96 and of values 64. Flops: 2 (128 + 64 + 128)
 * a visible pair of query and key, and head. Bytes: 640 a query and head, and 640 a key of an item's
 * tiles.
 *
 * Measured on an H200 with 16 heads, TFLOP/s of what is visible: a prompt of 512 107, of 1k 264, of
 * 2k 447, of 4k 528, of 8k 596, of 16k, in two chunks, 598; a chunk of 512 over 8k 379; 8 prompts
 * of 512 together 244. Beside the 577 us of 8k, gather takes 10 and the product 56.
 */

#include "attention/mla/mla_prompt_cuda.h"
#include "attention/paged/paged_sm90_works.cuh"
#include "kernels/cuda/overlap.cuh"

#define NOPE 128
#define ROPE 64
#define V 128
#define KEYS ((int)MLA_PROMPT_GRANULE)
#define WGS 2
#define ROWS (WGS * 64)
#define WARPS_COMPUTE (WGS * 4)

#define KEY_PANELS 3 /* two of nope, one of rope */
#define VALUE_PANELS 2
#define PANEL_BYTES (KEYS * 128u)       /* of keys or values */
#define QUERY_PANEL_BYTES (64 * 128u)   /* of a warpgroup's queries */
#define GROUP_BYTES (KEY_PANELS * QUERY_PANEL_BYTES)
#define KEYS_BYTES (KEY_PANELS * PANEL_BYTES)
#define VALUES_BYTES (VALUE_PANELS * PANEL_BYTES)
#define SHARED_BYTES (WGS * GROUP_BYTES + STAGES * (KEYS_BYTES + VALUES_BYTES) + ATOM_ALIGN)

/* Queries of a piece, and the tiles that they see; n_rows 0: there is no more work. */
struct prompt_work {
	int32_t query, state;    /* the first query's places */
	int32_t position;        /* of the first query, in the piece's keys */
	int32_t n_rows, head;
	int32_t n_keys, key_row; /* of the piece */
	int32_t tile_end;
	bool more; /* there is a state of chunks before */
};

using prompt_rings = work_rings<prompt_work>;

/* ---- dealing ---- */

static __device__ void work_find(const mla_prompt_cuda_args &p, int32_t item, prompt_work *ret)
{
	int32_t block = item / (int32_t)p.a.l.n_heads, n_blocks, m, i = 0;

	for (;; i++) {
		n_blocks = ((int32_t)p.a.pieces[i].n_query + ROWS - 1) / ROWS;
		if (block < n_blocks)
			break;
		block -= n_blocks;
	}
	const mla_prompt_piece &piece = p.a.pieces[i];
	m = (n_blocks - 1 - block) * ROWS;
	ret->head = item % (int32_t)p.a.l.n_heads;
	ret->query = (int32_t)piece.query + m;
	ret->state = (int32_t)piece.state + m;
	ret->position = (int32_t)(piece.position - piece.first_key) + m;
	ret->n_rows = min((int32_t)piece.n_query - m, ROWS);
	ret->n_keys = (int32_t)piece.n_keys;
	ret->key_row = (int32_t)piece.key_row;
	ret->more = piece.first_key != 0;
	ret->tile_end = (min(ret->position + ret->n_rows, ret->n_keys) + KEYS - 1) / KEYS;
}

/* ---- loading ---- */

/* A box of a matrix. */
static __device__ __forceinline__ void copy_panel(
	uint32_t dst, const void *map, uint32_t barrier, int32_t col, int32_t row)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4}], [%2];" ::"r"(dst), "l"(map), "r"(barrier), "r"(col),
		"r"(row)
		: "memory");
}

/* One warp: all tiles of keys, or of values, of all works. */
template <int KIND>
static __device__ void load_tiles(
	const void *expanded, const void *ropes, prompt_rings *s, uint32_t ring)
{
	constexpr uint32_t bytes = KIND == OF_KEYS ? KEYS_BYTES : VALUES_BYTES;
	const bool lane = threadIdx.x % 32 == 0;
	ring_place<STAGES> at = {};
	ring_place<2> dealt = {};

	for (;;) {
		prompt_work w = work_take(s, dealt);
		int32_t col = w.head * (NOPE + V) + (KIND == OF_KEYS ? 0 : NOPE);

		if (w.n_rows == 0)
			return;
		for (int32_t tile = w.tile_end - 1; tile >= 0; tile--, at.next()) {
			uint32_t to = ring + at.index * bytes;
			uint32_t full = shared_address(&s->full[KIND][at.index]);
			int32_t row = w.key_row + tile * KEYS;

			barrier_wait(shared_address(&s->empty[KIND][at.index]), at.parity ^ 1);
			if (lane) {
				barrier_expect(full, bytes);
				copy_panel(to, expanded, full, col, row);
				copy_panel(to + PANEL_BYTES, expanded, full, col + 64, row);
				if (KIND == OF_KEYS)
					copy_panel(to + 2 * PANEL_BYTES, ropes, full, 0, row);
			}
			__syncwarp();
		}
	}
}

/* ---- computing ---- */

struct prompt_running : tile_rows<V, KEYS> {
	int32_t position[2]; /* of the lane's two rows, in the piece's keys; -1: no such row */
	int32_t whole_last;  /* the last key that every query of the warpgroup sees */
};

/* Queue the copies of a warpgroup's queries; those that don't exist are zeros. */
static __device__ __forceinline__ void queries_load(
	const mla_prompt_cuda_args &p, const prompt_work &w, uint32_t memory)
{
	constexpr int chunks = (NOPE + ROPE) / 8;
	const int32_t first = warpgroup() * 64;

#pragma unroll 4
	for (int c = threadIdx.x % GROUP; c < 64 * chunks; c += GROUP) {
		int r = c / chunks, col = c % chunks;
		bool there = first + r < w.n_rows;
		const bf16 *src = (const bf16 *)p.a.l.q;

		if (there)
			src += (size_t)(w.query + first + r) * p.a.l.q_stride +
			       (size_t)w.head * (NOPE + ROPE) + col * 8;
		copy_16(memory + col / 8 * QUERY_PANEL_BYTES + atom<64>::place(r, col % 8), src,
			there);
	}
	copy_commit();
}

/* Initialise the lane's rows: which keys they see. */
static __device__ __forceinline__ void prompt_rows_begin(const prompt_work &w, prompt_running &run)
{
	int32_t first = warpgroup() * 64, n = min(w.n_rows - first, 64);

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;

		run.position[half] = r < n ? w.position + first + r : -1;
		run.highest[half] = NEVER;
		run.sum[half] = 0.0f;
	}
	run.whole_last = n < 64 ? -1 : w.position + first;
}

/* Issue queries x keys. */
static __device__ __forceinline__ void prompt_score(uint32_t queries, uint32_t keys, prompt_running &run)
{
	const uint64_t a = rows_at<64>(queries), b = rows_at<64>(keys);

#pragma unroll
	for (int k = 0; k < (NOPE + ROPE) / 16; k++)
		product(run.scores, further(a, k / 4 * QUERY_PANEL_BYTES + k % 4 * 32),
			further(b, k / 4 * PANEL_BYTES + k % 4 * 32), k > 0);
	products_commit();
}

/* Issue weights x values, whose atoms of the same rows are a panel apart; `add`: to what the sums
 * are. */
static __device__ __forceinline__ void add_tile(uint32_t values, int add, prompt_running &run)
{
	const uint64_t b = atom<64>::swizzle << 62 | (uint64_t)(atom<64>::bytes >> 4) << 32 |
			   (uint64_t)(PANEL_BYTES >> 4) << 16 | values >> 4;

#pragma unroll
	for (int k = 0; k < KEYS / 16; k++)
		product_across_16<0>(run.sums, run.weights[k],
			further(b, k * 2 * atom<64>::bytes), k > 0 ? 1 : add);
	products_commit();
}

static __device__ __forceinline__ void tile_weigh(
	int32_t key, float scale_log2, prompt_running &run)
{
	if (key + KEYS - 1 > run.whole_last) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int32_t last = run.position[half] - key - threadIdx.x % 4 * 2;

#pragma unroll
			for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
				for (int j = 0; j < 2; j++)
					if (n * 8 + j > last)
						run.scores[n][half * 2 + j] = NEVER;
		}
	}
	weigh<V, KEYS>(scale_log2, run);
}

/* ---- the end: merge, write or keep ---- */

/* A query's state of this chunk becomes that of all so far: what its sums, and those kept, are to
 * be scaled by. The four lanes of a quad agree. */
struct prompt_factors {
	float now, past;
};

static __device__ __forceinline__ prompt_factors state_merge(const mla_prompt_cuda_args &p,
	const prompt_work &w, size_t at, bool complete, float highest, float total)
{
	const float scale_log2 = p.a.l.scale * CUDART_L2E_F;
	float *stats = p.a.l.work.stats + at * 2;
	prompt_factors by = {1.0f, 0.0f};

	if (w.more) {
		float before = stats[0], all = fmaxf(before, highest);

		by.now = power_2((highest - all) * scale_log2);
		by.past = power_2((before - all) * scale_log2);
		total = total * by.now + stats[1] * by.past;
		highest = all;
	}
	if (complete) {
		by.now /= total;
		by.past /= total;
		return by;
	}
	__syncwarp(15u << threadIdx.x % 32 / 4 * 4);
	if (threadIdx.x % 4 == 0) {
		stats[0] = highest;
		stats[1] = total;
	}
	return by;
}

static __device__ __forceinline__ void row_end(const mla_prompt_cuda_args &p, const prompt_work &w,
	int r, int half, const prompt_running &run, float total)
{
	const size_t at = (size_t)(w.state + r) * p.a.l.n_heads + w.head;
	const bool complete = w.position + r < w.n_keys;
	const prompt_factors by = state_merge(p, w, at, complete, run.highest[half], total);
	const int lane = threadIdx.x % 4 * 2;
	bf16 *out = (bf16 *)p.a.l.out + ((size_t)(w.query + r) * p.a.l.n_heads + w.head) * V + lane;
	float *kept = p.a.l.work.sums + at * V + lane;

#pragma unroll
	for (int n = 0; n < V / 8; n++) {
		float2 x = { run.sums[n][half * 2] * by.now, run.sums[n][half * 2 + 1] * by.now };

		if (w.more) {
			float2 past = *(const float2 *)(kept + n * 8);

			x.x = fmaf(past.x, by.past, x.x);
			x.y = fmaf(past.y, by.past, x.y);
		}
		if (complete)
			*(uint32_t *)(out + n * 8) = pack(x.x, x.y);
		else
			*(float2 *)(kept + n * 8) = x;
	}
}

static __device__ __forceinline__ void rows_end(
	const mla_prompt_cuda_args &p, const prompt_work &w, const prompt_running &run)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;
		float total = quad_sum(run.sum[half]);

		if (r < w.n_rows)
			row_end(p, w, r, half, run, total);
		__syncwarp();
	}
}

static __device__ void prompt_compute(const mla_prompt_cuda_args &p, prompt_rings *s, uint32_t memory)
{
	const uint32_t queries = memory + warpgroup() * GROUP_BYTES;
	const uint32_t ring = memory + WGS * GROUP_BYTES, values = ring + STAGES * KEYS_BYTES;
	const float scale_log2 = p.a.l.scale * CUDART_L2E_F;
	ring_place<STAGES> keys_at = {}, values_at = {};
	ring_place<2> dealt = {};
	prompt_work w = work_take(s, dealt);

	if (warpgroup() == WGS - 1)
		turn_pass<WGS>();
	if (w.n_rows)
		queries_load(p, w, queries);
	while (w.n_rows) {
		prompt_running run = {};
		prompt_work now = w;
		auto score_stage = [&](uint32_t stage) {
			prompt_score(queries, ring + stage * KEYS_BYTES, run);
		};
		auto add_stage = [&](uint32_t stage, int add) {
			add_tile(values + stage * VALUES_BYTES, add, run);
		};

		prompt_rows_begin(now, run);
		copy_wait<0>();
		stores_fence();
		warps_sync(QUERIES + warpgroup(), GROUP);
		tiles_compute<WGS>(s, 0, now.tile_end, keys_at, values_at, run, score_stage,
			add_stage, [](uint32_t) {},
			[&](int32_t tile) { tile_weigh(tile * KEYS, scale_log2, run); });
		warps_sync(QUERIES + warpgroup(), GROUP); /* no warp reads the queries any more */
		w = work_take(s, dealt);
		if (w.n_rows)
			queries_load(p, w, queries);
		last_values_add(s, values_at, now.tile_end > 1, run, add_stage);
		rows_end(p, now, run);
	}
	if (warpgroup() == 0)
		turn_await<WGS>();
}

/* ---- the kernel ---- */

static __global__ void __launch_bounds__((WGS + 1) * GROUP, 1)
	prompt_kernel(const __grid_constant__ mla_prompt_cuda_args p,
		const __grid_constant__ struct cuda_tensor_map expanded,
		const __grid_constant__ struct cuda_tensor_map ropes)
{
	extern __shared__ uint8_t unaligned[];
	__shared__ prompt_rings s;
	const uint32_t memory = (shared_address(unaligned) + ATOM_ALIGN - 1) & ~(ATOM_ALIGN - 1);
	const uint32_t ring = memory + WGS * GROUP_BYTES;

	overlap_trigger();
	if (threadIdx.x == 0) {
		rings_init(&s, WARPS_COMPUTE);
		barrier_init_fence();
	}
	__syncthreads();
	overlap_wait();
	if (warpgroup() < WGS) {
		registers_take<232>();
		prompt_compute(p, &s, memory);
	} else {
		int warp = threadIdx.x / 32 % 4;

		registers_give<40>();
		if (warp == 0)
			load_tiles<OF_KEYS>(&expanded, &ropes, &s, ring);
		else if (warp == 1)
			load_tiles<OF_VALUES>(
				&expanded, &ropes, &s, ring + STAGES * KEYS_BYTES);
		else if (warp == 2 && threadIdx.x % 32 == 0)
			deal(&s, p.n_items, p.ticket, [&](uint32_t item, prompt_work *to) {
				work_find(p, (int32_t)item, to);
			});
	}
}

/* ---- the launcher ---- */

bool mla_prompt_sm90_variant(const struct attention_latent *latent, uint32_t shared_bytes_optin,
	struct attention_variant *ret)
{
	if (latent->nope != NOPE || latent->rope != ROPE || latent->v != V ||
		SHARED_BYTES + 1024 > shared_bytes_optin)
		return false;
	*ret = { (const void *)prompt_kernel, SHARED_BYTES, (WGS + 1) * GROUP, ROWS, KEYS, 0 };
	return true;
}

void mla_prompt_sm90_launch(struct stream *stream, const struct attention_variant *variant,
	const struct mla_prompt_cuda_args *args, const struct cuda_tensor_map *expanded,
	const struct cuda_tensor_map *ropes)
{
	uint32_t n_sms = cuda_limits(stream)->n_sms;
	void *params[] = { (void *)args, (void *)expanded, (void *)ropes };

	cuda_launch(stream, variant->kernel, dim3(args->n_items < n_sms ? args->n_items : n_sms),
		dim3(variant->threads), variant->shared_bytes, params);
}
