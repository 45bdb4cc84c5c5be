/* SPDX-License-Identifier: MIT */

/*
 * Prefill: rows of more than PAGED_MAX_UNIFORM_QUERY query tokens, causal, over the paged cache.
 *
 * Grid blocks of packed query rows (the last ones, which see most, first) x long rows x kv heads,
 * block four warps of 16 MT packed rows each. Queries stay in shared memory; keys and values come
 * in tiles of KEYS tokens by asynchronous copies, two stages, one running while the other is used;
 * scores, weights and sums stay in registers. Tiles that every query of the block sees whole are
 * not masked. Flops: 4 head_dim a visible pair of packed row and token; each fragment of keys and
 * values that is read from shared memory serves MT products. Bytes: 4 head_dim a packed row, and for each
 * block as much a token of its tiles.
 *
 * Shared memory: 54, 78, 68 and 99 KB for heads of 64, 96, 128 and 256; where a device has less, shorter
 * tiles, 52 and 66 KB for heads of 96 and 256. Of codes (paged_codes.cuh) 38, 54, 52 and 67 KB: queries become
 * float16 on their way into it, keys and values each time that they are read from it.
 *
 * Measured on an H200, 32/8 heads of 128: 299 TFLOP/s for a prompt of 8k. Tiles of 64 keys there
 * spill registers and are no faster than 32.
 */

#include "attention/paged/paged_codes.cuh"
#include "kernels/cuda/overlap.cuh"

#define WARPS 4
#define THREADS (WARPS * 32)
#define NEVER (-CUDART_INF_F)

template <int D, int MT, int KEYS, bool CODES> struct prefill_tiles {
	static constexpr int rows = WARPS * MT * 16; /* packed query rows of a block */
	static constexpr uint32_t pitch = (D + 8) * 2; /* of a query */
	static constexpr uint32_t half = KEYS * cached_row<D, CODES>::pitch; /* keys; then values */
	static constexpr uint32_t bytes = rows * pitch + 2 * 2 * half;
};

struct prefill_block {
	paged_row row;
	int32_t m_first, m_end; /* packed query rows */
	int32_t key_first, key_end;
	int32_t last_first; /* the first position that the block's last token sees */
	int32_t first_position;
	int32_t kv_head, group;
};

template <int D, int MT> struct prefill_sums {
	float acc[MT][D / 8][4];
	float highest[MT][2], sum[MT][2];
	int32_t position[MT][2];
};

/* Queries of the block into shared memory; packed rows that don't exist are zeros. */
template <int D, int ROWS>
static __device__ void prefill_query_load(const paged_cuda_args &p, const prefill_block &b, uint32_t memory)
{
	constexpr int chunks = D / 8;

	for (int c = threadIdx.x; c < ROWS * chunks; c += THREADS) {
		int r = c / chunks, col = c % chunks, m = b.m_first + r;
		int token = m / b.group, head = b.kv_head * b.group + m % b.group;
		bool there = m < b.m_end;
		const bf16 *src = (const bf16 *)p.a.q +
				  (size_t)(b.row.query_first + token) * p.a.q_stride +
				  (size_t)head * D + col * 8;

		copy_16(memory + r * (D + 8) * 2 + col * 16, there ? src : p.a.q, there);
	}
}

/* The same as float16, in the order of codes. */
template <int D, int ROWS>
static __device__ void prefill_query_convert(const paged_cuda_args &p, const prefill_block &b, uint8_t *memory)
{
	constexpr int groups = D / 16;

	for (int c = threadIdx.x; c < ROWS * groups; c += THREADS) {
		int r = c / groups, col = c % groups, m = b.m_first + r;
		int token = m / b.group, head = b.kv_head * b.group + m % b.group;
		uint4 *to = (uint4 *)(memory + r * (D + 8) * 2 + col * 32);
		uint4 low = make_uint4(0, 0, 0, 0), high = low;

		if (m < b.m_end) {
			const uint4 *from = (const uint4 *)((const bf16 *)p.a.q +
				(size_t)(b.row.query_first + token) * p.a.q_stride + (size_t)head * D + col * 16);

			low = from[0];
			high = from[1];
		}
		to[0] = make_uint4(f16_of_bf16(low.x), f16_of_bf16(low.z), f16_of_bf16(high.x), f16_of_bf16(high.z));
		to[1] = make_uint4(f16_of_bf16(low.y), f16_of_bf16(low.w), f16_of_bf16(high.y), f16_of_bf16(high.w));
	}
}

