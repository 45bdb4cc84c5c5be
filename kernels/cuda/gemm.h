/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_GEMM_H
#define MIMEO_KERNELS_CUDA_GEMM_H

/*
 * Shared by the files of gemm.
 *
 *	gemm          the two ops, and the device's state
 *	gemm_plan     the choice of a way for each shape, by timing
 *	gemm_product  one product, and the ways to compute it: our kernels and cuBLASLt's
 */

#include <cublasLt.h>

#include "kernels/cuda/broad.h"
#include "kernels/cuda/internal.h"
#include "kernels/cuda/skinny.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/widen.h"
#include "kernels/packed.h"

#define GEMM_WORKSPACE_BYTES ((size_t)32 << 20)
#define GEMM_PLANS_MAX 4096u /* a power of two */
#define GEMM_LIBRARY_WAYS 12
#define GEMM_OWN_WAYS (SKINNY_VARIANTS_MAX + WIDE_VARIANTS_MAX + BROAD_VARIANTS_MAX)
#define GEMM_WAYS (GEMM_LIBRARY_WAYS + GEMM_OWN_WAYS)
#define GEMM_ROUNDS 5 /* timings of a way */
#define GEMM_FLUSH_L2S 2u /* L2s of memory written between two timings */

/* A way to compute a product: one of our kernels, or an algorithm of cuBLASLt. */
struct gemm_way {
	enum { WAY_LIBRARY, WAY_SKINNY, WAY_WIDE, WAY_BROAD, WAY_INVARIANT } kind;
	uint8_t variant;
	cublasLtMatmulAlgo_t algo;
};

/* A shape class. */
struct gemm_key {
	uint32_t rows, n, k;
	uint8_t alignment; /* bytes, of all operands: 2 ... 16 */
	uint8_t packed; /* enum packed_kind of the matrix */
	bool f32, bias, gated, invariant, add;
	bool used;
};

struct gemm_plan {
	struct gemm_key key;
	struct gemm_way way;
};

/* A device's. */
struct gemm {
	cublasLtHandle_t handle;
	pthread_mutex_t lock; /* of what follows */
	struct gemm_mark {
		cudaEvent_t start, end;
	} marks[GEMM_WAYS][GEMM_ROUNDS];
	enum cuda_gemm_choice choice;
	void *flush; /* NULL: none, or released at lock */
	size_t flush_bytes;
	uint32_t n_plans;
	struct gemm_plan plans[GEMM_PLANS_MAX];
};

/* One product in the form that cuBLASLt takes; without heap memory. */
struct gemm_product {
	cublasLtMatmulDescOpaque_t desc;
	cublasLtMatrixLayoutOpaque_t w, x, y;
	const struct op_gemm *args;
	/* NULL, or of a gated product: what it leaves to do where it is cuBLASLt's, which writes gate_up */
	const struct op_silu_mul *silu_mul;
	struct stream *stream;
	void *workspace; /* of GEMM_WORKSPACE_BYTES, and behind it what a copy of packed weights needs */
};

static inline bool gemm_is_gated(const struct gemm_product *p)
{
	return p->silu_mul != NULL;
}

/* ---- gemm_product.c ---- */

/* Fill in cuBLASLt's description from args. */
int gemm_product_init(struct gemm_product *p);
/* Put it on its stream. -ENOTSUP, DEVICE_E_INVALID: this way does not support it. */
int gemm_product_run(struct gemm_product *p, const struct gemm_way *way);
/* The way of an invariant product; -ENOTSUP: there is none. */
int gemm_invariant_way(const struct gemm_product *p, struct gemm_way *ret);
/* Our ways to compute it, the most promising first. Returns how many. */
int gemm_own_ways(const struct gemm_product *p, struct gemm_way ret[GEMM_OWN_WAYS]);
/* cuBLASLt's ways in the order of its heuristic, into ret[max], at most GEMM_LIBRARY_WAYS; *ret_n is at least
 * 1. */
int gemm_library_ways(struct gemm_product *p, uint32_t alignment, int max, struct gemm_way *ret,
	int *ret_n);
/* 0, an enum device_condition, or -errno. */
int gemm_condition(struct cuda_device *device, cublasStatus_t status);

/* ---- gemm_plan.c ---- */

/* The shape class of the product. */
struct gemm_key gemm_key_of(const struct gemm_product *p);
/* The way of the product's class, which is chosen now if it has none. */
int gemm_plan_get(struct gemm_product *p, const struct gemm_key *key, struct gemm_way *ret);

#endif
