/* SPDX-License-Identifier: MIT */
/*
 * Which rows the next step carries: decodes first, then prompt chunks, up to the step's limits of rows
 * and tokens. Prompts take the rest of the token budget in the order of their sessions' shares (share.h) and of
 * their classes (class.h), of a session and class the oldest first; beside decodes only as many tokens as the
 * target of a token's time allows (pace.h). A prefix whose tokens attend to each other is not cut: it waits if it does
 * not fit, and goes ahead of the decodes in the next step, one a step, never in two steps in a row. Verifications
 * have several tokens each and may fill a step: one of them then yields to prompts in the next.
 *
 * A prompt has its pages from admission on, but those of a generate request in sets with a window (kv_sets.h) only for
 * its first step; the others, and those of a decode's next tokens, are taken here. Where none are free, idle sequences
 * are evicted and younger requests preempted (reclaim.h); a row whose pages are still on their way back is left out of
 * the step.
 *
 * Hot path: no allocation, no lock, no system call.
 */
#include "daemon/engine/lane/lane.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/lane/row.h"
#include "daemon/engine/lane/speculation.h"
#include "daemon/engine/lane/updates.h"
#include "daemon/engine/requests/class.h"
#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/finish.h"
#include "daemon/engine/requests/follow.h"
#include "daemon/engine/requests/reclaim.h"
#include "daemon/engine/requests/request.h"
#include "daemon/engine/requests/sequence.h"

/* Positions that are known (to the host, or to the device as a slot's last token), not computed. */
static uint32_t schedule_remaining(const struct sequence *s)
{
	return s->n_tokens + s->n_pending - s->n_computed;
}

static bool schedule_may_sample(const struct sequence *s)
{
	const struct request *r = s->request;

	return r->op != RING_OP_GENERATE || r->n_generated + s->n_pending < r->max_tokens;
}

/* A generate request past its prompt. */
static bool schedule_is_past_prompt(const struct sequence *s)
{
	return s->request->op == RING_OP_GENERATE && s->n_computed >= s->prompt_end;
}

/* One token, and every earlier one computed: a generate request past its prompt or with none but that token, or a
 * client's own loop appending one token to a history. The last token of a longer prompt is not one. With draft tokens a
 * slot's first row is not one either: it does not begin where the slot's last one ended. */
static bool schedule_is_decode(const struct sequence *s)
{
	if (schedule_remaining(s) != 1 || !schedule_may_sample(s))
		return false;
	if (s->request->op == RING_OP_GENERATE)
		return schedule_is_past_prompt(s) || (s->resumes && !s->runner->options.n_drafts);
	return s->n_computed > 0 && s->request->rows[s->row].n_tokens == 1;
}

static bool schedule_is_prefill(const struct sequence *s)
{
	return schedule_remaining(s) > 0 && schedule_may_sample(s) && !schedule_is_decode(s);
}

struct batch {
	struct runner *runner;
	struct schedule *schedule;
	struct inflight *inflight;
	struct batch_shape shape;
	uint32_t max_rows, max_tokens;
	bool verifies; /* decodes take their drafts along, or none: rows of one length */
	bool yields;   /* decodes leave tokens to prompts that did not fit the last step */
	uint64_t target_ns; /* of a step with decodes; 0: none */
};

/* Results that go through the outbox, not to a device buffer. */
static bool schedule_leaves_results(const struct sequence *s)
{
	const struct request *r = s->request;

	return (r->want_logits && !r->logits.at) || ((r->want_hidden || r->mean_hidden) && !r->hidden.at);
}

/* Has the step capacity for the block table entries of the sequence's row? */
static bool schedule_can_add_pages(const struct batch *b, const struct sequence *s)
{
	const struct inputs_slot *slot = b->inflight->slot;
	const uint32_t n = row_n_unshown(s);

	return s->slot_ready ? inputs_can_add_pages(slot, n) : inputs_can_init(&b->runner->inputs, slot, n);
}

