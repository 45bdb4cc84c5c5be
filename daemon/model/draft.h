/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_DRAFT_H
#define MIMEO_DAEMON_MODEL_DRAFT_H

/*
 * A draft model: one decoder layer that reads a TARGET's hidden states and proposes the target's
 * next tokens. Its sequence is the target's, shifted by one token: position i has the embedding of
 * token i + 1 and the target's hidden state i, and its logits are of token i + 2. At positions that
 * the target has not computed, the draft model's own output replaces the hidden state, a token at a
 * time: those are its DECODES. When the target has computed them, the same positions are computed
 * again from its states, and their keys and values are overwritten.
 *
 * Three layouts, all a struct model of one layer:
 *
 *   EAGLE (Li et al., 2024, arXiv:2401.15077), architectures LlamaForCausalLMEagle:
 *	x = fc [embedding, hidden], hidden being the target's after its final norm
 *	y = layer(x), without its first norm; y makes the logits, and is the next hidden state
 *	Embedding and head are the target's.
 *
 *   EAGLE-3 (Li et al., 2025, arXiv:2503.01840), architectures LlamaForCausalLMEagle3:
 *	x = fc [features], the target's residual at the inputs of layers 2, n / 2 and n - 3;
 *	in decodes x is the y before
 *	y = layer(x), whose q, k and v read [input_layernorm(embedding), hidden_norm(x)]
 *	norm(y) makes the logits.
 *	The head is its own, of a vocabulary that may be smaller: the target's id is the draft's
 *	plus d2t of it. It may bring its own embedding.
 *
 *   The MTP head of DeepSeek V3 (arXiv:2412.19437, section 2.2), architectures DeepseekV3ForCausalLM: the layer
 *   behind the target's last, in the target's own directory:
 *	x = eh_proj [enorm(embedding), hnorm(hidden)], hidden being the target's after its final norm
 *	y = layer(x), with latent attention, and experts where the target's layers have them; shared_head.norm(y)
 *	makes the logits, and is the next hidden state
 *	Embedding and head are the target's.
 *	The paper leaves open whether norms are before or behind `hidden`: it is as in SGLang's deepseek_nextn.py,
 *	where both states are normed; vLLM's deepseek_mtp.py norms the target's and not the head's own.
 *
 * Rope's table has as many positions as the target's, whatever max_position_embeddings says: draft
 * models are trained on short texts and work in longer ones.
 */

#include "daemon/model/transformer.h"

/* What names a model's own MTP head as its draft model. */
#define DRAFT_MTP "mtp"

/* The directory of a draft model that a setting names: the target's for DRAFT_MTP, else `draft`. */
const char *draft_directory(const char *draft, const char *target);
/* Read config.json alone: a draft model has no sampling settings. Other models are refused. ret is
 * the caller's (model_config_deinit). 0, or -errno with a sentence. */
int draft_config_load(const char *directory, struct model_config *ret, struct model_error *error);
/* Does it fit that target? 0, or -EINVAL or -ENOTSUP with a sentence; `directory` is the draft
 * model's. */
int draft_check(const char *directory, const struct model_config *config,
	const struct model_config *target, struct model_error *error);
/* Check it against the target, load it onto the target's device as model_load does, and share the
 * target's embedding and head where it has none. It is freed (model_free) before its target.
 * model_measure gives its bytes. The device is not locked yet. */
int draft_load(const char *directory, const struct model_config *config, const struct model *target,
	void (*progress)(void *userdata, uint64_t done, uint64_t total), void *userdata,
	struct model **ret, struct model_error *error);

/* ---- forward ---- */

/* The inputs that a draft model's passes and its attention read in place of the target's: for the pass over
 * all tokens, and for decodes of one token per row, which give logits of all rows (logit_index NULL). Only
 * addresses are used. Draft models support no masks and no given embeddings. */
struct step_inputs draft_prefill_inputs(
	const struct step_inputs *target, const struct draft_inputs *draft);
struct step_inputs draft_decode_inputs(
	const struct step_inputs *target, const struct draft_inputs *draft);

struct draft_pass {
	/* The draft model's inputs, buffers, attention and one layer of KV. */
	struct model_pass model;
	/* [n_hidden, hidden] act: the target's hidden states after its final norm, or draft_hidden of
	 * the pass before; token t's is row index[t], or row t if index is NULL. For EAGLE-3 with
	 * from_target: the target's features (struct model_pass), [n_hidden, 3 hidden] act, no index. */
	const void *hidden;
	const int32_t *index; /* [n_tokens] device, clamped */
	uint32_t n_hidden;
	bool from_target;
};
/* Queue (or record) the pass. No allocation. -EINVAL: features with an index. */
int draft_forward(const struct model *model, struct stream *stream, const struct draft_pass *draft);
/* From there to the logits of the rows of logit_index, [n_rows, draft.vocab_size]. */
int draft_logits(const struct model *model, struct stream *stream, const struct draft_pass *draft);
/* Where the pass stores each token's hidden state for the decodes: [n_tokens, hidden] act. */
static inline const void *draft_hidden(const struct model *model, const struct model_buffers *buffers)
{
	return model->config.family == MODEL_MTP ? buffers->normed : buffers->residual;
}

#endif
