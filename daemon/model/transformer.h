/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_TRANSFORMER_H
#define MIMEO_DAEMON_MODEL_TRANSFORMER_H

/* A model's forward pass, and the memory that its activations have. */

#include "daemon/model/model.h"
#include "kernels/arena.h"

/* Activations at fixed addresses, worst-case sizes: carved once (kernels/arena.h), used by every
 * pass on the lane, eager or captured; aliased between passes, never inside one. A draft model has
 * its own: its pass reads the target's. */
struct model_buffers {
	void *residual;     /* [max_tokens, hidden] act */
	void *normed;       /* [max_tokens, hidden] act */
	void *qkv;          /* [max_tokens, (n_heads + 2 n_kv_heads) * head_dim] act, at least as wide as attention */
	void *attention;    /* [max_tokens, n_heads * head_dim] act */
	void *gate_up;      /* [max_tokens, 2 intermediate] act */
	void *activated;    /* [max_tokens, intermediate] act */
	void *last_hidden;  /* [max_rows, hidden] act, after the final norm */
	float *logits;      /* [max_rows, vocab], or draft.vocab_size */
	/* latent attention: qkv is q, [max_tokens, n_heads * (nope + rope)]; attention is
	 * [max_tokens, n_heads * v] */
	void *q_a;          /* [max_tokens, q_rank] act, NULL if q has none */
	void *kv_a;         /* [max_tokens, rank + rope] act */
	/* experts, by pair of token and choice (kernels/ops.h) */
	float *router;           /* [max_tokens, n] */
	int32_t *experts;        /* [max_tokens, n_active] */
	float *expert_weights;   /* [max_tokens, n_active] */
	int32_t *expert_start;   /* [n + 1] */
	int32_t *pairs;          /* [max_tokens * n_active] */
	void *expert_gate_up;    /* [max_tokens * n_active, 2 intermediate] act */
	void *expert_activated;  /* [max_tokens * n_active, intermediate] act */
	void *expert_out;        /* [max_tokens * n_active, hidden] act */
	/* draft models */
	void *fused;    /* [max_tokens, 2 hidden] act: embedding and hidden state side by side */
	void *features; /* [max_tokens, 3 hidden] act EAGLE-3: for the target's pass to write */
};
/* max_rows: of logits; 1 + K a row where steps verify draft tokens. */
void model_buffers_carve(const struct model_config *config, uint32_t max_tokens, uint32_t max_rows,
	enum dtype activation_dtype, struct arena *arena, struct model_buffers *ret);

struct model_pass {
	const struct step_inputs *inputs;
	const struct model_buffers *buffers;
	uint32_t n_tokens, n_rows; /* what to launch: padded under FULL, real when eager */
	bool last_only; /* of the step's record (kernels/step.h): one row of logits a row */
	/* 0: all tokens pass through the last layer. Else n_rows: only the last token of each row is read, so only
	 * those pass through what follows the last attention; their hidden states are in last_hidden, and normed is not
	 * valid. */
	uint32_t n_last;
	const struct attention_backend *attention;
	struct attention_metadata *metadata; /* built for this batch */
	void *const *kv_layers;              /* [n_layers] */
	const uint8_t *sets; /* [n_layers] whose pages a layer has (struct step_inputs); NULL: the first set's */
	uint32_t page_tokens;
	uint32_t n_pages; /* of the cache's reservation */
	/* NULL, or a replacement of attention->run, layer by layer. */
	int (*attend)(void *userdata, const struct attention_args *args);
	void *attend_userdata;
	/* NULL, or [n_tokens, 3 hidden] act := the residual at the inputs of the layers of
	 * model_feature_layers, for an EAGLE-3 draft model. */
	void *features;
};

/* Queue (or record) the pass from ids and given embeddings to the normed hidden state of each token (or n_last). No
 * allocation. 0, or the status of the op that failed. */
int model_forward(const struct model *model, struct stream *stream, const struct model_pass *args);
/* From there to the logits of each row's last token; with max_drafts K, unless last_only, of the
 * 1 + K tokens a row that logit_index names. */
int model_logits(const struct model *model, struct stream *stream, const struct model_pass *args);
/* Both, for a decode: n_rows rows of one token each, row r's being token r. In one kernel where the device has
 * one that is faster; -ENOTSUP where it has not, or the model or the pass needs the layers one by one, and
 * nothing is queued then. */
int model_decode(const struct model *model, struct stream *stream, const struct model_pass *args);
/* The op's arguments; layers[n_layers] are filled, and have to live as long as they. For tests. */
void model_decode_op(const struct model *model, const struct model_pass *args, struct decode_layer *layers,
	struct op_decode_step *ret);
/* The logits of n tokens from `first` on; of `args` inputs and buffers count. */
int model_logits_of(const struct model *model, struct stream *stream, const struct model_pass *args,
	uint32_t first, uint32_t n);

#endif
