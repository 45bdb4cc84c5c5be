/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/sequence.h"

#include <assert.h>
#include <utlist.h>

#include "daemon/engine/requests/engine_session.h"

static void sequence_count_pages(const struct sequence *sequence, int64_t n)
{
	_Atomic uint32_t *counter = &sequence->session->port->n_pages;

	assert(n >= 0 || atomic_load_explicit(counter, memory_order_relaxed) >= (uint64_t)-n);
	atomic_fetch_add_explicit(counter, (uint32_t)n, memory_order_relaxed);
	runner_show_pages(sequence->runner);
}

void sequence_reset(struct sequence *sequence, struct runner *runner)
{
	assert(sequence->state == SEQUENCE_IDLE && !sequence->table.n_pages);
	sequence->runner = runner;
	sequence->n_tokens = sequence->n_computed = sequence->n_pending = 0;
	sequence->n_drafted = sequence->n_drafts = 0;
	sequence->forget = false;
	sequence->slot_ready = false;
	sequence->last_step = 0;
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
	sequence_count_pages(sequence, sequence->table.n_pages);
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

void sequence_forget(struct sequence *sequence)
{
	assert(sequence->state == SEQUENCE_IDLE && sequence->slot < 0);
	if (sequence->table.n_pages) {
		int64_t n = sequence->table.n_pages;

		kv_clear(sequence->runner->kv, &sequence->table);
		sequence_count_pages(sequence, -n);
	}
	if (sequence->open)
		sequence_close(sequence);
	sequence->n_tokens = sequence->n_computed = 0;
	sequence->forget = false;
	sequence->session->accounting->admit = true;
}

void sequence_truncate(struct sequence *sequence, uint32_t n_tokens)
{
	struct runner *runner = sequence->runner;
	uint32_t n;

	assert(sequence->state == SEQUENCE_IDLE && n_tokens <= sequence->n_tokens);
	sequence->n_tokens = n_tokens;
	if (sequence->n_computed > n_tokens)
		sequence->n_computed = n_tokens;
	n = kv_truncate(runner->kv, &sequence->table, n_tokens, runner->dropped);
	assert(n <= runner->max_pages);
	kv_release(runner->kv, runner->dropped, n);
	sequence_count_pages(sequence, -(int64_t)n);
}

int sequence_extend(struct sequence *sequence, uint32_t n_total)
{
	struct runner *runner = sequence->runner;
	struct slots *slots = &runner->slots;
	uint32_t before = sequence->table.n_pages, n_copies = 0;
	int rc;

	assert(n_total >= sequence->n_computed && n_total <= runner->options.max_seq_len);
	rc = kv_extend(runner->kv, &sequence->table, sequence->n_computed,
		n_total - sequence->n_computed, slots->copies + slots->n_copies, &n_copies);
	if (rc)
		return rc;
	slots->n_copies += n_copies;
	assert(slots->n_copies <= runner->limits->max_requests);
	sequence_count_pages(sequence, sequence->table.n_pages - before);
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
	assert(request->state == REQUEST_RUNNING && row < request->n_rows);
	assert(slots->n_free > 0);
	sequence->slot = slots->free[--slots->n_free];
	sequence->slot_ready = false;
	sequence->state = SEQUENCE_RUNNING;
	sequence->session->n_busy++;
	sequence->request = request;
	sequence->row = row;
	sequence->target = sequence->n_tokens;
	sequence->document = 0;
	sequence->n_pending = 0;
	sequence->n_drafts = 0; /* before its first row it has none: schedule.c looks at all that run */
	assert(slots->n_running < sequence->runner->limits->max_requests);
	slots->running[slots->n_running++] = sequence;
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
	sequence->n_pending = 0;
	sequence->state = SEQUENCE_IDLE;
	sequence->session->n_busy--;
	/* Pages of tokens that were never taken go back; what was computed for these does not count. */
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
}

void sequence_stop(struct sequence *sequence)
{
	struct runner *runner = sequence->runner;

	assert(sequence->state == SEQUENCE_RUNNING && sequence->request);
	sequence_leave_running(sequence);
	/* Tokens that came as embeddings and were not computed cannot be computed from their ids; those of
	 * earlier requests can. */
	if (sequence->request->embeddings.at && sequence->n_tokens > sequence->n_computed) {
		uint32_t begin = sequence_request_start(sequence);

		sequence->n_tokens =
			sequence->n_computed > begin ? sequence->n_computed : begin;
	}
	sequence->request = NULL;
	sequence->state = SEQUENCE_RELEASING;
	if (sequence->last_step <= runner->completed) {
		sequence_release(sequence);
		return;
	}
	assert(sequence->last_step <= runner->launched);
	LL_PREPEND(runner->slots.releasing, sequence);
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
