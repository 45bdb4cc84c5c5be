/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_TWIN_H
#define MIMEO_TESTS_ATTENTION_TWIN_H

/*
 * A world and its double on a CUDA device: the same batch, rounded to bfloat16 on both, through the
 * cpu device's paged backend and through CUDA's. The double is as hostile as the world is.
 */

#include "tests/attention/world.h"

struct twin {
	struct world w;
	struct device *device;
	struct stream *stream;
	struct attention_config config;
	struct step_inputs inputs;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	void *kv, *q, *out;
	uint16_t *staging;
	size_t kv_elements;
	uint16_t *got; /* [WORLD_TOKENS, width] of the last run, bf16 */
};

/* The device is the caller's and outlives the twin. */
void twin_init(struct twin *t, struct device *device, const struct shape *shape);
void twin_deinit(struct twin *t);

/* world_place, rounded, on both devices. */
void twin_place(struct twin *t, const struct row *rows, uint32_t n_rows, uint32_t padded_rows,
	uint32_t padded_tokens);
/* What was changed in the world since: inputs, cache, queries. */
void twin_upload(struct twin *t);
int twin_build(struct twin *t, enum attention_phase phase);
int twin_enqueue(struct twin *t, uint32_t layer);
void twin_poison_out(struct twin *t);
/* Wait and fetch the output. */
void twin_fetch(struct twin *t);
/* Build and run layer 1 over a poisoned output, fetch. */
void twin_run(struct twin *t);
/* Run the world and compare: real tokens within tolerance, padding 0, the rest untouched. */
void twin_verify(struct twin *t);

#endif
