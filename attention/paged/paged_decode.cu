/* SPDX-License-Identifier: MIT */

/*
 * Decode: rows of up to PAGED_MAX_UNIFORM_QUERY query tokens over the paged cache.
 *
 * Grid (n_slots x blocks of PAGED_M_BLOCK packed query rows) x kv heads, block four warps, two
 * blocks a multiprocessor (one for heads of 256). Blocks of packed rows over the same keys are
 * neighbours, so that they run together and the second finds the keys in the L2. A block walks its
 * slot's piece of the line row by row. The four warps take 16 tokens each of a tile and share
 * nothing until the row ends: each has a ring of STAGES sub-tiles of keys and values that it fills
 * by 16-byte asynchronous copies, its own running softmax, and its own sum in registers, so no
 * barrier stands in the stream of bytes. At a row's end the four sums are merged through the ring's
 * memory. Shared memory: the rings, 256 STAGES (head_dim + 8) bytes: 108, 104, 102 and 198 KB for heads
 * of 64, 96, 128 and 256, fewer stages where a device has less. Of codes (paged_codes.cuh) 128 STAGES (head_dim + 16) bytes:
 * 80, 84, 108 and 204 KB, with more stages, because a sub-tile has half of the bytes.
 *
 * In a graph (`early`) a block does not wait for the kernels before it to find its keys and to
 * queue the first of them: lengths, pages, the plan and all that history holds were there before
 * the graph began. Queries and what the step itself puts into the cache come after the wait.
 *
 * Bytes: keys and values of the visible tokens once for each block of packed rows, which is once where
 * group x query <= 16; for a split row 4 head_dim bytes, written and read, per piece and head. In flight on
 * one multiprocessor: (STAGES - 1) x 8 sub-tiles, 128 KB for heads of 128, of codes 160.
 *
 * Measured on an H200, 32/8 heads of 128, one token a row, layers behind each other in a graph: 5.7
 * us for one row of 1k (8.1 without overlap), 11.7 for 8, 131 us (4.09 TB/s) for 32 rows of 4k, 506
 * for 128; heads of 64, 4.8 us for one row of 1k and 8.5 for 8. Five tokens a row are two blocks of
 * packed rows and take 1.75 times as long as one: the multiprocessor's work on a sub-tile is the
 * limit there, not its bytes. Three blocks a multiprocessor with shorter rings are slower for heads
 * of 64.
 */

#include "attention/paged/paged_decode_keys.cuh"

/* ---- merging ---- */

template <int D>
static __device__ __forceinline__ void out_store(
	const paged_cuda_args &p, const decode_segment &s, int m, int col, float4 x, float sum)
{
	int group = p.a.n_heads / p.a.n_kv_heads;
	int token = (s.m_first + m) / group, head = s.kv_head * group + (s.m_first + m) % group;
	float factor = sum > 0.0f ? 1.0f / sum * p.a.factors.value : 0.0f;
	uint2 packed = make_uint2(
		pack(x.x * factor, x.y * factor), pack(x.z * factor, x.w * factor));

	size_t row = (size_t)(s.row.query_first + token) * p.a.n_heads + head;

	*(uint2 *)((bf16 *)p.a.out + row * D + col) = packed;
}

/* Index of a slot's partial: `begins` says whether the row begins in that slot. */
static __device__ __forceinline__ size_t partial_index(
	const paged_cuda_args &p, const decode_segment &s, int32_t slot, bool begins)
{
	return (((size_t)slot * 2 + begins) * p.a.n_heads + s.share) * PAGED_M_BLOCK;
}

/* True for the whole block if all other pieces of the row have been stored. */
static __device__ bool is_last(const paged_cuda_args &p, const decode_segment &s, int32_t n_pieces)
{
	__shared__ uint32_t done;

	__syncthreads();
	if (threadIdx.x == 0)
		done = count_piece(p.counters + (size_t)s.row.row * p.a.n_heads + s.share,
			(uint32_t)n_pieces - 1);
	__syncthreads();
	return done == (uint32_t)n_pieces - 1;
}

/* The four warps' sums become the row's output, or this slot's partial of it. */
template <int D>
static __device__ void segment_end(const paged_cuda_args &p, const decode_segment &s,
	const paged_slot &slot, const float *sums, uint32_t warp_floats, const float2 (*stats)[16],
	float scale_log2)
{
	int32_t n = slot.tiles_per_slot;
	int32_t slot_first = s.row.tile_start / n;
	int32_t n_pieces = (s.row.tile_start + s.row.n_tiles - 1) / n - slot_first + 1;
	int32_t here = blockIdx.x / p.m_blocks;
	size_t own = partial_index(p, s, here, here == slot_first);
	auto at = [&](int32_t k) { return partial_index(p, s, slot_first + k, k == 0); };
	auto store = [&](int m, int col, float4 x, float sum) {
		out_store<D>(p, s, m, col, x, sum);
	};

	merge_warps<D>(sums, warp_floats, stats, s.n_m, threadIdx.x, scale_log2,
		[&](int m, int col, float4 x, float highest, float sum) {
			if (n_pieces == 1) {
				store(m, col * 4, x, sum);
				return;
			}
			__stcg((float4 *)p.partials + (own + m) * (D / 4) + col, x);
			if (col == 0)
				__stcg((float2 *)p.stats + own + m, make_float2(highest, sum));
		});
	if (n_pieces == 1 || !is_last(p, s, n_pieces))
		return;
	if (n_pieces <= 4)
		merge_pieces<D, 4>(p.partials, p.stats, s.n_m, n_pieces, threadIdx.x, scale_log2,
			at, store);
	else
		merge_pieces<D, 16>(p.partials, p.stats, s.n_m, n_pieces, threadIdx.x, scale_log2,
			at, store);
}

