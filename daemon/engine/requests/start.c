/* SPDX-License-Identifier: MIT */
/*
 * Starting a waiting request: its slots, and pages for the tokens that it has and the next ones. schedule.c takes
 * the others as tokens come.
 *
 * A request that finds a slot, but not all slots and pages that it needs, is blocked: later requests pass it.
 * When START_PASSES requests have passed the model's oldest blocked request, it becomes the model's head.
 * Then no other request of the model starts, and generate requests are preempted, the youngest first, until
 * the head fits. Requests older than the head are preempted only if they have gained a token since they
 * started, so that they end, too. If the blocked request would be spare (class.h), only batch requests that pass it
 * count.
 */
#include "daemon/engine/requests/start.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/probes.h"
#include "daemon/engine/requests/charge.h"
#include "daemon/engine/requests/class.h"
#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/finish.h"
#include "daemon/engine/requests/follow.h"
#include "daemon/engine/requests/reclaim.h"
#include "daemon/engine/requests/sequence_calls.h"
#include "ipc/clock.h"

#define START_PASSES 32 /* requests that may pass a blocked one */
#define START_COPIED 64 /* tokens that are copied or compared cost as much as a request */

/* Refuse the request, which no longer waits; false. */
static bool start_fail(struct request *request, int status, struct msg_detail d)
{
	finish_request(request, status,
		request->op == RING_OP_GENERATE ? MIMEO_FINISH_ERROR : MIMEO_FINISH_NONE, &d);
	return false;
}

static uint32_t start_pages_needed(const struct request *request, struct sequence *sequence, uint32_t n_total)
{
	sequence_keep_window(sequence, request);
	return kv_pages_needed(sequence->runner->kv, &sequence->table, sequence->n_computed,
		n_total - sequence->n_computed);
}

/* Charge the session's turn for n tokens that are copied or compared, or sequences that are looked at. */
static void start_copies(struct engine_session *session, uint32_t n)
{
	session->cost += n / START_COPIED;
}

/* Tokens of the prefix cache are not computed, and have no results. */
static bool start_may_take_prefix(const struct sequence *sequence, const struct request *request)
{
	return sequence_shares(sequence, request) && !request_wants_positions(request);
}

/* ---- starting ---- */

static void start_run_request(struct request *request)
{
	struct slots *slots = &request->runner->slots;
	struct request *blocked;

	engine_session_wait_remove(request->session, request);
	request->state = REQUEST_RUNNING;
	if (!request->started_ns) {
		request->started_ns = clock_ns();
		histogram_add_time(&request->runner->distributions[ENGINE_QUEUE],
			request->started_ns - request->deadlines.submitted_ns, 1);
		PROBE_REQUEST_START(request->order, request->session->port->session);
	}
	request->n_passed = 0;
	blocked = slots->blocked;
	if (!blocked || blocked->order > request->order ||
		(class_is_spare(blocked) && request->class != MIMEO_CLASS_BATCH))
		return;
	if (++blocked->n_passed < START_PASSES || slots->head)
		return;
	slots->head = blocked;
	request->session->accounting->admit = true;
}

/* Append the row's tokens to its sequence. */
static void start_append(struct sequence *sequence, const struct request_row *row)
{
	assert(sequence->n_tokens + row->n_tokens <= sequence->session->limits.max_seq_len);
	memcpy(sequence->tokens + sequence->n_tokens, row->tokens, row->n_tokens * sizeof(row->tokens[0]));
	sequence->n_tokens += row->n_tokens;
}

/* Run a row on its sequence, with pages for n_total tokens: this cannot fail, because they were counted as
 * free and only this thread takes pages. */
static void start_run(struct request *request, uint32_t i, struct sequence *sequence, uint32_t n_total)
{
	int rc;

	sequence_run(sequence, request, i);
	rc = sequence_extend(sequence, n_total);
	assert(!rc);
	sequence->table.keeps = sequence->pinned;
}

/* Spare ones count as younger than all others. */
static bool start_is_older(const struct request *a, const struct request *b)
{
	return class_is_spare(a) == class_is_spare(b) ? a->order < b->order : class_is_spare(b);
}

