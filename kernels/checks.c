/* SPDX-License-Identifier: MIT */
#include "kernels/checks.h"

#include <math.h>

#include "kernels/packed.h"

bool weight_is(const struct weight *w, uint32_t rows, uint32_t cols)
{
	return w->data && w->rows == rows && w->cols == cols && rows && cols &&
	       (w->dtype == DTYPE_F32 || w->dtype == DTYPE_BF16 || w->dtype == DTYPE_F16);
}

static bool checks_weight(const struct weight *w)
{
	return weight_is(w, w->rows, w->cols);
}

/* A vector that may be absent. */
static bool checks_optional(const struct weight *w, uint32_t cols)
{
	return !w->data || weight_is(w, 1, cols);
}

static bool checks_eps(float eps)
{
	return isfinite(eps) && eps >= 0;
}

/* ---- the step's inputs ---- */

static bool checks_drafts(const struct step_inputs *in)
{
	return in->max_drafts < in->max_tokens && in->next_ids && in->slot_length &&
	       in->slot_n_drafts && in->slot_drafts;
}

/* What verify, draft_begin and draft_advance read. */
static bool checks_speculation(const struct step_inputs *in, uint32_t n_rows)
{
	if (!in->max_drafts || in->max_drafts >= in->max_tokens || in->max_tokens > INT32_MAX)
		return false;
	if (!in->max_rows || !in->max_slots || !in->max_pages || !in->page_tokens)
		return false;
	if (!in->vocab_size || in->vocab_size > INT32_MAX || !in->row_slot || !in->row_flags)
		return false;
	return in->slot_sampling && in->slot_last_token && in->slot_length && in->slot_n_drafts &&
	       in->slot_drafts && in->slot_draft_logits && n_rows <= in->max_rows;
}

bool prepare_fits(const struct op_prepare *a)
{
	const struct step_inputs *in = &a->inputs;

	if (!a->record || !a->n_pages || !in->max_rows || !in->max_tokens || !in->max_slots)
		return false;
	if (!in->max_pages || !in->page_tokens || !in->vocab_size)
		return false;
	if (in->max_tokens > INT32_MAX || in->max_slots > INT32_MAX || in->vocab_size > INT32_MAX)
		return false;
	if (!in->input_ids || !in->embedding_from || !in->embedding_bytes)
		return false;
	if (!in->positions || !in->slot_mapping || !in->query_start)
		return false;
	if (!in->seq_lens || !in->block_table || !in->row_slot || !in->row_flags)
		return false;
	if (!in->logit_index || !in->slot_last_token || !in->slot_sampling || !in->slot_block_table)
		return false;
	return !in->slot_mask == !in->mask_words && (!in->max_drafts || checks_drafts(in));
}

bool set_tables_fits(const struct op_set_tables *a)
{
	const struct step_inputs *in = &a->inputs;

	if (!in->slot_mapping || !in->block_table || !in->slot_block_table || !in->query_start || !in->seq_lens ||
		!in->row_slot || !in->page_tokens || !in->max_pages || !in->max_rows || in->max_drafts)
		return false;
	if (!in->n_sets || a->n_full_sets > in->n_sets || (a->n_full_sets < in->n_sets && !a->window))
		return false;
	return a->n_pages && (!a->n_changes || (a->changes && a->pages));
}

/* ---- the model ---- */

bool embed_fits(const struct op_embed *a)
{
	return a->ids && a->out && checks_weight(&a->table) && a->n_tokens <= INT32_MAX &&
	       (!a->out_stride || a->out_stride >= a->table.cols) && isfinite(a->scale);
}

bool rms_norm_fits(const struct op_rms_norm *a)
{
	return a->x && a->out && !(a->add && (a->x == a->out || a->order)) &&
	       weight_is(&a->weight, 1, a->weight.cols) && checks_eps(a->eps) && a->n_rows <= INT32_MAX &&
	       (!a->order || a->weight.cols <= RMS_NORM_ORDER_MAX);
}