/* Keys and values of [token, token + KEYS); what the block does not see is zeros. */
template <int D, int KEYS, bool CODES>
static __device__ __forceinline__ void keys_load(
	const paged_cuda_args &p, const prefill_block &b, uint32_t memory, int32_t token)
{
	using cached = cached_row<D, CODES>;
	constexpr int chunks = cached::chunks;
	constexpr uint32_t pitch = cached::pitch;
	const int32_t *table = p.a.block_table + (size_t)b.row.row * p.a.max_pages;
	size_t row = (size_t)p.a.n_kv_heads * D * cached::element, to_value = row << p.page_shift;
	const char *kv = (const char *)p.a.kv + (size_t)b.kv_head * D * cached::element;

	static_assert(KEYS * chunks % THREADS == 0, "every chunk has a thread");
#pragma unroll
	for (int k = 0; k < KEYS * chunks / THREADS; k++) {
		int c = threadIdx.x + THREADS * k, r = c / chunks, col = c % chunks;
		int32_t t = token + r;
		bool seen = t >= b.key_first && t < b.key_end;
		int32_t entry = seen ? __ldg(table + (t >> p.page_shift)) : 0;
		int32_t page = page_clamp(entry, p.a.n_pages);
		const char *src = kv + (size_t)page * 2 * to_value +
				  (t & ((1 << p.page_shift) - 1)) * row + col * 16;
		uint32_t dst = memory + r * pitch + col * 16;

		copy_16(dst, src, seen);
		copy_16(dst + KEYS * pitch, src + to_value, seen);
	}
}

template <int D, int MT, int KEYS>
static __device__ __forceinline__ void prefill_score(
	uint32_t queries, uint32_t keys, float (&scores)[MT][KEYS / 8][4])
{
	constexpr uint32_t pitch = (D + 8) * 2;
	int lane = threadIdx.x % 32;
	uint32_t a_address = queries + (threadIdx.x / 32 * MT * 16 + (lane & 15)) * pitch +
			     (lane >> 4) * 16;
	uint32_t b_address = keys + ((lane & 7) + (lane >> 4) * 8) * pitch + (lane >> 3 & 1) * 16;

#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		uint32_t a[MT][4];

#pragma unroll
		for (int i = 0; i < MT; i++)
			load_4(a[i], a_address + i * 16 * pitch + k * 32);
#pragma unroll
		for (int n = 0; n < KEYS / 8; n += 2) {
			uint32_t b[4];

			load_4(b, b_address + n * 8 * pitch + k * 32);
#pragma unroll
			for (int i = 0; i < MT; i++) {
				mma(scores[i][n], a[i], b[0], b[1]);
				mma(scores[i][n + 1], a[i], b[2], b[3]);
			}
		}
	}
}

/* The same of codes. */
template <int D, int MT, int KEYS>
static __device__ __forceinline__ void prefill_score_codes(
	uint32_t queries, uint32_t keys, float (&scores)[MT][KEYS / 8][4])
{
	constexpr uint32_t pitch = (D + 8) * 2;
	const int lane = threadIdx.x % 32;
	const uint32_t a_address = queries + (threadIdx.x / 32 * MT * 16 + (lane & 15)) * pitch + (lane >> 4) * 16;
	const uint32_t b_address = codes_address<D>(keys);

#pragma unroll
	for (int k = 0; k < D / 16; k += 2) {
		uint32_t a[2][MT][4];

#pragma unroll
		for (int i = 0; i < 2 * MT; i++)
			load_4(a[i % 2][i / 2], a_address + i / 2 * 16 * pitch + (k + i % 2) * 32);
#pragma unroll
		for (int n = 0; n < KEYS / 8; n += 2) {
			uint32_t b[4];

			load_4(b, b_address + n * 8 * cached_row<D, true>::pitch + k * 16);
#pragma unroll
			for (int i = 0; i < MT; i++) {
				add_keys(scores[i][n], a[0][i], b[0]);
				add_keys(scores[i][n + 1], a[0][i], b[1]);
				add_keys(scores[i][n], a[1][i], b[2]);
				add_keys(scores[i][n + 1], a[1][i], b[3]);
			}
		}
	}
}

