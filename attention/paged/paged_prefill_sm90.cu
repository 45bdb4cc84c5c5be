/* SPDX-License-Identifier: MIT */

/*
 * Prefill on 9.0a: rows of more than PAGED_MAX_UNIFORM_QUERY query tokens, causal, over the paged
 * cache. The structure is that of FlashAttention-3 (Shah et al., 2024).
 *
 * Grid at most a block a multiprocessor, which takes one block of packed query rows and kv head
 * after the other until none is left; block WGS warpgroups that compute, of 64 packed rows each,
 * and one that feeds them. Of that, warp 0 loads keys and warp 1 values: a tile of KEYS tokens is a
 * box a page, one lane each, into a ring. Warp 2 fetches the next work item (deal), so that its
 * first tile is on its way while the last work's sums are still written. Warp 3 writes the zeros
 * where no decode kernel does. The computing warpgroups take turns at the tensor cores, so that
 * one's softmax runs under the others' products; and each has the products of tile i's weights and
 * values under way while it computes tile i + 1's softmax.
 *
 * Tiles come from the last that the work sees down to the first; only those that some query of a
 * warpgroup does not see whole are masked. A page of no token of the row is not read, and values
 * past its last token are made zeros, because a weight of 0 would not silence a NaN.
 *
 * Work is handed out by an atomic ticket, the longest of a row first; the order has no influence on
 * what is computed. Flops: 4 head_dim a visible pair of packed row and token. Bytes: 4 head_dim a packed
 * row, and for each block of packed rows as much a token of its tiles.
 *
 * Shared memory: queries, and two stages of keys and of values: 81 KB for heads of 64 (89 with three
 * warpgroups that compute), 121 of 96, 161 of 128, 193 of 256.
 *
 * Measured on an H200, pages of 16, 32/8 heads, TFLOP/s of what is visible: a prompt of 8k with
 * heads of 128 652, of 96 562, of 64 511, with 16/4 heads of 256 677; with heads of 128 a prompt of
 * 1k 285, of 2k 439, of 16k 597, a chunk of 512 over 8k 638. With boxes of one atom's width and one
 * warp that loads it was 521 for pages of 16, and 656 for pages of 64. Three stages are no faster
 * than two, and sums that are scaled only where they need it are slower.
 */

#include "attention/paged/paged_sm90_feed.cuh"
#include "kernels/cuda/overlap.cuh"

/* ---- computing ---- */

template <int D, int KEYS> struct prefill_rows : tile_rows<D, KEYS> {
	int32_t position[2];             /* of the lane's two rows; -1: there is no such row */
	int32_t whole_first, whole_last; /* tokens that every query of the warpgroup sees */
};

/* Initialise the lane's rows: which keys they see. */
template <int D, int KEYS>
static __device__ __forceinline__ void prefill_rows_begin(
	const paged_cuda_args &p, const prefill_work &w, prefill_rows<D, KEYS> &run)
{
	int32_t group = p.a.n_heads / p.a.n_kv_heads, before = w.row.seq_len - w.row.n_query;
	int32_t first = warpgroup() * 64, n = min(w.n_rows - first, 64);

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;

		run.position[half] = r < n ? before + (w.m_first + first + r) / group : -1;
		run.highest[half] = NEVER;
		run.sum[half] = 0.0f;
	}
	run.whole_last = n < 64 ? -1 : before + (w.m_first + first) / group;
	run.whole_first = n < 64 ? 0
				 : window_first(before + (w.m_first + first + 63) / group,
					   p.a.window);
}

template <int D, int KEYS>
static __device__ __forceinline__ void prefill_mask(
	int32_t token, uint32_t window, prefill_rows<D, KEYS> &run)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int32_t last = run.position[half] - token - threadIdx.x % 4 * 2;
		int32_t first = window_first(run.position[half], window) - token -
				threadIdx.x % 4 * 2;

#pragma unroll
		for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
			for (int j = 0; j < 2; j++)
				if (n * 8 + j > last || n * 8 + j < first)
					run.scores[n][half * 2 + j] = NEVER;
	}
}

template <int D, int KEYS>
static __device__ __forceinline__ void tile_weigh(
	const paged_cuda_args &p, int32_t token, float scale_log2, prefill_rows<D, KEYS> &run)
{
	if (token + KEYS - 1 > run.whole_last || token < run.whole_first)
		prefill_mask<D, KEYS>(token, p.a.window, run);
	weigh<D, KEYS>(scale_log2, run);
}

