/* SPDX-License-Identifier: MIT */

/*
 * Block masks on 9.0a for any batch: first split blocks, then long ones.
 *
 * Grid: one block per multiprocessor. Block: 384 threads, two warpgroups that compute and one that loads for
 * them. First the computing warpgroups are teams of flex_split.cuh, each with a slot of the line. Then the
 * thread block processes one query block and kv head after the other until none is left, 64 packed rows per
 * warpgroup: the structure is that of paged_prefill_sm90.cu, which describes it, and the products and the
 * softmax are the same code. Only the choice of keys differs. A tile has the keys of KEYS / FLEX_TILE entries
 * of the list, adjacent in shared memory wherever they are in the sequence; a box is the part of one entry
 * that is in one page. The entries are stored with the tile: the computing warps mask those that are not seen
 * as a whole, 64 bits at a time for each of a lane's two rows, from the rows' views in shared memory. Keys of
 * a tile without an entry are masked, and their values are zero.
 *
 * Work is handed out by an atomic ticket, the last blocks of a row first, because they see most keys under a
 * causal mask; the order does not change the results. If there is so little work that more than half of the
 * thread blocks would have none, lists are divided into pieces, which are merged like those of the line.
 *
 * A token's result depends on its own row. The rest of the batch affects it only through the division of
 * lists, which changes the order of float32 sums and the maximum that weights are relative to. In batches in
 * which no list is divided, a long row has the same result. The same batch gives the same bits with any
 * padding and any graph. Flops: 4 head_dim for each pair of packed row and listed key. Bytes: 4 head_dim for
 * each packed row, and as much for each listed key of a query block (if split, of 16 packed rows) and kv head.
 *
 * Shared memory: the teams' rings, then the tiles in their place, and 14 KB for views and merges (11 for heads
 * of 256): in all 195 KB for heads of 64, 223 of 96, 219 of 128, 210 of 256.
 *
 * Measured on an H200, pages of 16, 32/8 heads of 128, one layer after the other in a graph: causal prompts
 * of 8k 543 TFLOP/s counting unmasked pairs, of 16k 569; 8k under a window of 1024 393; decodes 8 x 1k 12.1
 * us, 32 x 1k 34.3, 32 x 4k 131 (4.1 TB/s); trees of 8 tokens after 4k: one 19 us, 32 of them 138 (3.9 TB/s;
 * 264 us in groups of 16 packed rows); one tree of 64 after 32k 78 us. With two launches, one for each kind
 * of block, decodes 32 x 1k took 38.4 us. Decodes of one row of 1k take 5.5 us, of 4k 9.0. A few large
 * trees are slow (one of 16 tokens after 4k: 23 us).
 *
 * If a function is not inlined, or a wait between two products has no fence, ptxas serialises the products of
 * warpgroups (C7510, C7520), which makes a large difference; nvcc reports it only as an "info" line.
 */

#include "attention/flex/flex_mixed_merge.cuh"

/* ---- computing ---- */

/* Initialise a warpgroup's rows, and store their views in shared memory. */
template <int D, int KEYS>
static __device__ __forceinline__ void mixed_rows_begin(
	const flex_cuda_args &p, const flex_task &w, mask_view *views, tile_rows<D, KEYS> &run)
{
	int32_t group = p.a.n_heads / p.a.n_kv_heads, r = threadIdx.x % GROUP;
	int32_t m = warpgroup() * 64 + r;

	if (r < 64)
		views[m] = view_of(
			p.a, w.block, w.mask, m < w.n_rows ? m / group : w.block.n_tokens);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		run.highest[half] = NEVER;
		run.sum[half] = 0.0f;
	}
}

/* Set the scores of keys that the lane's two rows do not see to -inf. */
template <int D, int KEYS>
static __device__ __forceinline__ void mixed_mask(
	const mask_view *views, const int32_t *entries, tile_rows<D, KEYS> &run)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		mask_view view = views[threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + half * 8];

#pragma unroll
		for (int nth = 0; nth < KEYS / (int)FLEX_TILE; nth++) {
			int32_t entry = entries[nth];
			uint64_t seen = entry < 0 ? 0
						  : mask_view_bits(&view,
							    FLEX_ENTRY_BLOCK(entry) * FLEX_TILE);
			uint32_t low = (uint32_t)seen >> threadIdx.x % 4 * 2;
			uint32_t high = (uint32_t)(seen >> 32) >> threadIdx.x % 4 * 2;

#pragma unroll
			for (int n = 0; n < (int)FLEX_TILE / 8; n++)
#pragma unroll
				for (int j = 0; j < 2; j++)
					if (!((n < 4 ? low : high) >> (n % 4 * 8 + j) & 1))
						run.scores[nth * (FLEX_TILE / 8) + n][half * 2 + j] =
							NEVER;
		}
	}
}

