/* SPDX-License-Identifier: MIT */
#include "daemon/engine/lane/updates.h"

#include <assert.h>

#include "daemon/engine/requests/request.h"

uint32_t updates_row_flags(const struct request *request)
{
	return (request->adjusts ? ROW_ADJUST : 0) | (request->counts ? ROW_COUNT : 0) |
		(request->want_logprobs ? ROW_LOGPROBS : 0);
}

/* Where the output begins that presence and frequency count. */
static uint32_t updates_output_start(const struct sequence *s)
{
	const uint32_t start = s->request->penalty_start;

	return start && start < s->target ? start : s->target;
}

/* Where the tokens begin that are to be counted: those before the output count for repetition alone. */
static uint32_t updates_first(const struct sequence *s)
{
	return s->request->adjust.repetition != 1 ? 0 : updates_output_start(s);
}

/* What the first part has. The prompt's end is that of its first start, also after a preemption. */
static struct slot_update updates_begin(const struct sequence *s)
{
	const struct request *request = s->request;
	struct slot_update update = {
		.flags = UPDATE_SET | (request->counts ? UPDATE_CLEAR : 0),
		.adjust = request->adjust,
		.bias = (const struct token_bias *)request->bias,
		.allowed = request->allowed,
	};
	const uint64_t min_position = (uint64_t)s->target + request->min_tokens;

	update.adjust.min_position = min_position < UINT32_MAX ? (uint32_t)min_position : UINT32_MAX;
	return update;
}

static void updates_count(struct inputs_slot *slot, struct sequence *s)
{
	const uint32_t first = updates_first(s), start = updates_output_start(s);

	if (s->n_counted < first)
		s->n_counted = first;
	if (s->n_counted < s->prompt_end)
		s->n_counted += inputs_count_tokens(slot, s->tokens + s->n_counted, s->prompt_end - s->n_counted,
			start > s->n_counted ? start - s->n_counted : 0);
}

bool updates_add(struct inputs_slot *slot, struct sequence *s)
{
	const struct request *request = s->request;
	struct slot_update update = {0};

	assert(s->state == SEQUENCE_RUNNING && request->op == RING_OP_GENERATE);
	if (s->updated || !updates_row_flags(request))
		return true;
	if (s->update_began && slot->n_counted == INPUTS_UPDATE_TOKENS)
		return false;
	if (!s->update_began)
		update = updates_begin(s);
	if (!inputs_can_update(slot, update.flags & UPDATE_SET ? update.adjust.n_bias : 0))
		return false;
	update.slot = s->slot;
	inputs_add_update(slot, &update);
	s->update_began = true;
	if (request->counts)
		updates_count(slot, s);
	s->updated = !request->counts || s->n_counted >= s->prompt_end;
	return s->updated;
}