template <int D, int MT, int KEYS>
static __device__ __forceinline__ void prefill_mask(int32_t token, uint32_t window,
	const prefill_sums<D, MT> &run, float (&scores)[MT][KEYS / 8][4])
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int32_t last = run.position[i][half], first = window_first(last, window);

#pragma unroll
			for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
				for (int j = 0; j < 2; j++) {
					int32_t t = token + n * 8 + lane % 4 * 2 + j;

					if (t > last || t < first)
						scores[i][n][half * 2 + j] = NEVER;
				}
		}
}

/* Scores become weights relative to the highest so far; the past is scaled to it. */
template <int D, int MT, int KEYS>
static __device__ __forceinline__ void weigh(
	float scale_log2, prefill_sums<D, MT> &run, float (&scores)[MT][KEYS / 8][4])
{
#pragma unroll
	for (int i = 0; i < MT; i++) {
		float keep[2];

#pragma unroll
		for (int half = 0; half < 2; half++) {
			float highest = run.highest[i][half], base, sum = 0.0f, tile = NEVER;

#pragma unroll
			for (int n = 0; n < KEYS / 8; n++)
				tile = fmaxf(tile, fmaxf(scores[i][n][half * 2],
							   scores[i][n][half * 2 + 1]));
			highest = fmaxf(highest, quad_max(tile));
			base = highest == NEVER ? 0.0f : highest * scale_log2;
			keep[half] = power_2(run.highest[i][half] * scale_log2 - base);
			run.highest[i][half] = highest;
#pragma unroll
			for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
				for (int j = half * 2; j < half * 2 + 2; j++) {
					scores[i][n][j] =
						power_2(fmaf(scores[i][n][j], scale_log2, -base));
					sum += scores[i][n][j];
				}
			run.sum[i][half] = run.sum[i][half] * keep[half] + sum;
		}
		if (!__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f))
			continue;
#pragma unroll
		for (int n = 0; n < D / 8; n++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				run.acc[i][n][j] *= keep[j >> 1];
	}
}

template <int D, int MT, int KEYS>
static __device__ __forceinline__ void add_values(
	uint32_t values, const float (&scores)[MT][KEYS / 8][4], prefill_sums<D, MT> &run)
{
	constexpr uint32_t pitch = (D + 8) * 2;
	int lane = threadIdx.x % 32;
	uint32_t address = values + (lane & 15) * pitch + (lane >> 4) * 16;

#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) {
		uint32_t a[MT][4];

#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				a[i][j] = pack(scores[i][k * 2 + j / 2][j % 2 * 2],
					scores[i][k * 2 + j / 2][j % 2 * 2 + 1]);
#pragma unroll
		for (int n = 0; n < D / 8; n += 2) {
			uint32_t b[4];

			load_4_transposed(b, address + k * 16 * pitch + n * 16);
#pragma unroll
			for (int i = 0; i < MT; i++) {
				mma(run.acc[i][n], a[i], b[0], b[1]);
				mma(run.acc[i][n + 1], a[i], b[2], b[3]);
			}
		}
	}
}

