/* SPDX-License-Identifier: MIT */

/* A forward pass: the embedding, the layers of the model's family, the final norm, the head. */

#include "daemon/model/pass.h"

static int (*const layers[])(const struct pass *pass, uint32_t layer) = {
	[MODEL_LLAMA] = llama_layer,
	[MODEL_MISTRAL] = llama_layer,
	[MODEL_QWEN2] = llama_layer,
	[MODEL_QWEN3] = llama_layer,
	[MODEL_DEEPSEEK_V2] = deepseek_layer,
	[MODEL_DEEPSEEK_V3] = deepseek_layer,
};

static int embed(const struct pass *s)
{
	return s->ops->embed(s->stream,
		&(struct op_embed){
			.table = s->model->embedding,
			.ids = s->pass->inputs->input_ids,
			.from = s->pass->inputs->embedding_from,
			.out = s->b->residual,
			.n_tokens = s->pass->n_tokens,
		});
}

int model_forward(const struct model *model, struct stream *stream, const struct model_pass *pass)
{
	const struct pass state = pass_begin(model, stream, pass);
	int rc = embed(&state);

	for (uint32_t layer = 0; !rc && layer < model->config.n_layers; layer++)
		rc = layers[model->config.family](&state, layer);
	return rc ? rc : pass_add_norm(&state, &model->final_norm);
}

int model_logits(const struct model *model, struct stream *stream, const struct model_pass *pass)
{
	const struct pass state = pass_begin(model, stream, pass), *s = &state;
	const uint32_t n_rows =
		s->pass->n_rows * (s->pass->last_only ? 1 : 1 + s->pass->inputs->max_drafts);
	int rc = s->ops->gather_rows(s->stream,
		&(struct op_gather_rows){
			.x = s->b->normed,
			.index = s->pass->inputs->logit_index,
			.out = s->b->last_hidden,
			.n_rows = n_rows,
			.x_rows = s->pass->n_tokens,
			.cols = s->model->config.hidden_size,
		});

	return rc ? rc : pass_head(s, s->b->last_hidden, n_rows);
}