static enum start_outcome start_wait(struct request *request)
{
	struct slots *slots = &request->runner->slots;

	/* Without a free slot nothing passes it; its session has a turn later. */
	if (!slots->n_free)
		return START_BLOCKED;
	if (!slots->blocked || start_is_older(request, slots->blocked))
		slots->blocked = request;
	return START_BLOCKED;
}

/* The request waits for something that may never be released, so it must not delay others. */
static enum start_outcome start_wait_beside(struct request *request)
{
	engine_session_wait_beside(request);
	request->n_passed = 0;
	return START_BLOCKED;
}

/* Are the free slots and pages reserved for another request? */
static bool start_is_passed_over(const struct request *request)
{
	const struct slots *slots = &request->runner->slots;

	return (slots->head && slots->head != request) || (slots->reserved_for && slots->reserved_for != request);
}

/* Slots and pages that are preempted become free when the launched steps complete. They are reserved for the
 * request: otherwise a session with an earlier turn would take them. */
static void start_reserve(struct request *request, bool preempted)
{
	struct slots *slots = &request->runner->slots;

	if (!preempted)
		return;
	slots->reserved_for = request;
	slots->reserved_step = request->runner->launched;
	slots->reserved_turn = request->session->accounting->n_turns;
}

/* Get slots for the request, by preemption if necessary. */
static bool start_has_slots(struct request *request, uint32_t n_slots)
{
	struct runner *runner = request->runner;

	if (runner->slots.n_free >= n_slots)
		return true;
	if (runner->slots.head == request)
		return reclaim_slots(runner, n_slots);
	start_reserve(request, reclaim_slots_of_others(runner, n_slots, request));
	return false;
}

/* Get slots and pages for the request, whose sequences are marked with `claim`: by eviction if that suffices,
 * for the model's head also by preemption. */
static bool start_make_free(struct request *request, uint32_t n_slots, uint32_t n_pages, uint64_t claim)
{
	struct runner *runner = request->runner;
	const bool head = runner->slots.head == request;

	if (runner->slots.n_copies + n_slots * runner->options.sets.n > runner->slots.max_copies ||
		!start_has_slots(request, n_slots))
		return false;
	if (kv_pages_free(runner->kv) >= n_pages || reclaim_pages(runner, n_pages, claim, head))
		return true;
	if (!head)
		start_reserve(request, reclaim_pages_of_others(runner, n_pages, request));
	return false;
}

/* ---- generate ---- */

/* Set how many tokens the request may generate, or refuse it. */
static bool start_limit(struct request *request, const struct sequence *sequence)
{
	const struct runner *runner = request->runner;
	const uint32_t n_pages = kv_pages_total(runner->kv), max_seq_len = runner->options.max_seq_len;
	const uint64_t n_own = (uint64_t)sequence->n_tokens + request->rows[0].n_tokens;
	uint64_t total = n_own + (request->no_limit ? 1 : request->max_tokens);
	uint32_t in_all;

	if (total > max_seq_len)
		return start_fail(request, MIMEO_E_TOO_LONG,
			DETAIL(RING_DETAIL_LENGTH, (int64_t)total, max_seq_len));
	in_all = kv_pages_in_all(kv_cache_config(runner->kv), total, sequence_pins(sequence, request));
	if (in_all > n_pages)
		return start_fail(request, MIMEO_E_TOO_LONG,
			DETAIL(RING_DETAIL_PAGES, in_all, n_pages));
	if (!request->no_limit)
		return true;
	total = kv_tokens_within(kv_cache_config(runner->kv), n_pages, max_seq_len);
	if (request->max_tokens > total - n_own)
		request->max_tokens = (uint32_t)(total - n_own);
	return true;
}

