/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_NAIVE_NAIVE_H
#define MIMEO_ATTENTION_NAIVE_NAIVE_H

#include "attention/attention.h"

/* One row of the batch, its lengths baked in. A row with seq_len 0 gives zeros. */
struct naive_args {
	const void *q;              /* [n_query, n_heads, head_dim] act, q_stride elements apart */
	const void *kv;             /* [n_pages, 2, page_tokens, n_kv_heads, head_dim] kv */
	void *out;                  /* [n_query, n_heads * head_dim] act */
	const int32_t *block_table; /* [max_pages] the row's; only used pages are read */
	/* Latent, where rank is not 0: q [n_query, n_heads, nope + rope], kv [n_pages, page_tokens,
	 * rank + rope], out [n_query, n_heads * v], kv_b [n_heads * (nope + v), rank]. */
	struct attention_latent latent;
	struct weight kv_b;
	uint32_t q_stride;
	uint32_t n_query, seq_len; /* seq_len: history + query */
	uint32_t window;           /* 0: none */
	uint32_t n_heads, n_kv_heads, head_dim, page_tokens;
	uint32_t n_pages; /* of the cache; ids outside are the null page; 0: not known */
	uint32_t max_seq_len;
	float scale;
	float soft_cap; /* 0: none */
	bool fp8; /* kv is e4m3, with factors */
	struct kv_factors factors;
};

/* Queues the row. */
int naive_cpu_run(struct stream *stream, const struct naive_args *args);

#endif
