/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MLA_MLA_CUDA_H
#define MIMEO_ATTENTION_MLA_MLA_CUDA_H

/*
 * The interface between the host side of latent attention on CUDA and its kernels.
 *
 * Stage 1 is a grid that the padded number of tokens alone decides, and a block takes one PIECE
 * after another: a run of one token's keys, for some of the heads. In `mla` every token's keys are
 * cut into n_splits equal parts on the device. In `mla_planned` the keys of all tokens lie behind
 * each other on a line of tiles of MLA_TILE, and each slot of the plan is an equal part of it, one
 * block for each set of heads: so lengths that differ leave no block idle. If no token is much
 * longer than an equal part and slots suffice, each token gets one slot. A token that is one piece
 * alone gets its average at once, in `latent`, over its own query; of others each piece leaves a
 * PARTIAL, its average and its log-sum-exp to base 2, and stage 2 weighs them.
 *
 * Partials: of token t's split s, head h, at (t * n_heads + h) * n_splits + s; of a slot, at (slot
 * * 2 + begins) * n_heads + h, where `begins` says whether the token's keys begin in that slot.
 */

#include <stdint.h>

#include "attention/mla/mla.h"
#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MLA_CUDA_BLOCKS                                                                            \
	132u /* of stage 1: a multiprocessor of an H200 each; others do with as many */
#define MLA_CUDA_HEADS 32u   /* of a block, at most */
#define MLA_CUDA_SPLITS 64u
#define MLA_CUDA_CHUNK 512u  /* tokens; what a plan may be of */

struct mla_cuda_args {
	/* scale: of products with what the cache has, codes or numbers; factors.value: of the sums, 1 without fp8 */
	struct mla_args a;
	uint32_t page_shift;   /* of page_tokens, for the kernel of 9.0 */
	bool planned;          /* the work is a.work.plan's */
	/* No launch that may overlap with this one writes the step's inputs, or cached tokens before a row's
	 * query, so the kernel may read them before overlap_wait. */
	bool early;
};

/* Launchers. They need cuda_launch_begin before and cuda_launch_end after. */
void mla_plan_launch(struct stream *stream, const struct mla_args *args);
void mla_merge_launch(struct stream *stream, const struct mla_cuda_args *args);
/* Any rank, any rope, any page size, any alignment; slow; never planned. */
void mla_any_launch(struct stream *stream, const struct mla_cuda_args *args);
/* Kernels of the source files, for cuda_launch_begin. */
extern const void *const mla_plan_kernel;
extern const void *const mla_merge_kernel;
extern const void *const mla_any_kernel;

/*
 * For 9.0 alone, rank 512 and rope 64, pages of a power of two of tokens, 8 at least, everything
 * aligned to 16 bytes; in a build with device code for 90a (MIMEO_MLA_SM90).
 */
#define MLA_SM90_RANK 512u
#define MLA_SM90_ROPE 64u
/* 0, or the condition. Before lock. */
int mla_sm90_load(struct stream *stream);
int mla_sm90_launch(struct stream *stream, const struct mla_cuda_args *args);
extern const void *const mla_sm90_kernel;

#ifdef __cplusplus
}
#endif

#endif
