/* SPDX-License-Identifier: MIT */

/*
 * Products of experts: by grouped.cu if it can (only on 9.0), otherwise by this kernel, for any shape,
 * alignment and device, but not for packed weights.
 *
 * Grid: (columns of y / 8, experts), which depends on the matrix and not on the choice of experts; block:
 * eight warps, each for one column of y, which is one row of the expert's W (gated: one of the gates and one
 * of the ups); no shared memory. A warp reads the row once for every PAIRS pairs of the expert, one pack of
 * columns per lane, and x from the caches. Bytes: W of the chosen experts, once for every PAIRS pairs of an
 * expert, all but the first time from the caches.
 */

#include "kernels/cuda/grouped.h"
#include "kernels/cuda/kernel.cuh"
#include "kernels/packed.h"

enum { WARPS = 8, PAIRS = 8 };

struct experts_args {
	const bf16 *x;
	struct weight w;
	const int32_t *expert_start, *pairs;
	bf16 *y;
	uint32_t x_div, n; /* n: columns of y */
};

/* Up to PAIRS of an expert's pairs. */
struct pair_rows {
	uint32_t n, x[PAIRS];
	int32_t pair; /* the lane's */
};

__device__ static inline pair_rows rows_of(const experts_args &a, int32_t first, int32_t end)
{
	const int32_t lane = threadIdx.x % WARP;
	pair_rows r;

	r.n = min(end - first, PAIRS);
	r.pair = lane < (int32_t)r.n ? a.pairs[first + lane] : 0;
#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		r.x[i] = (uint32_t)__shfl_sync(~0u, r.pair, i) / a.x_div;
	return r;
}

/* The lane's part of each pair's sum over the row of W. */
template <int N>
__device__ static inline void multiply(
	const experts_args &a, const pair_rows &r, size_t row, float (&sums)[PAIRS])
{
	const uint32_t k = a.w.cols;

#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		sums[i] = 0;
	for (uint32_t c = threadIdx.x % WARP * N; c < k; c += WARP * N) {
		float w[N], x[N];

		load_weight<N>(w, a.w, row * k + c);
#pragma unroll
		for (int i = 0; i < PAIRS; i++) {
			if (i >= (int)r.n)
				break;
			load<N>(x, a.x + (size_t)r.x[i] * k + c);
#pragma unroll
			for (int j = 0; j < N; j++)
				sums[i] += w[j] * x[j];
		}
	}
}

/* Sum over the warp; lane i gets the sum of pair i. */
__device__ static inline float add_lanes(const float (&sums)[PAIRS])
{
	float mine = 0;

#pragma unroll
	for (int i = 0; i < PAIRS; i++) {
		const float v = warp_sum(sums[i]);

		mine = threadIdx.x % WARP == i ? v : mine;
	}
	return mine;
}

template <int N, bool GATED> static __global__ void experts(const experts_args a)
{
	const uint32_t col = blockIdx.x * WARPS + threadIdx.x / WARP, e = blockIdx.y;
	const size_t row = (size_t)e * a.n * (GATED ? 2 : 1) + col;
	int32_t first, end;

	overlap_begin();
	if (col >= a.n)
		return;
	first = a.expert_start[e];
	end = a.expert_start[e + 1];
	for (; first < end; first += PAIRS) {
		const pair_rows r = rows_of(a, first, end);
		float sums[PAIRS], v;

		multiply<N>(a, r, row, sums);
		v = add_lanes(sums);
		if (GATED) {
			multiply<N>(a, r, row + a.n, sums);
			v = v / (1.0f + __expf(-v)) * add_lanes(sums);
		}
		if (threadIdx.x % WARP < r.n)
			a.y[(size_t)r.pair * a.n + col] = __float2bfloat16_rn(v);
	}
}

static void experts_launch_any(struct stream *stream, const struct op_expert_gemm *a, bool gated)
{
	const experts_args p = {(const bf16 *)a->x, a->w, a->expert_start, a->pairs, (bf16 *)a->y,
		a->x_div, a->w.rows / a->n_experts / (gated ? 2 : 1)};
	const bool packed = a->w.cols % PACK == 0 && aligned(a->x) && aligned(a->w.data);
	void (*const kernel)(experts_args) = gated ? packed ? experts<PACK, true> : experts<1, true>
					     : packed ? experts<PACK, false>
						      : experts<1, false>;

	launch(stream, kernel, dim3((p.n + WARPS - 1) / WARPS, a->n_experts), WARPS * WARP, 0, p);
}

/* `name` is a literal. */
static int experts_launch(
	struct stream *stream, const char *name, const struct op_expert_gemm *a, bool gated)
{
	int rc;

	if (a->n_experts > 65535)
		return -ENOTSUP;
	rc = cuda_launch_begin(stream, name, (const void *)experts<PACK, false>);
	if (rc)
		return rc;
#ifdef MIMEO_CUDA_SM90A
	rc = grouped_start(stream);
	if (rc)
		return rc;
	if (grouped_can(stream, a, gated)) {
		rc = grouped_launch(stream, a, gated);
		return rc ? rc : cuda_launch_end(stream, name);
	}
#endif
	if (packed_is(a->w.dtype))
		return -ENOTSUP;
	experts_launch_any(stream, a, gated);
	return cuda_launch_end(stream, name);
}

int cuda_expert_gemm(struct stream *stream, const struct op_expert_gemm *a)
{
	return expert_gemm_fits(a) ? experts_launch(stream, "expert_gemm", a, false) : -EINVAL;
}

int cuda_expert_gated_gemm(struct stream *stream, const struct op_expert_gated_gemm *a)
{
	const struct op_expert_gemm gemm = {.x = a->x,
		.x_div = a->n_active,
		.w = a->w,
		.expert_start = a->expert_start,
		.pairs = a->pairs,
		.y = a->y,
		.n_tokens = a->n_tokens,
		.n_active = a->n_active,
		.n_experts = a->n_experts};

	if (!expert_gated_gemm_fits(a))
		return -EINVAL;
	return experts_launch(stream, "expert_gated_gemm", &gemm, true);
}
