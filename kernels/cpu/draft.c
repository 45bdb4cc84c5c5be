/* SPDX-License-Identifier: MIT */

/*
 * The loop of a draft: what its first forward reads, then draft by draft the token and what the
 * next forward reads. All that changes from step to step is on the device, the count of drafts
 * too, so that one graph may be replayed for each.
 *
 * Positions come from slot_length alone: behind a step the slot's last token stands at slot_length,
 * draft i of it at slot_length + 1 + i, and the forward that reads draft i writes its keys at
 * slot_length + i, since the draft's position p reads the hidden state of p and the token of p + 1.
 */

#include <string.h>

#include "kernels/cpu/launchers.h"
#include "kernels/cpu/sampling.h"

static uint32_t draft_clamp_token(const struct step_inputs *in, int32_t token)
{
	if (token < 0)
		return 0;
	return (uint32_t)token < in->max_tokens ? (uint32_t)token : in->max_tokens;
}

static int32_t draft_wanted(const struct step_inputs *in, int32_t slot)
{
	int32_t n = in->slot_n_drafts[slot];

	return n < (int32_t)in->max_drafts ? n : (int32_t)in->max_drafts;
}

/* ---- the first forward ---- */

static void draft_empty_tokens(const struct draft_inputs *d, uint32_t first, uint32_t end)
{
	for (uint32_t t = first; t < end; t++) {
		d->input_ids[t] = 0;
		d->slot_mapping[t] = -1;
	}
}

/* The token of [first, end) behind which the drafts begin. */
static uint32_t draft_last_held(
	const struct op_draft_begin *a, uint32_t r, uint32_t first, uint32_t end)
{
	const uint32_t width = 1 + a->inputs.max_drafts;
	const int32_t *sampled = a->sampled + (size_t)r * width;
	uint32_t n = 0;

	if (!((uint32_t)a->inputs.row_flags[r] & ROW_VERIFY))
		return end - 1;
	while (n < width && n < end - first && sampled[n] >= 0)
		n++;
	return n ? first + n - 1 : first;
}

static void draft_begin_row(
	const struct op_draft_begin *a, uint32_t r, uint32_t first, uint32_t end)
{
	const struct step_inputs *in = &a->inputs;
	int32_t slot = in->row_slot[r], behind;
	uint32_t last;
	bool writes;

	a->draft.last_index[r] = 0;
	if (!slot_exists(in, slot) || first == end) {
		draft_empty_tokens(&a->draft, first, end);
		return;
	}
	last = draft_last_held(a, r, first, end);
	writes = draft_wanted(in, slot) > 0;
	behind = sampled_slot(in, r) >= 0 ? in->slot_last_token[slot] : in->next_ids[r];
	for (uint32_t t = first; t < end; t++) {
		bool known = t != last && t + 1 < end;

		a->draft.input_ids[t] = clamp_id(in, known ? in->input_ids[t + 1] : behind);
		a->draft.slot_mapping[t] = writes ? in->slot_mapping[t] : -1;
	}
	a->draft.last_index[r] = (int32_t)last;
}

static void draft_begin_run(const void *args, void *workspace)
{
	const struct op_draft_begin *a = args;
	const struct step_inputs *in = &a->inputs;
	uint32_t t = 0;

	if (a->began)
		*a->began = cpu_clock_ns();
	*a->draft.step = 0;
	for (uint32_t r = 0; r < a->n_rows; r++) {
		uint32_t end = draft_clamp_token(in, in->query_start[r + 1]);

		end = end > t ? end : t;
		draft_begin_row(a, r, t, end);
		t = end;
	}
	for (uint32_t r = a->n_rows; r < in->max_rows; r++)
		a->draft.last_index[r] = 0;
	draft_empty_tokens(&a->draft, t, in->max_tokens);
}

/* ---- a draft, and the decode behind it ---- */

/* Where the token at a position of a slot is written in the cache; -1: past its pages. */
static int32_t draft_cache_slot(const struct step_inputs *in, int32_t slot, uint64_t position)
{
	const int32_t *pages = in->slot_block_table + (size_t)slot * in->max_pages;
	uint64_t page = position / in->page_tokens;

	if (page >= in->max_pages || pages[page] <= 0)
		return -1;
	return place_in_page(in, pages[page], position);
}

