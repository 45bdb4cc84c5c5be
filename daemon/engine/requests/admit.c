/* SPDX-License-Identifier: MIT */
/*
 * Admission: which waiting request may start. Decided before anything runs: by pages, by slots, and
 * by order.
 *
 * Order: requests of one session that name the same sequence start one after another, as submitted.
 * A pass walks a session's waiting list; a sequence that an earlier request waits for, or that is
 * busy, is claimed, and later requests that name it are passed over.
 *
 * Turns: each session starts one generate request a turn. One that does not fit is the model's head: no
 * other generate request passes it, so that pages and slots which return are kept for it. A request that
 * needs pages of idle open sequences, which may never return, does not delay others. A step that finds too
 * few slots is a head that delays steps, too.
 */
#include "daemon/engine/requests/admit.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/finish.h"

enum admit_outcome { STARTED, BLOCKED }; /* STARTED: or ended; it waits no more */

/* Refuse the request: it does not wait any more. */
static enum admit_outcome admit_fail(struct request *request, int status, struct msg_detail d)
{
	finish_request(request, status,
		request->op == RING_OP_GENERATE ? MIMEO_FINISH_ERROR : MIMEO_FINISH_NONE, &d);
	return STARTED;
}

static uint32_t admit_pages_needed(const struct sequence *sequence, uint32_t n_total)
{
	return kv_pages_needed(sequence->runner->kv, &sequence->table, sequence->n_computed,
		n_total - sequence->n_computed);
}

static uint32_t admit_pages_in_all(const struct runner *runner, uint32_t n_tokens)
{
	uint32_t page_tokens = runner->limits->page_tokens;

	return n_tokens / page_tokens + (n_tokens % page_tokens != 0);
}

/* ---- starting ---- */

static void admit_start(struct request *request)
{
	engine_session_wait_remove(request->session, request);
	request->state = REQUEST_RUNNING;
}

/* Run a row on its sequence, with pages for n_more tokens behind its own: they were counted as free, and
 * this thread alone takes any. */
static void admit_row(struct request *request, uint32_t i, struct sequence *sequence, uint32_t n_more)
{
	const struct request_row *row = &request->rows[i];
	int rc;

	assert(sequence->n_tokens + row->n_tokens + n_more <= sequence->session->max_seq_len);
	memcpy(sequence->tokens + sequence->n_tokens, row->tokens, row->n_tokens * sizeof(row->tokens[0]));
	sequence->n_tokens += row->n_tokens;
	rc = sequence_extend(sequence, sequence->n_tokens + n_more);
	assert(!rc);
	sequence_run(sequence, request, i);
}

/* Would n pages be free when all ephemeral sequences have ended? */
static bool admit_pages_come_back(const struct runner *runner, uint32_t n)
{
	uint64_t sum = kv_pages_free(runner->kv);

	for (uint32_t i = 0; i < runner->slots.n_running; i++) {
		if (runner->slots.running[i]->ephemeral)
			sum += runner->slots.running[i]->table.n_pages;
	}
	for (const struct sequence *s = runner->slots.releasing; s; s = s->next) {
		if (s->ephemeral || s->forget)
			sum += s->table.n_pages;
	}
	return n <= sum;
}

static enum admit_outcome admit_wait_as_head(struct request *request, bool comes_back)
{
	struct runner *runner = request->runner;

	if (!runner->slots.head && comes_back) {
		runner->slots.head = request;
	} else if (runner->slots.head == request && !comes_back) {
		/* Those that it delayed look again. */
		runner->slots.head = NULL;
		request->session->accounting->admit = true;
	}
	return BLOCKED;
}

static enum admit_outcome admit_generate(struct request *request)
{
	struct runner *runner = request->runner;
	struct sequence *sequence = engine_session_request_sequence(request);
	const uint32_t n_pages = kv_pages_total(runner->kv);
	uint64_t total;
	uint32_t needed, in_all;

	if (!request->sequence) {
		sequence->ephemeral = true;
		sequence_reset(sequence, runner);
	}
	if (!sequence || (!sequence->open && !sequence->ephemeral))
		return admit_fail(request, MIMEO_E_UNKNOWN_SEQUENCE,
			DETAIL(RING_DETAIL_SEQUENCE, request->sequence));
	if (sequence->runner != runner)
		return admit_fail(request, MIMEO_E_INVALID,
			DETAIL(RING_DETAIL_ROW_MODEL, 0, request->sequence));
	total = (uint64_t)sequence->n_tokens + request->rows[0].n_tokens + request->max_tokens;
	if (total > runner->options.max_seq_len)
		return admit_fail(request, MIMEO_E_TOO_LONG,
			DETAIL(RING_DETAIL_LENGTH, (int64_t)total, runner->options.max_seq_len));
	needed = admit_pages_needed(sequence, (uint32_t)total);
	/* Includes the pages that the sequence has: else it would wait for itself. */
	in_all = admit_pages_in_all(runner, (uint32_t)total);
	if (in_all > n_pages)
		return admit_fail(request, MIMEO_E_TOO_LONG,
			DETAIL(RING_DETAIL_PAGES, in_all, n_pages));
	if (runner->slots.head && runner->slots.head != request)
		return BLOCKED;
	if (needed > kv_pages_free(runner->kv))
		return admit_wait_as_head(request, admit_pages_come_back(runner, needed));
	if (!runner->slots.n_free || runner->slots.n_copies >= runner->limits->max_requests)
		return admit_wait_as_head(request, true);
	admit_start(request);
	admit_row(request, 0, sequence, request->max_tokens);
	return STARTED;
}

