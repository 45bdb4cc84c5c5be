/* SPDX-License-Identifier: MIT */

/*
 * Stage 1 on 9.0a, for rows of 512 + 64 columns. Grid: at most one block a multiprocessor for each
 * set of 16 or 32 heads. Block: a warpgroup that computes and a warp that copies. Shared memory:
 * two stages of 64 keys, 72 KB each, or four of codes of fp8, 36 KB each, the queries, the weights:
 * 165 KB, with 32 heads 185.
 *
 * Keys are the rows (M) of both products and heads their columns (N), so that 16 heads fill one:
 *
 *	S^T [64 keys, heads] = K Q^T       keys read along their rows, 36 steps of 16 columns
 *	O^T [512, heads]     = V^T P^T     the same keys read across their rows, 4 steps of 16 keys
 *
 * A key's 1152 bytes are copied once, read twice, and never moved between threads. Scores and sums
 * have the same heads in the same lanes, so each lane rescales its own sums when a maximum rises;
 * the maximum over the keys is found by shuffles and through shared memory. The copy engine writes
 * pages of up to 32 tokens at a time as atoms (paged_sm90.cuh), which both products read without
 * bank conflicts. Keys that are codes go through registers instead: mla_sm90_codes.cuh.
 *
 * By its reads of shared memory, a tile of 16 heads is 1.1k cycles of products; its copy takes 3.9k
 * at its share of the memory's bandwidth. The kernel waits for copies: two stages keep 72 KB or
 * more in flight. With more than 32 heads, the blocks of the other sets find the keys in the L2.
 *
 * In a graph (`early`) the copies of keys that history holds begin before the wait for the kernels
 * ahead, while these absorb the queries.
 *
 * Bytes: 1152 a key (codes: 576) for each set of heads, 1152 a head of the query, 2 KB a head and
 * partial result.
 *
 * Measured on an H200, bf16, 16 heads, both stages, layers one after the other in a graph, in us (in
 * parentheses mla_planned): 7.7 (8.8) for one row of 4k, 17.7 (19.6) for 8, 44 (47) for 32, 148
 * (153) for 128, which is 4.08 TB/s, 578 (584) for 128 of 16k, 4.18 TB/s; 340 (59) for one row of
 * 16k among 127 of 1k. A partial result for each half of 128 tokens' keys costs 11, hence few
 * splits. Absorbing and expanding take 2.0 and 1.8 more at one row, 4.8 and 3.7 at 128. 128 heads,
 * which are four sets: 487 for 128 rows of 4k, 300 TFLOP/s.
 *
 * The compiler moves loads of constants (__ldg, const __restrict__) behind overlap_wait: whatever
 * is fetched before it is asm volatile, or a copy.
 */

#include "attention/mla/mla_sm90_codes.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for 90a alone"
#endif

/* Four 8x8 matrices of fragments, each stored with its columns as rows of 16 bytes. */
static __device__ __forceinline__ void store_4_transposed(
	uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
			     address),
		"r"(r0), "r"(r1), "r"(r2), "r"(r3)
		: "memory");
}

/* ---- the warpgroup that computes ---- */

template <int M> struct mla_running {
	float acc[8][M][4];                /* of 64 columns each */
	float highest[M][2], sum[M][2]; /* of the lane's heads; sum: of the lane's keys only */
};

/* The warpgroup's operands in shared memory. */
template <int M> struct mla_operands {
	uint32_t query, weights;
	float (*notes)[4][M * 8]; /* [2][a warp] of each head */
};

/* Queries in the latent space and their rope parts, as atoms; heads that there are not are
 * zeros. */
template <int M, bool CODES>
static __device__ __forceinline__ void mla_split_query_load(
	const mla_args &a, int32_t token, uint32_t head_first, uint32_t to)
{
	constexpr int n = M * 8 * CHUNKS / GROUP;
	uint4 x[n];

#pragma unroll
	for (int i = 0; i < n; i++) {
		uint32_t e = threadIdx.x + i * GROUP, head = head_first + e / CHUNKS;
		uint32_t chunk = e % CHUNKS;
		const bf16 *from =
			chunk < MLA_SM90_RANK / 8
				? (const bf16 *)a.work.latent +
					  ((size_t)token * a.n_heads + head) * MLA_SM90_RANK +
					  chunk * 8
				: (const bf16 *)a.q + (size_t)token * a.q_stride +
					  (size_t)head * (a.nope + MLA_SM90_ROPE) + a.nope +
					  (chunk - MLA_SM90_RANK / 8) * 8;

		x[i] = head < a.n_heads ? __ldcg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
	}
#pragma unroll
	for (int i = 0; i < n; i++) {
		uint32_t e = threadIdx.x + i * GROUP;

		if (CODES)
			query_store_codes(to, e / CHUNKS, e % CHUNKS, x[i]);
		else
			asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
					     to + atom<WIDTH>::place(e / CHUNKS, e % CHUNKS)),
				"r"(x[i].x), "r"(x[i].y), "r"(x[i].z), "r"(x[i].w)
				: "memory");
	}
	stores_fence();
	warps_sync(1, GROUP);
}

