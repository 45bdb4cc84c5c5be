/* SPDX-License-Identifier: MIT */

/*
 * Adjustment of logits, and its inverse for the one token that was drawn. Tokens that a row to verify
 * has ahead of a logit are counted for that logit alone: slot_counts changes when they are accepted.
 */

#include "kernels/cpu/adjust.h"

#include <float.h>
#include <string.h>

#include "kernels/cpu/launchers.h"
#include "kernels/cpu/sampling.h"

/* The logits behind one token of a row. */
struct adjustment {
	const struct step_inputs *in;
	const struct slot_adjust *slot;
	const struct token_bias *bias; /* [slot.n_bias] */
	const uint16_t *counts;        /* [vocab] */
	const uint32_t *allowed;       /* [TOKEN_WORDS] */
	const int32_t *drafts;         /* [n_drafts] ahead of it */
	uint32_t n_drafts;
	uint64_t position;             /* of the token that they give */
	float *logits;                 /* [vocab] */
	uint32_t vocab;
};

static struct adjustment adjust_of_slot(const struct step_inputs *in, int32_t slot)
{
	return (struct adjustment){
		.in = in,
		.slot = &in->slot_adjust[slot],
		.bias = in->slot_bias + (size_t)slot * SLOT_BIAS_MAX,
		.counts = in->slot_counts + (size_t)slot * COUNTS_STRIDE(in->vocab_size),
		.allowed = in->slot_allowed + (size_t)slot * TOKEN_WORDS(in->vocab_size),
		.vocab = in->vocab_size,
	};
}

static float adjust_to_f32(double x)
{
	return (float)fmax(-(double)FLT_MAX, fmin(x, (double)FLT_MAX));
}

/* ---- bias ---- */

static void adjust_add_bias(const struct adjustment *a)
{
	for (uint32_t i = 0; i < a->slot->n_bias && i < SLOT_BIAS_MAX; i++) {
		const struct token_bias *b = &a->bias[i];
		float *x = a->logits + b->token;

		if (b->token < 0 || (uint32_t)b->token >= a->vocab || !isfinite(*x))
			continue;
		*x = isfinite(b->bias) ? adjust_to_f32((double)*x + (double)b->bias) : -INFINITY;
	}
}

