/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BUDGET_H
#define MIMEO_DAEMON_BUDGET_H

/*
 * The memory budget: what each model's weights and activations take, and how many pages of KV cache
 * it gets of the rest. Integers only, before a byte is read or mapped.
 *
 * Weights and activations of all models come first. A model with a KV size of its own gets that;
 * the others divide what is left equally, on a host's memory no more than an eighth of what is
 * free and 1 GiB in all. Every model's null page is charged beside its pages.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct budget {
	uint64_t memory;     /* bytes to use at most; 0: 90 % of free_bytes */
	uint64_t free_bytes; /* of the device */
	bool host;           /* the device's memory is the host's, which others need too */
};

struct budget_model {
	const char *name;
	uint64_t weights_bytes, pool_bytes /* activations and inputs */, page_bytes;
	uint64_t draft_weights_bytes, draft_pool_bytes; /* what its draft takes of these; 0: none */
	uint64_t draft_logits_bytes; /* beside pool_bytes: what drafts were drawn from */
	uint32_t kv_pages; /* as configured, 0: by kv_bytes; then what it gets, without the null
			      page */
	uint64_t kv_bytes; /* as configured, 0: a share of the rest; then that of kv_pages */
};

/* 0, or -ENOMEM with one sentence in text[size] that names the model and what does not fit. */
int budget_plan(const struct budget *budget, struct budget_model *models, uint32_t n_models,
	char *text, size_t size);

#endif
