/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_OPS_H
#define MIMEO_KERNELS_OPS_H

/*
 * The op table: the operations of a model's forward pass. Each op takes a stream and one struct of
 * arguments, which is copied; it checks shapes, queues the work (or records it) and returns 0, a
 * device_condition, or -EINVAL for invalid shapes.
 *
 * T: tokens, R: rows; a launch covers the first n rows of buffers of worst-case size, and every
 * op defines its empty row (no request, no slot, seq_len 0). Activations are device_info's
 * activation_dtype ("act" below): float32 on the cpu device.
 */

#include "kernels/step.h"

/*
 * A weight matrix. An op may read it before earlier work of its stream is done: none of that may write it.
 *
 * E4M3, U4 and U4_32 are packed (kernels/packed.h), and valid only where device_info.packs. As w, gemm, gated_gemm and
 * norm_gemm take all three; expert_gemm and expert_gated_gemm take E4M3 and U4, if units have factors. decode_step
 * answers -ENOTSUP to them; for all other ops they are invalid.
 */
struct weight {
	const void *data; /* [rows, cols], rows contiguous; or units */
	enum dtype dtype; /* F32, BF16 or F16; E4M3, U4 or U4_32 */
	uint32_t rows, cols;
	const float *factors; /* [rows], of E4M3 whose units have none; else NULL */
};

/* ---- the step's inputs (kernels/step.h) ---- */

/*
 * Applies record.inits and the rows' changes of their slots' block tables, then expands the record
 * into `inputs`. With drafts any row, and without them one that changes pages, is its slot's only
 * row of the step. A page index or slot out of range cannot come: the host made them; ids are
 * clamped into the vocabulary all the same.
 *
 * With drafts: an init sets slot_n_drafts and leaves the slot without drafts, but leaves
 * slot_length to the first row, which has a start of its own. A row to verify changes no slot.
 * Every other row leaves slot_length := its start + n_tokens, cut at max_pages, and the slot
 * without drafts: what there was had been drawn for other positions. A token past the slot's
 * pages, which only rows that begin at slot_length may have, is clamped and has slot_mapping -1.
 */
struct op_prepare {
	const struct step_record *record; /* pinned */
	struct step_inputs inputs;
	uint32_t n_pages; /* pages there are, for the clamp */
	uint64_t *began;  /* pinned; NULL, or := when it began, ns of the device's own clock */
};

/*
 * After prepare, where inputs have sets: applies the changes, then writes for each set but the first, if that has no
 * window, the block tables of the first n_rows rows, and all of the slot mapping. Where a token is written follows from
 * seq_lens, so rows begin where the host says: not with drafts. A slot has at most one row of the step.
 */
struct op_set_tables {
	struct step_inputs inputs;
	const struct set_change *changes; /* [n_changes] pinned, of sets that are written; no two of one entry */
	const uint32_t *pages;            /* pinned */
	uint32_t n_changes, n_rows;
	uint32_t n_pages;     /* pages there are, for the clamp */
	uint32_t n_full_sets; /* the first ones, without a window */
	uint32_t window;      /* of the others, in tokens, itself included */
};

/* ---- the model ---- */

struct op_embed { /* out[t] = from[t] ? *from[t] : scale * table[clamp(ids[t])] */
	struct weight table;  /* [vocab, hidden] */
	const int32_t *ids;   /* [n_tokens] */
	const void *const *from; /* [n_tokens] of [hidden] act, as aligned as one, or NULL; NULL: none */
	void *out;            /* [n_tokens, hidden] act, rows out_stride elements apart */
	uint32_t n_tokens;
	uint32_t out_stride;  /* 0: hidden */
	float scale;          /* 0: 1 */
};

/* Columns of a norm in another order, at the most. */
#define RMS_NORM_ORDER_MAX 20480u

struct op_rms_norm { /* out = x / rms(x) * weight, or with `add` out += that */
	const void *x;        /* [n_rows, cols] act */
	struct weight weight; /* [1, cols] */
	void *out;            /* [n_rows, cols] act; may be x, unless `add` */
	uint32_t n_rows;
	float eps;
	bool add; /* without an order */
	/* [cols] device, a permutation, read as a weight is: column k of out is of column order[k] of x. NULL: of k */
	const uint32_t *order;
};

