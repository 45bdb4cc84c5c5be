/* SPDX-License-Identifier: MIT */
/*
 * Admission: which waiting request may start. Decided before anything runs: by pages, by slots, and
 * by order.
 *
 * Order: requests of one session that name the same sequence start one after another, as submitted.
 * A pass walks a session's waiting list; a sequence that an earlier request waits for, or that is
 * busy, is claimed, and later requests that name it are passed over.
 *
 * Turns: each session starts one generate request a turn. One that does not fit yet is the model's
 * head: no other generate passes it, so that what comes back is kept for it; nobody starves. Pages of
 * open sequences come back when their owners like; who needs those waits without holding up others.
 * A step that finds too few slots is a head too, and holds up steps as well.
 */
#include "daemon/engine/state.h"

#include <string.h>

enum outcome { STARTED, BLOCKED };

static struct msg_detail detail(unsigned kind, uint32_t a, uint32_t b)
{
	return (struct msg_detail){.detail = kind, .values = {(int32_t)a, (int32_t)b}};
}

static void fail(struct request *request, int status, struct msg_detail d)
{
	request_finish(request, status,
		request->op == RING_OP_GENERATE ? MIMEO_FINISH_ERROR : MIMEO_FINISH_NONE, &d);
}

/* ---- sequences ---- */

static void add_pages(struct sequence *sequence, uint32_t n)
{
	atomic_fetch_add_explicit(&sequence->session->port->n_pages, n, memory_order_relaxed);
}

static uint32_t pages_needed(const struct sequence *sequence, uint32_t n_total)
{
	return kv_pages_needed(sequence->runner->kv, &sequence->table, sequence->n_computed,
		n_total - sequence->n_computed);
}

static uint32_t pages_in_all(const struct runner *runner, uint32_t n_tokens)
{
	uint32_t page_tokens = runner->engine->options.page_tokens;

	return n_tokens / page_tokens + (n_tokens % page_tokens != 0);
}

/* Have pages for n_total tokens; copies of shared pages are queued ahead of the next step. */
static int extend(struct sequence *sequence, uint32_t n_total)
{
	struct runner *runner = sequence->runner;
	uint32_t before = sequence->table.n_pages, n_copies = 0;
	int rc = kv_extend(runner->kv, &sequence->table, sequence->n_computed,
		n_total - sequence->n_computed, runner->copies + runner->n_copies, &n_copies);

	if (rc)
		return rc;
	runner->n_copies += n_copies;
	add_pages(sequence, sequence->table.n_pages - before);
	runner_show_pages(runner);
	return 0;
}

static void set_open(struct sequence *sequence)
{
	struct session *session = sequence->session;

	sequence->open = true;
	session->n_open++;
	atomic_fetch_add_explicit(&session->port->n_sequences, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&session->engine->stats.n_sequences, 1, memory_order_relaxed);
}

/* ---- starting ---- */

static struct sequence *generate_sequence(struct request *request)
{
	struct session *session = request->session;

	if (request->sequence)
		return engine_session_sequence(session, request->sequence);
	return &session->sequences[session->max_sequences + request->index];
}

/* Tokens are validated where they are taken: the mirror is private, but a client may have given two
 * requests the same place in the arena. */
static bool append(struct sequence *sequence, const struct request_row *row)
{
	uint32_t vocab = sequence->runner->model->config.vocab_size;

	for (uint32_t i = 0; i < row->n_tokens; i++) {
		int32_t token = row->tokens[i];

		if ((uint32_t)token >= vocab)
			return false;
		sequence->tokens[sequence->n_tokens + i] = token;
	}
	sequence->n_tokens += row->n_tokens;
	return true;
}

static void run(struct sequence *sequence, struct request *request, uint32_t row)
{
	struct runner *runner = sequence->runner;

	sequence->slot = runner->free_slots[--runner->n_free_slots];
	sequence->slot_ready = false;
	sequence->state = SEQUENCE_RUNNING;
	sequence->session->n_busy++;
	sequence->request = request;
	sequence->row = row;
	sequence->target = sequence->n_tokens;
	sequence->document = 0;
	sequence->n_pending = 0;
	sequence->n_drafts = 0; /* before its first row it has none: schedule.c looks at all that run */
	runner->running[runner->n_running++] = sequence;
}

