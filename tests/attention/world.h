/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_WORLD_H
#define MIMEO_TESTS_ATTENTION_WORLD_H

/*
 * A small world for attention: persistent inputs, a paged cache and queries, and a dense double
 * reference that knows nothing of pages. On the cpu device, or on any: then what a test sees and
 * writes is the host's copy, which every build takes to the device, and a wait brings the output
 * back; contents are rounded to what the device computes with.
 *
 * The keys, values and queries of a sequence are a function of (its seed, position, element), so
 * the same token can be put into any batch. Row r has the slot WORLD_ROWS - 1 - r. Whatever no
 * reader may look at is hostile: cache slots that no token occupies and queries of no token are NaN,
 * outputs are NaN before a run, and block table entries past the used pages are garbage.
 */

#include "attention/attention.h"

#define WORLD_LAYERS 2u
#ifndef WORLD_ROWS /* a program may be compiled with larger ones */
#define WORLD_ROWS 8u
#define WORLD_TOKENS 160u
#endif

struct shape {
	uint32_t n_heads, n_kv_heads, head_dim, page_tokens, window, max_seq_len;
};

struct row {
	uint32_t seed, n_query, seq_len;
	struct slot_mask mask;  /* for backends that read it */
	const uint64_t *words;  /* [seq_len] by position; NULL: all 0 */
};

struct world {
	struct device *device;
	struct stream *stream;
	bool device_owned, is_cuda;
	struct attention_config config;
	uint32_t windows[WORLD_LAYERS];
	struct step_inputs inputs;
	struct step_inputs at_device; /* what kernels read; of the cpu device the same */
	const struct attention_backend *backend;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	uint32_t n_pages;
	float *kv; /* layer 1; layer 0 is not used, and differs in its window */
	float *q, *out;
	void *kv_device, *q_device, *out_device; /* bf16; of the cpu device the same */
	uint16_t *staging;
	void *kv_far; /* if set: the cache in the device's memory, which kv is not taken to */
	uint32_t q_stride, width; /* q: as in a fused qkv row; out: n_heads * head_dim */
	uint64_t random;
	/* the batch */
	struct row rows[WORLD_ROWS];
	uint32_t query_lens[WORLD_ROWS], seq_lens[WORLD_ROWS];
	struct attention_batch batch;
};

/* On a cpu device of its own. */
void world_init(struct world *w, const char *backend, const struct shape *shape);
/* On a device that outlives it; NULL: one of its own, of MIMEO_DEVICE. */
void world_init_on(struct world *w, struct device *device, const char *backend,
	const struct shape *shape);
void world_deinit(struct world *w);

/* Below n. */
uint32_t world_draw(struct world *w, uint32_t n);

/* Write a batch as `prepare` would: cache, table, queries, lengths, tails. padded counts of 0: what
 * is real. */
void world_place(struct world *w, const struct row *rows, uint32_t n_rows, uint32_t padded_rows,
	uint32_t padded_tokens);
/* Build for the placed batch; run layer 1, wait. `out` is NaN before. */
int world_build(struct world *w, enum attention_phase phase);
void world_run(struct world *w);
/* Only the call, of the layer given. */
int world_enqueue(struct world *w, uint32_t layer);
void world_poison_out(struct world *w);
void world_sync(struct world *w);

/* Contents into the device's memory, in the device's format. */
void world_put(struct world *w, void *dst, const float *src, size_t n);

/* Output row of a token, counted from the row's first. */
const float *world_out(const struct world *w, uint32_t row, uint32_t token);
/* Every real token against the reference, within tolerance; padding against zero. */
void world_verify(const struct world *w);

#endif
