/* SPDX-License-Identifier: MIT */
/* The weights of draft models (draft.h). */
#include "daemon/model/plan_weights.h"

/* A weight that an EAGLE-3 draft model takes from its target keeps data NULL. With a tied head the
 * embedding that it brings is its head as well. */
static void plan_eagle3_ends(struct plan *plan, const struct model_config *c, struct model *model)
{
	const char *embedding = "embed_tokens.weight", *head = "lm_head.weight";

	model->final_norm = plan_one(plan, PLAN_NO_LAYER, "norm.weight", c->hidden_size, 0);
	if (safetensors_find(plan->checkpoint, embedding))
		model->embedding = plan_of_kind(plan, PLAN_PLAIN, PLAN_NO_LAYER, embedding, c->vocab_size, c->hidden_size);
	if (safetensors_find(plan->checkpoint, head) || c->draft.vocab_size != c->vocab_size)
		model->head = plan_end(plan, PLAN_NO_LAYER, head, c->draft.vocab_size, c->hidden_size);
	else if (c->tie_word_embeddings)
		model->head = model->embedding;
}

/* Embedding and head are the target's: what checkpoints repeat under this layer is the same
 * (README_WEIGHTS.md beside the weights of DeepSeek-V3), and 3.7 GB there. */
void plan_mtp(struct plan *plan, const struct model_config *c, struct model *model)
{
	struct model_layer *l = &model->layers[0];

	model->fc = plan_end(plan, 0, "eh_proj.weight", c->hidden_size, 2 * c->hidden_size);
	l->embedding_norm = plan_norm(plan, c, 0, "enorm.weight");
	l->hidden_norm = plan_norm(plan, c, 0, "hnorm.weight");
	plan_layer(plan, c, 0, l);
	model->final_norm = plan_norm(plan, c, 0, "shared_head.norm.weight");
}

/* EAGLE uses its target's embedding and head; copies in its checkpoint are ignored. */
void plan_eagle(struct plan *plan, const struct model_config *c, struct model *model)
{
	const bool is_eagle3 = c->family == MODEL_EAGLE3;
	const uint32_t hidden = c->hidden_size;
	struct model_layer *l = &model->layers[0];

	model->fc = plan_end(plan, PLAN_NO_LAYER, "fc.weight", hidden, (is_eagle3 ? MODEL_FEATURES : 2) * hidden);
	if (safetensors_find(plan->checkpoint, "fc.bias"))
		model->fc_bias = plan_one(plan, PLAN_NO_LAYER, "fc.bias", hidden, 0);
	if (is_eagle3) {
		plan_eagle3_ends(plan, c, model);
		l->input_norm = plan_one(plan, 0, "input_layernorm.weight", hidden, 0);
		l->hidden_norm = plan_one(plan, 0, "hidden_norm.weight", hidden, 0);
	}
	plan_attention(plan, c, 0, l);
	l->post_norm = plan_one(plan, 0, "post_attention_layernorm.weight", hidden, 0);
	plan_mlp(plan, c, 0, "mlp", c->intermediate_size, true, l);
	if (is_eagle3 && safetensors_find(plan->checkpoint, "d2t"))
		model->d2t = arena_take(&plan->arena, c->draft.vocab_size, sizeof(*model->d2t));
}