/* The same of codes: sums of even and of odd columns in turn. */
template <int D, int MT, int KEYS>
static __device__ __forceinline__ void add_coded_values(
	uint32_t values, const float (&scores)[MT][KEYS / 8][4], prefill_sums<D, MT> &run)
{
	const uint32_t address = codes_address<D>(values);

#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) {
		uint32_t a[MT][4];

#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				a[i][j] = pack_f16(scores[i][k * 2 + j / 2][j % 2 * 2],
					scores[i][k * 2 + j / 2][j % 2 * 2 + 1]);
#pragma unroll
		for (int n = 0; n < D / 8; n += 4) {
			uint32_t b[4];

			load_4_transposed(b, address + k * 16 * cached_row<D, true>::pitch + n * 8);
#pragma unroll
			for (int i = 0; i < MT; i++) {
				add_columns(run.acc[i][n], run.acc[i][n + 1], a[i], b[0], b[1]);
				add_columns(run.acc[i][n + 2], run.acc[i][n + 3], a[i], b[2], b[3]);
			}
		}
	}
}

template <int D, int MT, bool CODES>
static __device__ __forceinline__ void out_store(
	const paged_cuda_args &p, const prefill_block &b, const prefill_sums<D, MT> &run)
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int m = b.m_first + (threadIdx.x / 32 * MT + i) * 16 + lane / 4 + half * 8;
			float sum = quad_sum(run.sum[i][half]);
			float factor = sum > 0.0f ? 1.0f / sum * p.a.factors.value : 0.0f;
			bf16 *out = (bf16 *)p.a.out +
				    ((size_t)(b.row.query_first + m / b.group) * p.a.n_heads +
					    b.kv_head * b.group + m % b.group) * D +
				    lane % 4 * (CODES ? 4 : 2);

			if (m >= b.m_end)
				continue;
			if constexpr (CODES) {
#pragma unroll
				for (int n = 0; n < D / 8; n += 2)
					*(uint2 *)(out + n * 8) = make_uint2(
						pack(run.acc[i][n][half * 2] * factor, run.acc[i][n + 1][half * 2] * factor),
						pack(run.acc[i][n][half * 2 + 1] * factor,
							run.acc[i][n + 1][half * 2 + 1] * factor));
			} else {
#pragma unroll
				for (int n = 0; n < D / 8; n++)
					*(uint32_t *)(out + n * 8) = pack(run.acc[i][n][half * 2] * factor,
						run.acc[i][n][half * 2 + 1] * factor);
			}
		}
}

/* Which packed rows this block has, and which keys these see; false: none. */
template <int ROWS>
static __device__ __forceinline__ bool block_find(const paged_cuda_args &p, prefill_block &b)
{
	int32_t n_blocks, before, last;

	if ((int32_t)blockIdx.y >= p.plan.head->n_long)
		return false;
	b.row = p.plan.longs[blockIdx.y];
	b.kv_head = blockIdx.z;
	b.group = p.a.n_heads / p.a.n_kv_heads;
	b.m_end = b.row.n_query * b.group;
	n_blocks = (b.m_end + ROWS - 1) / ROWS;
	if ((int32_t)blockIdx.x >= n_blocks)
		return false;
	b.m_first = (n_blocks - 1 - blockIdx.x) * ROWS;
	before = b.row.seq_len - b.row.n_query;
	b.first_position = before + b.m_first / b.group;
	last = before + (min(b.m_first + ROWS, b.m_end) - 1) / b.group;
	b.key_first = window_first(b.first_position, p.a.window);
	b.key_end = last + 1;
	b.last_first = window_first(last, p.a.window);
	return true;
}

