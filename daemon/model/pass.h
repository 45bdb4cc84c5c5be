/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_PASS_H
#define MIMEO_DAEMON_MODEL_PASS_H

/*
 * One forward pass as the families' layers see it (llama.c, deepseek.c, eagle.c), and the pieces
 * that they have in common (pass.c, experts.c). The residual stays in one buffer, to which each block adds.
 *
 * Each function queues, or records, its ops. Errors are sticky: after a failed op none is queued, and
 * the pass returns its status.
 */

#include "daemon/model/transformer.h"

struct pass {
	const struct model *model;
	const struct kernel_ops *ops;
	struct stream *stream;
	const struct model_pass *args;
	const struct model_buffers *b;
	struct model_pass last; /* args behind the last layer's attention, if they differ */
	int rc; /* 0, or the status of the op that failed */
};

/* PASS_OP(p, embed, .table = ..., .ids = ...): queue an op unless an earlier one failed. */
#define PASS_OP(p, name, ...)                                                              \
	((p)->rc = (p)->rc ? (p)->rc                                                       \
			   : (p)->ops->name((p)->stream, &(struct op_##name){__VA_ARGS__}))

struct pass pass_begin(
	const struct model *model, struct stream *stream, const struct model_pass *args);
/* y = x w^T + bias, for every token. */
void pass_gemm(struct pass *p, const void *x, const struct weight *w, const struct weight *bias,
	void *y);
/* residual += x w^T + bias */
void pass_add_gemm(struct pass *p, const void *x, const struct weight *w, const struct weight *bias);
void pass_norm(struct pass *p, const void *x, const struct weight *weight, float eps, void *out);
/* Keep the layer's input, where it is wanted as a feature. */
void pass_begin_layer(struct pass *p, uint32_t layer);
/* normed = norm(residual) */
void pass_norm_residual(struct pass *p, const struct weight *weight);
/* y = norm(residual) w^T + bias; `normed` may be left as it is. `order`: w's columns have it (op_rms_norm); or NULL. */
void pass_norm_gemm(struct pass *p, const struct weight *norm, const uint32_t *order, const struct weight *w,
	const struct weight *bias, void *y);
/* residual += norm(x), of the model's eps */
void pass_add_norm(struct pass *p, const void *x, const struct weight *weight);
/* Where the layer's keys and values are written. */
const int32_t *pass_slot_mapping(const struct pass *p, uint32_t layer);
/* Attention for q in `qkv`, with rows q_stride apart, into `attention`. */
void pass_attend(struct pass *p, uint32_t layer, uint32_t q_stride);
/* The input of the product behind a layer's attention. In the last layer, if args->n_last says so, it and the residual
 * become those of the rows' last tokens, and args->n_tokens their number. `qkv` and `normed` are overwritten. */
const void *pass_attended(struct pass *p, uint32_t layer);
/* residual += down(silu(gate normed) * (up normed)) */
void pass_mlp(struct pass *p, const struct model_layer *layer);
/* The same of norm(residual) by the layer's post_norm, in its post_order; `normed` may be left as it is. */
void pass_norm_mlp(struct pass *p, const struct model_layer *layer);
/* The same, by the layer's experts where it has them (experts.c). */
void pass_norm_feed(struct pass *p, const struct model_layer *layer);
/* Logits of n_rows rows of x: of those of `index`, or of the first ones if it is NULL. */
void pass_head(struct pass *p, const void *x, const int32_t *index, uint32_t n_rows);

/* `attention` := of `qkv` */
void llama_attend(struct pass *p, uint32_t layer);
/* residual += o(attention of `qkv`) */
void llama_attention(struct pass *p, uint32_t layer);
void llama_layer(struct pass *p, uint32_t layer);
void gemma_layer(struct pass *p, uint32_t layer);
void deepseek_layer(struct pass *p, uint32_t layer);

#endif
