/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/sequence.h"

#include <assert.h>
#include <string.h>
#include <utlist.h>

#include "daemon/engine/requests/engine_session.h"
#include "daemon/engine/requests/pinned.h"

static void sequence_count_pages(const struct sequence *sequence, int64_t n)
{
	_Atomic uint32_t *counter = &sequence->session->port->n_pages;

	assert(n >= 0 || atomic_load_explicit(counter, memory_order_relaxed) >= (uint64_t)-n);
	atomic_fetch_add_explicit(counter, (uint32_t)n, memory_order_relaxed);
	runner_show_pages(sequence->runner);
}

static uint32_t sequence_held(const struct sequence *sequence)
{
	return kv_table_held(sequence->runner->kv, &sequence->table);
}

void sequence_reset(struct sequence *sequence, struct runner *runner)
{
	assert(sequence->state == SEQUENCE_IDLE && !sequence->table.n_pages);
	sequence->runner = runner;
	sequence->n_tokens = sequence->n_computed = sequence->n_pending = 0;
	sequence->n_drafted = sequence->n_drafts = sequence->n_evicted = 0;
	sequence->forget = sequence->fixed = sequence->table.keeps = false;
	assert(!sequence->pinned);
	sequence->slot_ready = false;
	sequence->last_step = sequence->looked = sequence->paged = 0; /* each runner numbers its steps */
}

/* ---- idle sequences ---- */

/* An IDLE sequence that is open keeps its pages. If it has some and is not fixed, it joins the list of those that may
 * be evicted, at the end: it was used last. */
static void sequence_join_idle(struct sequence *sequence)
{
	struct slots *slots = &sequence->runner->slots;

	assert(sequence->state == SEQUENCE_IDLE && sequence->open && !sequence->idle_prev);
	if (sequence->fixed || !sequence->table.n_pages)
		return;
	slots->n_idle++;
	slots->n_idle_pages += sequence_held(sequence);
	DL_APPEND2(slots->idle, sequence, idle_prev, idle_next);
}

static void sequence_leave_idle(struct sequence *sequence)
{
	struct slots *slots;

	assert(sequence->state == SEQUENCE_IDLE && sequence->open);
	if (!sequence->idle_prev)
		return;
	slots = &sequence->runner->slots;
	assert(!sequence->fixed && slots->n_idle_pages >= sequence_held(sequence));
	slots->n_idle--;
	slots->n_idle_pages -= sequence_held(sequence);
	DL_DELETE2(slots->idle, sequence, idle_prev, idle_next);
	sequence->idle_prev = sequence->idle_next = NULL;
}