/* Count the row as computed; one that verifies yields one token at least. */
static void schedule_count_row(struct sequence *s, uint32_t n_tokens)
{
	if (s->n_drafts)
		s->n_drafted = s->n_computed + n_tokens;
	else if (s->n_drafted > s->n_computed)
		s->n_drafted = s->n_computed;
	s->n_computed += n_tokens;
	/* Steps run in order: later ones find these keys. */
	sequence_share(s);
	follow_launched(s);
}

/* The token after the row's last one; -1: the host does not know it. */
static int32_t schedule_next_id(const struct sequence *s, uint32_t n_tokens)
{
	uint32_t at = s->n_computed + n_tokens;

	return at < s->n_tokens ? s->tokens[at] : -1;
}

/* The row's length for attention's planners. That of a row that verifies is known to the device alone: its
 * upper bound. */
static uint32_t schedule_planned_length(const struct runner *runner, const struct sequence *s, uint32_t n_tokens,
	bool verify)
{
	return verify ? runner->options.max_seq_len + runner->options.n_drafts
		      : s->n_computed + n_tokens;
}

/* The shape of the batch with a row of so many tokens more. */
static void schedule_add_to_shape(struct batch *b, uint32_t n_tokens, bool decode)
{
	b->shape.uniform &= !b->inflight->n_rows || b->shape.query_len == n_tokens;
	b->shape.past_prompt &= decode;
	b->shape.query_len = n_tokens;
	b->shape.tokens += n_tokens;
	b->shape.rows = ++b->inflight->n_rows;
}

/* The row as the device has it, of n_run tokens: n_tokens of the sequence, or its last and drafts. */
static void schedule_write_row(struct batch *b, struct sequence *s, const struct inflight_row *row,
	uint32_t n_tokens, uint32_t n_run, bool decode)
{
	const struct runner *runner = b->runner;
	struct inputs_slot *slot = b->inflight->slot;
	bool from_slot = decode && !row->verify && s->n_computed >= s->n_tokens;
	struct step_row step_row = {
		.slot = s->slot,
		.flags = (from_slot ? ROW_FROM_SLOT : 0) | (row->verify ? ROW_VERIFY : 0) |
			(row->sample ? ROW_SAMPLE | updates_row_flags(s->request) : 0),
		.n_tokens = n_run,
		.start = s->n_computed,
		.next_id = schedule_next_id(s, n_tokens),
	};
	int32_t *ids;

	row_show_pages(slot, s, &step_row);
	if (s->request->mask_words)
		row_place_words(s, slot, &step_row);
	if (s->request->embeddings.at)
		row_place_embeddings(runner, s, &step_row);
	ids = inputs_add_row(slot, &step_row);
	if (from_slot || row->verify)
		memset(ids, 0, n_run * sizeof(ids[0]));
	else
		memcpy(ids, s->tokens + s->n_computed, n_tokens * sizeof(ids[0]));
	runner->query_lens[b->inflight->n_rows] = n_run;
	runner->seq_lens[b->inflight->n_rows] = schedule_planned_length(runner, s, n_run, row->verify);
}

/* Set what the draft passes after the step compute: keys of all rows, and as many draft tokens as the most
 * demanding of the rows that will verify. */
static void schedule_add_drafts(struct inflight *inflight, const struct sequence *s, bool sample)
{
	inflight->drafts |= s->n_drafts > 0;
	if (sample && schedule_may_sample(s) && s->n_drafts > inflight->n_drafts)
		inflight->n_drafts = s->n_drafts;
}

/* Of the next n_tokens, those that are computed for the first time. */
static uint32_t schedule_new_tokens(const struct sequence *s, uint32_t n_tokens)
{
	const uint32_t begin = s->n_computed > s->n_evicted ? s->n_computed : s->n_evicted;
	const uint32_t end = s->n_computed + n_tokens;

	return end > begin ? end - begin : 0;
}

/* Where the request's prefix ends, if it is still to be computed, in one piece; else 0. */
static uint32_t schedule_whole_end(const struct sequence *s)
{
	uint32_t prefix = sequence_prefix(s), end = sequence_request_start(s) + prefix;

	return prefix > 1 && s->n_computed < end ? end : 0; /* one token cannot be cut */
}