/* y = x W^T (+ bias), or with `add` y += that. `invariant`: a row's result does not depend on n_rows. The cpu
 * device's never does; CUDA's may, and its invariant product is slower: see device_info.invariant. */
struct op_gemm {
	const void *x;      /* [n_rows, w.cols] act */
	struct weight w;    /* [out, in] */
	struct weight bias; /* [1, out], data NULL: none */
	void *y;            /* [n_rows, w.rows] y_dtype */
	enum dtype y_dtype; /* act or F32; with `add` act */
	uint32_t n_rows;
	bool invariant;
	bool add; /* y is not x; the product may be rounded to act before the addition */
};

/* y = silu(x Wg^T + bg) * (x Wu^T + bu): a gemm and a silu_mul, in one launch where the device can;
 * then gate_up is not touched, and gate and up are not rounded in between. */
struct op_gated_gemm {
	const void *x;      /* [n_rows, w.cols] act */
	struct weight w;    /* [2 cols of y, in]: Wg's rows, then Wu's */
	struct weight bias; /* [1, w.rows], data NULL: none */
	void *gate_up;      /* [n_rows, w.rows] act, scratch */
	void *y;            /* [n_rows, w.rows / 2] act */
	uint32_t n_rows;
	bool invariant; /* as in op_gemm */
};

/*
 * Optional: the gemm, or with gate_up the gated_gemm, of rms_norm's result for x, in one launch; y is act.
 *
 * -ENOTSUP: the device cannot do it at once for this matrix and number of rows; nothing was queued, and y's contents
 * are undefined.
 */
struct op_norm_gemm {
	const void *x;      /* [n_rows, w.cols] act */
	struct weight norm; /* [1, w.cols] */
	float eps;
	struct weight w, bias;
	void *gate_up; /* as op_gated_gemm's, not x; NULL: a gemm */
	void *y;       /* not x */
	uint32_t n_rows;
};

/*
 * Of a layer whose cache is fp8 (DTYPE_E4M3): an element is stored as x / factor, rounded to nearest, ties to
 * even, and to at most 448, and stands for that times the factor. Above 0 and finite; latent attention has
 * that of keys alone. A cache of the device's kv_dtype has none.
 */
struct kv_factors {
	float key, value;
};

/* Optional per-head RMSNorm of q and k, rotation of q and k (pairs i, i + head_dim / 2), write of k
 * and v into the cache. slot_mapping -1: the token's k and v are not written. */
struct op_rope_and_cache {
	void *qkv; /* [n_tokens, (n_heads + 2 n_kv_heads) * head_dim] act; q in place */
	const int32_t *positions;    /* [n_tokens], clamped to [0, max_positions) */
	const int32_t *slot_mapping; /* [n_tokens] */
	const float *cos_sin;        /* [max_positions, head_dim]: cos for head_dim/2, then sin */
	uint32_t max_positions;
	struct weight q_norm, k_norm; /* [1, head_dim], data NULL: none */
	float eps;
	void *kv;                 /* a layer: [n_pages, 2, page_tokens, n_kv_heads, head_dim] kv */
	uint32_t n_tokens, n_heads, n_kv_heads, head_dim, page_tokens;
	bool fp8;                 /* kv is E4M3, with factors */
	struct kv_factors factors;
};

struct op_silu_mul { /* out = silu(gate_up[:, :cols]) * gate_up[:, cols:] */
	const void *gate_up; /* [n_rows, 2 cols] act */
	void *out;           /* [n_rows, cols] act */
	uint32_t n_rows, cols;
	bool gelu; /* in place of silu: gelu in its tanh form, x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
};

struct op_soft_cap { /* x = cap tanh(x / cap) */
	float *x; /* [n] */
	uint64_t n;
	float cap; /* above 0 */
};

/* ---- a whole decode ---- */

/* A layer of decode_step: RMSNorm, attention of grouped heads, RMSNorm, silu MLP. */
struct decode_layer {
	struct weight input_norm, post_norm; /* [1, hidden] */
	struct weight qkv, qkv_bias;         /* as op_gemm's; bias data NULL: none */
	struct weight q_norm, k_norm;        /* [1, head_dim], data NULL: none */
	struct weight o, gate_up, down;
	void *kv; /* [n_pages, 2, page_tokens, n_kv_heads, head_dim] kv, not fp8 */
};

