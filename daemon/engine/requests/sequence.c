/* SPDX-License-Identifier: MIT */
#include "daemon/engine/state.h"

void sequence_reset(struct sequence *sequence, struct runner *runner)
{
	sequence->runner = runner;
	sequence->n_tokens = sequence->n_computed = sequence->n_pending = 0;
	sequence->n_drafted = sequence->n_drafts = 0;
	sequence->forget = false;
	sequence->slot_ready = false;
	sequence->last_step = 0;
}

void runner_show_pages(struct runner *runner)
{
	atomic_store_explicit(&runner->pages_free, kv_pages_free(runner->kv), memory_order_relaxed);
}

void sequence_forget(struct sequence *sequence)
{
	struct session *session = sequence->session;

	if (sequence->table.n_pages) {
		kv_release(sequence->runner->kv, sequence->table.pages, sequence->table.n_pages);
		atomic_fetch_sub_explicit(&session->port->n_pages, sequence->table.n_pages,
			memory_order_relaxed);
		sequence->table.n_pages = 0;
		runner_show_pages(sequence->runner);
	}
	if (sequence->open) {
		sequence->open = false;
		session->n_open--;
		atomic_fetch_sub_explicit(&session->port->n_sequences, 1, memory_order_relaxed);
		atomic_fetch_sub_explicit(&session->engine->stats.n_sequences, 1,
			memory_order_relaxed);
	}
	sequence->n_tokens = sequence->n_computed = 0;
	sequence->forget = false;
	session->engine->admit = true;
}

/* Keep the pages of what the sequence holds; those taken for tokens that never came go back. */
static void trim(struct sequence *sequence)
{
	struct runner *runner = sequence->runner;
	uint32_t n = kv_truncate(runner->kv, &sequence->table, sequence->n_tokens, runner->dropped);

	kv_release(runner->kv, runner->dropped, n);
	runner_show_pages(runner);
	atomic_fetch_sub_explicit(&sequence->session->port->n_pages, n, memory_order_relaxed);
}

static void release(struct sequence *sequence)
{
	struct runner *runner = sequence->runner;

	runner->free_slots[runner->n_free_slots++] = sequence->slot;
	sequence->slot = -1;
	sequence->n_pending = 0;
	/* What was computed for tokens that the host never took does not count. */
	if (sequence->n_computed > sequence->n_tokens)
		sequence->n_computed = sequence->n_tokens;
	sequence->state = SEQUENCE_IDLE;
	sequence->session->n_busy--;
	if (sequence->forget || sequence->ephemeral)
		sequence_forget(sequence);
	else
		trim(sequence);
	runner->engine->admit = true;
}

uint32_t sequence_request_start(const struct sequence *sequence)
{
	return sequence->target - sequence->request->rows[sequence->row].n_tokens;
}

uint32_t sequence_prefix(const struct sequence *sequence)
{
	const struct request *request = sequence->request;
	uint32_t n_tokens = request->rows[sequence->row].n_tokens;

	return request->mask.prefix < n_tokens ? request->mask.prefix : n_tokens;
}

void sequence_stop(struct sequence *sequence)
{
	struct runner *runner = sequence->runner;
	uint32_t i = 0;

	while (runner->running[i] != sequence)
		i++;
	for (runner->n_running--; i < runner->n_running; i++)
		runner->running[i] = runner->running[i + 1];
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
		release(sequence);
	} else {
		sequence->next = runner->releasing;
		runner->releasing = sequence;
	}
}

void runner_release(struct runner *runner)
{
	struct sequence **link = &runner->releasing;

	while (*link) {
		struct sequence *sequence = *link;

		if (sequence->last_step > runner->completed) {
			link = &sequence->next;
			continue;
		}
		*link = sequence->next;
		sequence->next = NULL;
		release(sequence);
	}
	runner_show_pages(runner);
}
