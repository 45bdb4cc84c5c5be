/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_WORDS_CUH
#define MIMEO_KERNELS_CUDA_STEP_WORDS_CUH

/* Waiting, the words between blocks, and the residual, which is made of them. */

#include "kernels/cuda/step.cuh"

/* ---- waiting ---- */

/*
 * All blocks of the grid are resident at once (step.cu), and whatever one waits for comes from this
 * launch, so waits end. In builds with MIMEO_STEP_SAFE those of more than ten seconds end the kernel.
 */
STEP_INLINE void step_spin(uint32_t &n, uint64_t &since, uint32_t where)
{
	step_relax(where);
#ifdef MIMEO_STEP_SAFE
	if (n == 0)
		since = step_now_ns();
	if (++n % 4096 == 0 && step_now_ns() - since > 10000000000ull)
		step_trap(where);
#endif
}

STEP_INLINE void step_wait(uint32_t barrier, uint32_t parity, uint32_t where)
{
	uint32_t n = 0;
	uint64_t since = 0;

#pragma unroll 1
	while (!step_has_ended(barrier, parity))
		step_spin(n, since, where);
}

/* ---- words ---- */

STEP_INLINE bool step_is_whole(const uint4 &v)
{
	return v.x != STEP_EMPTY && v.y != STEP_EMPTY && v.z != STEP_EMPTY && v.w != STEP_EMPTY;
}

/* Two NaNs are EMPTY; others say the same. */
STEP_INLINE void step_put(uint32_t *p, uint32_t word)
{
	step_stx_4(p, word == STEP_EMPTY ? 0x7fff7fffu : word);
}

STEP_INLINE uint32_t step_get(const uint32_t *p, uint32_t where)
{
	uint32_t v = step_ldx_4(p), n = 0;
	uint64_t since = 0;

	while (v == STEP_EMPTY) {
		step_spin(n, since, where);
		v = step_ldx_4(p);
	}
	return v;
}

STEP_INLINE uint4 step_get_16(const uint32_t *p, uint32_t where)
{
	uint4 v = step_ldx_16(p);
	uint64_t since = 0;
	uint32_t n = 0;

	while (!step_is_whole(v)) {
		step_spin(n, since, where);
		v = step_ldx_16(p);
	}
	return v;
}

STEP_INLINE float step_low(uint32_t word)
{
	return step_float(word << 16);
}

STEP_INLINE float step_high(uint32_t word)
{
	return step_float(word & 0xffff0000u);
}

/* i is known when compiling. */
STEP_INLINE uint32_t step_word(const uint4 &v, int i)
{
	return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

STEP_INLINE void step_set_word(uint4 &v, int i, uint32_t word)
{
	if (i == 0)
		v.x = word;
	else if (i == 1)
		v.y = word;
	else if (i == 2)
		v.z = word;
	else
		v.w = word;
}

/* The residual that half step i reads, of a row: the embedding's, or what the one before left. */
template <int DIM>
STEP_INLINE const uint32_t *step_residual(const step_args &a, uint32_t serial, const uint32_t *regions, uint32_t i,
	uint32_t row)
{
	const step_region r = step_region_of<DIM>(a, serial);
	const void *from = i == 0 && a.from ? a.from[row] : nullptr;
	uint32_t id;

	if (i)
		return regions + (size_t)((i - 1) / 2) * r.words +
		       (i % 2 ? r.after_o : r.after_down) + row * (a.hidden / 2);
	if (from)
		return (const uint32_t *)from;
	id = a.ids[row] < 0 ? 0 : (uint32_t)a.ids[row];
	return (const uint32_t *)(a.embedding + (size_t)(id < a.vocab ? id : a.vocab - 1) * a.hidden);
}

#endif