/* Keys x queries. */
template <int M>
static __device__ __forceinline__ void mla_split_score(
	uint32_t stage, uint32_t query, float (&s)[M][4])
{
	const uint64_t keys = rows_at<WIDTH>(stage), queries = rows_at<WIDTH>(query);

	products_fence();
#pragma unroll
	for (int k = 0; k < (int)WIDTH / 16; k++)
		product(s, further(keys, k / 4 * 1024 + k % 4 * 32),
			further(queries, k / 4 * 1024 + k % 4 * 32), k != 0);
	products_commit();
	products_wait<0>();
	settle(s);
}

/* Only the first n of a tile's keys exist. */
template <int M> static __device__ __forceinline__ void scores_limit(float (&s)[M][4], int32_t n)
{
	int32_t key = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;

#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			s[m][j] = key + (j >> 1) * 8 < n ? s[m][j] : NEVER;
}

/* Over the eight lanes that share a head of a fragment. */
static __device__ __forceinline__ float column_max(float x)
{
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
	return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

static __device__ __forceinline__ float column_sum(float x)
{
	x += __shfl_xor_sync(~0u, x, 4);
	x += __shfl_xor_sync(~0u, x, 8);
	return x + __shfl_xor_sync(~0u, x, 16);
}

/* Each head's highest score so far, and what is left of the past beside it. */
template <int M>
static __device__ __forceinline__ void raise(const float (&s)[M][4], float (*notes)[M * 8],
	float scale_log2, mla_running<M> &run, float (&keep)[M][2])
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int b = 0; b < 2; b++) {
			float highest = column_max(fmaxf(s[m][b], s[m][b + 2]));

			if (lane < 4)
				notes[threadIdx.x / 32][m * 8 + lane * 2 + b] = highest;
		}
	warps_sync(1, GROUP);
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int b = 0; b < 2; b++) {
			int head = m * 8 + lane % 4 * 2 + b;
			float highest = fmaxf(fmaxf(notes[0][head], notes[1][head]),
				fmaxf(notes[2][head], notes[3][head]));

			highest = fmaxf(highest, run.highest[m][b]);
			keep[m][b] = highest == NEVER ? 1.0f
						      : power_2((run.highest[m][b] - highest) *
								scale_log2);
			run.highest[m][b] = highest;
			run.sum[m][b] *= keep[m][b];
		}
}

/* Scores become weights, which go to shared memory with keys along their rows. */
template <int M, bool CODES>
static __device__ __forceinline__ void weigh(
	float (&s)[M][4], uint32_t to, float scale_log2, mla_running<M> &run)
{
	int lane = threadIdx.x % 32, row = lane % 8;
	int chunk = threadIdx.x / 32 * 2 + (lane / 8 & 1);
	const auto pair = [](float low, float high) { return CODES ? pack_f16(low, high) : pack(low, high); };

#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			float highest = run.highest[m][j & 1];

			s[m][j] = s[m][j] == NEVER ? 0.0f
						   : power_2((s[m][j] - highest) * scale_log2);
			run.sum[m][j & 1] += s[m][j];
		}
#pragma unroll
	for (int m = 0; m < M; m += 2)
		store_4_transposed(to + atom<64>::place((m + lane / 16) * 8 + row, chunk),
			pair(s[m][0], s[m][1]), pair(s[m][2], s[m][3]),
			pair(s[m + 1][0], s[m + 1][1]), pair(s[m + 1][2], s[m + 1][3]));
}

/* Rows of a stage that no key is in: there may be NaN. */
template <bool CODES> static __device__ __forceinline__ void rows_clear(uint32_t stage, int32_t n)
{
	constexpr int32_t chunks = MLA_SM90_RANK / (CODES ? 16 : 8);

	for (int32_t e = threadIdx.x; e < (TILE - n) * chunks; e += GROUP) {
		int32_t row = n + e / chunks, chunk = e % chunks;

		asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
				     stage + (CODES ? code_atom::place(row, chunk)
						    : atom<WIDTH>::place(row, chunk))),
			"r"(0)
			: "memory");
	}
}

template <int M>
static __device__ __forceinline__ void add_values(
	uint32_t stage, uint32_t weights, mla_running<M> &run)
{
	const uint64_t values = rows_at<WIDTH>(stage), by = rows_at<64>(weights);

	products_fence();
#pragma unroll
	for (int k = 0; k < TILE / 16; k++)
#pragma unroll
		for (int i = 0; i < 8; i++)
			product_across(run.acc[i],
				further(values, i * 1024 + k * 2 * atom<WIDTH>::n * 1024),
				further(by, k * 32));
	products_commit();
	products_wait<0>();
#pragma unroll
	for (int i = 0; i < 8; i++)
		settle(run.acc[i]);
}