/* The target's id of a draft's; -1: it has none. */
static int32_t draft_target_id(const struct op_draft_advance *a, uint32_t id)
{
	int64_t target = (int64_t)id + (a->d2t ? a->d2t[id] : 0);

	return target >= 0 && target < (int64_t)a->inputs.vocab_size ? (int32_t)target : -1;
}

/* out[vocab] := the draft's logits in the target's order. */
static void draft_place_logits(const struct op_draft_advance *a, const float *logits, float *out)
{
	for (uint32_t i = 0; i < a->inputs.vocab_size; i++)
		out[i] = -INFINITY;
	for (uint32_t i = 0; i < a->draft_vocab; i++) {
		int32_t id = draft_target_id(a, i);

		if (id >= 0)
			out[id] = logits[i];
	}
}

/* -1: the logits are not finite (op_sample). */
static int32_t draft_token(const struct op_draft_advance *a, uint32_t r, int32_t slot, uint32_t i,
	uint64_t position, struct candidate *heap)
{
	const struct step_inputs *in = &a->inputs;
	const struct slot_sampling *s = &in->slot_sampling[slot];
	const float *logits = a->logits + (size_t)r * a->draft_vocab;
	float *own = in->slot_draft_logits +
		     ((size_t)slot * in->max_drafts + i) * in->vocab_size;

	if (sampling_is_greedy(s)) {
		int32_t first = filter_arg_max(logits, a->draft_vocab);

		return first < 0 ? -1 : draft_target_id(a, (uint32_t)first);
	}
	draft_place_logits(a, logits, own);
	return sample_row(own, in->vocab_size, s,
		noise_key(s->seed, (uint32_t)position, SAMPLE_DRAFT), heap);
}

static void draft_empty_decode(const struct draft_inputs *d, uint32_t r)
{
	d->decode_ids[r] = 0;
	d->positions[r] = 0;
	d->decode_slot_mapping[r] = -1;
	d->seq_lens[r] = 0;
}

static void draft_advance_row(
	const struct op_draft_advance *a, uint32_t r, uint32_t i, struct candidate *heap)
{
	const struct step_inputs *in = &a->inputs;
	int32_t slot = in->row_slot[r], wanted, token = -1;
	int32_t *drafts;
	uint64_t length;

	a->draft.hidden_index[r] = i ? (int32_t)r : a->draft.last_index[r];
	draft_empty_decode(&a->draft, r);
	if (!slot_exists(in, slot) || i >= in->max_drafts)
		return;
	drafts = in->slot_drafts + (size_t)slot * in->max_drafts;
	length = in->slot_length[slot] > 0 ? (uint64_t)in->slot_length[slot] : 0;
	wanted = sampled_slot(in, r) >= 0 ? draft_wanted(in, slot) : 0;
	if ((int64_t)i < wanted && (i == 0 || drafts[i - 1] >= 0) &&
		draft_cache_slot(in, slot, length + 1 + i) >= 0)
		token = draft_token(a, r, slot, i, length + 1 + i, heap);
	drafts[i] = token;
	if (token < 0 || (int64_t)i + 1 >= wanted)
		return;
	a->draft.decode_ids[r] = token;
	a->draft.positions[r] = (int32_t)(length + i);
	a->draft.decode_slot_mapping[r] = draft_cache_slot(in, slot, length + i);
	a->draft.seq_lens[r] = (int32_t)(length + i + 1);
}

static void draft_advance_run(const void *args, void *workspace)
{
	const struct op_draft_advance *a = args;
	const struct step_inputs *in = &a->inputs;
	const struct draft_inputs *d = &a->draft;
	uint32_t i = *d->step > 0 ? (uint32_t)*d->step : 0;

	for (uint32_t r = 0; r < a->n_rows; r++)
		draft_advance_row(a, r, i, workspace);
	for (uint32_t r = a->n_rows; r < in->max_rows; r++) {
		draft_empty_decode(d, r);
		d->hidden_index[r] = 0;
	}
	for (uint32_t r = 0; r <= in->max_rows; r++)
		d->query_start[r] = (int32_t)(r < a->n_rows ? r : a->n_rows);
	*d->step = (int32_t)(i < in->max_drafts ? i + 1 : in->max_drafts);
}

/* ---- launchers ---- */

CPU_OP(draft_begin, 0)
CPU_OP(draft_advance, (size_t)a->inputs.vocab_size * sizeof(struct candidate))
