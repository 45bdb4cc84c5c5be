/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/gqa.h"

int gqa_check(const struct attention_config *c, char *why, size_t size)
{
	if (!c->latent.rank)
		return gqa_check_sizes(c, why, size);
	snprintf(why, size, "its attention is latent (MLA), and the cache holds no values");
	return -ENOTSUP;
}

int gqa_check_sizes(const struct attention_config *c, char *why, size_t size)
{
	if (!c->n_layers || !c->n_heads || !c->head_dim || !c->max_rows || !c->max_tokens)
		snprintf(why, size, "layers, heads, head_dim, rows and tokens must not be 0");
	else if (!c->n_kv_heads || c->n_heads % c->n_kv_heads)
		snprintf(why, size, "%u query heads do not divide among %u kv heads",
			(unsigned int)c->n_heads, (unsigned int)c->n_kv_heads);
	else if ((uint64_t)c->n_heads * c->head_dim > INT32_MAX)
		snprintf(why, size, "%u heads of %u elements are too large",
			(unsigned int)c->n_heads, (unsigned int)c->head_dim);
	else if (!c->page_tokens || !c->max_seq_len ||
		 (uint64_t)c->max_pages * c->page_tokens < c->max_seq_len)
		snprintf(why, size, "%u pages of %u tokens do not hold a sequence of %u",
			(unsigned int)c->max_pages, (unsigned int)c->page_tokens,
			(unsigned int)c->max_seq_len);
	else if (c->activation_dtype != c->kv_dtype ||
		 (c->kv_dtype != DTYPE_F32 && c->kv_dtype != DTYPE_BF16))
		snprintf(why, size, "activations and kv cache must both be float32 or bfloat16");
	else
		return 0;
	return -ENOTSUP;
}

int gqa_model_init(struct gqa_model *model, const struct attention_config *config,
	const struct step_inputs *inputs)
{
	uint32_t *windows;

	if (inputs->max_rows < config->max_rows || inputs->max_tokens < config->max_tokens)
		return -EINVAL;
	if (inputs->max_pages != config->max_pages || inputs->page_tokens != config->page_tokens)
		return -EINVAL;
	if (!inputs->query_start || !inputs->seq_lens || !inputs->block_table)
		return -EINVAL;
	windows = calloc(config->n_layers, sizeof(*windows));
	if (!windows)
		return -ENOMEM;
	if (config->windows)
		memcpy(windows, config->windows, config->n_layers * sizeof(*windows));
	*model = (struct gqa_model){ .config = *config, .windows = windows, .inputs = *inputs };
	model->config.windows = windows;
	return 0;
}

void gqa_model_deinit(struct gqa_model *model)
{
	free(model->windows);
	*model = (struct gqa_model){ 0 };
}

int gqa_batch_check(const struct gqa_model *model, const struct attention_batch *batch)
{
	const struct attention_config *c = &model->config;
	uint64_t n_tokens = 0;

	if (batch->n_rows > batch->padded_rows || batch->padded_rows > c->max_rows)
		return -EINVAL;
	if (batch->n_tokens > batch->padded_tokens || batch->padded_tokens > c->max_tokens)
		return -EINVAL;
	for (uint32_t r = 0; r < batch->n_rows; r++) {
		if (batch->seq_lens[r] > c->max_seq_len || batch->query_lens[r] > batch->max_query)
			return -EINVAL;
		n_tokens += batch->query_lens[r];
	}
	return n_tokens == batch->n_tokens ? 0 : -EINVAL;
}

bool gqa_batch_uniform(const struct attention_batch *batch, uint32_t max_query)
{
	if (batch->max_query > max_query)
		return false;
	for (uint32_t r = 0; r < batch->n_rows; r++)
		if (batch->query_lens[r] && batch->query_lens[r] != batch->max_query)
			return false;
	return true;
}

int gqa_args_check(const struct gqa_model *model, const struct attention_args *args)
{
	const struct attention_config *c = &model->config;

	if (args->layer >= c->n_layers || !args->q || !args->kv || !args->out)
		return -EINVAL;
	return args->q_stride >= c->n_heads * c->head_dim ? 0 : -EINVAL;
}
