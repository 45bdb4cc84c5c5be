/* SPDX-License-Identifier: MIT */
/* What comes back to an honest client of test_chaos.c, compared with what a quiet daemon has answered. */
#include "tests/e2e/chaos_client.h"

static void compare_tokens(struct client *c, struct asked *asked, const struct mimeo_event *event)
{
	const struct row *row = &asked->rows[0];
	const int32_t *expected = client_stream(c, row)->tokens + row->end;

	if (asked->n_got + event->n_tokens > asked->n_expected) {
		WRONG(c, "%u tokens of at most %u", asked->n_got + event->n_tokens, asked->n_expected);
		return;
	}
	for (uint32_t i = 0; i < event->n_tokens; i++) {
		if (event->tokens[i] == expected[asked->n_got + i])
			continue;
		WRONG(c, "stream %u, prompt %u to %u: token %u is %d, alone %d", row->stream,
			row->begin, row->end, asked->n_got + i, event->tokens[i],
			expected[asked->n_got + i]);
		return;
	}
	asked->n_got += event->n_tokens;
	atomic_fetch_add(&c->chaos->n_tokens, event->n_tokens);
}

/* The largest logit is the greedy token. */
static void compare_logits(struct client *c, const struct row *row, const float *logits)
{
	const struct chaos_stream *stream = client_stream(c, row);
	uint32_t best = 0;

	if (stream->sampling.temperature > 0 || row->end < stream->n_prompt)
		return;
	for (uint32_t i = 1; i < c->vocab; i++)
		best = logits[i] > logits[best] ? i : best;
	if ((int32_t)best != stream->tokens[row->end])
		WRONG(c, "stream %u behind %u: the largest logit is %u's, alone %d's", row->stream,
			row->end, best, stream->tokens[row->end]);
	atomic_fetch_add(&c->chaos->n_logits, 1);
}

static void compare_step(struct client *c, struct asked *asked, const struct mimeo_event *event)
{
	const float *logits = event->logits;

	if (event->n_tokens != asked->n_rows) {
		WRONG(c, "a step of %u rows has %u tokens", asked->n_rows, event->n_tokens);
		return;
	}
	if (asked->buffer && asked->buffer == c->buffer)
		logits = (const float *)(const void *)(c->buffer_memory + asked->place);
	for (uint32_t i = 0; i < asked->n_rows; i++) {
		const struct row *row = &asked->rows[i];
		int32_t expected = client_stream(c, row)->tokens[row->end];

		if (row->end >= client_stream(c, row)->n_prompt && event->tokens[i] != expected)
			WRONG(c, "stream %u, step %u to %u, row %u of %u: token %d, alone %d",
				row->stream, row->begin, row->end, i, asked->n_rows,
				event->tokens[i], expected);
		if (logits)
			compare_logits(c, row, logits + i * c->vocab);
	}
	atomic_fetch_add(&c->chaos->n_tokens, asked->n_rows);
}

/* What was appended stays appended; of a request that failed it is unknown how much, so cut it back. */
static void move_sequences(struct client *c, struct asked *asked, int status)
{
	for (uint32_t i = 0; i < asked->n_rows; i++) {
		const struct row *row = &asked->rows[i];
		struct sequence *sequence = &c->sequences[row->place];

		if (row->place == SEQUENCES_MAX || sequence->id == 0 || sequence->epoch != row->epoch)
			continue;
		sequence->busy = false;
		if (status == 0) {
			atomic_fetch_add(&c->chaos->n_forked, sequence->forked);
			sequence->at = row->end + asked->n_got;
			continue;
		}
		int rc = (status == MIMEO_E_NO_MEMORY || status == MIMEO_E_QUOTA) && client_chance(c, 50)
			? MIMEO_E_FULL /* let all its pages go */
			: mimeo_sequence_truncate(c->m, sequence->id, row->begin);
		sequence->at = row->begin;
		sequence->epoch++;
		if (rc == 0)
			continue;
		rc = mimeo_sequence_close(c->m, sequence->id);
		if (rc == 0)
			sequence->id = 0;
		else
			sequence->busy = true; /* no entry is free: it stays as it is until the end */
	}
}

