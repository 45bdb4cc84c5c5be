/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_KERNEL_CUH
#define MIMEO_KERNELS_CUDA_STEP_KERNEL_CUH

/* The kernel: its barriers, its roles, the step's number. */

#include "kernels/cuda/step_attention.cuh"
#include "kernels/cuda/step_feed.cuh"
#include "kernels/cuda/step_finish.cuh"
#include "kernels/cuda/step_gather.cuh"
#include "kernels/cuda/step_product.cuh"

template <int N, int DIM, bool ONE>
STEP_INLINE void step_work(const step_args &a, const step_shared &at, const step_division &division, uint32_t set)
{
	const uint32_t lane = threadIdx.x % 32, words = step_region_of<DIM>(a, division.serial).words;
	step_worker k = {at, threadIdx.x / 32, lane, lane / 4, lane % 4, division, {0, 0}, {0, 0}};
	step_turn turn = {blockIdx.x, gridDim.x, 0};
	uint32_t *regions = a.exchange[set];
	step_x<N> x;

#pragma unroll 1
	for (uint32_t i = 0;; i++) {
		const uint32_t outer = step_outer(a, i), layer = i / 2;
		uint32_t *region = regions + (size_t)layer * words;

		step_outer_product<N, DIM, ONE>(a, k, x, regions, i,
			step_share_out(turn, step_n_groups<DIM>(a, outer)));
		if (outer == STEP_HEAD)
			return;
		if (outer == STEP_QKV)
			step_attention<DIM>(a, k, region, layer, step_share_out(turn, step_n_units(a, division.serial)));
		if (outer == STEP_QKV && step_gathers(division.serial))
			step_gather<DIM>(a, k, region);
		step_inner_product<N, DIM, ONE>(a, k, x, region, i,
			step_share_out(turn, step_n_groups<DIM>(a, step_inner(i))));
	}
}

STEP_INLINE void step_barriers(const step_args &a, const step_shared &at)
{
	if (threadIdx.x == 0) {
		for (uint32_t s = 0; s < a.n_stages; s++) {
			step_barrier_init(at.full + s * 8, 1);
			step_barrier_init(at.empty + s * 8, STEP_WORKERS);
		}
		for (uint32_t s = 0; s < STEP_SUMS; s++) {
			step_barrier_init(at.sums_full + s * 8, STEP_WORKERS);
			step_barrier_init(at.sums_empty + s * 8, 1);
		}
		step_sts_4(at.set, STEP_NO_SET);
		step_barriers_ready();
	}
	step_meet_block();
}

/* Once the rows' lengths are in shared memory. */
template <int DIM> STEP_INLINE step_division step_division_here(const step_args &a, const step_shared &at)
{
	step_lengths lengths = {};

	for (uint32_t row = 0; row < a.rows; row++)
		step_lengths_add(lengths, step_lds_4(at.rows + row * STEP_ROW_BYTES(DIM)));
	return step_division_of<DIM>(a, gridDim.x, lengths);
}

/* Of one thread, once its block has read the state: the last block writes it for the next step. */
STEP_INLINE void step_advance(const step_args &a, uint32_t number, uint32_t words)
{
	if (step_add(&a.state->begun, 1) != gridDim.x - 1)
		return;
	step_stx_4(&a.state->begun, 0);
	step_stx_4(&a.state->words[number & 1], words);
	step_stx_4(&a.state->number, number + 1);
}

/* Models of N * 512 hidden columns at most, heads of DIM columns; ONE: batches of one row. */
template <int N, int DIM, bool ONE>
__global__ void __launch_bounds__(STEP_THREADS, 1) step_kernel(const __grid_constant__ step_args a)
{
#ifdef MIMEO_STEP_EMULATION
	const uint32_t base = 0;
#else
	extern __shared__ __align__(1024) uint8_t step_memory[];
	const uint32_t base = step_shared_base(step_memory);
#endif
	const step_shared at = step_shared_at(base, a.n_stages, DIM);
	const uint32_t warp = threadIdx.x / 32;

	step_barriers(a, at);
	step_next_may_come();
	if (warp < STEP_WORKERS) {
		step_more_registers();
		step_before_is_done();
		const uint32_t number = step_ldx_4(&a.state->number);
		step_rows_load<DIM>(a, at);
		step_meet<2, STEP_READERS>();
		step_work<N, DIM, ONE>(a, at, step_division_here<DIM>(a, at), number & 1);
	} else {
		step_less_registers();
		if (warp == STEP_FEEDER) {
			step_fetch<N, DIM>(a, at);
		} else {
			step_before_is_done();
			const uint32_t number = step_ldx_4(&a.state->number);
			const uint32_t old = step_ldx_4(&a.state->words[(number & 1) ^ 1]);
			if (threadIdx.x == STEP_FINISHER * 32)
				step_sts_4(at.set, number & 1);
			step_meet<2, STEP_READERS>();
			const uint32_t serial = step_division_here<DIM>(a, at).serial;
			if (threadIdx.x == STEP_FINISHER * 32)
				step_advance(a, number, step_region_of<DIM>(a, serial).words * a.n_layers);
			step_finish<DIM>(a, at, serial, number & 1, old);
		}
	}
}

#endif