void sequence_open(struct sequence *sequence)
{
	struct engine_session *session = sequence->session;

	assert(!sequence->open && !sequence->ephemeral);
	sequence->open = true;
	session->n_open++;
	atomic_fetch_add_explicit(&session->port->n_sequences, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(
		&session->accounting->stats->n_sequences, 1, memory_order_relaxed);
	sequence_count_pages(sequence, sequence_held(sequence));
	sequence_join_idle(sequence);
}

/* Its pages cannot be evicted from now on. */
static void sequence_pin(struct sequence *sequence)
{
	assert(sequence->open && !sequence->pinned);
	sequence->pinned = sequence->table.keeps = true;
	pinned_add(sequence);
}

int sequence_fork(struct sequence *child, const struct sequence *parent)
{
	int rc;

	assert(parent->state == SEQUENCE_IDLE && !child->open);
	sequence_reset(child, parent->runner);
	rc = kv_fork(parent->runner->kv, &parent->table, parent->n_computed, &child->table);
	if (rc)
		return rc;
	memcpy(child->tokens, parent->tokens, parent->n_tokens * sizeof(parent->tokens[0]));
	child->n_tokens = parent->n_tokens;
	child->n_computed = parent->n_computed;
	child->n_drafted = parent->n_drafted;
	child->n_evicted = parent->n_evicted;
	child->fixed = parent->fixed;
	child->salt = parent->salt;
	sequence_open(child);
	if (child->fixed)
		sequence_pin(child);
	return 0;
}

static void sequence_close(struct sequence *sequence)
{
	struct engine_session *session = sequence->session;

	assert(session->n_open > 0);
	sequence->open = false;
	session->n_open--;
	atomic_fetch_sub_explicit(&session->port->n_sequences, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(
		&session->accounting->stats->n_sequences, 1, memory_order_relaxed);
}

/* Release all pages; no launched step names them. */
static void sequence_release_pages(struct sequence *sequence)
{
	int64_t n;

	if (!sequence->table.n_pages)
		return;
	n = sequence_held(sequence);
	if (sequence->pinned)
		pinned_drop_all(sequence);
	kv_clear(sequence->runner->kv, &sequence->table);
	sequence_count_pages(sequence, -n);
}

/* The tokens stay and are computed again later. */
static void sequence_drop_pages(struct sequence *sequence)
{
	sequence_release_pages(sequence);
	if (sequence->n_computed > sequence->n_evicted)
		sequence->n_evicted = sequence->n_computed;
	sequence->n_computed = sequence->n_drafted = 0;
}

void sequence_evict(struct sequence *sequence)
{
	assert(!sequence->fixed);
	sequence_leave_idle(sequence);
	sequence_drop_pages(sequence);
	sequence_join_idle(sequence);
	counter_add(&sequence->runner->n_evicted, 1);
	sequence->session->accounting->admit = true;
}

void sequence_forget(struct sequence *sequence)
{
	assert(sequence->state == SEQUENCE_IDLE && sequence->slot < 0);
	if (sequence->open) {
		sequence_leave_idle(sequence);
		sequence_close(sequence);
	}
	sequence_release_pages(sequence);
	sequence->pinned = sequence->table.keeps = false;
	sequence->n_tokens = sequence->n_computed = sequence->n_evicted = 0;
	sequence->forget = false;
	sequence->session->accounting->admit = true;
}

void sequence_orphan(struct sequence *sequence)
{
	assert(sequence->state == SEQUENCE_IDLE && sequence->slot < 0 && !sequence->request);
	if (sequence->open)
		sequence_leave_idle(sequence);
	sequence_release_pages(sequence);
	sequence->pinned = sequence->fixed = sequence->table.keeps = false;
	sequence->n_computed = sequence->n_evicted = sequence->n_drafted = 0;
	sequence->runner = NULL;
}

/* Of tokens before those from which on its pages are kept: all are computed again. They can be: keys that cannot
 * came later. */
static void sequence_lose_window(struct sequence *sequence)
{
	sequence_drop_pages(sequence);
	sequence->fixed = sequence->pinned = sequence->table.keeps = false;
}

void sequence_truncate(struct sequence *sequence, uint32_t n_tokens)
{
	struct runner *runner = sequence->runner;
	uint32_t n;

	assert(sequence->state == SEQUENCE_IDLE && n_tokens <= sequence->n_tokens);
	sequence_leave_idle(sequence);
	sequence->n_tokens = n_tokens;
	if (sequence->n_computed > n_tokens)
		sequence->n_computed = n_tokens;
	if (sequence->n_evicted > n_tokens)
		sequence->n_evicted = n_tokens;
	n = kv_truncate(runner->kv, &sequence->table, n_tokens, runner->dropped);
	assert(n <= runner->max_pages * runner->options.sets.n);
	if (sequence->pinned)
		pinned_drop(sequence, runner->dropped, n);
	sequence->fixed &= n_tokens > 0;
	sequence->pinned &= sequence->fixed;
	sequence->table.keeps &= sequence->pinned;
	kv_release(runner->kv, runner->dropped, n);
	sequence_count_pages(sequence, -(int64_t)n);
	if (!kv_table_serves(runner->kv, &sequence->table, sequence->n_computed))
		sequence_lose_window(sequence);
	sequence_join_idle(sequence);
}

void sequence_step_back(struct sequence *sequence)
{
	const uint32_t n = sequence->n_tokens;
	int32_t last;

	assert(n > 0 && !sequence->fixed);
	last = sequence->tokens[n - 1];
	sequence_truncate(sequence, n - 1);
	sequence->tokens[n - 1] = last;
	sequence->n_tokens = n;
}

/* ---- prefix cache ---- */

/* Which sequences may share pages: those of one user, by the uid that the kernel reports. Sequences that the
 * draft model has seen share pages only with each other: of the others' pages its keys and values are not set. */
static uint64_t sequence_salt(const struct sequence *sequence, bool drafts)
{
	const bool all = sequence->runner->limits->prefix_sharing == ENGINE_PREFIX_ALL;
	const uint64_t whose = all ? 0 : (uint64_t)sequence->session->port->uid + 1;

	return whose << 1 | drafts;
}

uint64_t sequence_salt_of(const struct sequence *sequence, const struct request *request)
{
	return sequence_salt(sequence, request->n_drafts > 0);
}

void sequence_keep_window(struct sequence *sequence, const struct request *request)
{
	/* A step request is not preempted. Two that wait for each other's pages would deadlock, so each takes all of its
	 * pages when it starts. */
	sequence->table.keeps = sequence->pinned || sequence_pins(sequence, request) || request->op != RING_OP_GENERATE;
}

static bool sequence_any_waits(const struct accounting *accounting)
{
	uint32_t i = 0;

	while (i < accounting->n_sessions && !accounting->sessions[i]->waiting)
		i++;
	return i < accounting->n_sessions;
}

void sequence_leave_window(struct sequence *sequence, uint32_t n_tokens)
{
	const uint32_t n = kv_leave_window(sequence->runner->kv, &sequence->table, n_tokens);

	if (!n)
		return;
	assert(sequence->state != SEQUENCE_IDLE); /* those of idle ones are counted as such */
	sequence_count_pages(sequence, -(int64_t)n);
	sequence->session->accounting->admit |= sequence_any_waits(sequence->session->accounting);
}

/* The draft model's key of a token depends on the next token, which the page behind the last one had. */
static void sequence_drop_last_page(struct sequence *sequence)
{
	const uint32_t n = (sequence->table.n_pages - 1) * sequence->runner->limits->page_tokens;
	uint32_t page;

	kv_truncate(sequence->runner->kv, &sequence->table, n, &page);
	kv_release(sequence->runner->kv, &page, 1);
}

uint32_t sequence_take_prefix(struct sequence *sequence, bool drafts)
{
	assert(sequence->state == SEQUENCE_IDLE && !sequence->table.n_pages && !sequence->n_computed);
	assert(sequence->n_tokens > 0);
	if (sequence->open)
		sequence_leave_idle(sequence);
	sequence->salt = sequence_salt(sequence, drafts);
	kv_prefix_take(sequence->runner->kv, &sequence->table, sequence->salt, sequence->tokens,
		sequence->n_tokens - 1);
	if (drafts && sequence->table.n_pages)
		sequence_drop_last_page(sequence);
	if (sequence->open)
		sequence_join_idle(sequence);
	sequence_count_pages(sequence, sequence_held(sequence));
	sequence->n_computed = sequence->table.n_pages * sequence->runner->limits->page_tokens;
	sequence->n_drafted = drafts ? sequence->n_computed : 0;
	return sequence->n_computed;
}

void sequence_drop_prefix(struct sequence *sequence)
{
	assert(sequence->state == SEQUENCE_IDLE);
	if (sequence->open)
		sequence_leave_idle(sequence);
	sequence_release_pages(sequence);
	sequence->n_computed = sequence->n_drafted = 0;
	if (sequence->open)
		sequence_join_idle(sequence);
}

/* Can the request's tokens not be computed once more without the request? Those under a window of its own,
 * and those that see tokens behind themselves, cannot. */
bool sequence_request_fixes(const struct request *request)
{
	if (request->embeddings.at)
		return true;
	return request->mask.kind != MIMEO_MASK_DEFAULT &&
		(request->own_mask || request->mask.kind != MIMEO_MASK_WINDOW);
}

bool sequence_pins(const struct sequence *sequence, const struct request *request)
{
	return sequence->open && (sequence->fixed || sequence_request_fixes(request));
}

bool sequence_shares(const struct sequence *sequence, const struct request *request)
{
	return sequence->runner->limits->prefix_sharing != ENGINE_PREFIX_NONE && !sequence->fixed &&
		!sequence_request_fixes(request);
}

void sequence_share(struct sequence *sequence)
{
	const uint32_t n_paged = (sequence->table.n_chained + 1) * sequence->runner->limits->page_tokens;
	uint32_t n = sequence->n_computed < sequence->n_tokens ? sequence->n_computed : sequence->n_tokens;

	if (sequence->salt & 1 && sequence->n_drafted < n)
		n = sequence->n_drafted;
	if (n < n_paged || !sequence_shares(sequence, sequence->request))
		return;
	kv_prefix_add(sequence->runner->kv, &sequence->table, sequence->salt, sequence->tokens, n);
}

uint32_t sequence_limit(const struct sequence *sequence)
{
	const struct request *request = sequence->request;

	return sequence->target + (request->op == RING_OP_GENERATE ? request->max_tokens : 0);
}

int sequence_extend(struct sequence *sequence, uint32_t n_total)
{
	struct runner *runner = sequence->runner;
	struct slots *slots = &runner->slots;
	const struct kv_table before = sequence->table;
	const uint32_t n_before = sequence_held(sequence);
	const uint32_t first = sequence->n_computed / runner->limits->page_tokens;
	uint32_t n_copies = 0;
	int rc;

	assert(n_total >= sequence->n_computed && n_total <= runner->options.max_seq_len);
	rc = kv_extend(runner->kv, &sequence->table, sequence->n_computed,
		n_total - sequence->n_computed, slots->copies + slots->n_copies, &n_copies);
	if (rc)
		return rc;
	for (uint32_t i = slots->n_copies; sequence->pinned && i < slots->n_copies + n_copies; i++)
		pinned_replace(sequence, slots->copies[i][0], slots->copies[i][1]);
	if (sequence->pinned)
		pinned_add_behind(sequence, &before);
	slots->n_copies += n_copies;
	assert(slots->n_copies <= slots->max_copies);
	if (n_copies && sequence->n_shown > first)
		sequence->n_shown = first;
	if (n_copies && sequence->n_shown_near > first)
		sequence->n_shown_near = first;
	sequence_count_pages(sequence, sequence_held(sequence) - n_before);
	return 0;
}

uint32_t sequence_request_start(const struct sequence *sequence)
{
	uint32_t n_tokens = sequence->request->rows[sequence->row].n_tokens;

	assert(n_tokens <= sequence->target);
	return sequence->target - n_tokens;
}

uint32_t sequence_prefix(const struct sequence *sequence)
{
	const struct request *request = sequence->request;
	uint32_t n_tokens = request->rows[sequence->row].n_tokens;

	return request->mask.prefix < n_tokens ? request->mask.prefix : n_tokens;
}

void sequence_run(struct sequence *sequence, struct request *request, uint32_t row)
{
	struct slots *slots = &sequence->runner->slots;

	assert(sequence->state == SEQUENCE_IDLE && sequence->slot < 0 && !sequence->request);
	assert(request->state == REQUEST_RUNNING || request->state == REQUEST_STARTING);
	assert(row < request->n_rows);
	assert(slots->n_free > 0);
	if (sequence->open)
		sequence_leave_idle(sequence);
	if (!sequence->table.n_pages)
		sequence->salt = sequence_salt(sequence, request->n_drafts > 0);
	sequence->slot = slots->free[--slots->n_free];
	sequence->slot_ready = false;
	sequence->state = SEQUENCE_RUNNING;
	sequence->session->n_busy++;
	sequence->request = request;
	sequence->row = row;
	sequence_keep_window(sequence, request);
	if (!sequence->pinned && sequence_pins(sequence, request))
		sequence_pin(sequence);
	sequence->target = sequence->n_tokens - request->n_generated;
	if (!request->started)
		sequence->n_history = sequence->n_computed > sequence->n_evicted ? sequence->n_computed
										  : sequence->n_evicted;
	sequence->prompt_end = sequence->n_tokens;
	sequence->resumes = sequence->n_computed > 0 && sequence->n_computed + 1 == sequence->n_tokens;
	sequence->n_shown = sequence->n_shown_near = sequence->n_counted = sequence->follow_end = 0;
	sequence->starved = sequence->update_began = sequence->updated = false;
	sequence->document = 0;
	sequence->n_pending = 0;
	sequence->n_drafts = 0; /* before its first row it has none: schedule.c looks at all that run */
	assert(slots->n_running < sequence->runner->limits->max_requests);
	slots->running[slots->n_running++] = sequence;
	sequence->batch = request->class == MIMEO_CLASS_BATCH;
	slots->n_batch += sequence->batch;
}

/* Its preempted request waits once more. */
static void sequence_wait(struct sequence *sequence)
{
	struct request *request = sequence->request;

	sequence_share(sequence);
	sequence->request = NULL;
	request->preempted = true;
	sequence_drop_pages(sequence);
	if (sequence->open)
		sequence_join_idle(sequence);
	engine_session_wait_return(sequence->session, request);
}

/* No launched step names it any more. */
static void sequence_release(struct sequence *sequence)
{
	struct runner *runner = sequence->runner;
	struct slots *slots = &runner->slots;

	assert(sequence->state == SEQUENCE_RELEASING && sequence->last_step <= runner->completed);
	assert(slots->n_free < runner->limits->max_requests && sequence->slot >= 0);
	assert(sequence->session->n_busy > 0);
	slots->free[slots->n_free++] = sequence->slot;
	sequence->slot = -1;
	assert(!sequence->request || !sequence->n_pending);
	sequence->n_pending = 0;
	sequence->state = SEQUENCE_IDLE;
	sequence->session->n_busy--;
	if (sequence->request) {
		sequence_wait(sequence);
		return;
	}
	if (sequence->open)
		sequence_join_idle(sequence);
	/* Release the pages of tokens that were computed and not kept. */
	if (sequence->forget || sequence->ephemeral)
		sequence_forget(sequence);
	else
		sequence_truncate(sequence, sequence->n_tokens);
	sequence->session->accounting->admit = true;
}

static void sequence_leave_running(struct sequence *sequence)
{
	struct slots *slots = &sequence->runner->slots;
	uint32_t i = 0;

	while (i < slots->n_running && slots->running[i] != sequence)
		i++;
	assert(i < slots->n_running);
	for (slots->n_running--; i < slots->n_running; i++)
		slots->running[i] = slots->running[i + 1];
	assert(slots->n_batch >= sequence->batch);
	slots->n_batch -= sequence->batch;
}

/* As soon as no launched step names it; its request may have ended before. */
static void sequence_release_later(struct sequence *sequence)
{
	struct runner *runner = sequence->runner;

	assert(sequence->state == SEQUENCE_RUNNING);
	sequence_leave_running(sequence);
	sequence->state = SEQUENCE_RELEASING;
	if (sequence->last_step <= runner->completed) {
		sequence_release(sequence);
		return;
	}
	assert(sequence->last_step <= runner->launched);
	LL_PREPEND(runner->slots.releasing, sequence);
}

bool sequence_is_preemptible(const struct sequence *sequence)
{
	if (sequence->state != SEQUENCE_RUNNING || sequence->request->op != RING_OP_GENERATE)
		return false;
	/* Were it cancelled while it waits, an open sequence would keep tokens without their mask. */
	return !sequence_pins(sequence, sequence->request);
}

void sequence_preempt(struct sequence *sequence)
{
	assert(sequence_is_preemptible(sequence));
	counter_add(&sequence->runner->n_preempted, 1);
	sequence_release_later(sequence);
}

void sequence_stop(struct sequence *sequence)
{
	assert(sequence->state != SEQUENCE_IDLE && sequence->request);
	sequence_share(sequence);
	/* Tokens that came as embeddings and were not computed cannot be computed from their ids; those of
	 * earlier requests can. */
	if (sequence->request->embeddings.at && sequence->n_tokens > sequence->n_computed) {
		uint32_t begin = sequence_request_start(sequence);

		sequence->n_tokens =
			sequence->n_computed > begin ? sequence->n_computed : begin;
	}
	sequence->fixed |= sequence_request_fixes(sequence->request);
	sequence->request = NULL;
	if (sequence->state == SEQUENCE_RUNNING)
		sequence_release_later(sequence);
}

void sequence_release_all(struct runner *runner)
{
	struct sequence *sequence, *next;

	LL_FOREACH_SAFE (runner->slots.releasing, sequence, next) {
		if (sequence->last_step > runner->completed)
			continue;
		LL_DELETE(runner->slots.releasing, sequence);
		sequence->next = NULL;
		sequence_release(sequence);
	}
	runner_show_pages(runner);
}