/* The token's bias, or 0. */
static float adjust_bias_of(const struct adjustment *a, int32_t token)
{
	uint32_t low = 0, high = a->slot->n_bias < SLOT_BIAS_MAX ? a->slot->n_bias : SLOT_BIAS_MAX;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (a->bias[middle].token == token)
			return a->bias[middle].bias;
		if (a->bias[middle].token < token)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

/* ---- penalties ---- */

static bool adjust_penalises(const struct slot_adjust *s)
{
	return s->repetition != 1 || s->presence != 0 || s->frequency != 0;
}

/* n: of the token's count, how often it is among the output. */
static double adjust_subtracted(const struct slot_adjust *s, uint32_t n)
{
	return (double)s->frequency * n + (n ? (double)s->presence : 0);
}

static float adjust_penalised(const struct slot_adjust *s, float logit, uint32_t count)
{
	double x = (double)logit;

	if (!count || !isfinite(logit))
		return logit;
	x = x > 0 ? x / (double)s->repetition : x * (double)s->repetition;
	return adjust_to_f32(x - adjust_subtracted(s, count & COUNT_MAX));
}

/* Before penalties and bias. */
static double adjust_undone(const struct adjustment *a, int32_t token, float logit)
{
	const uint32_t count = a->counts[token];
	double x = (double)logit;

	if (count && adjust_penalises(a->slot)) {
		x += adjust_subtracted(a->slot, count & COUNT_MAX);
		x = x > 0 ? x * (double)a->slot->repetition : x / (double)a->slot->repetition;
	}
	return x - (double)adjust_bias_of(a, token);
}

static uint32_t adjust_count_one(uint32_t count)
{
	return (count & COUNT_MAX) < COUNT_MAX ? count + 1 : count;
}

/* The token's count with those of the row's drafts that come before. */
static uint32_t adjust_count_behind(const struct adjustment *a, int32_t token)
{
	uint32_t count = a->counts[token];

	for (uint32_t i = 0; i < a->n_drafts; i++)
		count = a->drafts[i] == token ? adjust_count_one(count) : count;
	return count;
}

static void adjust_penalise(const struct adjustment *a)
{
	for (uint32_t id = 0; id < a->vocab; id++)
		a->logits[id] =
			adjust_penalised(a->slot, a->logits[id], adjust_count_behind(a, (int32_t)id));
}

/* ---- bans ---- */

static void adjust_ban_token(const struct adjustment *a, uint32_t token)
{
	if (token < a->vocab && isfinite(a->logits[token]))
		a->logits[token] = -INFINITY;
}

static void adjust_ban(const struct adjustment *a)
{
	for (uint32_t id = 0; a->slot->masked && id < a->vocab; id++) {
		if (!(a->allowed[id / 32] >> id % 32 & 1))
			adjust_ban_token(a, id);
	}
	if (a->position >= a->slot->min_position)
		return;
	for (uint32_t i = 0; i < a->slot->n_ends && i < SLOT_ENDS_MAX; i++)
		adjust_ban_token(a, (uint32_t)a->slot->ends[i]);
}

/* ---- rows ---- */

static void adjust_begin_logprobs(const struct adjustment *a, uint32_t r, uint32_t i)
{
	struct token_logprob *out = adjust_logprobs_of(a->in, r, i);
	double log_sum = logprobs_top(a->logits, a->vocab, a->slot->n_top, out);

	_Static_assert(sizeof(*out) == sizeof(log_sum), "the sum has the place of an entry");
	memcpy(out, &log_sum, sizeof(log_sum));
}

static void adjust_token(const struct adjustment *a, uint32_t r, uint32_t i)
{
	uint32_t flags = (uint32_t)a->in->row_flags[r];

	if (flags & ROW_LOGPROBS)
		adjust_begin_logprobs(a, r, i);
	if (!(flags & ROW_ADJUST))
		return;
	adjust_add_bias(a);
	if (adjust_penalises(a->slot))
		adjust_penalise(a);
	adjust_ban(a);
}

/* How many of the row's tokens have logits, of a row to verify. */
static uint32_t adjust_tokens_to_verify(const struct step_inputs *in, uint32_t r)
{
	int64_t n = (int64_t)in->query_start[r + 1] - in->query_start[r];

	return n < 0 ? 0 : n > 1 + (int64_t)in->max_drafts ? 1 + in->max_drafts : (uint32_t)n;
}

static void adjust_row(const struct op_adjust *args, uint32_t r, int32_t slot)
{
	const struct step_inputs *in = &args->inputs;
	const bool verifies =
		in->max_drafts && !args->last_only && ((uint32_t)in->row_flags[r] & ROW_VERIFY);
	const uint32_t n = verifies ? adjust_tokens_to_verify(in, r) : 1;
	const size_t width = args->last_only ? 1 : 1 + in->max_drafts;
	struct adjustment a = adjust_of_slot(in, slot);
	uint64_t first = (uint64_t)in->seq_lens[r];

	if (verifies) {
		first = (in->slot_length[slot] > 0 ? (uint64_t)in->slot_length[slot] : 0) + 1;
		a.drafts = in->slot_drafts + (size_t)slot * in->max_drafts;
	}
	for (uint32_t i = 0; i < n; i++) {
		a.n_drafts = i;
		a.position = first + i;
		a.logits = args->logits + (r * width + i) * args->vocab;
		/* What is behind a missing draft is never looked at. */
		if (i && (a.drafts[i - 1] < 0 || (uint32_t)a.drafts[i - 1] >= args->vocab))
			return;
		adjust_token(&a, r, i);
	}
}

static void adjust_run(const void *args, void *workspace)
{
	const struct op_adjust *a = args;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		int32_t slot = sampled_slot(&a->inputs, r);

		if (slot >= 0 && ((uint32_t)a->inputs.row_flags[r] & (ROW_ADJUST | ROW_LOGPROBS)))
			adjust_row(a, r, slot);
	}
}

