/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BUDGET_H
#define MIMEO_DAEMON_BUDGET_H

/*
 * The memory budget: bytes for each model's weights and activations, and the number of KV cache pages
 * that the rest is divided into. Pure arithmetic, before anything is read or mapped.
 *
 * Weights and activations of all models come first. A model with a configured KV size gets that; the
 * others divide the rest equally, on the cpu device at most an eighth of the free memory and 1 GiB
 * together. The null page of each model is charged in addition to its pages.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct budget {
	uint64_t memory;     /* limit in bytes; 0: 90 % of free_bytes */
	uint64_t free_bytes; /* of the device */
	bool host;           /* the device's memory is the host's, which other programs need */
};

struct budget_model {
	const char *name;
	uint64_t weights_bytes, pool_bytes /* activations and inputs */, page_bytes;
	uint64_t draft_weights_bytes, draft_pool_bytes; /* part of them that its draft model needs */
	uint64_t draft_logits_bytes; /* in addition to pool_bytes: logits of draft tokens */
	uint32_t kv_pages; /* in: as configured, 0: by kv_bytes; out: pages, without the null page */
	uint64_t kv_bytes; /* in: as configured, 0: a share of the rest; out: bytes of kv_pages */
};

/* 0, or -ENOMEM with one sentence in text[size] that names the model and what does not fit. */
int budget_plan(const struct budget *budget, struct budget_model *models, uint32_t n_models,
	char *text, size_t size);

#endif