static bool checks_packed(const struct weight *w)
{
	return w->data && packed_is(w->dtype) && packed_fits(w->rows, w->cols) &&
	       !(packed_is_u4(w->dtype) && w->factors);
}

bool gemm_fits(const struct op_gemm *a)
{
	return a->x && a->y && (checks_weight(&a->w) || checks_packed(&a->w)) &&
	       checks_optional(&a->bias, a->w.rows) && (!a->add || a->y != a->x) &&
	       a->w.rows <= INT32_MAX && a->w.cols <= INT32_MAX && a->n_rows <= INT32_MAX;
}

bool gated_gemm_fits(const struct op_gated_gemm *a)
{
	const struct op_gemm gemm = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->y,
		.n_rows = a->n_rows};

	return gemm_fits(&gemm) && a->gate_up && a->w.rows % 2 == 0;
}

bool norm_gemm_fits(const struct op_norm_gemm *a)
{
	const struct op_gemm gemm = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->y,
		.n_rows = a->n_rows};

	return gemm_fits(&gemm) && weight_is(&a->norm, 1, a->w.cols) && checks_eps(a->eps) && a->y != a->x &&
	       (!a->gate_up || (a->gate_up != a->x && a->w.rows % 2 == 0));
}

bool kv_factor_fits(float factor)
{
	return factor >= 0x1p-40f && factor <= 0x1p40f;
}

bool kv_factors_fit(const struct kv_factors *factors)
{
	return kv_factor_fits(factors->key) && kv_factor_fits(factors->value);
}

bool rope_and_cache_fits(const struct op_rope_and_cache *a)
{
	if (!a->qkv || !a->positions || !a->slot_mapping || !a->cos_sin || !a->kv)
		return false;
	if (!a->n_heads || !a->n_kv_heads || a->n_heads % a->n_kv_heads || !a->page_tokens)
		return false;
	if (!a->head_dim || a->head_dim % 2 || !a->max_positions || a->n_tokens > INT32_MAX)
		return false;
	if (a->fp8 && !kv_factors_fit(&a->factors))
		return false;
	return a->n_heads <= UINT16_MAX && a->n_kv_heads <= UINT16_MAX / 4 &&
	       checks_optional(&a->q_norm, a->head_dim) && checks_optional(&a->k_norm, a->head_dim);
}

static bool decode_layer_fits(const struct op_decode_step *a, const struct decode_layer *l)
{
	const uint32_t hidden = a->embedding.cols, width = a->n_heads * a->head_dim;
	const uint32_t n_qkv = width + 2 * a->n_kv_heads * a->head_dim;

	if (!weight_is(&l->input_norm, 1, hidden) || !weight_is(&l->post_norm, 1, hidden))
		return false;
	if (!weight_is(&l->qkv, n_qkv, hidden) || !checks_optional(&l->qkv_bias, n_qkv))
		return false;
	if (!checks_optional(&l->q_norm, a->head_dim) || !checks_optional(&l->k_norm, a->head_dim))
		return false;
	return weight_is(&l->o, hidden, width) && l->gate_up.rows % 2 == 0 && l->kv &&
	       weight_is(&l->gate_up, l->gate_up.rows, hidden) &&
	       weight_is(&l->down, hidden, l->gate_up.rows / 2);
}

bool decode_step_fits(const struct op_decode_step *a)
{
	const struct step_inputs *in = &a->inputs;

	if (!a->layers || !a->n_layers || !a->cos_sin || !a->max_positions || !a->logits || !a->n_pages)
		return false;
	if (!in->input_ids || !in->positions || !in->slot_mapping || !in->seq_lens || !in->block_table)
		return false;
	if (!in->max_pages || !in->page_tokens || a->n_rows > in->max_rows || !a->n_rows)
		return false;
	if (!a->n_kv_heads || !a->n_heads || a->n_heads % a->n_kv_heads || a->head_dim % 2 || !a->head_dim)
		return false;
	if (!checks_weight(&a->embedding) || !weight_is(&a->final_norm, 1, a->embedding.cols))
		return false;
	if (!weight_is(&a->head, a->head.rows, a->embedding.cols) || !checks_eps(a->eps))
		return false;
	for (uint32_t l = 0; l < a->n_layers; l++)
		if (!decode_layer_fits(a, &a->layers[l]))
			return false;
	return true;
}