/*
 * Optional: from the ids of n_rows rows of one token each, row r's token being token r, to the head's input
 * and logits. Causal attention over all of a row's tokens; reads ids, given embeddings, positions, slot
 * mapping, lengths and block table from the inputs when it runs. An empty row has length 0 and slot -1:
 * nothing is written to the cache, and its results are finite if its id's embedding is.
 *
 * -ENOTSUP: the device has no such kernel, or it is slower for this model and number of rows than the ops one
 * by one; nothing was queued. No work beside this stream's may keep the device's multiprocessors for ever.
 */
struct op_decode_step {
	struct weight embedding, final_norm, head;
	const struct decode_layer *layers; /* [n_layers]; read by the call alone */
	struct step_inputs inputs;
	const float *cos_sin;  /* as op_rope_and_cache's */
	void *normed, *last;   /* [n_rows, hidden] act := the head's input, in both; NULL: not wanted */
	float *logits;         /* [n_rows, vocab] */
	uint32_t n_layers, n_heads, n_kv_heads, head_dim, max_positions;
	uint32_t n_pages;      /* of the cache's reservation */
	uint32_t n_rows;
	float eps, scale;      /* scale: of q.k */
	bool always;           /* for tests: also where it is slower */
};

/* ---- latent attention (MLA) ---- */

/*
 * What a token's latent attention has ahead of attention: the RMSNorm of its latent, the rotation of
 * its key's rope part and of those of its queries, and the write of latent and key into the cache,
 * which holds both as one row. slot_mapping -1: nothing is written there.
 */
struct op_mla_rope_and_cache {
	void *q;          /* [n_tokens, n_heads, nope + rope] act; rope parts in place */
	const void *kv_a; /* [n_tokens, rank + rope] act: the latent, then the key's rope part */
	const int32_t *positions;    /* [n_tokens], clamped to [0, max_positions) */
	const int32_t *slot_mapping; /* [n_tokens] */
	const float *cos_sin;        /* [max_positions, rope]: cos for rope/2, then sin */
	uint32_t max_positions;
	struct weight norm; /* [1, rank] */
	float eps;
	void *kv;           /* a layer: [n_pages, page_tokens, rank + rope] kv */
	uint32_t n_tokens, n_heads, nope, rope, rank, page_tokens;
	bool interleaved;   /* pairs (2i, 2i + 1), else (i, i + rope / 2) */
	bool fp8;           /* kv is E4M3, with the factor of keys */
	struct kv_factors factors;
};

/* A product a head: y[t, h] = x[t, h] W_h^T, or x[t, h] W_h if `transposed`. W_h is head_n rows of w
 * from h * head_rows + head_first on. The cpu device's result of a row does not depend on n_rows. */
struct op_head_gemm {
	const void *x;   /* act; row t, head h at t * x_stride + h * x_head_stride elements */
	struct weight w; /* [n_heads * head_rows, cols] */
	void *y;         /* act; likewise */
	uint32_t x_stride, x_head_stride, y_stride, y_head_stride;
	uint32_t head_rows, head_first, head_n;
	uint32_t n_rows, n_heads;
	bool transposed;
};

/* ---- mixture of experts ---- */

/*
 * A token's experts are chosen, pairs (token, choice) are sorted by expert, and products run over
 * each expert's pairs: all of it on the device, in buffers and grids that the number of tokens alone
 * sizes, so that a graph replays it whatever was chosen. Pair p is token p / n_active's choice
 * p % n_active; what is computed for it lies in row p.
 */

enum moe_score { MOE_SOFTMAX, MOE_SIGMOID };

/*
 * The n_active experts with the highest score (softmax or sigmoid of the logit, plus the bias if
 * there is one), among those of the n_groups_active groups that score highest; ties go to the lowest
 * index. A group's score is the highest of its experts', or the sum of the two highest. The weight
 * is the score without the bias, divided by the sum of the chosen scores if `normalise`, times `scale`.
 */
struct op_moe_route {
	const float *logits; /* [n_tokens, n_experts] */
	struct weight bias;  /* [1, n_experts], data NULL: none */
	const int32_t *slot_mapping; /* [n_tokens]; -1: padding, which no expert sees */
	int32_t *experts;    /* [n_tokens, n_active], by falling score; -1: none */
	float *weights;      /* [n_tokens, n_active]; 0: none */
	uint32_t n_tokens, n_experts, n_active;
	uint32_t n_groups, n_groups_active; /* n_experts a multiple of n_groups */
	enum moe_score score;
	bool group_top_two, normalise;
	float scale;
};

