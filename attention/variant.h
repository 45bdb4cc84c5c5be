/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_VARIANT_H
#define MIMEO_ATTENTION_VARIANT_H

/*
 * Kernels on CUDA that are compiled for a few head sizes: the one that serves a model is chosen and
 * loaded when its manager is made. Head sizes, page sizes and operands that they do not serve go to
 * a slow kernel that serves any.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/cuda.h"

/* A kernel for one head size, and what one block of it takes. */
struct attention_variant {
	const void *kernel;
	uint32_t shared_bytes, threads;
	uint32_t rows;  /* packed query rows of a block */
	uint32_t keys;  /* tokens of a tile */
	uint32_t slots; /* of the line of tiles, of a block */
};

/* Load it and allow its shared memory: before lock. */
static inline int variant_load(
	struct stream *stream, const char *name, const struct attention_variant *variant)
{
	int rc = cuda_launch_begin(stream, name, variant->kernel);

	return rc != 0 ? rc : CUDA_TRY(cuda_stream_device(stream),
		cudaFuncSetAttribute(variant->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
			(int)variant->shared_bytes));
}

/* Pages that a shift finds: powers of two of tokens, `least` at least. */
static inline bool variant_takes_pages(uint32_t page_tokens, uint32_t least)
{
	return page_tokens >= least && (page_tokens & (page_tokens - 1)) == 0;
}

/* Operands for copies of 16 bytes; rows of q are q_stride bf16 elements apart. */
static inline bool variant_takes_operands(
	const void *q, const void *kv, const void *out, uint32_t q_stride)
{
	uintptr_t all = (uintptr_t)q | (uintptr_t)kv | (uintptr_t)out;

	return all % 16 == 0 && q_stride % 8 == 0;
}

#ifdef __cplusplus
struct variant_choice {
	uint32_t head_dim;
	uint32_t reserve; /* shared memory of a block beside the variant's */
	attention_variant variant;
};

/* The first of the choices with at least `rows` packed rows that fits; false: there is none. */
template <int N>
static bool variant_choose(const variant_choice (&choices)[N], uint32_t head_dim, uint32_t rows,
	uint32_t shared_bytes_optin, struct attention_variant *ret)
{
	for (const variant_choice &c : choices) {
		if (c.head_dim != head_dim || c.variant.rows < rows ||
			c.variant.shared_bytes + c.reserve > shared_bytes_optin)
			continue;
		*ret = c.variant;
		return true;
	}
	return false;
}
#endif

#endif