bool silu_mul_fits(const struct op_silu_mul *a)
{
	return a->gate_up && a->out && a->cols && a->n_rows <= INT32_MAX;
}

bool mla_rope_and_cache_fits(const struct op_mla_rope_and_cache *a)
{
	if (!a->q || !a->kv_a || !a->positions || !a->slot_mapping || !a->cos_sin || !a->kv)
		return false;
	if (!a->n_heads || !a->rope || a->rope % 2 || !a->page_tokens || !a->max_positions)
		return false;
	if (a->fp8 && !kv_factor_fits(a->factors.key))
		return false;
	return weight_is(&a->norm, 1, a->rank) && checks_eps(a->eps) && a->n_tokens <= INT32_MAX;
}

bool head_gemm_fits(const struct op_head_gemm *a)
{
	const uint64_t rows = (uint64_t)a->n_heads * a->head_rows;

	if (!a->x || !a->y || !a->n_heads || a->n_heads > UINT16_MAX || !a->head_n)
		return false;
	if ((uint64_t)a->head_first + a->head_n > a->head_rows || rows > UINT32_MAX)
		return false;
	return a->n_rows <= INT32_MAX && a->head_n <= INT32_MAX && a->w.cols <= INT32_MAX &&
	       weight_is(&a->w, (uint32_t)rows, a->w.cols);
}

/* ---- mixture of experts ---- */

bool moe_route_fits(const struct op_moe_route *a)
{
	uint32_t group;

	if (!a->logits || !a->slot_mapping || !a->experts || !a->weights)
		return false;
	if (!a->n_experts || !a->n_active || !a->n_groups || a->n_experts % a->n_groups)
		return false;
	if (!a->n_groups_active || a->n_groups_active > a->n_groups)
		return false;
	group = a->n_experts / a->n_groups;
	return a->n_active <= group * a->n_groups_active && (!a->group_top_two || group >= 2) &&
	       checks_optional(&a->bias, a->n_experts);
}

bool moe_group_fits(const struct op_moe_group *a)
{
	return a->experts && a->expert_start && a->pairs && a->n_experts && a->n_active &&
	       a->n_tokens <= INT32_MAX / a->n_active;
}

/* Of n matrices, one below the other: the rows of a unit belong to one matrix. */
static bool checks_weights(const struct weight *w, uint32_t n)
{
	if (w->rows % n)
		return false;
	return checks_weight(w) || (checks_packed(w) && !w->factors && packed_fits(w->rows / n, w->cols));
}

bool expert_gemm_fits(const struct op_expert_gemm *a)
{
	if (!a->x || !a->y || !a->expert_start || !a->pairs || !a->n_experts || !a->n_active)
		return false;
	if (a->x_div != 1 && a->x_div != a->n_active)
		return false;
	return checks_weights(&a->w, a->n_experts) && a->w.cols <= INT32_MAX &&
	       a->n_tokens <= INT32_MAX / a->n_active;
}

bool expert_gated_gemm_fits(const struct op_expert_gated_gemm *a)
{
	const struct op_expert_gemm gemm = {a->x, a->n_active, a->w, a->expert_start, a->pairs,
		a->y, a->n_tokens, a->n_active, a->n_experts};

	return expert_gemm_fits(&gemm) && a->gate_up && a->w.rows / a->n_experts % 2 == 0 &&
	       checks_weights(&a->w, 2 * a->n_experts);
}

bool moe_combine_fits(const struct op_moe_combine *a)
{
	return a->y && a->experts && a->weights && a->out && a->cols && a->n_active &&
	       a->n_tokens <= INT32_MAX && a->cols <= INT32_MAX;
}

/* ---- results and pages ---- */

bool gather_rows_fits(const struct op_gather_rows *a)
{
	return a->x && a->out && a->x_rows && a->cols && a->n_rows <= INT32_MAX &&
	       (!a->out_stride || a->out_stride >= a->cols);
}