struct op_moe_group {
	const int32_t *experts; /* [n_tokens, n_active] */
	int32_t *expert_start;  /* [n_experts + 1] expert e's pairs begin at expert_start[e] */
	int32_t *pairs;         /* [n_tokens * n_active] by expert, then ascending; tail: -1 */
	uint32_t n_tokens, n_active, n_experts;
};

/* For each expert's pairs: y[p] = x[p / x_div] W_e^T. A pair of no expert leaves its row alone. The cpu
 * device's result of a row depends on nothing but the row and its expert. */
struct op_expert_gemm {
	const void *x;    /* [n_tokens * n_active / x_div, w.cols] act */
	uint32_t x_div;   /* n_active: a row a token; 1: a row a pair */
	struct weight w;  /* [n_experts * out, in] */
	const int32_t *expert_start, *pairs; /* of op_moe_group */
	void *y;          /* [n_tokens * n_active, out] act */
	uint32_t n_tokens, n_active, n_experts;
};

/* y[p] = silu(x W_gate^T) * (x W_up^T) with x = x[p / n_active]; as op_gated_gemm is to op_gemm. */
struct op_expert_gated_gemm {
	const void *x;    /* [n_tokens, w.cols] act */
	struct weight w;  /* [n_experts * 2 cols of y, in]: of each expert W_gate's rows, then W_up's */
	const int32_t *expert_start, *pairs;
	void *gate_up;    /* [n_tokens * n_active, 2 cols of y] act, scratch */
	void *y;          /* [n_tokens * n_active, cols of y] act; a pair of no expert: anything */
	uint32_t n_tokens, n_active, n_experts;
};

struct op_moe_combine { /* out[t] = base[t] + sum of weights[p] * y[p] over t's pairs with an expert */
	const void *base;       /* [n_tokens, cols] act, or NULL: 0; may be out */
	const void *y;          /* [n_tokens * n_active, cols] act */
	const int32_t *experts; /* [n_tokens, n_active] */
	const float *weights;   /* [n_tokens, n_active] */
	void *out;              /* [n_tokens, cols] act */
	uint32_t n_tokens, n_active, cols;
};

/* ---- results and pages ---- */

struct op_gather_rows { /* out[r] = x[clamp(index[r])] */
	const void *x;        /* [x_rows, cols] act */
	const int32_t *index; /* [n_rows], or NULL: r */
	void *out;            /* [n_rows, cols] act, rows out_stride elements apart */
	uint32_t n_rows, x_rows, cols;
	uint32_t out_stride;  /* 0: cols */
};

struct op_to_f32 { /* for results that leave the device */
	const void *x; /* [n] act */
	float *out;    /* [n] */
	uint64_t n;
};

/*
 * Copy-on-write in one layer: for each pair, page dst := page src. Every device acts as if the pairs
 * were copied one after the other in their order: a page that one pair writes may be the source or the
 * destination of a later pair.
 */
struct op_copy_pages {
	void *kv;
	uint64_t page_bytes;
	const uint32_t *pairs; /* [n_pairs, 2] src, dst; pinned, not rewritten until completion */
	uint32_t n_pairs;
};

/* ---- adjustment of logits, log-probabilities ---- */

/*
 * What requests bring for the logits of their slots, ahead of the step that samples their first
 * token. At most one update a slot and launch.
 */
#define UPDATE_CLEAR 1u /* counts := 0, ahead of the update's tokens */
#define UPDATE_SET 2u   /* adjust, its bias and its mask become the slot's */

struct slot_update {
	int32_t slot;
	uint32_t flags; /* UPDATE_... */
	struct slot_adjust adjust;
	const struct token_bias *bias; /* [adjust.n_bias] tokens ascending, each once */
	const uint32_t *allowed;       /* [TOKEN_WORDS] if adjust.masked */
	const int32_t *tokens;         /* [n_tokens] to count, in the vocabulary */
	uint32_t n_tokens;
	uint32_t n_prompt;             /* leading ones that get COUNT_PROMPT; the others are output */
};

struct op_update_slots {
	const struct slot_update *updates; /* [n] pinned, with what they point to */
	uint32_t n;
	struct step_inputs inputs;
};