/* Its slot has what the first token is sampled with. */
static bool schedule_is_updated(const struct sequence *s)
{
	return s->updated || !updates_row_flags(s->request);
}

/* Append n_tokens of a sequence as a row, with its drafts if it is to verify; false if the row
 * does not fit the step. */
static bool schedule_add_row(struct batch *b, struct sequence *s, uint32_t n_tokens, bool decode)
{
	struct inputs_slot *slot = b->inflight->slot;
	bool generates = s->request->op == RING_OP_GENERATE, past_prompt = schedule_is_past_prompt(s);
	bool verify = decode && b->verifies && generates;
	uint32_t n_new = schedule_new_tokens(s, n_tokens);
	uint32_t n_run = verify ? 1 + b->runner->options.n_drafts : n_tokens;
	struct inflight_row row = {
		.sequence = s,
		.request = s->request->order,
		.sample = s->n_computed + n_tokens == s->n_tokens + s->n_pending,
		.last = s->n_computed < s->target && s->n_computed + n_tokens >= s->target &&
			s->request->n_rows_unlaunched,
		.verify = verify,
		.decodes = decode,
		.end = s->n_computed + n_tokens,
		.result = -1,
	};

	if (!schedule_can_add_pages(b, s) || (row.sample && !schedule_is_updated(s)) ||
		positions_capacity(slot, s, n_tokens, schedule_whole_end(s)) < n_tokens)
		return false;
	if (row.last && schedule_leaves_results(s)) {
		if (slot->n_results == b->runner->inputs.limits.max_results)
			return false;
		row.result = (int32_t)slot->n_results++;
	}
	row.positions = positions_begin(slot, s, n_tokens, b->shape.tokens);
	b->inflight->positions |= row.positions.n > 0;
	schedule_write_row(b, s, &row, n_tokens, n_run, decode);
	b->inflight->n_decodes += decode;
	b->inflight->n_prompt += decode ? 0 : n_tokens;
	b->inflight->rows[b->inflight->n_rows] = row;
	schedule_add_to_shape(b, n_run, decode);
	if (row_history_end(s) && s->n_computed + n_tokens == row_history_end(s))
		s->slot_ready = false;
	schedule_count_row(s, n_tokens);
	/* A step's token is the client's to append. */
	assert(s->n_computed <= s->n_tokens + s->n_pending);
	if (row.sample && generates) {
		s->n_pending++;
		b->inflight->n_ending += !schedule_may_sample(s);
	}
	schedule_add_drafts(b->inflight, s, row.sample);
	if (decode)
		speculation_count_decode(s);
	/* What it began with was charged at its admission. */
	if (past_prompt)
		share_charge(s->session, n_run);
	share_compute(s->session, decode ? n_run : n_new);
	/* A client's own loop may have kept the lane waiting. */
	if (past_prompt)
		b->inflight->follows |= s->last_step + 1 == b->inflight->step;
	s->last_step = b->inflight->step;
	return true;
}

static bool schedule_has_room(const struct batch *b)
{
	return b->shape.rows < b->max_rows && b->shape.tokens < b->max_tokens;
}

static struct sequence *schedule_at_turn(const struct batch *b, uint32_t i)
{
	const struct slots *slots = &b->runner->slots;

	return slots->running[(b->schedule->turn + i) % slots->n_running];
}

static bool schedule_is_in(const struct batch *b, const struct sequence *s)
{
	return s->last_step == b->inflight->step;
}

/* Does any decode have draft tokens to verify? */
static bool schedule_has_drafts(const struct runner *runner)
{
	for (uint32_t i = 0; i < runner->slots.n_running; i++) {
		if (runner->slots.running[i]->n_drafts && schedule_is_decode(runner->slots.running[i]))
			return true;
	}
	return false;
}

/* The largest length that a decode can reach: tokens of its row, draft tokens that launched steps may have
 * accepted, and tokens of the draft model's passes. */
