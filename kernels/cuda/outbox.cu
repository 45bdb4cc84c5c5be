/* SPDX-License-Identifier: MIT */

/*
 * Grid: one block of 256 threads; no shared memory. Moves n_rows * 4 bytes over the bus, and 168 for each
 * token of rows with log-probabilities, then the flag's 8. One block, because its barrier orders all results
 * before the flag: after it the thread that writes the flag has seen all of them, and its fence and release
 * pair with the host's acquire.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 256 };

/* Of rows that want them. */
__device__ static void copy_logprobs(const struct op_outbox &a)
{
	const uint32_t n = a.logprob_tokens * LOGPROBS_WIDTH;

#pragma unroll 4
	for (uint32_t i = threadIdx.x; i < a.n_logprob_rows * n; i += THREADS)
		if ((uint32_t)a.row_flags[i / n] & ROW_LOGPROBS)
			a.out_logprobs[i] = a.logprobs[i];
}

static __global__ void outbox(const struct op_outbox a)
{
	overlap_begin();
	for (uint32_t i = threadIdx.x; i < a.n_rows; i += THREADS)
		a.out[i] = a.sampled[i];
	if (a.out_logprobs)
		copy_logprobs(a);
	__syncthreads();
	if (threadIdx.x == 0) {
		if (a.ended)
			*a.ended = device_clock_ns();
		__threadfence_system();
		asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(a.flag), "l"(a.step)
			     : "memory");
	}
}

static int outbox_launch(struct stream *stream, const struct op_outbox *a)
{
	launch(stream, outbox, 1, THREADS, 0, *a);
	return 0;
}

CUDA_OP(outbox, outbox)