template <int M, bool CODES>
static __device__ __forceinline__ void tile_attend(uint32_t stage, const mla_operands<M> &at,
	int32_t n, float (*notes)[M * 8], float scale_log2, mla_running<M> &run)
{
	float s[M][4], keep[M][2];
	bool all = true;

	if constexpr (CODES)
		codes_score<M>(stage, at.query, s);
	else
		mla_split_score<M>(stage, at.query, s);
	if (n < TILE)
		scores_limit<M>(s, n);
	raise<M>(s, notes, scale_log2, run, keep);
	weigh<M, CODES>(s, at.weights, scale_log2, run);
	if (n < TILE)
		rows_clear<CODES>(stage, n);
	stores_fence();
	warps_sync(1, GROUP);
#pragma unroll
	for (int m = 0; m < M; m++)
		all = all && keep[m][0] == 1.0f && keep[m][1] == 1.0f;
	if (__any_sync(~0u, !all)) {
#pragma unroll
		for (int i = 0; i < 8; i++)
#pragma unroll
			for (int m = 0; m < M; m++)
#pragma unroll
				for (int j = 0; j < 4; j++)
					run.acc[i][m][j] *= keep[m][j & 1];
	}
	if constexpr (CODES)
		codes_add<M>(stage, at.weights, run.acc);
	else
		add_values<M>(stage, at.weights, run);
}

/* A lane's columns of product i, of one head: the two rows that it has of it. */
template <bool CODES, typename T>
static __device__ __forceinline__ void sums_store(T *to, int i, float low, float high)
{
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	if constexpr (!CODES) {
		to += i * 64 + warp * 16 + lane / 4;
		if constexpr (sizeof(T) == sizeof(float)) {
			__stcg(to, low);
			__stcg(to + 8, high);
		} else {
			to[0] = __float2bfloat16_rn(low);
			to[8] = __float2bfloat16_rn(high);
		}
		return;
	}
	to += warp * 128 + i * 16 + lane / 4 * 2;
	if constexpr (sizeof(T) == sizeof(float))
		__stcg((float2 *)to, make_float2(low, high));
	else
		*(uint32_t *)to = pack(low, high);
}

/* The piece's average and log-sum-exp, or the token's average. */
template <int M, bool CODES>
static __device__ __forceinline__ void piece_store(const mla_cuda_args &p, const mla_piece &now,
	uint32_t head_first, const mla_operands<M> &at, float scale_log2, mla_running<M> &run)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float (*notes)[M * 8] = at.notes[0];

	warps_sync(1, GROUP); /* the last tile's highest scores have been read */
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int b = 0; b < 2; b++) {
			float sum = column_sum(run.sum[m][b]);

			if (lane < 4)
				notes[warp][m * 8 + lane * 2 + b] = sum;
		}
	warps_sync(1, GROUP);
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int b = 0; b < 2; b++) {
			uint32_t local = m * 8 + lane % 4 * 2 + b, head = head_first + local;
			float sum = (notes[0][local] + notes[1][local]) +
				    (notes[2][local] + notes[3][local]);
			float factor = sum > 0.0f ? p.a.factors.value / sum : 0.0f;
			size_t index;

			if (head >= p.a.n_heads)
				continue;
			if (now.partial < 0) {
				bf16 *to = (bf16 *)p.a.work.latent +
					   ((size_t)now.token * p.a.n_heads + head) * MLA_SM90_RANK;

#pragma unroll
				for (int i = 0; i < 8; i++)
					sums_store<CODES>(to, i, run.acc[i][m][b] * factor,
						run.acc[i][m][b + 2] * factor);
				continue;
			}
			index = partial_at(p, now, head);
			if (sum > 0.0f) {
				float *to = p.a.work.partial + index * MLA_SM90_RANK;

#pragma unroll
				for (int i = 0; i < 8; i++)
					sums_store<CODES>(to, i, run.acc[i][m][b] * factor,
						run.acc[i][m][b + 2] * factor);
			}
			if (warp == 0 && lane < 4)
				p.a.work.lse[index] =
					sum > 0.0f ? run.highest[m][b] * scale_log2 + __log2f(sum)
						   : NEVER;
		}
}

