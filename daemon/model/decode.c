/* SPDX-License-Identifier: MIT */

/* A decode in one kernel: which models and passes may have it, and the op's arguments. */

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "daemon/model/transformer.h"
#include "ipc/cleanup.h"

/* Layers whose only differences are data (llama.c), attention that sees all tokens, and a cache that is not fp8. */
static bool decode_serves_model(const struct model *model, uint32_t max_tokens)
{
	const struct model_config *c = &model->config;

	if (c->family > MODEL_PHI3 || c->experts.n || c->o_bias || c->mlp_bias || model->deterministic || c->kv_fp8)
		return false;
	for (uint32_t l = 0; l < c->n_layers; l++)
		if (c->windows[l] && c->windows[l] < max_tokens)
			return false;
	return true;
}

static bool decode_serves_pass(const struct model_pass *args)
{
	return args->attention == &attention_paged && !args->sets && !args->attend && !args->features &&
	       !args->inputs->max_drafts && args->n_tokens == args->n_rows;
}

static void decode_fill_layers(
	const struct model *model, const struct model_pass *args, struct decode_layer *layers)
{
	for (uint32_t l = 0; l < model->config.n_layers; l++) {
		const struct model_layer *from = &model->layers[l];

		layers[l] = (struct decode_layer){
			.input_norm = from->input_norm,
			.post_norm = from->post_norm,
			.qkv = from->qkv,
			.qkv_bias = from->qkv_bias,
			.q_norm = from->q_norm,
			.k_norm = from->k_norm,
			.o = from->o,
			.gate_up = from->gate_up,
			.down = from->down,
			.kv = args->kv_layers[l],
		};
	}
}

void model_decode_op(const struct model *model, const struct model_pass *args, struct decode_layer *layers,
	struct op_decode_step *ret)
{
	const struct model_config *c = &model->config;

	decode_fill_layers(model, args, layers);
	*ret = (struct op_decode_step){
		.embedding = model->embedding,
		.final_norm = model->final_norm,
		.head = model->head,
		.layers = layers,
		.inputs = *args->inputs,
		.cos_sin = model->cos_sin,
		.normed = args->buffers->normed,
		.last = args->buffers->last_hidden,
		.logits = args->buffers->logits,
		.n_layers = c->n_layers,
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.max_positions = model->max_positions,
		.n_pages = args->n_pages,
		.n_rows = args->n_rows,
		.eps = c->rms_norm_eps,
		.scale = 1 / sqrtf((float)c->head_dim),
	};
}

int model_decode(const struct model *model, struct stream *stream, const struct model_pass *args)
{
	const struct kernel_ops *kernels = model->device->kernels;
	CLEANUP(cleanup_free) struct decode_layer *layers = NULL;
	struct op_decode_step op;

	if (!kernels->decode_step || !decode_serves_pass(args) ||
		!decode_serves_model(model, args->inputs->max_pages * args->inputs->page_tokens))
		return -ENOTSUP;
	layers = calloc(model->config.n_layers, sizeof(*layers));
	if (!layers)
		return -ENOMEM;
	model_decode_op(model, args, layers, &op);
	return kernels->decode_step(stream, &op);
}
