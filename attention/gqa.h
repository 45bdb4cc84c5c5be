/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_GQA_H
#define MIMEO_ATTENTION_GQA_H

/*
 * What the backends for grouped-query attention over the paged cache have in common: the check of a
 * configuration, a private copy of it, and the checks of a batch and of one layer's arguments. Those
 * for latent attention, whose cache is one KV head, share all but the first and the last.
 */

#include "attention/attention.h"

/* What a manager keeps; `windows` is its own. */
struct gqa_model {
	struct attention_config config;
	uint32_t *windows; /* [n_layers] */
	struct step_inputs inputs;
};

/* 0, or -ENOTSUP and one sentence: sizes that cannot be, or dtypes that no device has. */
int gqa_check(const struct attention_config *config, char *why, size_t size);
/* The same, but for what kind of attention it is. */
int gqa_check_sizes(const struct attention_config *config, char *why, size_t size);
/* Copies both; -ENOMEM, -EINVAL if the inputs are smaller than the configuration says. */
int gqa_model_init(struct gqa_model *model, const struct attention_config *config,
	const struct step_inputs *inputs);
void gqa_model_deinit(struct gqa_model *model);
/* 0, or -EINVAL if a count is out of range or the lengths contradict it. */
int gqa_batch_check(const struct gqa_model *model, const struct attention_batch *batch);
/* Rows of one query length, max_query at most; or empty. */
bool gqa_batch_uniform(const struct attention_batch *batch, uint32_t max_query);
/* 0, or -EINVAL. */
int gqa_args_check(const struct gqa_model *model, const struct attention_args *args);

#endif