CPU_OP(adjust, 0)

/* ---- the token that was drawn ---- */

static float adjust_logprob_of(const struct adjustment *a, const struct token_logprob *entries,
	const float *logits, int32_t token, bool adjusted)
{
	double log_sum;

	for (uint32_t i = 1; i <= a->slot->n_top && i <= LOGPROBS_TOP_MAX; i++) {
		if (entries[i].token == token)
			return entries[i].logprob;
	}
	memcpy(&log_sum, entries, sizeof(log_sum));
	if (!adjusted)
		return (float)((double)logits[token] - log_sum);
	return (float)(adjust_undone(a, token, logits[token]) - log_sum);
}

void adjust_settle(const struct step_inputs *in, uint32_t r, uint32_t i, const float *logits, int32_t token)
{
	const uint32_t flags = (uint32_t)in->row_flags[r];
	const int32_t slot = in->row_slot[r];
	struct token_logprob *entries;
	struct adjustment a;

	if (!in->slot_adjust || !(flags & (ROW_COUNT | ROW_LOGPROBS)))
		return;
	a = adjust_of_slot(in, slot);
	if (flags & ROW_LOGPROBS) {
		entries = adjust_logprobs_of(in, r, i);
		entries[0] = (struct token_logprob){token,
			token < 0 ? NAN : adjust_logprob_of(&a, entries, logits, token, flags & ROW_ADJUST)};
	}
	if (flags & ROW_COUNT && token >= 0) {
		uint16_t *count = in->slot_counts + (size_t)slot * COUNTS_STRIDE(in->vocab_size) + token;

		*count = (uint16_t)adjust_count_one(*count);
	}
}

/* ---- updates ---- */

static void update_slots_count(const struct step_inputs *in, const struct slot_update *u)
{
	uint16_t *counts = in->slot_counts + (size_t)u->slot * COUNTS_STRIDE(in->vocab_size);

	for (uint32_t i = 0; i < u->n_tokens; i++) {
		uint16_t *count = counts + clamp_id(in, u->tokens[i]);

		*count = (uint16_t)(i < u->n_prompt ? *count | COUNT_PROMPT : adjust_count_one(*count));
	}
}

static void update_slots_run(const void *args, void *workspace)
{
	const struct op_update_slots *a = args;
	const struct step_inputs *in = &a->inputs;
	const uint32_t stride = COUNTS_STRIDE(in->vocab_size), words = TOKEN_WORDS(in->vocab_size);

	for (uint32_t i = 0; i < a->n; i++) {
		const struct slot_update *u = &a->updates[i];

		if (!slot_exists(in, u->slot))
			continue;
		if (u->flags & UPDATE_CLEAR)
			memset(in->slot_counts + (size_t)u->slot * stride, 0, stride * sizeof(*in->slot_counts));
		if (u->flags & UPDATE_SET) {
			in->slot_adjust[u->slot] = u->adjust;
			memcpy(in->slot_bias + (size_t)u->slot * SLOT_BIAS_MAX, u->bias,
				(u->adjust.n_bias < SLOT_BIAS_MAX ? u->adjust.n_bias : SLOT_BIAS_MAX) *
					sizeof(*u->bias));
			if (u->adjust.masked)
				memcpy(in->slot_allowed + (size_t)u->slot * words, u->allowed,
					words * sizeof(*u->allowed));
		}
		update_slots_count(in, u);
	}
}

CPU_OP(update_slots, 0)
