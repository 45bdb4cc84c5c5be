/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_PASS_H
#define MIMEO_DAEMON_MODEL_PASS_H

/*
 * One forward pass as the families' layers see it (llama.c, deepseek.c, eagle.c), and the pieces
 * that they have in common (pass.c). The residual stays in one buffer; each norm first adds what
 * the block before it left in `projected`. Each call queues, or records, and returns what the op
 * does.
 */

#include "daemon/model/model.h"

struct pass {
	const struct model *model;
	const struct kernel_ops *ops;
	struct stream *stream;
	const struct model_pass *pass;
	const struct model_buffers *b;
};

struct pass pass_begin(
	const struct model *model, struct stream *stream, const struct model_pass *pass);
/* y = x w^T + bias, for every token. */
int pass_gemm(const struct pass *s, const void *x, const struct weight *w, const struct weight *bias,
	void *y);
int pass_norm(
	const struct pass *s, const void *x, const struct weight *weight, float eps, void *out);
/* The layer's first norm into `normed`; also features, where they are asked for. */
int pass_input_norm(const struct pass *s, uint32_t layer);
/* normed = norm(residual += projected) */
int pass_add_norm(const struct pass *s, const struct weight *weight);
/* Of q in `qkv`, rows q_stride apart, into `attention`. */
int pass_attend(const struct pass *s, uint32_t layer, uint32_t q_stride);
/* projected = down(silu(gate normed) * (up normed)) */
int pass_mlp(const struct pass *s, const struct model_layer *layer);

/* The head's product: logits of n_rows rows of x. */
int pass_head(const struct pass *s, const void *x, uint32_t n_rows);

/* projected = o(attention of x), x being [n_tokens, qkv's columns]. */
int llama_attention(const struct pass *s, uint32_t layer, const void *x);
/* From `residual` and `projected` of the layer before to those of the next. */
int llama_layer(const struct pass *s, uint32_t layer);
int deepseek_layer(const struct pass *s, uint32_t layer);

#endif