/*
 * In place, for each row with a slot, ROW_SAMPLE and ROW_ADJUST, the logits of token 0, and with
 * ROW_VERIFY those of all its tokens. A logit that is NaN or infinite stays as it is. The others:
 *
 *	x += bias                                of slot_bias, rounded to float32
 *	x = x > 0 ? x / repetition : x * repetition     if the token was seen: its count is not 0
 *	x -= frequency * n + presence * (n > 0)  n: how often it is among the output
 *	x = -infinity                            if the mask bans it, or it is an end too early
 *
 * (repetition: Keskar et al., CTRL, 2019, arXiv:1909.05858, in the form of Hugging Face's
 * RepetitionPenaltyLogitsProcessor; presence and frequency: OpenAI's API reference; the order is
 * vLLM's.) Sums are double precision; a result beyond float32 is its largest number. Token i of a row
 * to verify sees the counts with the row's first i drafts counted, and stands at slot_length + 1 + i;
 * of other rows the new token stands at seq_lens.
 *
 * For rows with ROW_LOGPROBS, of the logits before that: row_logprobs[r, i] from entry 1 on gets the
 * n_top likeliest tokens with the logarithm of their softmax (ties: lowest id first), and entry 0 the
 * logarithm of the sum of exponentials, as a double. If the logits are not finite (op_sample), tokens are
 * -1 and numbers NaN. What is left over keeps what it had.
 */
struct op_adjust {
	float *logits; /* [n_rows, 1 + K, vocab]; with last_only [n_rows, vocab] */
	uint32_t n_rows, vocab; /* vocab: inputs.vocab_size */
	bool last_only;         /* the record's: ROW_VERIFY has no meaning */
	struct step_inputs inputs;
};

/* Of each row: the token and its log-probability, then the n_top likeliest ones, as op_adjust has
 * them. A token out of the vocabulary: only the latter, behind {-1, NaN}. */
struct op_logprobs {
	const float *logits;       /* [n_rows, vocab] */
	const int32_t *tokens;     /* [n_rows] pinned */
	struct token_logprob *out; /* [n_rows, LOGPROBS_WIDTH] pinned */
	uint32_t n_rows, vocab, n_top;
};

/* The mean of rows that come in parts: `sum` is added to row after row, whatever the parts. */
struct op_mean_rows {
	const void *x;  /* [n_rows, cols] act */
	double *sum;    /* [cols] */
	float *mean;    /* [cols] if `total` */
	uint32_t n_rows, cols;
	bool first;     /* sum := 0 before */
	uint32_t total; /* behind the last part the number of all rows: mean := sum / total; else 0 */
};

/* ---- sampling ---- */

/*
 * For each row with a slot and ROW_SAMPLE: sampled[r] and slot_last_token[slot] := the token; other
 * rows: sampled[r] := -1, no slot is touched.
 *
 * Logits are finite if one at least is, and the others are -infinity, which is never drawn. Those with a
 * NaN or +infinity among them, or with -infinity alone, are not, and give no token: sampled[r] := -1,
 * slot_last_token[slot] := 0, an id in range.
 *
 * Temperature, then top-k, top-p, min-p, each on what
 * the one before left, renormalised; the draw is a Gumbel arg-max whose noise is a counter-based
 * hash of (seed, position, purpose, token), position = the row's sequence length, so a draw does
 * not depend on the batch. Ties go to the lowest id.
 *
 * Of a row with ROW_LOGPROBS, entry 0 of row_logprobs becomes the token with its log-probability before
 * the adjustment, {-1, NaN} if there is none; it is undone by arithmetic unless the token is among the
 * likeliest ones. Of a row with ROW_COUNT the token is counted.
 */
enum sample_purpose { SAMPLE_TARGET = 0, SAMPLE_DRAFT = 1, SAMPLE_ACCEPT = 2, SAMPLE_RESIDUAL = 3 };

struct op_sample {
	const float *logits; /* [n_rows, vocab] */
	uint32_t n_rows, vocab;
	uint32_t purpose;
	struct step_inputs inputs; /* row_slot ... slot_sampling, slot_last_token; row_logprobs ... */
	int32_t *sampled;          /* [n_rows] */
};

/* ---- speculation ---- */

