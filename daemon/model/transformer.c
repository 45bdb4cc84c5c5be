/* SPDX-License-Identifier: MIT */

/* A forward pass: the embedding, the layers of the model's family, the final norm, the head. */

#include <assert.h>

#include "daemon/model/pass.h"

static void (*const layers[])(struct pass *p, uint32_t layer) = {
	[MODEL_LLAMA] = llama_layer,
	[MODEL_MISTRAL] = llama_layer,
	[MODEL_QWEN2] = llama_layer,
	[MODEL_QWEN3] = llama_layer,
	[MODEL_PHI3] = llama_layer,
	[MODEL_QWEN3_MOE] = llama_layer,
	[MODEL_GEMMA2] = gemma_layer,
	[MODEL_GEMMA3] = gemma_layer,
	[MODEL_DEEPSEEK_V2] = deepseek_layer,
	[MODEL_DEEPSEEK_V3] = deepseek_layer,
};

int model_forward(const struct model *model, struct stream *stream, const struct model_pass *args)
{
	struct pass p = pass_begin(model, stream, args);

	assert(model->config.family < sizeof(layers) / sizeof(layers[0]) && layers[model->config.family]);
	PASS_OP(&p, embed,
		.table = model->embedding,
		.ids = args->inputs->input_ids,
		.from = args->inputs->embedding_from,
		.out = p.b->residual,
		.n_tokens = args->n_tokens,
		.scale = model->config.embedding_scale);
	for (uint32_t layer = 0; layer < model->config.n_layers && !p.rc; layer++)
		layers[model->config.family](&p, layer);
	assert(p.rc || !args->n_last || p.args == &p.last);
	if (args->n_last)
		pass_norm(&p, p.b->residual, &model->final_norm, model->config.rms_norm_eps, p.b->last_hidden);
	else
		pass_norm_residual(&p, &model->final_norm);
	return p.rc;
}

int model_logits(const struct model *model, struct stream *stream, const struct model_pass *args)
{
	const uint32_t n = args->n_rows * (args->last_only ? 1 : 1 + args->inputs->max_drafts);
	struct pass p = pass_begin(model, stream, args);

	assert(!args->n_last || args->n_last == n);
	if (args->n_last)
		pass_head(&p, p.b->last_hidden, NULL, n);
	else
		pass_head(&p, p.b->normed, args->inputs->logit_index, n);
	return p.rc;
}

int model_logits_of(const struct model *model, struct stream *stream, const struct model_pass *args,
	uint32_t first, uint32_t n)
{
	const size_t row = model->config.hidden_size * dtype_bytes(model->activation_dtype);
	struct pass p = pass_begin(model, stream, args);

	pass_head(&p, (const uint8_t *)p.b->normed + first * row, NULL, n);
	return p.rc;
}
