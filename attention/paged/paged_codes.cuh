/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_CODES_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_CODES_CUH

/*
 * Fragments of keys and values that are codes, e4m3 (struct kv_factors). They lie in shared memory as
 * [token][head_dim + 16] bytes, an odd number of 16-byte chunks a row, as bf16 does (paged_mma.cuh), and become
 * float16 in registers, exactly. Queries and weights are float16 too: a query beyond 65504 counts as 65504. The factors
 * are no work here: that of keys is in the scale of scores, that of values in what divides the sums.
 *
 * ldmatrix moves two codes as one element of 16 bits, so that a lane gets four codes where bf16 gives it two
 * numbers. With i = lane % 4 and g = lane / 4:
 *
 *   Keys: a word has columns 4 i to 4 i + 3 of token g. As the order of columns in a product is free, of each 16
 *   columns these are the fragment's columns 2 i, 2 i + 1, 2 i + 8 and 2 i + 9; queries take the same order.
 *
 *   Values, transposed: a word has columns 2 g and 2 g + 1 of token 2 i, then of token 2 i + 1. Bytes 0 and 2 are a
 *   fragment's word of column 2 g, bytes 1 and 3 of column 2 g + 1. So of each 16 columns a first sum has the even
 *   ones, a second the odd ones, and columns 4 i to 4 i + 3 of a row are the lane's first[0], second[0], first[1],
 *   second[1].
 */

#include "attention/paged/paged_mma.cuh"
#include "kernels/cuda/e4m3.cuh"

/* Bytes of an element of the cache, and of a token's row in shared memory. */
template <int D, bool CODES> struct cached_row {
	static constexpr int element = CODES ? 1 : 2;
	static constexpr int chunks = D * element / 16;
	static constexpr uint32_t pitch = D * element + 16;
};

/* c[16, 8] += a[16, 16] b[16, 8] */
static __device__ __forceinline__ void mma_f16(
	float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
		     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack_f16(float low, float high)
{
	__half2 pair = __floats2half2_rn(low, high);

	return *reinterpret_cast<uint32_t *>(&pair);
}

/* NaN stays NaN. */
static __device__ __forceinline__ float within_f16(float x)
{
	return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}

/* Two bf16 as float16. */
static __device__ __forceinline__ uint32_t f16_of_bf16(uint32_t pair)
{
	return pack_f16(within_f16(__uint_as_float(pair << 16)), within_f16(__uint_as_float(pair & 0xffff0000u)));
}

/* The fragment of 8 tokens and 16 columns of keys. */
static __device__ __forceinline__ void add_keys(float (&scores)[4], const uint32_t (&q)[4], uint32_t keys)
{
	mma_f16(scores, q, e4m3_to_f16(keys), e4m3_to_f16(keys >> 16));
}

/* The fragments of 16 tokens, `values` of the first 8 and `more` of the others, and 16 columns. */
static __device__ __forceinline__ void add_columns(float (&even)[4], float (&odd)[4],
	const uint32_t (&weights)[4], uint32_t values, uint32_t more)
{
	const uint32_t apart = __byte_perm(values, 0, 0x3120), more_apart = __byte_perm(more, 0, 0x3120);

	mma_f16(even, weights, e4m3_to_f16(apart), e4m3_to_f16(more_apart));
	mma_f16(odd, weights, e4m3_to_f16(apart >> 16), e4m3_to_f16(more_apart >> 16));
}

/* A lane's address of fragments of 16 tokens and 32 columns: keys or, transposed, values. load_4's words are then those
 * of tokens 0 to 7 and 8 to 15 of the first 16 columns, then of the others. */
template <int D>
static __device__ __forceinline__ uint32_t codes_address(uint32_t rows)
{
	const uint32_t lane = threadIdx.x % 32;

	return rows + (lane & 15) * cached_row<D, true>::pitch + (lane >> 4) * 16;
}

#endif