template <int ENTRIES>
static __device__ __forceinline__ bool tile_whole(const int32_t *entries, int32_t seq_len)
{
	bool whole = true;

#pragma unroll
	for (int nth = 0; nth < ENTRIES; nth++)
		whole = whole && entries[nth] >= 0 && entry_whole(entries[nth], seq_len);
	return whole;
}

/* Read the entries of a tile of keys, by the lane that also releases its place: racecheck recognises the
 * order within one thread, and the products run meanwhile. */
template <int ENTRIES>
static __device__ __forceinline__ void entries_read(
	const int32_t *from, int32_t (&entries)[ENTRIES])
{
#pragma unroll
	for (int nth = 0; nth < ENTRIES; nth++) {
		int32_t entry = threadIdx.x % 32 == 0 ? from[nth] : 0;

		entries[nth] = __shfl_sync(~0u, entry, 0);
	}
}

/* A task has at least one tile: blocks without keys are not handed out. */
template <int D, int KEYS>
static __device__ __forceinline__ void mixed_compute(
	const flex_cuda_args &p, flex_shared<KEYS / FLEX_TILE> *s, uint32_t memory)
{
	using size = tile_sizes<D, KEYS, WGS>;
	constexpr int entries = KEYS / FLEX_TILE;
	const uint32_t queries = memory + warpgroup() * size::group_bytes;
	const uint32_t ring = memory + WGS * size::group_bytes;
	const uint32_t values = ring + STAGES * size::tile_bytes;
	const float scale_log2 = p.a.scale * CUDART_L2E_F;
	ring_place<STAGES> keys_at = {}, values_at = {};
	ring_place<2> dealt = {};
	const flex_task *now = task_await(s, dealt);

	if (warpgroup() == WGS - 1)
		turn_pass<WGS>();
	auto load = [&](const flex_task &w) {
		if (w.n_rows)
			queries_load<D>(
				p.a, w.block.first, w.kv_head, 0, w.n_rows, queries);
	};

	load(*now);
	while (now->n_rows) {
		tile_rows<D, KEYS> run = {};
		ring_place<2> following = dealt;
		int32_t n_tiles = (now->n_entries + entries - 1) / entries;
		int32_t seq_len = now->block.seq_len, seen[entries];
		const flex_task *then;
		auto add_stage = [&](uint32_t stage, int add) {
			add_values<D, KEYS>(values + stage * size::tile_bytes, add, run);
		};

		mixed_rows_begin<D, KEYS>(p, *now, s->views, run);
		copy_wait<0>();
		stores_fence();
		warps_sync(QUERIES + warpgroup(), GROUP);
		tiles_compute<WGS>(s, 0, n_tiles, keys_at, values_at, run,
			[&](uint32_t stage) {
				tile_score<D, KEYS>(queries, ring + stage * size::tile_bytes, run);
			},
			[&](uint32_t stage, int add) {
				products_fence(); /* else ptxas serialises the products (C7510) */
				add_stage(stage, add);
			},
			[&](uint32_t stage) { entries_read(s->entries[stage], seen); },
			[&](int32_t) {
				if (!tile_whole<entries>(seen, seq_len))
					mixed_mask<D, KEYS>(s->views, seen, run);
				weigh<D, KEYS>(scale_log2, run);
			});
		/* no warp reads the queries and views any more */
		warps_sync(QUERIES + warpgroup(), GROUP);
		following.next();
		then = task_await(s, following);
		load(*then);
		last_values_add(s, values_at, n_tiles > 1, run, add_stage);
		if (__shfl_sync(~0u, now->n_pieces, 0) == 1)
			out_store<D, KEYS>(
				p.a, now->block.first, now->kv_head, 0, now->n_rows, run);
		else
			piece_store<D, KEYS>(p, *now, s, run);
		barrier_arrive(shared_address(&s->work_empty[dealt.index]));
		dealt = following;
		now = then;
	}
	if (warpgroup() == 0)
		turn_await<WGS>();
}

/* ---- the kernel ---- */