/* A request without tokens goes on with those of its sequence, or is refused because it cannot. */
static bool start_continue(struct request *request, struct sequence *sequence)
{
	const bool computed = sequence->n_computed == sequence->n_tokens;

	if (!sequence->n_tokens)
		return start_fail(request, MIMEO_E_INVALID, DETAIL(RING_DETAIL_CONTINUE, request->sequence, 0));
	if (computed && sequence->fixed)
		return start_fail(request, MIMEO_E_UNSUPPORTED, DETAIL(RING_DETAIL_CONTINUE, request->sequence, 1));
	if (computed)
		sequence_step_back(sequence);
	return true;
}

/* Refuse a request whose sequence, length or quota does not allow it. */
static bool start_check_generate(struct request *request, struct sequence *sequence)
{
	struct msg_detail refusal;

	if (!sequence || (!sequence->open && !sequence->ephemeral))
		return start_fail(request, MIMEO_E_UNKNOWN_SEQUENCE,
			DETAIL(RING_DETAIL_SEQUENCE, request->sequence));
	if (sequence->runner != request->runner)
		return start_fail(request, MIMEO_E_INVALID,
			DETAIL(RING_DETAIL_ROW_MODEL, 0, request->sequence));
	if ((!request->rows[0].n_tokens && !start_continue(request, sequence)) || !start_limit(request, sequence))
		return false;
	return charge_generate(request, sequence, &refusal) || start_fail(request, MIMEO_E_QUOTA, refusal);
}

/* The length for which the request gets pages when it starts: its tokens, the first generated one, and the
 * draft tokens after that, whose keys the draft model writes together with the prompt's. */
static uint32_t start_first_end(const struct request *request, const struct sequence *sequence)
{
	const uint32_t n_left = request->max_tokens - request->n_generated;
	const uint32_t n_behind = 1 + request->n_drafts;

	assert(n_left > 0);
	return sequence->n_tokens + (n_behind < n_left ? n_behind : n_left);
}

/* Take a slot and pages, if available. The sequence already has the request's tokens. */
static enum start_outcome start_place_generate(struct request *request, struct sequence *sequence)
{
	const uint32_t n_total = start_first_end(request, sequence);
	const uint32_t needed = start_pages_needed(request, sequence, n_total);

	sequence->claim = ++request->session->accounting->pass;
	if (needed > kv_pages_free(request->runner->kv)) {
		start_copies(request->session, request->runner->slots.n_idle);
		if (needed > reclaim_most(request->runner, sequence->claim))
			return start_wait_beside(request);
	}
	if (!start_make_free(request, 1, needed, sequence->claim))
		return start_wait(request);
	start_run_request(request);
	start_run(request, 0, sequence, n_total);
	return START_DONE;
}

/* It goes on waiting: undo what was prepared. */
static enum start_outcome start_cut(struct request *request, struct sequence *sequence, uint32_t n_cached)
{
	if (n_cached)
		sequence_drop_prefix(sequence);
	if (!request->started)
		sequence->n_tokens -= request->rows[0].n_tokens;
	return START_BLOCKED;
}

/* Does it wait for a running request that computes the beginning of its prompt? */
static bool start_follows(struct request *request, const struct sequence *sequence, uint32_t n_cached)
{
	uint32_t n_compared;
	bool follows;

	if (sequence->n_computed > n_cached || !start_may_take_prefix(sequence, request))
		return false;
	follows = follow_begin(request, sequence, n_cached, &n_compared);
	start_copies(request->session, n_compared);
	return follows;
}

enum start_outcome start_generate(struct request *request)
{
	struct runner *runner = request->runner;
	struct sequence *sequence = engine_session_request_sequence(request);
	uint32_t n_cached = 0;