/* ---- the kernel ---- */

template <int D, int STAGES, bool CODES>
static __global__ void __launch_bounds__(WARPS * 32, D <= 128 ? 2 : 1)
	decode_kernel(const __grid_constant__ paged_cuda_args p)
{
	extern __shared__ __align__(16) uint8_t memory[];
	__shared__ float2 stats[WARPS][PAGED_M_BLOCK];
	constexpr uint32_t warp_bytes = warp_ring<D, STAGES, CODES>::bytes;
	static_assert(PAGED_M_BLOCK * (D + 4) * 4 <= warp_bytes, "sums fit where the ring was");
	uint8_t *mine = memory + threadIdx.x / 32 * warp_bytes;
	const int group = p.a.n_heads / p.a.n_kv_heads;
	const float scale_log2 = p.a.scale * CUDART_L2E_F;
	paged_slot slot;
	paged_row row;
	decode_segment s;

	overlap_trigger();
	if (!p.early)
		overlap_wait();
	slot = p.plan.slots[blockIdx.x / p.m_blocks];
	row = slot.row;
	s.kv_head = blockIdx.y;
	s.m_first = blockIdx.x % p.m_blocks * PAGED_M_BLOCK;
	s.share = blockIdx.y * p.m_blocks + blockIdx.x % p.m_blocks;
	s.early = p.early;
	for (int32_t at = slot.tile_begin, index = slot.index; at < slot.tile_end;) {
		int32_t row_end = row.tile_start + row.n_tiles;
		int32_t to_tile = row.tile_first - row.tile_start;

		s.row = row;
		s.tile = at + to_tile;
		s.tile_end = min(row_end, slot.tile_end) + to_tile;
		s.n_m = min(row.n_query * group - s.m_first, PAGED_M_BLOCK);
		at = row_end;
		if (at < slot.tile_end)
			row = p.plan.rows[++index];
		if (s.n_m <= 0)
			continue;

		decode_rows<D> run = {};

		run.highest[0] = run.highest[1] = NEVER;
		stream_keys<D, STAGES, CODES>(p, s, shared_address(mine), scale_log2, run);
		s.early = false;
		publish<D, CODES>(run, (float *)mine, stats[threadIdx.x / 32]);
		__syncthreads();
		segment_end<D>(
			p, s, slot, (const float *)memory, warp_bytes / 4, stats, scale_log2);
		__syncthreads();
	}
	if (s.early)
		overlap_wait();
	if (slot.n_zero)
		zeros_write(p.a, p.plan.zeros, slot.n_zero, blockIdx.y * gridDim.x + blockIdx.x,
			gridDim.x * gridDim.y, threadIdx.x, WARPS * 32);
}

/* ---- the launcher ---- */

#define CHOICE_AS(D, STAGES, CODES)                                                                \
	{ D, 1024, { (const void *)decode_kernel<D, STAGES, CODES>,                                \
			   WARPS * warp_ring<D, STAGES, CODES>::bytes, WARPS * 32, PAGED_M_BLOCK, PAGED_TILE, 0 } }
#define CHOICE(D, STAGES) CHOICE_AS(D, STAGES, false)
#define CHOICE_OF_CODES(D, STAGES) CHOICE_AS(D, STAGES, true)

bool paged_decode_variant(
	uint32_t head_dim, bool codes, uint32_t shared_bytes_optin, struct attention_variant *ret)
{
	static const variant_choice choices[] = {
		CHOICE(64, 6), CHOICE(64, 3), CHOICE(96, 4), CHOICE(96, 3), CHOICE(128, 3),
		CHOICE(128, 2), CHOICE(256, 3),
	};
	static const variant_choice choices_of_codes[] = {
		CHOICE_OF_CODES(64, 8), CHOICE_OF_CODES(96, 6), CHOICE_OF_CODES(128, 6),
		CHOICE_OF_CODES(128, 4), CHOICE_OF_CODES(256, 6), CHOICE_OF_CODES(256, 2),
	};

	return codes ? variant_choose(choices_of_codes, head_dim, 0, shared_bytes_optin, ret)
		     : variant_choose(choices, head_dim, 0, shared_bytes_optin, ret);
}

void paged_decode_launch(struct stream *stream, const struct attention_variant *variant,
	const struct paged_cuda_args *args)
{
	uint32_t group = args->a.n_heads / args->a.n_kv_heads;
	uint32_t query = min(args->a.max_query, PAGED_MAX_UNIFORM_QUERY);
	struct paged_cuda_args p = *args;
	void *params[] = { &p };

	p.m_blocks = max((group * query + PAGED_M_BLOCK - 1) / PAGED_M_BLOCK, 1u);
	cuda_launch(stream, variant->kernel, dim3(p.n_slots * p.m_blocks, p.a.n_kv_heads),
		dim3(WARPS * 32), variant->shared_bytes, params);
}