template <int D, int KEYS, int WGS>
static __device__ void prefill_compute(const paged_cuda_args &p, prefill_rings *s, uint32_t memory)
{
	using size = tile_sizes<D, KEYS, WGS>;
	const uint32_t queries = memory + warpgroup() * size::group_bytes;
	const uint32_t ring = memory + WGS * size::group_bytes;
	const uint32_t values = ring + STAGES * size::tile_bytes;
	const float scale_log2 = p.a.scale * CUDART_L2E_F;
	ring_place<STAGES> keys_at = {}, values_at = {};
	ring_place<2> dealt = {};
	prefill_work w = work_take(s, dealt);

	if (warpgroup() == WGS - 1)
		turn_pass<WGS>();
	auto load = [&] {
		if (w.n_rows)
			queries_load<D>(p.a, w.row.query_first, w.kv_head, w.m_first, w.n_rows,
				queries);
	};

	load();
	while (w.n_rows) {
		prefill_rows<D, KEYS> run = {};
		prefill_work now = w;
		auto score_stage = [&](uint32_t stage) {
			tile_score<D, KEYS>(queries, ring + stage * size::tile_bytes, run);
		};
		auto add_stage = [&](uint32_t stage, int add) {
			add_values<D, KEYS>(values + stage * size::tile_bytes, add, run);
		};

		prefill_rows_begin<D, KEYS>(p, now, run);
		copy_wait<0>();
		stores_fence();
		warps_sync(QUERIES + warpgroup(), GROUP);
		if (now.tile_first < now.tile_end)
			tiles_compute<WGS>(s, now.tile_first, now.tile_end, keys_at, values_at, run,
				score_stage, add_stage, [](uint32_t) {}, [&](int32_t tile) {
					tile_weigh<D, KEYS>(p, tile * KEYS, scale_log2, run);
				});
		warps_sync(QUERIES + warpgroup(), GROUP); /* no warp reads the queries any more */
		w = work_take(s, dealt);
		load();
		if (now.tile_first < now.tile_end)
			last_values_add(s, values_at, now.tile_first + 1 < now.tile_end, run,
				add_stage);
		out_store<D, KEYS>(
			p.a, now.row.query_first, now.kv_head, now.m_first, now.n_rows, run);
	}
	if (warpgroup() == 0)
		turn_await<WGS>();
}

/* ---- the kernel ---- */

template <int D, int KEYS, int WGS>
static __global__ void __launch_bounds__((WGS + 1) * GROUP, 1)
	prefill_kernel(const __grid_constant__ paged_cuda_args p,
		const __grid_constant__ struct cuda_tensor_map map)
{
	using size = tile_sizes<D, KEYS, WGS>;
	extern __shared__ uint8_t unaligned[];
	__shared__ prefill_rings s;
	const uint32_t memory = (shared_address(unaligned) + ATOM_ALIGN - 1) & ~(ATOM_ALIGN - 1);
	const uint32_t ring = memory + WGS * size::group_bytes;

	overlap_trigger();
	if (threadIdx.x == 0) {
		rings_init(&s, WGS * 4);
		barrier_init(shared_address(&s.edge), 1);
		barrier_init_fence();
	}
	__syncthreads();
	overlap_wait();
	if (warpgroup() < WGS) {
		registers_take<WGS == 2 ? 232 : 160>();
		prefill_compute<D, KEYS, WGS>(p, &s, memory);
	} else {
		int warp = threadIdx.x / 32 % 4;

		registers_give<WGS == 2 ? 40 : 32>();
		if (warp < 2)
			load_tiles<D, KEYS, WGS>(
				p, &map, &s, warp, ring + warp * STAGES * size::tile_bytes);
		else if (warp == 2 && threadIdx.x % 32 == 0)
			deal(&s, (int32_t)(p.plan.head->n_blocks * p.a.n_kv_heads), p.ticket,
				[&](int32_t item, prefill_work *to) {
					work_find<size::rows, KEYS>(p, item, to);
				});
		else if (warp == 3 && p.alone)
			zeros_write(p.a, p.plan.zeros, p.plan.head->n_zero, blockIdx.x, gridDim.x,
				threadIdx.x % 32, 32);
	}
}

/* ---- the launcher ---- */

#define CHOICE(D, KEYS, WGS)                                                                 \
	{ D, 1024, { (const void *)prefill_kernel<D, KEYS, WGS>, tile_sizes<D, KEYS, WGS>::bytes, \
			   (WGS + 1) * GROUP, tile_sizes<D, KEYS, WGS>::rows, KEYS, 0 } }

bool paged_prefill_sm90_variant(
	uint32_t head_dim, uint32_t rows, uint32_t shared_bytes_optin, struct attention_variant *ret)
{
	/* of bf16: prompts over codes of fp8 are paged_prefill.cu's */
	static const variant_choice choices[] = {
		CHOICE(64, 128, 2), CHOICE(64, 128, 3), CHOICE(96, 128, 2), CHOICE(128, 128, 2),
		CHOICE(256, 64, 2),
	};

	return variant_choose(choices, head_dim, rows, shared_bytes_optin, ret);
}

void paged_prefill_sm90_launch(struct stream *stream, const struct attention_variant *variant,
	const struct paged_cuda_args *args, const struct cuda_tensor_map *map)
{
	uint64_t group = args->a.n_heads / args->a.n_kv_heads;
	uint64_t n_blocks = (args->a.max_long_query * group + variant->rows - 1) / variant->rows;
	uint64_t n_items = n_blocks * args->a.n_long * args->a.n_kv_heads;
	void *params[] = { (void *)args, (void *)map };

	cuda_launch(stream, variant->kernel,
		dim3(n_items < args->n_sms ? (uint32_t)n_items : args->n_sms),
		dim3(variant->threads), variant->shared_bytes, params);
}
