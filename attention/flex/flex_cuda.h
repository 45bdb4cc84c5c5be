/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_FLEX_CUDA_H
#define MIMEO_ATTENTION_FLEX_FLEX_CUDA_H

/*
 * The interface between the host side of block masks on CUDA and its kernels.
 *
 * Queries are PACKED: of a block's tokens and one kv head's group of heads, packed row m is token m
 * / group, head m % group. A block has FLEX_PACKED packed rows of each kv head at most, and a block
 * of keys has FLEX_TILE positions.
 *
 * In addition to the lists, a build writes a SCHEDULE. Query blocks with keys are of two kinds. Those of rows
 * of at most short_query tokens are SPLIT: for each such block, each kv head and each 16 of its packed rows
 * (an item), the key blocks of its list are placed one after the other on a line, and the line is divided
 * into n_slots slots of equal length, one for each team of four warps that run at once. Blocks of longer rows
 * are LONG: such a block with one kv head is a work item of the kernel for 9.0a, which processes both kinds;
 * if there are fewer work items than half the thread blocks, their lists are divided into pieces of equal
 * length, too. A list that was divided leaves partials (an unnormalised sum, with its highest score and sum
 * of weights), which the last piece to finish merges in their order. Without that kernel all blocks are
 * split.
 */

#include <stdint.h>

#include "attention/flex/flex.h"
#include "attention/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLEX_PACKED 128u /* packed rows of a block */
#define FLEX_PART 16u    /* packed rows in a tensor core's tile */
#define FLEX_TILE 64u    /* positions of a block of keys */
#define FLEX_PIECE 8     /* fewest key blocks in a piece of a long block; even */
#define FLEX_PIECES_OF_BLOCK 2 /* most pieces of long blocks per thread block */
#define FLEX_ALIGNED __attribute__((aligned(16))) /* for loads of 16 bytes */

/* What a kernel has to know of a block of queries. */
struct flex_work {
	struct flex_block block;
	int32_t index;     /* of the block, and of its list */
	int32_t n_entries; /* of the list */
	struct slot_mask mask;
	int64_t start;   /* of a split block: position of its first tile on the line */
	int32_t n_items; /* of a split block: kv heads x groups of 16 packed rows; 0: it is long */
	int32_t reserved;
} FLEX_ALIGNED;

struct flex_slot {
	struct flex_work work; /* where the slot begins */
	int64_t begin, end;    /* tiles of the line */
	int32_t next;          /* in splits[], the work after this one */
	int32_t n_zero;        /* as in the head */
	int32_t tiles_per_slot;
	int32_t reserved;
} FLEX_ALIGNED;

struct flex_head {
	int32_t n_long;
	int32_t n_zero;   /* ranges in zeros[] */
	int32_t n_pieces; /* 0: no long block's list is cut */
	int32_t reserved;
};

/* Entries [entry, end) of a long block's list, for one kv head. */
struct flex_piece {
	int32_t work; /* in longs[] */
	int32_t kv_head, entry, end;
	int32_t first, n; /* of the pieces of the list */
	int32_t reserved[2];
} FLEX_ALIGNED;

struct flex_schedule {
	struct flex_head *head;
	struct flex_slot *slots;  /* [n_slots] */
	struct flex_work *works;  /* [max_blocks] by block; exchanged between thread blocks of the plan kernel */
	struct flex_work *splits; /* [max_blocks] */
	struct flex_work *longs;  /* [max_blocks] in the order of the batch */
	struct flex_piece *pieces; /* [FLEX_PIECES_OF_BLOCK * n_blocks] if long blocks are divided */
	int32_t (*zeros)[2];      /* [max_blocks + 1] ranges of tokens without keys: first, end */
	uint32_t *done;           /* finished blocks of the plan kernel; 0 between launches */
};

struct flex_cuda_plan_args {
	struct flex_plan_args a;
	struct flex_schedule to;
	uint32_t n_slots, n_kv_heads, group, short_query;
	uint32_t n_blocks; /* of the kernel for long blocks; 0: it is not used */
};

struct flex_cuda_args {
	struct flex_args a;
	struct flex_schedule from;
	float *partials;    /* [n_slots, 2, FLEX_PART, head_dim] */
	float *stats;       /* [n_slots, 2, FLEX_PART, 2] highest score, sum */
	uint32_t *counters; /* [n_slots] finished pieces of the item that begins there; 0 between launches */
	float *long_partials;    /* [n_pieces, FLEX_PACKED, head_dim] */
	float *long_stats;       /* [n_pieces, FLEX_PACKED, 2] */
	uint32_t *long_counters; /* [n_pieces, 2] by first piece and warpgroup; as above */
	uint32_t *ticket;        /* of the kernel for 9.0a; 0 between launches */
	uint32_t n_slots, page_shift;
	/* No launch that may overlap with this one writes the plan, the step's inputs, or cached tokens before
	 * a row's query, so the kernel may read them before overlap_wait. */
	bool early;
};

/* The kernel for a head size within this shared memory per block, whose keys and values are codes of fp8 or bf16; false:
 * there is none. */
bool flex_split_variant(
	uint32_t head_dim, bool codes, uint32_t shared_bytes_optin, struct attention_variant *ret);
/* The same, of bf16, for the kernel for both kinds of blocks. Only for devices of 9.0, in a build with device code for
 * 90a (MIMEO_PAGED_SM90). */
bool flex_mixed_sm90_variant(
	uint32_t head_dim, uint32_t shared_bytes_optin, struct attention_variant *ret);

/* Launchers. They need cuda_launch_begin before and cuda_launch_end after. */
void flex_plan_launch(struct stream *stream, const struct flex_cuda_plan_args *args);
void flex_split_launch(struct stream *stream, const struct attention_variant *variant,
	const struct flex_cuda_args *args);
void flex_mixed_sm90_launch(struct stream *stream, const struct attention_variant *variant,
	const struct flex_cuda_args *args, const void *tensor_map);
/* Any head_dim to FLEX_BF16_HEAD_DIM, any page size, any alignment; slow; needs no schedule. */
void flex_any_launch(struct stream *stream, const struct flex_args *args);
/* A kernel of the source file, for cuda_launch_begin. */
extern const void *const flex_plan_kernel;
extern const void *const flex_any_kernel;

#ifdef __cplusplus
}
#endif

#endif