	if (!request->sequence && !request->started) {
		sequence->ephemeral = true;
		sequence_reset(sequence, runner);
	}
	if (!request->started && !start_check_generate(request, sequence))
		return START_DONE;
	if (start_is_passed_over(request) || follow_waits(request))
		return START_BLOCKED;
	if (!start_has_slots(request, 1))
		return start_wait(request);
	if (!request->started)
		start_append(sequence, &request->rows[0]);
	start_copies(request->session, sequence->n_tokens);
	if (!sequence->table.n_pages && start_may_take_prefix(sequence, request))
		n_cached = sequence_take_prefix(sequence, request->n_drafts > 0);
	if (start_follows(request, sequence, n_cached))
		return start_cut(request, sequence, n_cached);
	if (start_place_generate(request, sequence) == START_BLOCKED)
		return start_cut(request, sequence, n_cached);
	if (!request->started) {
		request->n_cached = n_cached;
		counter_add(&request->session->port->n_cached_tokens, n_cached);
		share_charge(request->session, sequence->n_tokens - sequence->n_computed);
	}
	counter_add(&request->runner->n_cached_tokens, n_cached);
	counter_add(&request->runner->n_prefix_hits, n_cached > 0);
	request->started = true;
	return START_DONE;
}

/* ---- step ---- */

/* Refuse a step with an invalid row. */
static bool start_check_rows(struct request *request)
{
	struct engine_session *session = request->session;
	const uint32_t max_seq_len = request->runner->options.max_seq_len;
	uint64_t mark = ++session->accounting->pass;

	for (uint32_t i = 0; i < request->n_rows; i++) {
		const struct request_row *row = &request->rows[i];
		struct sequence *s = engine_session_sequence(session, row->sequence);

		if (!s || !s->open)
			return start_fail(request, MIMEO_E_UNKNOWN_SEQUENCE,
				DETAIL(RING_DETAIL_SEQUENCE, row->sequence));
		if (s->runner != request->runner)
			return start_fail(request, MIMEO_E_INVALID,
				DETAIL(RING_DETAIL_ROW_MODEL, i, row->sequence));
		if (s->claim == mark)
			return start_fail(request, MIMEO_E_INVALID,
				DETAIL(RING_DETAIL_ROW_TWICE, i, row->sequence));
		s->claim = mark;
		if ((uint64_t)s->n_tokens + row->n_tokens > max_seq_len)
			return start_fail(request, MIMEO_E_TOO_LONG, DETAIL(RING_DETAIL_LENGTH,
				s->n_tokens + row->n_tokens, max_seq_len));
	}
	return true;
}

struct sequence *start_row_sequence(const struct request *request, uint32_t i)
{
	return engine_session_sequence(request->session, request->rows[i].sequence);
}

/* The pages of a step's row: its sequence's, but for those that have left a window. */
static uint32_t start_row_pages(const struct request *request, uint32_t i)
{
	const struct sequence *s = start_row_sequence(request, i);
	const struct kv_config *config = kv_cache_config(s->runner->kv);
	const uint32_t n = kv_pages_in_all(config, (uint64_t)s->n_tokens + request->rows[i].n_tokens, true);

	return n - (config->n_sets - config->n_full_sets) * s->table.first;
}

/* Refuse a step for pages that it can never have: those of one of its rows, or of all of them if they cannot be evicted
 * as they end. */
static bool start_check_pages(struct request *request)
{
	const struct runner *runner = request->runner;
	const uint32_t n_pages = kv_pages_total(runner->kv);
	uint64_t n_all = 0, n_most = 0;

	for (uint32_t i = 0; i < request->n_rows; i++) {
		const uint64_t n = start_row_pages(request, i);

		n_all += n;
		n_most = n > n_most ? n : n_most;
	}
	if (sequence_request_fixes(request))
		n_most = n_all;
	if (n_most <= n_pages)
		return true;
	return start_fail(request, MIMEO_E_NO_MEMORY, DETAIL(RING_DETAIL_PAGES, (int64_t)n_most, n_pages));
}

/* The next row's tokens, and what the prefix cache has of them. */
static uint32_t start_append_row(struct request *request, struct sequence *s)
{
	start_append(s, &request->rows[request->n_rows_started]);
	start_copies(request->session, s->n_tokens);
	return !s->table.n_pages && start_may_take_prefix(s, request) ? sequence_take_prefix(s, false) : 0;
}

/* The row does not start now. If it kept pages of the prefix cache, another waiting request would evict them, and each
 * of the two would have the other examined again. */
static void start_cut_row(struct request *request, struct sequence *s, uint32_t n_cached)
{
	if (n_cached)
		sequence_drop_prefix(s);
	s->n_tokens -= request->rows[request->n_rows_started].n_tokens;
}

