/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_H
#define MIMEO_ATTENTION_PAGED_PAGED_H

#include "attention/manager.h"

/* The longest query of a uniform batch that a graph may hold. */
#define PAGED_MAX_UNIFORM_QUERY 16u

/* One layer of a whole batch. What differs from step to step is read from the persistent inputs
 * when the kernel runs; everything here is the same at capture and at replay. */
struct paged_args {
	const void *q;              /* [n_tokens, n_heads, head_dim] act, q_stride elements apart */
	const void *kv;             /* [n_pages, 2, page_tokens, n_kv_heads, head_dim] kv */
	void *out;                  /* [n_tokens, n_heads * head_dim] act */
	const int32_t *query_start; /* [n_rows + 1] */
	const int32_t *seq_lens;    /* [n_rows] history + query; 0: an empty row, its output is 0 */
	const int32_t *block_table; /* [n_rows, max_pages] only entries of used pages are read */
	uint32_t q_stride, max_pages;
	uint32_t n_rows, n_tokens;  /* padded; tokens past query_start[n_rows] get 0 */
	uint32_t window;            /* 0: none */
	uint32_t n_heads, n_kv_heads, head_dim, page_tokens;
	uint32_t n_pages;           /* of the cache; ids outside are the null page; 0: not known */
	float scale;
	float soft_cap; /* 0: none */
	bool fp8; /* kv is e4m3, with factors */
	struct kv_factors factors;
	/* The host's facts of the batch, which determine the grid and are the same at capture and replay: rows
	 * longer than PAGED_MAX_UNIFORM_QUERY, their longest query, and that of the other rows. */
	uint32_t n_long, max_long_query, max_query;
};

/* State of a device's kernels for a manager; NULL if they have none. */
struct paged_state;

/* One device's kernels. */
struct paged_kernels {
	enum dtype dtype; /* of activations, and of a cache that is not fp8 */
	/* Allocates what the kernels write to, and loads them; before lock. The manager
	 * outlives the state. Both are absent where there is no state. */
	int (*state_new)(const struct attention_manager *manager, struct paged_state **ret);
	void (*state_free)(struct paged_state *state);
	/* Queues what a step needs once, before its first run or replay; may be absent. */
	int (*plan)(struct paged_state *state, struct stream *stream, uint32_t n_rows,
		uint32_t n_tokens);
	int (*run)(struct paged_state *state, struct stream *stream, const struct paged_args *args);
};

extern const struct paged_kernels paged_cpu_kernels;
#ifdef MIMEO_HAVE_CUDA
extern const struct paged_kernels paged_cuda_kernels;
#endif

#endif
