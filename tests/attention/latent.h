/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_LATENT_H
#define MIMEO_TESTS_ATTENTION_LATENT_H

/*
 * A small world for latent attention, as world.h is for grouped-query attention: what a token has is a
 * function of (its sequence's seed, position, element); whatever no reader may look at is NaN, block
 * table entries past the used pages are garbage; and a dense double reference that expands keys and
 * values, and knows nothing of pages, splits or absorption.
 *
 * It is a world of the device of tests/device.h. Tests write and read images on the host, which go to
 * the device with latent_place, latent_run or latent_upload, and of which `out` comes back with
 * latent_run or latent_fetch. On cuda what there is are numbers that bf16 has.
 */

#include "attention/mla/mla.h"

#define LATENT_ROWS 8u
#define LATENT_TOKENS 700u
#define LATENT_LAYERS 2u

struct latent_shape {
	uint32_t n_heads, rank, nope, rope, v, page_tokens, max_seq_len;
};

struct latent_row {
	uint32_t seed, n_query, seq_len;
};

/* The backends that serve latent attention; the first N_MLA are those that graphs may hold. */
#define N_BACKENDS 3
#define N_MLA 2
extern const char *const latent_backends[N_BACKENDS];
/* Of them, those that the device has kernels for. */
size_t latent_n_backends(void);

/* Splits of 64 keys, five of them. */
extern const struct latent_shape latent_ordinary;
/* DeepSeek's rank and rope, for which a device may have kernels of their own. */
extern const struct latent_shape latent_deepseek;
extern const struct latent_shape *const latent_shapes[2]; /* both */

struct latent_world {
	struct device *device;
	struct stream *stream;
	struct attention_config config;
	struct step_inputs inputs;
	const struct attention_backend *backend;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	uint32_t n_pages, q_width, out_width;
	float *kv, *q, *out, *w; /* images */
	struct step_inputs tables; /* of inputs' query_start, seq_lens, block_table */
	void *device_kv, *device_q, *device_out;
	struct weight kv_b;
	uint64_t random;
	/* the batch */
	struct latent_row rows[LATENT_ROWS];
	uint32_t query_lens[LATENT_ROWS], seq_lens[LATENT_ROWS];
	struct attention_batch batch;
};

void latent_init(struct latent_world *w, const char *backend, const struct latent_shape *shape);
void latent_deinit(struct latent_world *w);
/* Below n. */
uint32_t latent_draw(struct latent_world *w, uint32_t n);
/* Write a batch as `prepare` would. Padded counts of 0: what is real. */
void latent_place(struct latent_world *w, const struct latent_row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens);
void latent_upload(struct latent_world *w);
void latent_fetch(struct latent_world *w);
int latent_build(struct latent_world *w, enum attention_phase phase);
int latent_enqueue(struct latent_world *w);
/* Build, run, wait; `out` is NaN before. */
void latent_run(struct latent_world *w);
void latent_poison_out(struct latent_world *w);
/* Output row of a token, counted from the row's first. */
float *latent_out(const struct latent_world *w, uint32_t row, uint32_t token);
/* Every real token against the reference; padding against zero. */
void latent_verify(const struct latent_world *w);

#endif