template <int M, bool CODES>
static __device__ void attend(
	const mla_cuda_args &p, mla_ring<CODES> ring, const mla_operands<M> &at, uint32_t n_sets)
{
	const uint32_t head_first = blockIdx.x % n_sets * M * 8;
	const float scale_log2 = p.a.scale * CUDART_L2E_F;
	bool waited = !p.early;
	uint32_t odd = 0;
	mla_walk w = walk_begin(p, n_sets);
	mla_piece now;

	while (walk_next(p, n_sets, w, now)) {
		mla_running<M> run = {};

#pragma unroll
		for (int m = 0; m < M; m++)
			run.highest[m][0] = run.highest[m][1] = NEVER;
		if (!waited)
			overlap_wait();
		waited = true;
		mla_split_query_load<M, CODES>(p.a, now.token, head_first, at.query);
		for (int32_t first = now.first; first < now.end; first += TILE, odd ^= 1) {
			barrier_wait(ring.full + ring.stage * 8, ring.parity);
			tile_attend<M, CODES>(ring.keys(), at, min(now.end - first, TILE),
				at.notes[odd], scale_log2, run);
			if (threadIdx.x % 32 == 0)
				barrier_arrive(ring.empty + ring.stage * 8);
			ring.next();
		}
		piece_store<M, CODES>(p, now, head_first, at, scale_log2, run);
		warps_sync(1, GROUP); /* its notes have been read */
	}
	if (!waited)
		overlap_wait();
}

/* ---- the kernel ---- */

template <int M, bool CODES>
static __global__ void __launch_bounds__(GROUP + 32, 1)
	split_kernel(const __grid_constant__ mla_cuda_args p,
		const __grid_constant__ struct cuda_tensor_map map, uint32_t n_sets)
{
	constexpr int n_stages = mla_form<CODES>::n_stages;
	extern __shared__ uint8_t memory[];
	__shared__ uint64_t barriers[2 * n_stages];
	__shared__ float notes[2][4][M * 8];
	uint32_t base = (shared_address(memory) + ATOM_ALIGN - 1) / ATOM_ALIGN * ATOM_ALIGN;
	uint32_t query = base + mla_shared_sizes<M>::ring;
	mla_ring<CODES> ring = {
		base, shared_address(barriers), shared_address(barriers + n_stages), 0, 0};
	mla_operands<M> at = {query, query + mla_shared_sizes<M>::query, notes};

	overlap_trigger();
	if (threadIdx.x == 0) {
		for (int i = 0; i < n_stages; i++) {
			barrier_init(ring.full + i * 8, 1);
			barrier_init(ring.empty + i * 8, GROUP / 32);
		}
		barrier_init_fence();
	}
	__syncthreads();
	if (!p.early)
		overlap_wait();
	if (threadIdx.x < GROUP)
		attend<M, CODES>(p, ring, at, n_sets);
	else
		copy_keys<CODES>(p, &map, ring, n_sets);
}

/* ---- host ---- */

template <int M, bool CODES> static int split_load(struct stream *stream)
{
	return CUDA_TRY(cuda_stream_device(stream),
		cudaFuncSetAttribute((const void *)split_kernel<M, CODES>,
			cudaFuncAttributeMaxDynamicSharedMemorySize, (int)mla_shared_sizes<M>::bytes));
}

int mla_sm90_load(struct stream *stream)
{
	int rc = split_load<2, false>(stream);

	if (!rc)
		rc = split_load<4, false>(stream);
	if (!rc)
		rc = split_load<2, true>(stream);
	return rc ? rc : split_load<4, true>(stream);
}

template <int M>
static void split_launch(struct stream *stream, const mla_cuda_args *args,
	const struct cuda_tensor_map &map, uint32_t n, uint32_t n_sets)
{
	launch(stream, args->a.fp8 ? split_kernel<M, true> : split_kernel<M, false>, dim3(n * n_sets),
		dim3(GROUP + 32), mla_shared_sizes<M>::bytes, *args, map, n_sets);
}

int mla_sm90_launch(struct stream *stream, const mla_cuda_args *args)
{
	const mla_args &a = args->a;
	uint32_t set = a.n_heads <= 16 ? 16 : 32, n_sets = (a.n_heads + set - 1) / set;
	uint32_t n_items = a.n_tokens * a.sizes.n_splits, n = a.sizes.n_slots;
	uint32_t box = a.page_tokens < BOX ? a.page_tokens : BOX;
	uint32_t cols = a.fp8 ? WIDTH / 2 : WIDTH; /* of 2 bytes */
	struct cuda_tensor_map map;
	int rc = cuda_tensor_map_atoms(
		stream, a.kv, (uint64_t)a.n_pages * a.page_tokens, cols, box, cols, &map);

	if (rc != 0)
		return rc;
	if (!args->planned && n_items < n)
		n = n_items;
	if (set == 16)
		split_launch<2>(stream, args, map, n, n_sets);
	else
		split_launch<4>(stream, args, map, n, n_sets);
	return 0;
}

const void *const mla_sm90_kernel = (const void *)split_kernel<2, false>;