/* STARTED: refused, for what is wrong with its rows. BLOCKED: nothing is. */
static enum admit_outcome admit_check_rows(struct request *request)
{
	struct engine_session *session = request->session;
	const uint32_t max_seq_len = request->runner->options.max_seq_len;
	uint64_t mark = ++session->accounting->pass;

	for (uint32_t i = 0; i < request->n_rows; i++) {
		const struct request_row *row = &request->rows[i];
		struct sequence *s = engine_session_sequence(session, row->sequence);

		if (!s || !s->open)
			return admit_fail(request, MIMEO_E_UNKNOWN_SEQUENCE,
				DETAIL(RING_DETAIL_SEQUENCE, row->sequence));
		if (s->runner != request->runner)
			return admit_fail(request, MIMEO_E_INVALID,
				DETAIL(RING_DETAIL_ROW_MODEL, i, row->sequence));
		if (s->claim == mark)
			return admit_fail(request, MIMEO_E_INVALID,
				DETAIL(RING_DETAIL_ROW_TWICE, i, row->sequence));
		s->claim = mark;
		if ((uint64_t)s->n_tokens + row->n_tokens > max_seq_len)
			return admit_fail(request, MIMEO_E_TOO_LONG, DETAIL(RING_DETAIL_LENGTH,
				s->n_tokens + row->n_tokens, max_seq_len));
	}
	return BLOCKED;
}

static enum admit_outcome admit_step(struct request *request)
{
	struct runner *runner = request->runner;
	struct engine_session *session = request->session;
	const struct request *head = runner->slots.head;
	const uint32_t n_free = kv_pages_free(runner->kv);
	uint64_t needed = 0;

	if (admit_check_rows(request) == STARTED)
		return STARTED;
	if (head && head != request && head->op == RING_OP_STEP)
		return BLOCKED;
	for (uint32_t i = 0; i < request->n_rows; i++) {
		struct sequence *s =
			engine_session_sequence(session, request->rows[i].sequence);

		needed += admit_pages_needed(s, s->n_tokens + request->rows[i].n_tokens);
	}
	if (needed > n_free)
		return admit_fail(request, MIMEO_E_NO_MEMORY,
			DETAIL(RING_DETAIL_PAGES, (int64_t)needed, n_free));
	if (request->n_rows > runner->slots.n_free ||
		runner->slots.n_copies + request->n_rows > runner->limits->max_requests)
		return admit_wait_as_head(request, true);
	admit_start(request);
	for (uint32_t i = 0; i < request->n_rows; i++)
		admit_row(request, i, engine_session_sequence(session, request->rows[i].sequence), 0);
	return STARTED;
}

/* ---- sequence calls: done at once ---- */

static enum admit_outcome admit_done(struct request *request)
{
	finish_request(request, MIMEO_OK, MIMEO_FINISH_NONE, NULL);
	return STARTED;
}

static enum admit_outcome admit_open(struct request *request)
{
	struct accounting *accounting = request->session->accounting;
	struct sequence *s = engine_session_sequence(request->session, request->sequence);

	if (request->argument >= accounting->n_runners)
		return admit_fail(request, MIMEO_E_UNKNOWN_MODEL,
			DETAIL(RING_DETAIL_MODEL, request->argument, accounting->n_runners));
	if (!s)
		return admit_fail(request, MIMEO_E_QUOTA,
			DETAIL(RING_DETAIL_SEQUENCE, request->sequence));
	if (s->open)
		return admit_fail(request, MIMEO_E_INVALID,
			DETAIL(RING_DETAIL_OPEN_TWICE, request->sequence));
	sequence_reset(s, &accounting->runners[request->argument]);
	sequence_open(s);
	return admit_done(request);
}

static enum admit_outcome admit_fork(struct request *request, struct sequence *parent)
{
	struct sequence *child = engine_session_sequence(request->session, request->argument);

