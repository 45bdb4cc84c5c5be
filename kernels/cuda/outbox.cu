/* SPDX-License-Identifier: MIT */

/*
 * Grid: one block of 256 threads; no shared memory. Moves n_rows * 4 bytes over the bus, then the
 * flag's 8. One block, because its barrier orders every token before the flag: after it the thread that
 * writes the flag has seen all of them, and its fence and release pair with the host's acquire.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 256 };

static __global__ void outbox(const struct op_outbox a)
{
	overlap_begin();
	for (uint32_t i = threadIdx.x; i < a.n_rows; i += THREADS)
		a.out[i] = a.sampled[i];
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