bool to_f32_fits(const struct op_to_f32 *a)
{
	return a->x && a->out && a->n <= SIZE_MAX / sizeof(float);
}

bool soft_cap_fits(const struct op_soft_cap *a)
{
	return a->x && a->n <= SIZE_MAX / sizeof(float) && isfinite(a->cap) && a->cap > 0;
}

bool copy_pages_fits(const struct op_copy_pages *a)
{
	return a->kv && a->page_bytes && (!a->n_pairs || a->pairs);
}

bool outbox_fits(const struct op_outbox *a)
{
	if (a->out_logprobs && (!a->row_flags || !a->logprobs))
		return false;
	return a->sampled && a->out && a->flag;
}

/* ---- adjustment of logits, log-probabilities ---- */

static bool checks_adjust(const struct step_inputs *in)
{
	return in->slot_adjust && in->slot_counts && in->slot_bias && in->slot_allowed &&
	       in->row_logprobs && in->vocab_size && in->vocab_size <= INT32_MAX && in->max_slots;
}

bool update_slots_fits(const struct op_update_slots *a)
{
	return (a->updates || !a->n) && a->n <= UINT16_MAX && checks_adjust(&a->inputs);
}

bool adjust_fits(const struct op_adjust *a)
{
	const struct step_inputs *in = &a->inputs;

	if (!a->logits || a->vocab != in->vocab_size || a->n_rows > in->max_rows || !checks_adjust(in))
		return false;
	if (a->n_rows > UINT16_MAX || !in->row_slot || !in->row_flags || !in->seq_lens)
		return false;
	return !in->max_drafts || (in->query_start && in->slot_length && in->slot_drafts);
}

bool logprobs_fits(const struct op_logprobs *a)
{
	return a->logits && a->tokens && a->out && a->vocab && a->vocab <= INT32_MAX &&
	       a->n_rows <= UINT16_MAX && a->n_top <= LOGPROBS_TOP_MAX;
}

bool mean_rows_fits(const struct op_mean_rows *a)
{
	return a->x && a->sum && a->cols && a->n_rows <= INT32_MAX && a->cols <= INT32_MAX &&
	       (!a->total || a->mean);
}

/* ---- sampling and speculation ---- */

bool sample_fits(const struct op_sample *a)
{
	const struct step_inputs *in = &a->inputs;

	if (!a->logits || !a->sampled || !a->vocab || a->vocab > INT32_MAX)
		return false;
	if (a->n_rows > in->max_rows || !in->max_slots || a->purpose > SAMPLE_RESIDUAL)
		return false;
	return in->row_slot && in->row_flags && in->seq_lens && in->slot_sampling &&
	       in->slot_last_token && a->n_rows <= UINT16_MAX;
}

bool verify_fits(const struct op_verify *a)
{
	const struct step_inputs *in = &a->inputs;

	return a->logits && a->sampled && a->vocab && a->vocab == in->vocab_size &&
	       checks_speculation(in, a->n_rows) && in->query_start && in->seq_lens;
}

bool draft_begin_fits(const struct op_draft_begin *a)
{
	const struct step_inputs *in = &a->inputs;
	const struct draft_inputs *d = &a->draft;

	if (!checks_speculation(in, a->n_rows) || a->n_tokens > in->max_tokens || !a->sampled)
		return false;
	return in->query_start && in->input_ids && in->slot_mapping && in->next_ids &&
	       d->input_ids && d->slot_mapping && d->last_index && d->step;
}

bool draft_advance_fits(const struct op_draft_advance *a)
{
	const struct draft_inputs *d = &a->draft;

	if (!checks_speculation(&a->inputs, a->n_rows) || !a->inputs.slot_block_table)
		return false;
	if (!a->logits || !a->draft_vocab || a->draft_vocab > INT32_MAX)
		return false;
	return d->last_index && d->step && d->decode_ids && d->positions &&
	       d->decode_slot_mapping && d->query_start && d->seq_lens && d->hidden_index;
}
