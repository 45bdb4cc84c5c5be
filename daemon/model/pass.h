/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_PASS_H
#define MIMEO_DAEMON_MODEL_PASS_H

/*
 * One forward pass as the families' layers see it (llama.c, deepseek.c, eagle.c), and the pieces
 * that they have in common (pass.c). The residual stays in one buffer; each norm first adds what
 * the block before it left in `projected`.
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
void pass_norm(struct pass *p, const void *x, const struct weight *weight, float eps, void *out);
/* The layer's first norm into `normed`; also features, where they are wanted. */
void pass_input_norm(struct pass *p, uint32_t layer);
/* normed = norm(residual += projected) */
void pass_add_norm(struct pass *p, const struct weight *weight);
/* Attention for q in `qkv`, with rows q_stride apart, into `attention`. */
void pass_attend(struct pass *p, uint32_t layer, uint32_t q_stride);
/* projected = down(silu(gate normed) * (up normed)) */
void pass_mlp(struct pass *p, const struct model_layer *layer);
/* Logits of n_rows rows of x: of those of `index`, or of the first ones if it is NULL. */
void pass_head(struct pass *p, const void *x, const int32_t *index, uint32_t n_rows);

/* projected = o(attention of x), x being [n_tokens, qkv's columns]. */
void llama_attention(struct pass *p, uint32_t layer, const void *x);
/* From `residual` and `projected` of the layer before to those of the next. */
void llama_layer(struct pass *p, uint32_t layer);
void deepseek_layer(struct pass *p, uint32_t layer);

#endif