/*
 * Speculative decoding (Leviathan et al., 2023, arXiv:2211.17192) with a draft that shares the target's
 * hidden states (EAGLE, Li et al., 2024, arXiv:2401.15077). A step of a model with a draft is:
 *
 *	prepare         rows to verify: the slot's last token and its K drafts at slot_length ...
 *	target          forward, logits of logit_index
 *	verify          accepted drafts and one token more; slot_length, slot_last_token
 *	draft_begin     the draft's inputs for the same tokens, one on
 *	draft           forward of all the tokens, logits of last_index
 *	draft_advance   draft 0 of each slot; the inputs of a decode
 *	draft, draft_advance ... K - 1 times, a token a row
 *
 * all of it queued without a look at what came out: the next step may be queued behind it.
 * Nothing here knows how many drafts were accepted but the device.
 */

/*
 * For each row with a slot and ROW_SAMPLE. Without ROW_VERIFY: as op_sample of token 0's logits,
 * purpose SAMPLE_TARGET. With it, drafts are taken in order while they hold, draft i by token i's
 * logits: greedy, while it is their arg-max; sampled, with the probability min(1, p / q), p being
 * the target's distribution and q the draft's, both after temperature, top-k, top-p and min-p of
 * the slot (slot_draft_logits: what the draft was drawn from). The first that does not hold is
 * replaced by a draw from the residual, max(p - q, 0) renormalised (purpose SAMPLE_RESIDUAL).
 *
 * Behind drafts that all hold, and in place of a draft of -1, comes what op_sample would give for
 * token i's logits (SAMPLE_TARGET): so a slot without drafts has the same tokens to the last
 * whether its rows are to verify or not. A draft out of the vocabulary, or that its own logits
 * cannot have given, counts as -1. The noise of token i is that of position slot_length + 1 + i
 * (SAMPLE_ACCEPT: a uniform one, of the draft's id).
 *
 * sampled[r]: the drafts that held, the token behind them, then -1. slot_last_token := that token,
 * slot_length := slot_length + 1 + their number, cut at max_pages. slot_drafts := all -1; a
 * draft is verified once: later it is no longer a draw from q. Rows without ROW_VERIFY: slot_length
 * is prepare's. Rows without a slot or ROW_SAMPLE: all -1, no slot is touched. ROW_LOGPROBS and
 * ROW_COUNT apply to each sampled token.
 *
 * If logits of the target that decide any of this are not finite (op_sample), the row has no token, whatever
 * held before: sampled[r] is all -1, slot_last_token := 0, and the rest of the slot is as behind one
 * token. Draft's logits that are not finite cannot have given a draft.
 */
struct op_verify {
	const float *logits; /* [n_rows, 1 + K, vocab]; row r, token i; of no token: anything */
	uint32_t n_rows, vocab; /* vocab: inputs.vocab_size */
	struct step_inputs inputs;
	int32_t *sampled;    /* [n_rows, 1 + K] */
	bool last_only;      /* the record's: logits are [n_rows, vocab], ROW_VERIFY has no meaning */
};

/* What the draft's forward reads. Rewritten by the ops below, tails too. Its first forward has the
 * target's query_start, seq_lens, block_table and positions; its decodes have their own, and the
 * target's block_table. A row that drafts no further is an empty row of the decodes: id 0,
 * position 0, seq_len 0, nothing written. */
struct draft_inputs {
	int32_t *input_ids;    /* [max_tokens] the target's id at t + 1; tail: 0 */
	int32_t *slot_mapping; /* [max_tokens] the target's; -1 for rows without drafts; tail: -1 */
	int32_t *last_index;   /* [max_rows] token whose logits make draft 0, the last that held;
	                          tail: 0 */
	/* of decodes, a token a row */
	int32_t *step;         /* [1] drafts so far */
	int32_t *decode_ids;   /* [max_rows] the target's ids; tail: 0 */
	int32_t *positions;    /* [max_rows]; tail: 0 */
	int32_t *decode_slot_mapping; /* [max_rows]; tail: -1 */
	int32_t *query_start;  /* [max_rows + 1] 0, 1, 2, ...; all past the op's n_rows: n_rows */
	int32_t *seq_lens;     /* [max_rows]; tail: 0 */
	int32_t *hidden_index; /* [max_rows] row of the forward's output that the next one reads:
	                          last_index, then r; tail: 0 */
};

