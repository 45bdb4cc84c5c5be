/* SPDX-License-Identifier: MIT */

/*
 * Any model: every head size to PAGED_ANY_HEAD_DIM, every page size, every alignment, any batch.
 *
 * Grid tokens x heads, block 16 warps, which take every 16th key: a lane has head_dim / 32 elements, a
 * score is a sum over the warp. Shared memory: 4 KB, the block's sum. Reads keys and values once a token
 * and head, so it is slow. It exists so that no model is refused, for scores with a soft cap, and for
 * deterministic models: a token's result depends on its own keys alone. It finds its row by itself and needs no plan.
 *
 * Measured on an H200, a decode step of a deterministic 1B model, context 1024, at 1, 8, 32, 128 rows:
 * 2.73, 2.56, 5.17, 15.8 ms, where the fast kernels and products take 0.85, 0.91, 1.20, 2.34.
 */

#include "attention/paged/paged_any.cuh"
#include "kernels/cuda/overlap.cuh"

struct paged_keys {
	const int32_t *pages; /* the row's */
	int32_t first, end;   /* positions seen; none: end 0 */
};

static __device__ int32_t row_end(const paged_args &a, int32_t r)
{
	return min(max(a.query_start[r + 1], 0), (int32_t)a.n_tokens);
}

/* The row of a token is the first that ends past it; ends that decrease count as empty rows. */
static __device__ paged_keys place_of(const paged_args &a, int32_t token)
{
	uint64_t capacity = (uint64_t)a.max_pages * a.page_tokens;
	int32_t low = 0, high = (int32_t)a.n_rows, seq_len, position;
	paged_keys found = {};

	while (low < high) {
		int32_t middle = (low + high) / 2;

		if (row_end(a, middle) > token)
			high = middle;
		else
			low = middle + 1;
	}
	if (low == (int32_t)a.n_rows)
		return found;
	seq_len = min(max(a.seq_lens[low], 0), (int32_t)min(capacity, (uint64_t)INT32_MAX));
	position = seq_len - (row_end(a, low) - token);
	found.pages = a.block_table + (size_t)low * a.max_pages;
	found.first = window_first(position, a.window);
	found.end = position + 1;
	return found;
}

/* The element of the cache where a position's first key head begins. */
static __device__ size_t paged_any_key_at(const paged_args &a, const paged_keys &at, int32_t position)
{
	uint32_t offset = (uint32_t)position % a.page_tokens;
	int32_t page = page_clamp(at.pages[(uint32_t)position / a.page_tokens], a.n_pages);

	return ((size_t)page * 2 * a.page_tokens + offset) * ((size_t)a.n_kv_heads * a.head_dim);
}

template <int PER, bool CODES>
static __global__ void __launch_bounds__(WARPS * 32) any_kernel(const __grid_constant__ paged_args a)
{
	int warp = threadIdx.x / 32, dim = (int)a.head_dim;
	uint32_t head = blockIdx.y, kv_head = head / (a.n_heads / a.n_kv_heads);
	const bf16 *query =
		(const bf16 *)a.q + (size_t)blockIdx.x * a.q_stride + (size_t)head * dim;
	size_t to_value = (size_t)a.page_tokens * a.n_kv_heads * dim;
	float q[PER], acc[PER] = {}, highest = -CUDART_INF_F, sum = 0.0f;
	paged_keys at;

	overlap_begin();
	at = place_of(a, (int32_t)blockIdx.x);
	any_load(q, query, dim, a.scale, at.end > 0);
	for (int32_t t = at.first + warp; t < at.end; t += WARPS)
		any_take<CODES>(a.kv, paged_any_key_at(a, at, t) + (size_t)kv_head * dim, to_value, dim,
			a.soft_cap, q, acc, highest, sum);
	any_merge<PER, PAGED_ANY_HEAD_DIM>(dim, acc, highest, sum, a.factors.value,
		(bf16 *)a.out + ((size_t)blockIdx.x * a.n_heads + head) * dim);
}

void paged_any_launch(struct stream *stream, const struct paged_args *args)
{
	dim3 grid(args->n_tokens, args->n_heads);

	ANY_LAUNCH(stream, any_kernel, args->head_dim, args->fp8, grid, *args);
}

const void *const paged_any_kernel = (const void *)any_kernel<2, false>;
