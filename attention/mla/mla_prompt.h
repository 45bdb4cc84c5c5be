/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MLA_MLA_PROMPT_H
#define MIMEO_ATTENTION_MLA_MLA_PROMPT_H

/*
 * Latent attention of prompts, not absorbed: keys and values of all heads are expanded from the
 * latents, k = [W_UK c, r] and v = W_UV c, and then it is ordinary attention (DeepSeek-V2,
 * arXiv:2405.04434, section 2.1). A pair of query and key costs a head nope + rope + v products
 * where the absorbed way has rank + rope + rank, which is 3.4 times as many at 512, 64, 128 and
 * 128; expanding a key costs a head rank * (nope + v), once for all queries of the row. So it pays
 * from rank * (nope + v) / (2 rank - nope - v) query tokens on, by arithmetic alone, 171 in that
 * case; a device's kernels state the measured number (mla_prompt_pays).
 *
 * Keys are expanded in CHUNKS of mla_prompt_sizes.n_keys: GATHERED from the pages, expanded by the
 * device's gemm, ATTENDED. A row of more keys goes through the chunks in turn, with each query's
 * unnormalised sum, highest score and sum of weights kept between them; rows of fewer share one, as
 * PIECES. Queries are cut, too, where the sums kept are large.
 *
 * The host drives it by the lengths of the batch: what it launches depends on them, so it is never
 * recorded into a graph. Nothing is allocated after mla_prompt_new.
 */

#include "attention/attention.h"
#include "kernels/arena.h"

#define MLA_PROMPT_PIECES 32u /* in one chunk */

/* All sizes, for reserving memory and for running: they depend only on the configuration and the device's
 * limits. */
struct mla_prompt_sizes {
	uint32_t n_keys;    /* of a chunk */
	uint32_t n_queries; /* of one row that pass the chunks together */
	bool sums;          /* the workspace keeps theirs */
};

/* Device memory, as sizes say. */
struct mla_prompt_workspace {
	void *latents;  /* [n_keys, rank] act */
	void *ropes;    /* [n_keys, rope] act */
	void *expanded; /* [n_keys, n_heads, nope + v] act */
	float *sums;    /* [n_queries, n_heads, v] or NULL */
	float *stats;   /* [max_tokens, n_heads, 2] highest score, sum of weights relative to it */
};

/* Consecutive queries of one row, and consecutive keys of it in the chunk. Either all queries end
 * within the keys, or n_keys is a multiple of the kernels' granule. */
struct mla_prompt_piece {
	uint32_t row;                  /* of the block table */
	uint32_t query, n_query;       /* the first one's place in q and out */
	uint32_t position;             /* of the first query, in the sequence; first_key at least */
	uint32_t state;                /* its place in sums and stats */
	uint32_t first_key, n_keys;    /* in the sequence; 0: nothing was attended before */
	uint32_t key_row;              /* of first_key in the chunk, a multiple of the granule */
};

/* One layer. */
struct mla_prompt_layer {
	const void *q;              /* [n_tokens, n_heads, nope + rope] act, rows q_stride apart */
	const void *kv;             /* [n_pages, page_tokens, rank + rope] kv */
	void *out;                  /* [n_tokens, n_heads, v] act */
	const int32_t *block_table; /* [n_rows, max_pages] only entries of used pages are read */
	struct mla_prompt_workspace work;
	uint32_t q_stride, max_pages, page_tokens;
	uint32_t n_pages;           /* of the cache; ids outside are the null page; 0: not known */
	uint32_t n_heads, rank, nope, rope, v;
	float scale;
	bool fp8;                   /* kv is e4m3, with the factor of keys */
	struct kv_factors factors;
};

/* Some pieces of it. The queries whose position is below first_key + n_keys are complete and go to
 * `out`, the state of the others is kept. */
struct mla_prompt_args {
	struct mla_prompt_layer l;
	uint32_t n_pieces;          /* 0: load what there is to load */
	struct mla_prompt_piece pieces[MLA_PROMPT_PIECES];
};

struct mla_prompt_state;

/* A device's filling. */
struct mla_prompt_kernels {
	enum dtype dtype;        /* of activations, and of a cache that is not fp8 */
	uint32_t granule;        /* pieces begin at multiples of it; a power of two */
	uint32_t max_keys;       /* of a chunk; a power of two, and a multiple of MLA_TILE */
	uint64_t expanded_bytes; /* a chunk takes no more than it, but for 256 keys at least */
	uint64_t sums_bytes;     /* likewise the sums, of 256 queries at least; 0: `out` has them */
	/* Expand rows with >= many_queries query tokens or <= few_keys keys. */
	uint32_t many_queries, few_keys;
	/* State of the kernels for a manager; both functions or none. -ENOTSUP: it cannot serve these sizes. */
	int (*state_new)(struct device *device, const struct attention_config *config,
		const struct mla_prompt_sizes *sizes, const struct mla_prompt_workspace *work,
		struct mla_prompt_state **ret);
	void (*state_free)(struct mla_prompt_state *state);
	/* The pieces' keys from the pages to latents and ropes; zeros from a piece's last one to
	 * the next multiple of the granule. */
	int (*gather)(struct mla_prompt_state *state, struct stream *stream,
		const struct mla_prompt_args *args);
	int (*attend)(struct mla_prompt_state *state, struct stream *stream,
		const struct mla_prompt_args *args);
};

extern const struct mla_prompt_kernels mla_prompt_cpu_kernels;
extern const struct mla_prompt_kernels mla_prompt_cuda_kernels;

/* The kernels for a kind of device; NULL: there are none. */
const struct mla_prompt_kernels *mla_prompt_kernels_for(const char *kind);
/* Is a row expanded, rather than absorbed? */
static inline bool mla_prompt_pays(
	const struct mla_prompt_kernels *kernels, uint32_t n_query, uint32_t seq_len)
{
	return n_query >= kernels->many_queries || seq_len <= kernels->few_keys;
}
struct mla_prompt_sizes mla_prompt_sizes(
	const struct attention_config *config, const struct mla_prompt_kernels *kernels);
/* Rows of a product over n keys: from a small set, at most 1.25 n above four granules, so that gemm can
 * time each before lock. */
uint32_t mla_prompt_rows(const struct mla_prompt_kernels *kernels, uint32_t n);

struct mla_prompt;

/* Allocates all that will ever be needed; `config` and `kernels` outlive it. -ENOTSUP, -ENOMEM,
 * -EOVERFLOW, or the device's condition. */
int mla_prompt_new(struct device *device, const struct attention_config *config,
	const struct mla_prompt_kernels *kernels, struct mla_prompt **ret);
void mla_prompt_free(struct mla_prompt *prompt);
const struct mla_prompt_kernels *mla_prompt_kernels_of(const struct mla_prompt *prompt);

/* A prompt, or a chunk of one. */
struct mla_prompt_row {
	uint32_t row;         /* of the block table */
	uint32_t first_token; /* in q and out */
	uint32_t n_query, seq_len; /* history + query; tokens before the sequence's first get 0 */
};

/* Everything that a run may need is loaded, and chosen for kv_b's shape: eagerly, once, before
 * lock. It writes to the workspace alone. */
int mla_prompt_load(
	struct mla_prompt *prompt, struct stream *stream, const struct weight *kv_b);
/* Queue the attention of some rows, one after the other in the batch, of one layer; eagerly, after
 * mla_prompt_load. No allocation, no lock. */
int mla_prompt_run(struct mla_prompt *prompt, struct stream *stream,
	const struct attention_args *args, const int32_t *block_table,
	const struct mla_prompt_row *rows, uint32_t n_rows);

#endif
