/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_PLAN_WEIGHTS_H
#define MIMEO_DAEMON_MODEL_PLAN_WEIGHTS_H

/*
 * A model's weights, each planned from the tensors that it is made of. `layer` is the one whose prefix a tensor's name
 * gets; PLAN_NO_LAYER: the name is whole. A plan that has failed gives weights without data.
 */

#include "daemon/model/plan_tensor.h"

#define PLAN_NO_LAYER UINT32_MAX

/* A tensor of rows x cols, which only products take; cols 0: a vector. */
struct weight plan_one(struct plan *plan, uint32_t layer, const char *name, uint32_t rows, uint32_t cols);
/* One that other ops take, too. */
struct weight plan_of_kind(struct plan *plan, enum plan_kind kind, uint32_t layer, const char *name, uint32_t rows,
	uint32_t cols);
/* A head, or the product at a draft model's beginning. */
struct weight plan_end(struct plan *plan, uint32_t layer, const char *name, uint32_t rows, uint32_t cols);
/* A head that is rounded at load. kind: PLAIN if the tensor is the embedding, too, which is not quantised. */
struct weight plan_rounded_head(struct plan *plan, const struct model_config *c, enum plan_kind kind, const char *name);
/* Of the hidden state. */
struct weight plan_norm(struct plan *plan, const struct model_config *c, uint32_t layer, const char *name);

/* Set the layer's weights of attention; of an MLP, whose names begin with the prefix (norm_has_order: only the MLP
 * takes the norm before it); all of them. */
void plan_attention(struct plan *plan, const struct model_config *c, uint32_t layer, struct model_layer *l);
void plan_mlp(struct plan *plan, const struct model_config *c, uint32_t layer, const char *prefix, uint32_t inner,
	bool norm_has_order, struct model_layer *l);
void plan_layer(struct plan *plan, const struct model_config *c, uint32_t layer, struct model_layer *l);

/* ---- draft models: plan_draft.c ---- */

/* Set all weights of the MTP head, or of the EAGLE or EAGLE-3 draft model. */
void plan_mtp(struct plan *plan, const struct model_config *c, struct model *model);
void plan_eagle(struct plan *plan, const struct model_config *c, struct model *model);

#endif
