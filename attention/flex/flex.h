/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_FLEX_H
#define MIMEO_ATTENTION_FLEX_FLEX_H

/*
 * Attention under a block mask. The idea is that of PyTorch's FlexAttention (Dong et al., 2024, arXiv
 * 2412.05496); deriving the mask of a paged cache directly from lengths and block tables is vLLM's.
 *
 * Queries are processed in BLOCKS of at most n_queries tokens of one row, or of the padding; keys in blocks
 * of n_keys positions. Each device chooses both sizes for a model. Once a step, a device op reads the step's
 * persistent inputs (the lengths, each row's mask, each token's word) and writes a PLAN: for each block of
 * queries the ascending list of the key blocks that at least one of its tokens sees. The low bit of an entry
 * is set if all of them see the whole block, up to the end of the sequence; the layers do not evaluate the
 * mask there. Layers with different windows have different plans.
 *
 * A block of queries belongs to one row, so that its list is at most as long as the row has key blocks.
 * Therefore a batch has up to max_rows + 1 more blocks than tokens / n_queries.
 *
 * Lists name blocks by their position in the sequence. Pages are looked up in the row's block
 * table, up to the row's length: no inverse table is needed, and entries past the used pages are
 * never read. A list of n entries ends with -1 at n, so that a kernel may fetch one ahead.
 *
 * A graph keeps the strides of its capture. Therefore every step has the worst case: lists are max_keys + 1
 * entries apart, and a plan has max_blocks of them (struct flex_inputs is made once, by the manager).
 */

#include "attention/manager.h"

/* A block of queries: tokens [first, first + n_tokens) of the batch. Those whose position is below
 * 0 (padding, tokens ahead of their sequence) see nothing: their output is 0. */
struct flex_block {
	int32_t row; /* -1: padding, or no block */
	int32_t first, n_tokens;
	int32_t position; /* of the first token */
	int32_t seq_len;
	int32_t history; /* keys before this position were written before the step; below 0: none */
};

/* Entries of a list. */
#define FLEX_ENTRY(block, whole) ((int32_t)((uint32_t)(block) << 1 | (uint32_t)(whole)))
#define FLEX_ENTRY_BLOCK(entry) ((uint32_t)(entry) >> 1)
#define FLEX_ENTRY_WHOLE(entry) (((uint32_t)(entry) & 1) != 0)

/* The plan for one window. Every build rewrites all of it: after the batch's blocks, rows are -1 and lists
 * empty. */
struct flex_plan {
	struct flex_block *blocks; /* [max_blocks] */
	int32_t *counts;           /* [max_blocks] of key blocks */
	int32_t *indices;          /* [max_blocks, max_keys + 1] FLEX_ENTRY..., then -1 */
};

/* What the op reads of the step, and the worst-case sizes, the same in every step. */
struct flex_inputs {
	const int32_t *query_start, *seq_lens, *row_slot;
	const struct slot_mask *slot_mask; /* [max_slots] or NULL: all causal */
	const uint64_t *mask_words;        /* [max_tokens] */
	uint32_t max_slots, max_blocks;
	uint32_t n_queries, n_keys; /* of a block */
	uint32_t max_keys; /* key blocks of a row */
	uint32_t capacity; /* tokens that a row's pages can hold */
};

#define FLEX_BF16_HEAD_DIM 1024u /* the largest that kernels for bfloat16 take */

struct flex_plan_args {
	struct flex_inputs in;
	struct flex_plan plan;
	uint32_t index;            /* of the plan among the manager's */
	uint32_t n_rows, n_tokens; /* padded */
	uint32_t window;           /* of the layers; 0: none */
};

/* One layer of a whole batch. */
struct flex_args {
	struct flex_inputs in;
	struct flex_plan plan;
	const void *q;              /* [n_tokens, n_heads, head_dim] act, q_stride elements apart */
	const void *kv;             /* [n_pages, 2, page_tokens, n_kv_heads, head_dim] kv */
	void *out;                  /* [n_tokens, n_heads * head_dim] act */
	const int32_t *block_table; /* [n_rows, max_pages] only entries of used pages are read */
	uint32_t q_stride, max_pages;
	uint32_t index;    /* of the plan among the manager's */
	uint32_t n_tokens; /* padded, as in the build */
	uint32_t n_blocks; /* query blocks, the most that a batch of this size has */
	uint32_t window;
	uint32_t n_heads, n_kv_heads, head_dim, page_tokens;
	uint32_t n_pages; /* of the cache; other ids are read as the null page; 0: unknown */
	float scale;
	float soft_cap; /* 0: none */
	bool fp8; /* kv is e4m3, with factors */
	struct kv_factors factors;
};

/* The largest number of query blocks of a batch with so many rows and tokens, padding included. */
static inline uint64_t flex_blocks(uint32_t n_queries, uint32_t n_rows, uint32_t n_tokens)
{
	return (uint64_t)n_tokens / n_queries + n_rows + 1;
}

/* State of a device's kernels for a manager; NULL if they have none. */
struct flex_state;

/* One device's kernels. */
struct flex_kernels {
	enum dtype dtype; /* of activations, and of a cache that is not fp8 */
	/* Block sizes for a model that flex accepts. */
	void (*geometry)(
		const struct attention_config *config, uint32_t *ret_queries, uint32_t *ret_keys);
	/* Allocates the buffers that the kernels write besides the plans, and loads the kernels; before lock.
	 * The manager outlives the state. Both functions are NULL if there is no state. */
	int (*state_new)(const struct attention_manager *manager, const struct flex_inputs *in,
		struct flex_state **ret);
	void (*state_free)(struct flex_state *state);
	/* Queues the op that makes a plan. */
	int (*plan)(struct flex_state *state, struct stream *stream,
		const struct flex_plan_args *args);
	/* Queues a layer. */
	int (*run)(struct flex_state *state, struct stream *stream, const struct flex_args *args);
};

extern const struct flex_kernels flex_cpu_kernels;
#ifdef MIMEO_HAVE_CUDA
extern const struct flex_kernels flex_cuda_kernels;
#endif

/* The kernels for a kind of device (struct device_info), or NULL. */
const struct flex_kernels *flex_kernels_for(const char *kind);

/* The inputs that both ops read, with the worst-case sizes. */
struct flex_inputs flex_inputs_of(const struct flex_kernels *kernels,
	const struct attention_config *config, const struct step_inputs *inputs);

#endif