/* TEAMS: how many computing warpgroups first have a slot of the line, with rings of SPLIT stages in the
 * memory of the later tiles. */
template <int D, int KEYS, int TEAMS, int SPLIT> struct memory_of {
	static constexpr uint32_t team_bytes = WARPS * warp_ring<D, SPLIT>::bytes;
	static constexpr uint32_t tiles_bytes = tile_sizes<D, KEYS, WGS>::bytes;
	static constexpr uint32_t bytes = TEAMS * team_bytes + ATOM_ALIGN > tiles_bytes
						  ? TEAMS * team_bytes + ATOM_ALIGN
						  : tiles_bytes;
};

/* After this barrier the copy engine writes to the memory of the teams' rings. Warps that do not use that
 * memory only arrive. */
static __device__ __forceinline__ void slots_await(void)
{
	stores_fence();
	warps_sync(0, (WGS + 1) * GROUP);
}

static __device__ __forceinline__ void slots_arrive(void)
{
	warps_arrive(0, (WGS + 1) * GROUP);
}

template <int D, int KEYS, int TEAMS, int SPLIT>
static __global__ void __launch_bounds__((WGS + 1) * GROUP, 1)
	mixed_kernel(const __grid_constant__ flex_cuda_args p,
		const __grid_constant__ struct cuda_tensor_map map)
{
	using size = tile_sizes<D, KEYS, WGS>;
	using rings = memory_of<D, KEYS, TEAMS, SPLIT>;
	extern __shared__ uint8_t unaligned[];
	__shared__ flex_shared<KEYS / FLEX_TILE> s;
	__shared__ split_team teams[TEAMS];
	const uint32_t skip = -shared_address(unaligned) & (ATOM_ALIGN - 1);
	const uint32_t memory = shared_address(unaligned) + skip;
	const uint32_t ring_at = memory + WGS * size::group_bytes;

	overlap_trigger();
	if (threadIdx.x == 0) {
		rings_init(&s, WGS * 4);
		barrier_init(shared_address(&s.edge), 1);
		barrier_init_fence();
	}
	__syncthreads();
	if (warpgroup() < WGS) {
		const int wg = warpgroup();

		registers_take<232>();
		if (wg < TEAMS)
			slot_attend<D, SPLIT>(p, blockIdx.x * TEAMS + wg,
				unaligned + skip + wg * rings::team_bytes, &teams[wg]);
		else
			overlap_wait();
		slots_await();
		mixed_compute<D, KEYS>(p, &s, memory);
	} else {
		int warp = threadIdx.x / 32 % 4;

		registers_give<40>();
		overlap_wait();
		if (warp < 2) {
			slots_await();
			load_tiles<D, KEYS>(
				p, &map, &s, warp, ring_at + warp * STAGES * size::tile_bytes);
		} else {
			slots_arrive();
			if (warp == 2 && threadIdx.x % 32 == 0)
				tasks_deal(p, &s);
		}
	}
}

/* ---- the launcher ---- */

static constexpr uint32_t ALIGNMENT = 128;

/* Shared memory in addition to the variant's: two static objects, and the loss by their alignment. */
#define CHOICE(D, KEYS, TEAMS, SPLIT)                                                        \
	{ D, (uint32_t)(sizeof(flex_shared<KEYS / FLEX_TILE>) + TEAMS * sizeof(split_team)) + ALIGNMENT,            \
		{ (const void *)mixed_kernel<D, KEYS, TEAMS, SPLIT>,                             \
		     memory_of<D, KEYS, TEAMS, SPLIT>::bytes, (WGS + 1) * GROUP, 0, 0, TEAMS } }

bool flex_mixed_sm90_variant(
	uint32_t head_dim, uint32_t shared_bytes_optin, struct attention_variant *ret)
{
	static const variant_choice choices[] = {
		CHOICE(64, 128, 2, 5), CHOICE(96, 128, 2, 4), CHOICE(128, 128, 2, 3),
		CHOICE(256, 64, 1, 3),
	};

	return variant_choose(choices, head_dim, 0, shared_bytes_optin, ret);
}

void flex_mixed_sm90_launch(struct stream *stream, const struct attention_variant *variant,
	const struct flex_cuda_args *args, const void *tensor_map)
{
	void *params[] = { (void *)args, (void *)tensor_map };

	cuda_launch(stream, variant->kernel, dim3(args->n_slots / variant->slots),
		dim3(variant->threads), variant->shared_bytes, params);
}