/* Start the next row, if it gets a slot and pages; the rows that wait have the mark `claim`. START_DONE: it has, or the
 * request has ended because it cannot have them. */
static enum start_outcome start_row(struct request *request, uint64_t claim)
{
	const uint32_t i = request->n_rows_started;
	struct sequence *s = start_row_sequence(request, i);
	struct runner *runner = request->runner;
	const uint32_t n_cached = start_append_row(request, s);
	const uint32_t needed = start_pages_needed(request, s, s->n_tokens);
	const uint32_t most = needed > kv_pages_free(runner->kv) ? reclaim_most(runner, claim) : needed;

	if (needed > most || !start_make_free(request, 1, needed, claim)) {
		start_cut_row(request, s, n_cached);
		if (needed <= most)
			return START_BLOCKED;
		start_fail(request, MIMEO_E_NO_MEMORY, DETAIL(RING_DETAIL_PAGES, needed, most));
		return START_DONE;
	}
	request->state = REQUEST_STARTING;
	request->n_cached += n_cached;
	counter_add(&request->session->port->n_cached_tokens, n_cached);
	counter_add(&runner->n_cached_tokens, n_cached);
	counter_add(&runner->n_prefix_hits, n_cached > 0);
	share_charge(request->session, s->n_tokens - s->n_computed);
	start_run(request, i, s, s->n_tokens);
	request->n_rows_started++;
	return START_DONE;
}

static bool start_others_wait(const struct engine_session *session)
{
	const struct accounting *accounting = session->accounting;

	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		if (accounting->sessions[i] != session && accounting->sessions[i]->waiting)
			return true;
	}
	return false;
}

/* The session's slots of the runner, with those that a launched step still names. */
static uint32_t start_slots_held(const struct engine_session *session, const struct runner *runner)
{
	const struct slots *slots = &runner->slots;
	uint32_t n = 0;

	for (uint32_t i = 0; i < slots->n_running; i++)
		n += slots->running[i]->session == session;
	for (const struct sequence *s = slots->releasing; s; s = s->next)
		n += s->session == session;
	return n;
}

/* Rows that may start now if there are slots: where others wait, no more than their session is entitled to. */
static uint32_t start_most_rows(const struct request *request)
{
	struct engine_session *session = request->session;
	const uint32_t n_slots = request->runner->limits->max_requests;
	uint32_t part, held;

	if (!start_others_wait(session))
		return n_slots;
	part = share_entitlement(session->accounting, session, n_slots);
	held = start_slots_held(session, request->runner);
	start_copies(session, n_slots);
	return part > held ? part - held : 1;
}

/* Its rows start as slots and pages come; one that ends gives its slot back. */
enum start_outcome start_step(struct request *request)
{
	struct msg_detail refusal;
	uint64_t claim;
	uint32_t n;

	if (request->state == REQUEST_WAITING &&
		(!start_check_rows(request) || !start_check_pages(request)))
		return START_DONE;
	if (request->state == REQUEST_WAITING && !charge_step(request, &refusal)) {
		start_fail(request, MIMEO_E_QUOTA, refusal);
		return START_DONE;
	}
	if (start_is_passed_over(request))
		return START_BLOCKED;
	claim = ++request->session->accounting->pass;
	for (uint32_t i = request->n_rows_started; i < request->n_rows; i++)
		start_row_sequence(request, i)->claim = claim;
	for (n = start_most_rows(request); n && request->n_rows_started < request->n_rows; n--) {
		if (!start_has_slots(request, 1) || start_row(request, claim) == START_BLOCKED)
			return start_wait(request);
		request->session->started = true;
		if (request->state != REQUEST_STARTING)
			return START_DONE;
	}
	if (request->n_rows_started < request->n_rows)
		return START_BLOCKED;
	start_run_request(request);
	return START_DONE;
}

/* A sequence call is done at once. */
enum start_outcome start_call(struct request *request)
{
	start_copies(request->session, sequence_call(request));
	return START_DONE;
}