/*
 * Row by row: input_ids[t] is the target's id at t + 1, and at last_index and at the
 * row's end the token behind the row, in range: what verify left in slot_last_token if the row
 * has ROW_SAMPLE, else step_row's next_id (which prepare keeps in next_ids), or 0. last_index: in
 * a row to verify, the token whose logits gave verify's last sample; the row's last token
 * otherwise; of an empty row 0. Rejected tokens stay: what they write is written again before
 * any read. Also step := 0.
 */
struct op_draft_begin {
	struct step_inputs inputs;
	const int32_t *sampled; /* [n_rows, 1 + K] of verify */
	struct draft_inputs draft;
	uint32_t n_rows, n_tokens; /* padded; tails go to max_rows and max_tokens all the same */
	uint64_t *began;           /* pinned; NULL, or := when it began, as op_prepare's */
};

/*
 * Draft i = *step of each sampled row with slot_n_drafts > i: the token of
 * the draft's logits, greedy or drawn by the slot's sampling (purpose SAMPLE_DRAFT, the position
 * of the token that it would be, slot_length + 1 + i), into slot_drafts, and if it was drawn its
 * logits by the target's ids into slot_draft_logits; other rows with a slot: -1. Draws and
 * filters go by the target's ids, greedy ties to the lowest of the draft's; an id that d2t maps
 * outside the vocabulary is never drafted. A draft that would stand past the slot's pages is -1,
 * so is one of logits that are not finite (op_sample), and so are all behind one of -1.
 *
 * Then, for the decode that follows, of rows that draft on: the draft, position slot_length + i,
 * the length up to it and its slot in the cache; hidden_index; step + 1, up to K.
 */
struct op_draft_advance {
	const float *logits;  /* [n_rows, draft_vocab] */
	const int32_t *d2t;   /* [draft_vocab] target id - draft id, no target id twice; NULL: 0 */
	uint32_t n_rows, draft_vocab;
	struct step_inputs inputs;
	struct draft_inputs draft;
};

/* Write the step's results to pinned host memory: the tokens first, then, released, the flag. */
struct op_outbox {
	const int32_t *sampled; /* [n_rows] */
	int32_t *out;           /* [n_rows] pinned */
	uint64_t *flag;         /* pinned; := step */
	uint64_t step;
	uint32_t n_rows;        /* sampled and out are so many; 1 + K a row where a step verifies */
	uint64_t *ended;        /* pinned; NULL, or := the time ahead of the flag, as op_prepare's */
	/* The row_logprobs of rows with ROW_LOGPROBS, ahead of the flag; out_logprobs NULL: none. */
	const int32_t *row_flags;             /* [n_logprob_rows] */
	const struct token_logprob *logprobs; /* [n_logprob_rows, logprob_tokens, LOGPROBS_WIDTH] */
	struct token_logprob *out_logprobs;   /* the same, pinned */
	uint32_t n_logprob_rows, logprob_tokens;
};

/*
 * The ops by name: NAME takes a struct op_NAME. Both devices have all of them; a new device may lack (NULL)
 * those of latent attention, of experts or of speculation, each group as a whole. model_load refuses a
 * model that needs what the device lacks.
 */
#define KERNEL_OPS(OP)                                                                             \
	OP(prepare) OP(set_tables) OP(embed) OP(rms_norm) OP(gemm) OP(gated_gemm)                  \
	OP(rope_and_cache) OP(silu_mul) OP(gather_rows) OP(to_f32) OP(copy_pages) OP(sample)       \
	OP(outbox) OP(update_slots) OP(adjust) OP(logprobs) OP(mean_rows) OP(soft_cap)             \
	/* latent attention */                                                                     \
	OP(mla_rope_and_cache) OP(head_gemm)                                                       \
	/* experts */                                                                              \
	OP(moe_route) OP(moe_group) OP(expert_gemm) OP(expert_gated_gemm) OP(moe_combine)          \
	/* speculation */                                                                          \
	OP(verify) OP(draft_begin) OP(draft_advance)

/* Any device may lack these (NULL): there is another way to have what they do. */
#define KERNEL_OPTIONAL_OPS(OP) OP(decode_step) OP(norm_gemm)

struct kernel_ops {
#define KERNEL_OP(name) int (*name)(struct stream *stream, const struct op_##name *args);
	KERNEL_OPS(KERNEL_OP)
	KERNEL_OPTIONAL_OPS(KERNEL_OP)
#undef KERNEL_OP
};

#endif
