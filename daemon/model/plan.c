/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>

#include "daemon/model/error.h"
#include "daemon/model/plan_weights.h"
#include "kernels/convert.h"

/* A class in bf16 holds its factor in bf16, too: 59.75, not 59.87, of 3584 elements. */
static void plan_round_embedding_scale(const struct plan *plan, const char *embedding, struct model_config *config)
{
	const struct safetensors_tensor *tensor = safetensors_find(plan->checkpoint, embedding);

	if (tensor && tensor->usable && !tensor->format && tensor->dtype == DTYPE_BF16)
		config->embedding_scale = bf16_to_f32(f32_to_bf16(config->embedding_scale));
}

/* With a tied head either name may stand for both; where both are there, each is used as it is. A head that is rounded
 * has memory of its own. */
static void plan_ends(struct plan *plan, const struct model_config *c, struct model *model)
{
	const char *embedding = "model.embed_tokens.weight", *head = "lm_head.weight";
	bool has_embedding = safetensors_find(plan->checkpoint, embedding);
	bool has_head = safetensors_find(plan->checkpoint, head);
	bool tied = c->tie_word_embeddings && !(has_embedding && has_head);
	bool headless = plan->checkpoint->is_inner && !has_head && !c->tie_word_embeddings;

	if (tied && has_head)
		embedding = head;
	model->embedding = plan_of_kind(plan, PLAN_PLAIN, PLAN_NO_LAYER, embedding, c->vocab_size, c->hidden_size);
	plan_round_embedding_scale(plan, embedding, &model->config);
	model->has_head = !headless;
	if (headless)
		model->head = model->embedding;
	else if (c->head_fp8)
		model->head = plan_rounded_head(plan, c, tied ? PLAN_PLAIN : PLAN_EITHER, tied ? embedding : head);
	else if (tied)
		model->head = model->embedding;
	else
		model->head = plan_end(plan, PLAN_NO_LAYER, head, c->vocab_size, c->hidden_size);
	model->final_norm = plan_norm(plan, c, PLAN_NO_LAYER, "model.norm.weight");
}

/* ---- all of it ---- */

int plan_model(struct plan *plan, struct model *model)
{
	const struct model_config *c = &model->config;

	plan->config = c;
	plan->rotary_dim = c->rotary_dim;
	plan->assumed = c->assumed;
	plan->max_placements = plan_placements_max(c);
	if (c->family == MODEL_MTP) {
		plan_mtp(plan, c, model);
	} else if (c->draft.vocab_size) {
		plan_eagle(plan, c, model);
	} else {
		plan_ends(plan, c, model);
		for (uint32_t layer = 0; layer < c->n_layers && !plan->rc; layer++)
			plan_layer(plan, c, layer, &model->layers[layer]);
	}
	if (plan->rc)
		return plan->rc;
	model->weights_bytes = plan->arena.used;
	model->cos_sin = arena_take(&plan->arena,
		(size_t)model_n_rope_tables(c) * model->max_positions * c->head_dim, sizeof(float));
	/* Its memory was counted before: then stored groups of columns, which decide what stays packed, differ now. */
	if (plan->arena.failed && plan->arena.base)
		return model_fail(plan->error, -EINVAL, "%s has changed while it was read", plan->directory);
	if (plan->arena.failed)
		return model_fail(plan->error, -EOVERFLOW, "%s: the model's size overflows",
			plan->directory);
	assert(!plan->arena.base || plan->arena.used <= plan->arena.size);
	return 0;
}
