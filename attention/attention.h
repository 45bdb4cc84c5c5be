/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_ATTENTION_H
#define MIMEO_ATTENTION_ATTENTION_H

/*
 * Attention backends: one interface, a registry, and the graph support level of each.
 *
 * A backend is CHOSEN by name or by `auto`, CHECKED against the model's configuration, and makes a
 * MANAGER, which owns every persistent buffer that its kernels read (worst-case sizes, fixed
 * addresses). For each step, and again for each warm-up and each capture, the host BUILDS metadata
 * from the batch and then RUNS it layer by layer; the metadata object is not shared between phases.
 *
 * Host scalars that a run would bake into a graph are the worst case and the same in every phase.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum attention_support {
	ATTENTION_NEVER = 0,                       /* cannot be captured */
	ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE = 1, /* batches of one token a request */
	ATTENTION_UNIFORM_BATCH = 2,               /* batches of one query length */
	ATTENTION_ALWAYS = 3,                      /* any batch */
};
const char *attention_support_name(enum attention_support support);

/*
 * Latent attention (MLA, arXiv:2405.04434): the cache holds, of each token, `rank` columns from
 * which the keys and values of all heads are expanded, k_h = [W_UK_h c, r] and v_h = W_UV_h c, and
 * `rope` columns r that all keys share. It is one KV head of rank + rope columns, without values.
 */
struct attention_latent {
	uint32_t rank;          /* 0: the attention is not latent */
	uint32_t nope, rope, v; /* per head: of a query [nope, rope], of a value v */
};

struct attention_layers;

/* One model's attention, as a backend sees it. */
struct attention_config {
	uint32_t n_layers, n_heads, n_kv_heads, head_dim; /* latent: 1 KV head of rank + rope */
	struct attention_latent latent;
	float scale;             /* of q.k, usually head_dim^-1/2 */
	float soft_cap;          /* 0: none; else a score s becomes soft_cap tanh(s / soft_cap), ahead of masks */
	const uint32_t *windows; /* [n_layers] sliding window in tokens, itself included; 0: none */
	uint32_t page_tokens;
	uint32_t max_rows, max_tokens, max_pages; /* as in struct step_inputs */
	uint32_t max_seq_len;
	uint32_t max_decode_query; /* longest uniform query: 1, or 1 + draft tokens */
	enum dtype activation_dtype, kv_dtype; /* the same, or kv E4M3: layers have factors then */
	/* Pages of the cache's reservation, null page included; ids at or above it, and negative ones,
	 * read as the null page. 0: unknown; only negative ids do. */
	uint32_t n_kv_pages;
	bool masks; /* not all rows are causal: only a backend with masks can serve */
	const struct attention_layers *layers; /* for attention_by_layer (layers.h), copied; else unused */
	/* A token's result may depend on its own keys alone, not on the batch: slower kernels. */
	bool invariant;
};

enum attention_phase { ATTENTION_EAGER, ATTENTION_WARM_UP, ATTENTION_CAPTURE, ATTENTION_REPLAY };

/* The batch a build sees: host copies. With FULL graphs the padded numbers are what runs; rows from
 * n_rows to padded_rows have query and sequence length 0. Arrays live as long as the build call. */
struct attention_batch {
	enum attention_phase phase;
	uint32_t n_rows, n_tokens;           /* real: R, T */
	uint32_t padded_rows, padded_tokens; /* what runs: Rp, Tp */
	uint32_t max_query;                  /* of any row */
	const uint32_t *query_lens;          /* [n_rows] */
	/* [n_rows], history + query; exact, except that with a draft model, rows of at most
	 * max_decode_query tokens hold the upper bound max_seq_len. Exact ones are in
	 * step_inputs.seq_lens. */
	const uint32_t *seq_lens;
};

/* One layer's run. */
struct attention_args {
	uint32_t layer;
	/* [Tp, n_heads, head_dim] act, rows q_stride elements apart; latent: [Tp, n_heads, nope +
	 * rope], rotated, not absorbed */
	const void *q;
	uint32_t q_stride;
	/* the layer: [n_pages, 2, page_tokens, n_kv_heads, head_dim] kv; latent: [n_pages,
	 * page_tokens, rank + rope] */
	const void *kv;
	struct kv_factors factors; /* of kv_dtype E4M3 */
	const int32_t *block_table; /* of the layer's set of pages (struct step_inputs); NULL: the first set's */
	void *out;         /* [Tp, n_heads * head_dim] act; latent: [Tp, n_heads * v] */
	/* latent: [n_heads * (nope + v), rank], of each head W_UK's rows, then W_UV's; as long as
	 * graphs */
	const struct weight *kv_b;
};

struct attention_manager;
struct attention_metadata;

struct attention_backend {
	const char *name;
	/* May be called between the segments of a breakable graph; required of every backend. */
	bool breaks;
	/* Applies the rows' masks (struct slot_mask); backends without it apply only the causal mask. */
	bool masks;
	/* 0 if it can serve that model, else -ENOTSUP with one sentence in why[size]. */
	int (*check)(const struct attention_config *config, char *why, size_t size);
	/* The level in that configuration, and the longest uniform query it holds for. */
	enum attention_support (*support)(
		const struct attention_config *config, uint32_t *ret_max_query);
	/* Allocates all that will ever be needed; before lock. `inputs` is copied; its
	 * buffers outlive the manager. */
	int (*manager_new)(struct device *device, const struct attention_config *config,
		const struct step_inputs *inputs, struct attention_manager **ret);
	void (*manager_free)(struct attention_manager *manager);
	/* An empty metadata object; several may exist. May allocate host memory. */
	int (*metadata_new)(struct attention_manager *manager, struct attention_metadata **ret);
	void (*metadata_free)(struct attention_metadata *metadata);
	/* Fill it for a batch, from nothing: no state of an earlier build survives. Queues whatever
	 * writes the persistent buffers. No allocation. */
	int (*build)(struct attention_metadata *metadata, const struct attention_batch *batch,
		struct stream *stream);
	/* Queue (or record) one layer. No allocation. If a capture contains a run and no
	 * build, no recorded work may write the inputs, the block tables or older tokens: in a
	 * replay the run may read them before earlier nodes have ended. A build is queued before
	 * each replay. */
	int (*run)(struct attention_metadata *metadata, struct stream *stream,
		const struct attention_args *args);
};

/* ---- registry ---- */

/* -EINVAL if a function is missing, -EPERM if `breaks` is false, -EEXIST. */
int attention_register(const struct attention_backend *backend);
/* A backend by name, or NULL. The built-in ones (the externs below) are always there. */
const struct attention_backend *attention_find(const char *name);

/* Choose for a model: `name` or "auto": the one with the highest support level that passes check,
 * the earlier registered on a tie. A backend with masks is chosen only if no other supports graphs,
 * because its lists of blocks cost time also for requests without a mask. why[size] says what was
 * chosen and why, or in one sentence what cannot serve the model, why, and which could. 0, -ENOENT
 * (no such backend), -ENOTSUP. A level claimed for uniform batches must come with max_query >=
 * max_decode_query, else the level is lowered to what holds. */
int attention_choose(const char *name, const struct attention_config *config,
	const struct attention_backend **ret, enum attention_support *ret_support, char *why,
	size_t size);

extern const struct attention_backend attention_naive;
extern const struct attention_backend attention_paged;
extern const struct attention_backend attention_flex;
extern const struct attention_backend attention_mla;
extern const struct attention_backend attention_mla_planned;

#endif