static uint32_t schedule_decode_end(const struct batch *b, const struct sequence *s)
{
	const uint32_t k = b->verifies && s->n_drafts ? b->runner->options.n_drafts : 0;
	const uint32_t limit = sequence_limit(s);
	const uint64_t end = (uint64_t)s->n_computed + 1 + (uint64_t)k * (s->n_pending + 2);

	return end < limit ? (uint32_t)end : limit;
}

/* Is it the turn of s before that of the other? */
static bool schedule_is_before(const struct batch *b, const struct sequence *s, const struct sequence *other)
{
	const bool spares_last = b->schedule->turn % CLASS_BATCH_TURN != 0;

	if (class_is_spare(s->request) != class_is_spare(other->request))
		return class_is_spare(other->request) == spares_last;
	return class_computes_before(s->request, other->request);
}

/* Where the next row's tokens end that need pages, n_most of a prompt; a step's row has had them from the start. */
static uint32_t schedule_row_end(const struct batch *b, const struct sequence *s, uint32_t n_most)
{
	const uint32_t n = schedule_remaining(s);

	if (schedule_is_decode(s))
		return s->request->op == RING_OP_GENERATE ? schedule_decode_end(b, s) : s->n_computed;
	if (!b->runner->options.sets.window || !schedule_is_prefill(s))
		return s->n_computed;
	return s->n_computed + (n < n_most ? n : n_most);
}

static bool schedule_take_pages(struct batch *b, struct sequence *s, uint32_t n_most)
{
	struct runner *runner = b->runner;
	const uint32_t end = schedule_row_end(b, s, n_most);
	const uint32_t needed = kv_pages_needed(runner->kv, &s->table, s->n_computed, end - s->n_computed);

	if (!needed)
		return true;
	if (runner->slots.n_copies + runner->options.sets.n > runner->slots.max_copies)
		return false;
	if (needed > kv_pages_free(runner->kv) && !reclaim_pages_for_decode(runner, needed, s))
		return false;
	return sequence_extend(s, end) == 0;
}

/* Does its prompt take what others leave of the step's tokens? A prefix that is not cut may take all. */
static bool schedule_shares_tokens(const struct sequence *s)
{
	return schedule_is_prefill(s) && !schedule_whole_end(s);
}

static bool schedule_waits_for_pages(const struct batch *b, const struct sequence *s)
{
	return schedule_shares_tokens(s) && s->paged != b->schedule->turn + 1;
}

static bool schedule_waits_for_chunk(const struct batch *b, const struct sequence *s)
{
	return schedule_is_prefill(s) && !s->starved && !schedule_is_in(b, s) && s->looked != b->inflight->step;
}

/* Of those that wait the sequence whose turn it is. NULL: none does. */
static struct sequence *schedule_next(const struct batch *b,
	bool (*waits)(const struct batch *, const struct sequence *))
{
	const struct slots *slots = &b->runner->slots;
	struct sequence *ret = NULL;

	for (uint32_t i = 0; i < slots->n_running; i++) {
		struct sequence *s = slots->running[i];

		if (waits(b, s) && (!ret || schedule_is_before(b, s, ret)))
			ret = s;
	}
	return ret;
}

/* Prompts get pages of a window for the tokens that the step may have of them; none where others take them all. */
static void schedule_page_prompts(struct batch *b)
{
	uint32_t left = b->max_tokens;
	struct sequence *s;

	while (left && (s = schedule_next(b, schedule_waits_for_pages))) {
		const uint32_t n = schedule_remaining(s) < left ? schedule_remaining(s) : left;

		s->paged = b->schedule->turn + 1;
		s->starved = !schedule_take_pages(b, s, n);
		left -= s->starved ? 0 : n;
	}
}

/* Before any row is added: a request that is preempted here must not have one in this step. */
static void schedule_page_rows(struct batch *b)
{
	struct slots *slots = &b->runner->slots;

	for (uint32_t i = 0; i < slots->n_running; i++) {
		struct sequence *s = slots->running[i];
		const uint32_t n_running = slots->n_running;

		s->starved = !schedule_shares_tokens(s) && !schedule_take_pages(b, s, b->max_tokens);
		/* A preemption moves later entries to the front: examine them. */
		if (slots->n_running < n_running)
			i = UINT32_MAX;
	}
	if (b->runner->options.sets.window)
		schedule_page_prompts(b);
}

