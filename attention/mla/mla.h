/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MLA_MLA_H
#define MIMEO_ATTENTION_MLA_MLA_H

/*
 * Latent attention with absorbed weights, in two stages. A head's query is taken into the latent
 * space, q_h W_UK_h, where the cached row is key and value of all heads at once; W_UV_h expands the
 * result at the end (DeepSeek-V2, arXiv:2405.04434, section 2.1). A token's keys are cut into
 * splits, so that several blocks share a long sequence: stage 1 attends within a split and writes
 * its average and its log-sum-exp, stage 2 weighs the splits (flash decoding). Splits of the cpu
 * device have mla_sizes.split_keys keys, whatever the batch; those of CUDA are n_splits equal parts
 * of the token's own keys.
 *
 * Rows are flattened: each token of the batch is a query of its own, with the keys that it may see.
 * So decodes and verifications of q > 1 are one case, and mla_sizes.chunk_tokens tokens at a time
 * pass through the same workspace. Rows of more than MLA_MAX_UNIFORM_QUERY query tokens are
 * prompts, whose keys are expanded instead (mla_prompt.h); mla_segments.h cuts a batch into the two
 * sorts.
 */

#include "attention/manager.h"

/* The longest query of a uniform batch that a graph may hold. */
#define MLA_MAX_UNIFORM_QUERY 16u
/* split_keys is a multiple of it. */
#define MLA_TILE 32u

/* All sizes, for reserving memory and for running: they depend only on the configuration, the device's limits
 * and the number of tokens, padding included. */
struct mla_sizes {
	uint32_t split_keys, n_splits; /* n_splits * split_keys >= max_seq_len */
	uint32_t chunk_tokens;         /* tokens that the workspace holds */
	uint32_t n_slots; /* equal pieces of a plan's line of tiles; 0: it lists splits */
};

/* A split that is not empty. */
struct mla_item {
	int32_t row, token, split;
	int32_t end; /* of its keys, exclusive; they begin at split * split_keys */
};

/* A token, its keys laid behind those of the tokens before it on a line of tiles. */
struct mla_token {
	int32_t row, n_keys;
	int32_t tile_start; /* where on the line */
	int32_t n_tiles;
} __attribute__((aligned(16)));

/* A piece of that line. */
struct mla_slot {
	int32_t token; /* that tile_begin is of */
	int32_t tile_begin, tile_end;
	/* The same in all; 0: each slot is one whole token, because they are few and much alike. */
	int32_t tiles_per_slot;
} __attribute__((aligned(16)));

/* The work of a step: for `mla_planned`, as a list of splits, or as a line cut into slots. */
struct mla_plan {
	int32_t *token_items;     /* [max_tokens + 1] where a token's items begin */
	struct mla_item *items;   /* [max_tokens * n_splits] */
	struct mla_token *tokens; /* [chunk_tokens]; NULL: no slots */
	struct mla_slot *slots;   /* [n_slots] */
};

/* Device memory; the sizes are those of mla_sizes. */
struct mla_workspace {
	void *latent; /* [chunk_tokens, n_heads, rank] act: queries, then averages over all keys */
	/* For the worst case over all numbers of tokens. A device's kernels may lay out both
	 * otherwise. */
	float *partial; /* [chunk_tokens, n_heads, n_splits, rank] averages over a split's keys */
	float *lse; /* [chunk_tokens, n_heads, n_splits] log-sum-exp of a split's scores, or -inf */
	struct mla_plan plan; /* NULL in `mla` */
};

/* One chunk of one layer. What differs from step to step is read on the device when the kernel
 * runs. */
struct mla_args {
	const void *q;              /* [n_tokens, n_heads, nope + rope] act, rows q_stride apart */
	const void *kv;             /* [n_pages, page_tokens, rank + rope] kv */
	struct mla_workspace work;
	const int32_t *query_start; /* [n_rows + 1] */
	const int32_t *seq_lens;    /* [n_rows] history + query; 0: an empty row, its output is 0 */
	const int32_t *block_table; /* [n_rows, max_pages] only entries of used pages are read */
	uint32_t q_stride, max_pages, max_seq_len;
	uint32_t n_rows;               /* padded */
	uint32_t first_token, n_tokens; /* the chunk's; tokens past query_start[n_rows] get 0 */
	uint32_t step_tokens;          /* padded, of all chunks: what a plan is of */
	uint32_t n_heads, rank, nope, rope, page_tokens;
	uint32_t n_pages;           /* of the cache; ids outside are the null page; 0: not known */
	struct mla_sizes sizes;
	float scale;
	bool fp8; /* kv is e4m3, with the factor of keys */
	struct kv_factors factors;
};

/* One device's kernels. `planned` ones read their work from args.work.plan, the others from
 * lengths. */
struct mla_kernels {
	enum dtype dtype; /* of activations, and of a cache that is not fp8 */
	uint32_t max_splits, chunk_tokens;
	/* Blocks that run at once, and the heads that one of them takes: there are as many splits
	 * as fill them, and so fewer where there are more tokens; an only split is the result and
	 * needs no stage 2. 0: max_splits always, so that a token's splits are its own. */
	uint32_t n_blocks, block_heads;
	/* Load all that may ever be launched; before lock. NULL: there is nothing. */
	int (*load)(struct device *device);
	/* Fill the plan for tokens [0, first_token + n_tokens). */
	int (*plan)(struct stream *stream, const struct mla_args *args);
	/* Stage 1: latent -> partial, lse. */
	int (*split)(struct stream *stream, const struct mla_args *args, bool planned);
	/* Stage 2: partial, lse -> latent. */
	int (*merge)(struct stream *stream, const struct mla_args *args, bool planned);
};

extern const struct mla_kernels mla_cpu_kernels;
#ifdef MIMEO_HAVE_CUDA
extern const struct mla_kernels mla_cuda_kernels;
#define MLA_CUDA_WIDTH_MAX 4096u /* of a cached row, rank and rope */
#endif
/* For a kind of device (struct device_info), or NULL. */
const struct mla_kernels *mla_kernels_for(const char *kind);

/* n_tokens: of the chunk, padded. */
struct mla_sizes mla_sizes(const struct attention_config *config,
	const struct mla_kernels *kernels, uint32_t n_tokens);
/* Reserve (arena without a base) and place; `planned`: with a plan. */
void mla_workspace_carve(const struct attention_config *config, const struct mla_kernels *kernels,
	bool planned, struct arena *arena, struct mla_workspace *ret);

#endif
