/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_CUDA_H
#define MIMEO_ATTENTION_PAGED_PAGED_CUDA_H

/*
 * The interface between the host side of paged attention on CUDA and its kernels.
 *
 * Once a step a one-warp PLANNER reads the lengths from the persistent inputs and writes, for each
 * window that the model's layers have, a plan into the manager's buffer. All layers of the step
 * read it. Rows of at most PAGED_MAX_UNIFORM_QUERY tokens are the decode kernel's, longer ones the
 * prefill kernel's.
 *
 * Decode: the keys of all its rows, in tiles of PAGED_TILE tokens, are laid end to end on one line,
 * and the line is cut into n_slots pieces of equal length. A slot is one thread block per kv head:
 * as many as run at once, so that the grid depends neither on the batch nor on its lengths, and
 * every block has the same number of bytes to read. A row cut by a slot's edge leaves partials (an
 * unnormalised sum, with its highest score and sum of weights), which the last of its blocks merges
 * in the order of the slots.
 */

#include <stdint.h>

#include "attention/paged/paged.h"
#include "attention/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PAGED_TILE 64
#define PAGED_M_BLOCK 16 /* packed query rows, (token, head of the group), of a decode block */
#define PAGED_PLAN_WINDOWS 16
#define PAGED_ALIGNED __attribute__((aligned(16))) /* for loads of 16 bytes */

struct paged_row {
	int32_t query_first, n_query, seq_len;
	int32_t tile_first; /* of the row's tiles, the first that any of its queries sees */
	int32_t tile_start; /* where tile_first lies on the line; of a long row, its first block's
	                       place among all blocks of packed rows that the prefill kernel has */
	int32_t n_tiles;
	int32_t first; /* the first position that any query sees */
	int32_t row;
} PAGED_ALIGNED;

struct paged_slot {
	struct paged_row row; /* where the slot begins */
	int32_t index;       /* of that row in rows[] */
	int32_t tile_begin, tile_end;
	int32_t tiles_per_slot;
	int32_t n_zero; /* as in the head */
	int32_t reserved[3];
} PAGED_ALIGNED;

struct paged_plan_head {
	int32_t n_long;
	int32_t n_blocks; /* of packed rows, of all long rows, for each kv head */
	int32_t n_zero;   /* ranges in zeros[] */
	int32_t reserved;
};

/* One window's plan; offsets into it are the same in all plans, plan_bytes apart. */
struct paged_plan {
	struct paged_plan_head *head;
	struct paged_slot *slots; /* [n_slots] */
	struct paged_row *rows;   /* [max_rows] with a query of the decode kernel's and keys */
	struct paged_row *longs;  /* [max_rows] of the prefill kernel's */
	int32_t (*zeros)[2];     /* [max_rows + 1] ranges of tokens without keys: first, end */
};

struct paged_plan_args {
	const int32_t *query_start, *seq_lens;
	struct paged_plan plan;
	uint64_t plan_bytes;
	uint32_t n_rows, n_tokens, n_slots, capacity;
	uint32_t group, block_rows; /* query heads of a kv head, packed rows of a prefill block */
	uint32_t n_windows;
	uint32_t windows[PAGED_PLAN_WINDOWS];
};

struct paged_cuda_args {
	struct paged_args a; /* scale: times the factor of keys; the factor of values is 1 without fp8 */
	struct paged_plan plan;
	float *partials;    /* [n_slots, 2, n_heads, PAGED_M_BLOCK, head_dim] */
	float *stats;       /* [n_slots, 2, n_heads, PAGED_M_BLOCK, 2] highest score, sum */
	uint32_t *counters; /* [max_rows, n_heads] pieces done; 0 between launches */
	uint32_t *ticket;   /* of the prefill kernel that draws its work; 0 between launches */
	uint32_t n_slots, page_shift, n_sms;
	uint32_t m_blocks; /* blocks of packed query rows; the decode launcher sets it */
	/* No launch that may overlap with this one writes the plan, the step's inputs, or cached tokens before
	 * a row's query, so the kernel may read them before overlap_wait. */
	bool early;
	bool alone; /* there is no launch of the decode kernel, which would write the zeros */
};

/* The kernel for a head size within so much shared memory a block, whose keys and values are codes of fp8 or bf16; false:
 * there is none. */
bool paged_decode_variant(
	uint32_t head_dim, bool codes, uint32_t shared_bytes_optin, struct attention_variant *ret);
bool paged_prefill_variant(
	uint32_t head_dim, bool codes, uint32_t shared_bytes_optin, struct attention_variant *ret);
/* The same of bf16, with blocks of at least `rows` packed query rows; for devices of 9.0 alone, and in a
 * build with device code for 90a (MIMEO_PAGED_SM90). */
bool paged_prefill_sm90_variant(uint32_t head_dim, uint32_t rows, uint32_t shared_bytes_optin,
	struct attention_variant *ret);

/* A layer's cache as the copy engine of 9.0 sees it; a box is one head of min(page_tokens, n_keys)
 * tokens. */
static inline int paged_tensor_map(struct stream *stream, const struct attention_config *c,
	const void *kv, uint32_t n_keys, struct cuda_tensor_map *ret)
{
	return cuda_tensor_map_atoms(stream, kv, (uint64_t)c->n_kv_pages * 2 * c->page_tokens,
		c->n_kv_heads * c->head_dim, c->page_tokens < n_keys ? c->page_tokens : n_keys,
		c->head_dim, ret);
}

/* Launchers. They need cuda_launch_begin before and cuda_launch_end after. */
void paged_plan_launch(struct stream *stream, const struct paged_plan_args *args);
void paged_decode_launch(struct stream *stream, const struct attention_variant *variant,
	const struct paged_cuda_args *args);
void paged_prefill_launch(struct stream *stream, const struct attention_variant *variant,
	const struct paged_cuda_args *args);
void paged_prefill_sm90_launch(struct stream *stream, const struct attention_variant *variant,
	const struct paged_cuda_args *args, const struct cuda_tensor_map *map);
/* Any head_dim to PAGED_ANY_HEAD_DIM, any page size, any alignment; slow; needs no plan. */
#define PAGED_ANY_HEAD_DIM 1024u
void paged_any_launch(struct stream *stream, const struct paged_args *args);
/* A kernel of the source file, for cuda_launch_begin. */
extern const void *const paged_plan_kernel;
extern const void *const paged_any_kernel;

#ifdef __cplusplus
}
#endif

#endif