/* Of the next n tokens of a prompt, those that have pages. */
static uint32_t schedule_paged(const struct batch *b, const struct sequence *s, uint32_t n)
{
	const uint32_t n_paged = s->table.end * b->runner->limits->page_tokens - s->n_computed;

	return !b->runner->options.sets.window || n < n_paged ? n : n_paged;
}

static void schedule_add_decodes(struct batch *b)
{
	uint32_t n_run, most = b->max_tokens;

	n_run = b->verifies ? 1 + b->runner->options.n_drafts : 1;
	if (b->yields)
		most -= n_run < most ? n_run : most;
	for (uint32_t i = 0; i < b->runner->slots.n_running && schedule_has_room(b); i++) {
		struct sequence *s = schedule_at_turn(b, i);

		if (schedule_is_decode(s) && !s->starved && !schedule_is_in(b, s) &&
			b->shape.tokens + n_run <= most)
			schedule_add_row(b, s, 1, true);
	}
}

/* As much of a share as does not cut the prefix, or the whole prefix, if the budget has it. */
static uint32_t schedule_uncut(const struct sequence *s, uint32_t share, uint32_t budget)
{
	uint32_t end = schedule_whole_end(s), begin = sequence_request_start(s);

	assert(share <= budget);
	if (!end || s->n_computed + share <= begin || s->n_computed + share >= end)
		return share;
	return end - s->n_computed <= budget ? end - s->n_computed : begin - s->n_computed;
}

/* A prefix that has waited. All its tokens before are computed. */
static void schedule_add_whole(struct batch *b)
{
	for (uint32_t i = 0; i < b->runner->slots.n_running; i++) {
		struct sequence *s = schedule_at_turn(b, i);

		if (!schedule_whole_end(s) || s->n_computed != sequence_request_start(s) || s->starved)
			continue;
		schedule_add_row(b, s, sequence_prefix(s), false);
		return;
	}
}

/* Are there more than n tokens of prompts to compute? */
static bool schedule_has_prompts(const struct batch *b, uint32_t n)
{
	const struct slots *slots = &b->runner->slots;
	uint32_t sum = 0;

	for (uint32_t i = 0; i < slots->n_running && sum <= n; i++)
		if (schedule_is_prefill(slots->running[i]) && !schedule_is_in(b, slots->running[i]))
			sum += schedule_remaining(slots->running[i]);
	return sum > n;
}

/* The most prompt tokens of the step. If the pace limits them and the step is wide, its size is rounded down to one that
 * fills the products' tiles: on an H200, 8B's products take 4 % less time a row at 1536 rows than at 1664, and 6 % less
 * than at 1600. */
static uint32_t schedule_prompt_tokens(const struct batch *b)
{
	const uint32_t others = b->shape.tokens - b->inflight->n_prompt;
	uint32_t n, size;

	if (!b->inflight->n_decodes)
		return b->max_tokens;
	n = pace_tokens(&b->schedule->pace, b->target_ns, b->max_tokens);
	size = ladder_wide(others + n);
	if (others + n <= LADDER_DEFAULT_MAX || size <= others || size >= b->max_tokens || !schedule_has_prompts(b, n))
		return n;
	return size - others;
}

static void schedule_add_chunks(struct batch *b)
{
	const uint32_t most = schedule_prompt_tokens(b);
	struct sequence *s = NULL;

	while (schedule_has_room(b) && b->inflight->n_prompt < most && (s = schedule_next(b, schedule_waits_for_chunk))) {
		const uint32_t budget = b->max_tokens - b->shape.tokens;
		const uint32_t left = most - b->inflight->n_prompt;
		uint32_t n = schedule_remaining(s);

		s->looked = b->inflight->step;
		if (n > budget)
			n = budget;
		if (n > left)
			n = left;
		if (row_history_end(s) && n > row_history_end(s) - s->n_computed)
			n = row_history_end(s) - s->n_computed;
		n = schedule_paged(b, s, n);
		if (!n)
			continue; /* its turn to get pages is later */
		n = schedule_uncut(s, positions_capacity(b->inflight->slot, s, n, false), budget);
		if (n)
			schedule_add_row(b, s, n, false);
		else
			b->schedule->whole_waits = true;
	}
	b->schedule->chunks_wait = !schedule_has_room(b) && schedule_next(b, schedule_waits_for_chunk);
}