template <int D, int MT, int KEYS, bool CODES>
static __global__ void __launch_bounds__(THREADS, 2)
	prefill_kernel(const __grid_constant__ paged_cuda_args p)
{
	using size = prefill_tiles<D, MT, KEYS, CODES>;
	extern __shared__ __align__(16) uint8_t memory[];
	uint32_t queries = shared_address(memory), ring = queries + size::rows * size::pitch;
	const float scale_log2 = p.a.scale * CUDART_L2E_F;
	prefill_sums<D, MT> run = {};
	int32_t token, stage = 0;
	prefill_block b;

	overlap_begin();
	if (p.alone)
		zeros_write(p.a, p.plan.zeros, p.plan.head->n_zero,
			(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x,
			gridDim.x * gridDim.y * gridDim.z, threadIdx.x, THREADS);
	if (!block_find<size::rows>(p, b))
		return;
#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int m = b.m_first + (threadIdx.x / 32 * MT + i) * 16 +
				threadIdx.x % 32 / 4 + half * 8;

			run.position[i][half] =
				m < b.m_end ? b.row.seq_len - b.row.n_query + m / b.group : -1;
			run.highest[i][half] = NEVER;
		}
	if constexpr (CODES)
		prefill_query_convert<D, size::rows>(p, b, memory);
	else
		prefill_query_load<D, size::rows>(p, b, queries);
	token = b.key_first / KEYS * KEYS;
	keys_load<D, KEYS, CODES>(p, b, ring, token);
	copy_commit();
	for (; token < b.key_end; token += KEYS, stage ^= 1) {
		uint32_t here = ring + stage * 2 * size::half;
		float scores[MT][KEYS / 8][4] = {};

		if (token + KEYS < b.key_end)
			keys_load<D, KEYS, CODES>(p, b, ring + (stage ^ 1) * 2 * size::half, token + KEYS);
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		if constexpr (CODES)
			prefill_score_codes<D, MT, KEYS>(queries, here, scores);
		else
			prefill_score<D, MT, KEYS>(queries, here, scores);
		if (token + KEYS - 1 > b.first_position || token < b.last_first)
			prefill_mask<D, MT, KEYS>(token, p.a.window, run, scores);
		weigh<D, MT, KEYS>(scale_log2, run, scores);
		if constexpr (CODES)
			add_coded_values<D, MT, KEYS>(here + size::half, scores, run);
		else
			add_values<D, MT, KEYS>(here + size::half, scores, run);
		__syncthreads();
	}
	copy_wait<0>();
	out_store<D, MT, CODES>(p, b, run);
}

/* ---- the launcher ---- */

#define CHOICE_AS(D, MT, KEYS, CODES)                                                              \
	{ D, 1024, { (const void *)prefill_kernel<D, MT, KEYS, CODES>,                             \
			   prefill_tiles<D, MT, KEYS, CODES>::bytes, THREADS,                      \
			   prefill_tiles<D, MT, KEYS, CODES>::rows, KEYS, 0 } }
#define CHOICE(D, MT, KEYS) CHOICE_AS(D, MT, KEYS, false)
#define CHOICE_OF_CODES(D, MT, KEYS) CHOICE_AS(D, MT, KEYS, true)

bool paged_prefill_variant(
	uint32_t head_dim, bool codes, uint32_t shared_bytes_optin, struct attention_variant *ret)
{
	static const variant_choice choices[] = {
		CHOICE(64, 2, 64), CHOICE(96, 2, 64), CHOICE(96, 2, 32), CHOICE(128, 2, 32),
		CHOICE(256, 1, 32), CHOICE(256, 1, 16),
	};
	static const variant_choice choices_of_codes[] = {
		CHOICE_OF_CODES(64, 2, 64), CHOICE_OF_CODES(96, 2, 64), CHOICE_OF_CODES(128, 2, 32),
		CHOICE_OF_CODES(256, 1, 32),
	};

	return codes ? variant_choose(choices_of_codes, head_dim, 0, shared_bytes_optin, ret)
		     : variant_choose(choices, head_dim, 0, shared_bytes_optin, ret);
}

void paged_prefill_launch(struct stream *stream, const struct attention_variant *variant,
	const struct paged_cuda_args *args)
{
	uint32_t group = args->a.n_heads / args->a.n_kv_heads;
	uint32_t n_blocks = (args->a.max_long_query * group + variant->rows - 1) / variant->rows;
	void *params[] = { (void *)args };

	cuda_launch(stream, variant->kernel, dim3(n_blocks, args->a.n_long, args->a.n_kv_heads),
		dim3(THREADS), variant->shared_bytes, params);
}