static void compare_generate(struct client *c, struct asked *asked, const struct mimeo_event *event)
{
	if (event->status == 0 && (asked->n_got != asked->n_expected || event->finish != asked->finish))
		WRONG(c, "stream %u behind %u: %u tokens of %u, finish %u instead of %u",
			asked->rows[0].stream, asked->rows[0].end, asked->n_got, asked->n_expected,
			event->finish, asked->finish);
	if (event->status == 0 && asked->prompt_logits && event->logits)
		compare_logits(c, &asked->rows[0], event->logits);
	atomic_fetch_add(&c->chaos->n_generates, event->status == 0);
	atomic_fetch_add(&c->chaos->n_of_class[asked->class], event->status == 0);
	atomic_fetch_add(&c->chaos->n_masked, event->status == 0 && client_stream(c, &asked->rows[0])->mask.kind);
}

static void compare_end(struct client *c, struct asked *asked, const struct mimeo_event *event)
{
	struct chaos *chaos = c->chaos;
	int status = event->status;
	char why[256];

	if (asked->kind == CANCEL) {
		if (status != 0 && status != MIMEO_E_UNKNOWN_REQUEST)
			WRONG(c, "cancel: %s", mimeo_status_name(status));
	} else if (status == MIMEO_E_CANCELLED && asked->cancelled) {
		atomic_fetch_add(&chaos->n_cancelled, 1);
	} else if (status == MIMEO_E_DEADLINE && asked->has_deadline) {
		atomic_fetch_add(&chaos->n_late, 1);
	} else if ((status == MIMEO_E_NO_MEMORY && asked->kind == STEP) || (status == MIMEO_E_QUOTA && chaos->masks)) {
		/* Tokens under masks and of embeddings are in pages that cannot be evicted. */
		atomic_fetch_add(&chaos->n_no_memory, 1);
	} else if (status != 0) {
		mimeo_event_message(event, why, sizeof(why));
		WRONG(c, "%s: %s: %s", asked->kind == STEP ? "step" : "generate",
			mimeo_status_name(status), why);
	}
	if (asked->kind == GENERATE) {
		compare_generate(c, asked, event);
	} else if (asked->kind == STEP && status == 0) {
		compare_step(c, asked, event);
		atomic_fetch_add(&chaos->n_steps, 1);
		atomic_fetch_add(&chaos->n_embedded, asked->embedded);
	}
}

bool client_take(struct client *c, int timeout_ms)
{
	struct mimeo_event event;

	int rc = mimeo_event_wait(c->m, &event, timeout_ms);
	if (rc < 0)
		WRONG(c, "waiting: %s", mimeo_status_name(rc));
	if (rc <= 0)
		return false;
	struct asked *asked = &c->asked[event.user_data % REQUESTS_MAX];
	bool ends = event.kind == MIMEO_EVENT_FINAL && asked->kind != FREE;
	if (event.kind == MIMEO_EVENT_SEQUENCE) {
		char why[256];

		mimeo_event_message(&event, why, sizeof(why));
		WRONG(c, "sequence %u: %s: %s", event.sequence, mimeo_status_name(event.status), why);
	} else if (asked->kind == FREE) {
		WRONG(c, "an event of kind %u for a request that has ended", event.kind);
	} else {
		if (asked->kind == GENERATE)
			compare_tokens(c, asked, &event);
		if (ends)
			compare_end(c, asked, &event);
	}
	mimeo_event_seen(c->m, &event);
	if (ends) {
		c->embeddings_busy &= !asked->embedded;
		if (asked->kind != CANCEL)
			move_sequences(c, asked, event.status);
		asked->kind = FREE;
		c->n_in_flight--;
	}
	return true;
}