static void start(struct request *request)
{
	engine_session_wait_remove(request->session, request);
	request->state = REQUEST_RUNNING;
}

/* Would n pages be free when all that runs for itself alone has ended? */
static bool pages_come_back(const struct runner *runner, uint32_t n)
{
	uint64_t sum = kv_pages_free(runner->kv);

	for (uint32_t i = 0; i < runner->n_running; i++) {
		if (runner->running[i]->ephemeral)
			sum += runner->running[i]->table.n_pages;
	}
	for (const struct sequence *s = runner->releasing; s; s = s->next) {
		if (s->ephemeral || s->forget)
			sum += s->table.n_pages;
	}
	return n <= sum;
}

static enum outcome wait_as_head(struct request *request, bool comes_back)
{
	struct runner *runner = request->runner;

	if (!runner->head && comes_back) {
		runner->head = request;
	} else if (runner->head == request && !comes_back) {
		/* Those that it held up look again. */
		runner->head = NULL;
		runner->engine->admit = true;
	}
	return BLOCKED;
}

static enum outcome start_generate(struct request *request)
{
	struct runner *runner = request->runner;
	struct sequence *sequence = generate_sequence(request);
	uint64_t total;
	uint32_t needed, in_all;

	if (!request->sequence) {
		sequence->ephemeral = true;
		sequence_reset(sequence, runner);
	} else if (!sequence || !sequence->open) {
		fail(request, MIMEO_E_UNKNOWN_SEQUENCE, detail(RING_DETAIL_SEQUENCE, request->sequence, 0));
		return STARTED;
	} else if (sequence->runner != runner) {
		fail(request, MIMEO_E_INVALID, detail(RING_DETAIL_ROW_MODEL, 0, request->sequence));
		return STARTED;
	}
	total = (uint64_t)sequence->n_tokens + request->rows[0].n_tokens + request->max_tokens;
	if (total > runner->options.max_seq_len) {
		fail(request, MIMEO_E_TOO_LONG, detail(RING_DETAIL_LENGTH,
			total > INT32_MAX ? INT32_MAX : (uint32_t)total, runner->options.max_seq_len));
		return STARTED;
	}
	needed = pages_needed(sequence, (uint32_t)total);
	/* With the pages that the sequence has: it would wait for itself. */
	in_all = pages_in_all(runner, (uint32_t)total);
	if (in_all > kv_pages_total(runner->kv)) {
		fail(request, MIMEO_E_TOO_LONG, detail(RING_DETAIL_PAGES, in_all, kv_pages_total(runner->kv)));
		return STARTED;
	}
	if (runner->head && runner->head != request)
		return BLOCKED;
	if (needed > kv_pages_free(runner->kv))
		return wait_as_head(request, pages_come_back(runner, needed));
	if (!runner->n_free_slots || runner->n_copies >= runner->engine->options.max_requests)
		return wait_as_head(request, true);
	if (!append(sequence, &request->rows[0])) {
		fail(request, MIMEO_E_INVALID, detail(RING_DETAIL_TOKEN, 0, 0));
		return STARTED;
	}
	/* Cannot fail: the pages were counted above, and nobody else takes any. */
	if (extend(sequence, (uint32_t)total)) {
		sequence->n_tokens -= request->rows[0].n_tokens;
		return BLOCKED;
	}
	start(request);
	run(sequence, request, 0);
	return STARTED;
}

/* What is wrong with a step's rows; fails the request and returns false. */
static bool check_rows(struct request *request)
{
	struct session *session = request->session;
	uint64_t mark = ++session->engine->pass;

	for (uint32_t i = 0; i < request->n_rows; i++) {
		const struct request_row *row = &request->rows[i];
		struct sequence *s = engine_session_sequence(session, row->sequence);

		if (!s || !s->open) {
			fail(request, MIMEO_E_UNKNOWN_SEQUENCE, detail(RING_DETAIL_SEQUENCE, row->sequence, 0));
			return false;
		}
		if (s->runner != request->runner) {
			fail(request, MIMEO_E_INVALID, detail(RING_DETAIL_ROW_MODEL, i, row->sequence));
			return false;
		}
		if (s->claim == mark) {
			fail(request, MIMEO_E_INVALID, detail(RING_DETAIL_ROW_TWICE, i, row->sequence));
			return false;
		}
		s->claim = mark;
		if ((uint64_t)s->n_tokens + row->n_tokens > request->runner->options.max_seq_len) {
			fail(request, MIMEO_E_TOO_LONG, detail(RING_DETAIL_LENGTH,
				s->n_tokens + row->n_tokens, request->runner->options.max_seq_len));
			return false;
		}
	}
	return true;
}