/* Launched ahead of the rows, also in a step without rows: a slot's later updates follow in order. */
static void schedule_add_updates(struct batch *b)
{
	for (uint32_t i = 0; i < b->runner->slots.n_running; i++) {
		struct sequence *s = schedule_at_turn(b, i);

		if (!schedule_is_updated(s))
			updates_add(b->inflight->slot, s);
	}
}

/* Requests that cannot be preempted may have all pages: nothing that runs returns any. The youngest ends. */
static void schedule_end_stuck(struct runner *runner)
{
	const struct slots *slots = &runner->slots;
	struct sequence *youngest = NULL;
	struct msg_detail detail;

	if (runner->launched != runner->completed || slots->releasing)
		return;
	for (uint32_t i = 0; i < slots->n_running; i++) {
		struct sequence *s = slots->running[i];

		if (!s->starved)
			return;
		if (!youngest || s->request->order > youngest->request->order)
			youngest = s;
	}
	if (!youngest)
		return;
	detail = DETAIL(RING_DETAIL_PAGES, (int64_t)kv_table_held(runner->kv, &youngest->table) + 1,
		kv_pages_total(runner->kv));
	finish_request(youngest->request, MIMEO_E_NO_MEMORY, MIMEO_FINISH_ERROR, &detail);
}

#ifdef MIMEO_TEST_FAULTS
/* Preempt every request that has computed preempt_every tokens more than when it was last preempted. */
static void schedule_preempt_often(const struct lane *lane, struct runner *runner)
{
	for (uint32_t i = 0; lane->preempt_every && i < runner->slots.n_running;) {
		struct sequence *s = runner->slots.running[i];

		if (sequence_is_preemptible(s) && s->n_computed >= s->n_evicted + lane->preempt_every)
			sequence_preempt(s);
		else
			i++;
	}
}
#else
static void schedule_preempt_often(const struct lane *lane, struct runner *runner)
{
}
#endif

bool schedule_rows(struct lane *lane, struct inflight *inflight, struct batch_shape *ret_shape)
{
	struct runner *runner = inflight->runner;
	struct schedule *schedule = &lane->schedules[runner->place];
	struct batch b = {
		.runner = runner,
		.schedule = schedule,
		.inflight = inflight,
		.shape = {.uniform = true, .past_prompt = true},
		.max_rows = lane->options->max_requests,
		.max_tokens = lane->options->max_batch_tokens,
		.yields = schedule->chunks_wait,
		.target_ns = lane->options->token_us * UINT64_C(1000),
	};
	bool whole = schedule->whole_waits;

	follow_expire(runner, lane->accounting);
	inflight->n_rows = inflight->n_drafts = inflight->n_prompt = inflight->n_decodes = inflight->n_ending = 0;
	inflight->drafts = inflight->follows = inflight->positions = false;
	if (!runner->slots.n_running)
		return false;
	schedule_preempt_often(lane, runner);
	b.verifies = schedule_has_drafts(runner);
	schedule_page_rows(&b);
	if (!runner->slots.n_running)
		return false;
	schedule_add_updates(&b);
	if (whole)
		schedule_add_whole(&b);
	schedule_add_decodes(&b);
	schedule_add_chunks(&b);
	/* Decodes go first in every second step at least. */
	schedule->whole_waits &= !whole;
	schedule->chunks_wait &= !b.yields;
	schedule->turn++;
	assert(b.shape.rows <= b.max_rows && b.shape.tokens <= b.max_tokens);
	assert(b.shape.rows == inflight->n_rows);
	*ret_shape = b.shape;
	if (!b.shape.rows)
		schedule_end_stuck(runner);
	return b.shape.rows > 0;
}
