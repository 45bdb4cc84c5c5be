/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/charge.h"

#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/pinned.h"

#define CHARGE_PAGES 64 /* to look at so many costs as much of a session's turn as a request (admit.c) */

static uint64_t charge_pages_of(const struct runner *runner, uint64_t n_tokens)
{
	return ((n_tokens - 1) / runner->limits->page_tokens + 1) * runner->options.sets.n;
}

static void charge_begin(struct runner *runner)
{
	pinned_begin_marks(&runner->slots, kv_cache_config(runner->kv)->max_pages);
}

/* Pages for n_total tokens of the sequence. */
static uint64_t charge_asked(const struct sequence *sequence, uint32_t n_total)
{
	sequence->session->cost += kv_table_held(sequence->runner->kv, &sequence->table) / CHARGE_PAGES;
	return pinned_asked(sequence, n_total);
}

static bool charge(struct request *request, uint64_t asked, struct msg_detail *ret_refusal)
{
	const uint32_t left = pinned_left(request);

	if (asked <= left) {
		pinned_promise(request, (uint32_t)asked);
		return true;
	}
	*ret_refusal = DETAIL(RING_DETAIL_BUDGET, RING_BUDGET_PAGES, (int64_t)asked, left);
	return false;
}

/* As many tokens as there are pages left for beyond those asked for n_own tokens and one more. Returns what is
 * asked for with them. */
static uint64_t charge_limit(struct request *request, uint64_t n_own, uint64_t asked)
{
	const struct runner *runner = request->runner;
	const uint64_t left = pinned_left(request), n_first = charge_pages_of(runner, n_own + 1);
	const uint64_t n_pages = n_first + (left > asked ? left - asked : 0);
	const uint64_t most = n_pages / runner->options.sets.n * runner->limits->page_tokens - n_own;

	if (request->max_tokens > most)
		request->max_tokens = (uint32_t)most;
	return asked + charge_pages_of(runner, n_own + request->max_tokens) - n_first;
}

bool charge_generate(struct request *request, const struct sequence *sequence, struct msg_detail *ret_refusal)
{
	const uint32_t n_own = sequence->n_tokens + request->rows[0].n_tokens;
	uint64_t asked;

	if (request->n_promised || !sequence_pins(sequence, request))
		return true;
	charge_begin(request->runner);
	asked = charge_asked(sequence, n_own + (request->no_limit ? 1 : request->max_tokens));
	if (request->no_limit)
		asked = charge_limit(request, n_own, asked);
	return charge(request, asked, ret_refusal);
}

bool charge_step(struct request *request, struct msg_detail *ret_refusal)
{
	uint64_t asked = 0;

	if (request->n_promised)
		return true;
	charge_begin(request->runner);
	for (uint32_t i = 0; i < request->n_rows; i++) {
		const struct request_row *row = &request->rows[i];
		const struct sequence *s = engine_session_sequence(request->session, row->sequence);

		if (sequence_pins(s, request))
			asked += charge_asked(s, s->n_tokens + row->n_tokens);
	}
	return charge(request, asked, ret_refusal);
}