static enum outcome start_step(struct request *request)
{
	struct runner *runner = request->runner;
	struct session *session = request->session;
	uint64_t needed = 0;

	if (!check_rows(request))
		return STARTED;
	if (runner->head && runner->head != request && runner->head->op == RING_OP_STEP)
		return BLOCKED;
	for (uint32_t i = 0; i < request->n_rows; i++) {
		struct sequence *s = engine_session_sequence(session, request->rows[i].sequence);

		needed += pages_needed(s, s->n_tokens + request->rows[i].n_tokens);
	}
	if (needed > kv_pages_free(runner->kv)) {
		fail(request, MIMEO_E_NO_MEMORY, detail(RING_DETAIL_PAGES,
			needed > INT32_MAX ? INT32_MAX : (uint32_t)needed, kv_pages_free(runner->kv)));
		return STARTED;
	}
	if (request->n_rows > runner->n_free_slots ||
		runner->n_copies + request->n_rows > runner->engine->options.max_requests)
		return wait_as_head(request, true);
	start(request);
	for (uint32_t i = 0; i < request->n_rows; i++) {
		struct sequence *s = engine_session_sequence(session, request->rows[i].sequence);

		if (!append(s, &request->rows[i]) || extend(s, s->n_tokens)) {
			fail(request, MIMEO_E_INVALID, detail(RING_DETAIL_TOKEN, 0, 0));
			return STARTED;
		}
		run(s, request, i);
	}
	return STARTED;
}

/* ---- sequence calls: done at once ---- */

static void done(struct request *request)
{
	request_finish(request, MIMEO_OK, MIMEO_FINISH_NONE, NULL);
}

static void do_open(struct request *request)
{
	struct engine *engine = request->session->engine;
	struct sequence *s = engine_session_sequence(request->session, request->sequence);

	if (request->argument >= engine->n_runners) {
		fail(request, MIMEO_E_UNKNOWN_MODEL,
			detail(RING_DETAIL_MODEL, request->argument, engine->n_runners));
		return;
	}
	if (!s) {
		fail(request, MIMEO_E_QUOTA, detail(RING_DETAIL_SEQUENCE, request->sequence, 0));
		return;
	}
	if (s->open) {
		fail(request, MIMEO_E_INVALID, detail(RING_DETAIL_OPEN_TWICE, request->sequence, 0));
		return;
	}
	sequence_reset(s, &engine->runners[request->argument]);
	set_open(s);
	done(request);
}

static void do_fork(struct request *request, struct sequence *parent)
{
	struct sequence *child = engine_session_sequence(request->session, request->argument);

	if (!child) {
		fail(request, MIMEO_E_QUOTA, detail(RING_DETAIL_SEQUENCE, request->argument, 0));
		return;
	}
	if (child->open) {
		fail(request, MIMEO_E_INVALID, detail(RING_DETAIL_OPEN_TWICE, request->argument, 0));
		return;
	}
	sequence_reset(child, parent->runner);
	if (kv_fork(parent->runner->kv, &parent->table, parent->n_computed, &child->table)) {
		fail(request, MIMEO_E_NO_MEMORY, detail(RING_DETAIL_SEQUENCE, request->argument, 0));
		return;
	}
	memcpy(child->tokens, parent->tokens, parent->n_tokens * sizeof(parent->tokens[0]));
	child->n_tokens = parent->n_tokens;
	child->n_computed = parent->n_computed;
	child->n_drafted = parent->n_drafted;
	add_pages(child, child->table.n_pages);
	set_open(child);
	done(request);
}