	if (!child)
		return admit_fail(request, MIMEO_E_QUOTA,
			DETAIL(RING_DETAIL_SEQUENCE, request->argument));
	if (child->open)
		return admit_fail(request, MIMEO_E_INVALID,
			DETAIL(RING_DETAIL_OPEN_TWICE, request->argument));
	sequence_reset(child, parent->runner);
	if (kv_fork(parent->runner->kv, &parent->table, parent->n_computed, &child->table))
		return admit_fail(request, MIMEO_E_NO_MEMORY,
			DETAIL(RING_DETAIL_SEQUENCE, request->argument));
	memcpy(child->tokens, parent->tokens, parent->n_tokens * sizeof(parent->tokens[0]));
	child->n_tokens = parent->n_tokens;
	child->n_computed = parent->n_computed;
	child->n_drafted = parent->n_drafted;
	sequence_open(child);
	return admit_done(request);
}

static enum admit_outcome admit_truncate(struct request *request, struct sequence *s)
{
	if (request->argument > s->n_tokens)
		return admit_fail(request, MIMEO_E_INVALID,
			DETAIL(RING_DETAIL_KEEP, request->argument, s->n_tokens));
	sequence_truncate(s, request->argument);
	return admit_done(request);
}

static enum admit_outcome admit_call(struct request *request)
{
	struct sequence *s = engine_session_sequence(request->session, request->sequence);

	if (request->op == RING_OP_OPEN)
		return admit_open(request);
	if (!s || !s->open)
		return admit_fail(request, MIMEO_E_UNKNOWN_SEQUENCE,
			DETAIL(RING_DETAIL_SEQUENCE, request->sequence));
	if (request->op == RING_OP_FORK)
		return admit_fork(request, s);
	if (request->op == RING_OP_TRUNCATE)
		return admit_truncate(request, s);
	assert(request->op == RING_OP_CLOSE);
	sequence_forget(s);
	return admit_done(request);
}

/* ---- order and turns ---- */

static bool admit_is_claimed(const struct sequence *s, uint64_t pass)
{
	return s && (s->state != SEQUENCE_IDLE || s->claim == pass);
}

static void admit_claim(struct sequence *s, uint64_t pass)
{
	if (s)
		s->claim = pass;
}

/* Does the request name a sequence that is busy, or that an earlier request waits for? */
static bool admit_names_claimed(struct request *request, uint64_t pass)
{
	struct engine_session *session = request->session;

	if (request->op == RING_OP_GENERATE)
		return admit_is_claimed(engine_session_request_sequence(request), pass);
	if (request->op != RING_OP_STEP)
		return admit_is_claimed(engine_session_sequence(session, request->sequence), pass) ||
			(request->op == RING_OP_FORK &&
				admit_is_claimed(engine_session_sequence(session, request->argument), pass));
	for (uint32_t i = 0; i < request->n_rows; i++) {
		if (admit_is_claimed(engine_session_sequence(session, request->rows[i].sequence), pass))
			return true;
	}
	return false;
}

static void admit_claim_all(struct request *request, uint64_t pass)
{
	struct engine_session *session = request->session;

	if (request->op == RING_OP_GENERATE) {
		admit_claim(engine_session_request_sequence(request), pass);
		return;
	}
	admit_claim(engine_session_sequence(session, request->sequence), pass);
	if (request->op == RING_OP_FORK)
		admit_claim(engine_session_sequence(session, request->argument), pass);
	for (uint32_t i = 0; i < request->n_rows; i++)
		admit_claim(engine_session_sequence(session, request->rows[i].sequence), pass);
}

/* Walk the waiting list; start what may start, one generate request at most. True if one was. */
static bool admit_session(struct engine_session *session)
{
	uint64_t pass = ++session->accounting->pass;
	struct request *request = session->waiting, *next;

	for (; request; request = next) {
		enum admit_outcome outcome;

		next = request->next;
		if (admit_names_claimed(request, pass))
			outcome = BLOCKED;
		else if (request->op == RING_OP_GENERATE)
			outcome = admit_generate(request);
		else if (request->op == RING_OP_STEP)
			outcome = admit_step(request);
		else
			outcome = admit_call(request);
		if (outcome == BLOCKED)
			admit_claim_all(request, pass);
		else if (request->op == RING_OP_GENERATE)
			return true;
	}
	return false;
}

bool admit(struct accounting *accounting)
{
	bool progress = true, any = false;

	if (!accounting->admit || !accounting->n_sessions)
		return false;
	accounting->admit = false;
	while (progress) {
		uint32_t first = accounting->session_turn % accounting->n_sessions;

		progress = false;
		for (uint32_t i = 0; i < accounting->n_sessions; i++) {
			uint32_t at = (first + i) % accounting->n_sessions;

			if (!accounting->sessions[at]->waiting || !admit_session(accounting->sessions[at]))
				continue;
			progress = any = true;
			accounting->session_turn = at + 1;
		}
	}
	return any || accounting->admit;
}