static void do_truncate(struct request *request, struct sequence *s)
{
	struct runner *runner = s->runner;
	uint32_t n;

	if (request->argument > s->n_tokens) {
		fail(request, MIMEO_E_INVALID, detail(RING_DETAIL_KEEP, request->argument, s->n_tokens));
		return;
	}
	s->n_tokens = request->argument;
	if (s->n_computed > s->n_tokens)
		s->n_computed = s->n_tokens;
	n = kv_truncate(runner->kv, &s->table, s->n_tokens, runner->dropped);
	kv_release(runner->kv, runner->dropped, n);
	atomic_fetch_sub_explicit(&s->session->port->n_pages, n, memory_order_relaxed);
	runner_show_pages(runner);
	done(request);
}

static void sequence_call(struct request *request)
{
	struct sequence *s = engine_session_sequence(request->session, request->sequence);

	if (request->op == RING_OP_OPEN) {
		do_open(request);
		return;
	}
	if (!s || !s->open) {
		fail(request, MIMEO_E_UNKNOWN_SEQUENCE, detail(RING_DETAIL_SEQUENCE, request->sequence, 0));
		return;
	}
	if (request->op == RING_OP_FORK) {
		do_fork(request, s);
	} else if (request->op == RING_OP_TRUNCATE) {
		do_truncate(request, s);
	} else {
		sequence_forget(s);
		done(request);
	}
}

/* ---- order and turns ---- */

static bool is_claimed(const struct sequence *s, uint64_t pass)
{
	return s && (s->state != SEQUENCE_IDLE || s->claim == pass);
}

static void claim(struct sequence *s, uint64_t pass)
{
	if (s)
		s->claim = pass;
}

/* Does the request name a sequence that is busy, or that an earlier request waits for? */
static bool names_claimed(struct request *request, uint64_t pass)
{
	struct session *session = request->session;

	if (request->op == RING_OP_GENERATE)
		return is_claimed(generate_sequence(request), pass);
	if (request->op != RING_OP_STEP)
		return is_claimed(engine_session_sequence(session, request->sequence), pass) ||
			(request->op == RING_OP_FORK &&
				is_claimed(engine_session_sequence(session, request->argument), pass));
	for (uint32_t i = 0; i < request->n_rows; i++) {
		if (is_claimed(engine_session_sequence(session, request->rows[i].sequence), pass))
			return true;
	}
	return false;
}

static void claim_all(struct request *request, uint64_t pass)
{
	struct session *session = request->session;

	if (request->op == RING_OP_GENERATE) {
		claim(generate_sequence(request), pass);
		return;
	}
	claim(engine_session_sequence(session, request->sequence), pass);
	if (request->op == RING_OP_FORK)
		claim(engine_session_sequence(session, request->argument), pass);
	for (uint32_t i = 0; i < request->n_rows; i++)
		claim(engine_session_sequence(session, request->rows[i].sequence), pass);
}

/* Walk the waiting list; start what may start, one generate request at most. True if one was. */
static bool admit_session(struct session *session)
{
	uint64_t pass = ++session->engine->pass;
	struct request *request = session->waiting_first, *next;

	for (; request; request = next) {
		enum outcome outcome = STARTED;

		next = request->next;
		if (names_claimed(request, pass))
			outcome = BLOCKED;
		else if (request->op == RING_OP_GENERATE)
			outcome = start_generate(request);
		else if (request->op == RING_OP_STEP)
			outcome = start_step(request);
		else
			sequence_call(request);
		if (outcome == BLOCKED)
			claim_all(request, pass);
		else if (request->op == RING_OP_GENERATE)
			return true;
	}
	return false;
}

bool admit(struct engine *engine)
{
	bool progress = true, any = false;

	if (!engine->admit || !engine->n_sessions)
		return false;
	engine->admit = false;
	while (progress) {
		uint32_t first = engine->session_turn % engine->n_sessions;

		progress = false;
		for (uint32_t i = 0; i < engine->n_sessions; i++) {
			uint32_t at = (first + i) % engine->n_sessions;

			if (!engine->sessions[at]->waiting_first || !admit_session(engine->sessions[at]))
				continue;
			progress = any = true;
			engine->session_turn = at + 1;
		}
	}
	return any || engine->admit;
}
