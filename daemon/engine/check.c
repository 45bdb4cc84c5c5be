/* SPDX-License-Identifier: MIT */
#include "daemon/engine/check.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "attention/kv_cache.h"
#include "daemon/engine/requests/pinned.h"
#include "daemon/engine/state.h"

/* ---- requests and sequences of a session ---- */

static bool check_waits(const struct request *request)
{
	return request->state == REQUEST_WAITING || request->state == REQUEST_STARTING;
}

static void check_request(const struct request *request)
{
	const struct engine_session *session = request->session;
	const struct request_place *const places[] = {
		&request->logits, &request->hidden, &request->embeddings};
	uint32_t n_places = 0;

	for (int i = 0; i < 3; i++)
		n_places += places[i]->buffer != NULL;
	assert(n_places == request->n_places);
	assert(request == &session->requests[request->index]);
	if (request->state == REQUEST_FREE || request->state == REQUEST_ENDING)
		assert(deadline_next(&request->deadlines) == UINT64_MAX);
	if (request->state == REQUEST_FREE)
		assert(!request->payload.bytes && !n_places && !request->n_promised);
	assert(!request->deadlines.first_token_ns || !request->n_generated);
	if (request->state == REQUEST_RUNNING || request->state == REQUEST_STARTING)
		assert(request->runner && request->n_rows && request->n_rows_unlaunched <= request->n_rows);
	if (request->state == REQUEST_STARTING)
		assert(request->n_rows_started && request->n_rows_started < request->n_rows);
	if (request->state == REQUEST_RUNNING && request->op == RING_OP_STEP)
		assert(request->n_rows_started == request->n_rows);
	if (request->state == REQUEST_ENDING)
		assert(n_places && request->last_launch > session->accounting->completed);
	assert(request->n_generated <= request->max_tokens || request->op != RING_OP_GENERATE);
}

static void check_sequence(const struct sequence *s)
{
	const struct engine_session *session = s->session;

	assert(s->n_tokens <= session->limits.max_seq_len);
	assert(!s->open || !s->ephemeral);
	assert(s->open || s->ephemeral || s->forget || !s->table.n_pages);
	assert(s->state != SEQUENCE_RUNNING || s->request);
	assert(s->state != SEQUENCE_IDLE || !s->request);
	assert((s->state == SEQUENCE_IDLE && s->open && !s->fixed && s->table.n_pages) == (s->idle_prev != NULL));
	assert(s->pinned == (s->open && (s->fixed || (s->request && sequence_pins(s, s->request)))));
	if (s->state == SEQUENCE_IDLE) {
		assert(s->slot < 0 && !s->n_pending && !s->forget && s->n_computed <= s->n_tokens);
		assert(s->open || !s->table.n_pages);
		assert(!s->table.n_pages || kv_table_serves(s->runner->kv, &s->table, s->n_computed));
		return;
	}
	assert(s->slot >= 0);
	/* Draft tokens after the request's end may have been computed. */
	if (s->state == SEQUENCE_RELEASING)
		return;
	assert(s->n_computed <= s->n_tokens + s->n_pending);
	assert(s->n_computed <= s->table.n_pages * s->runner->limits->page_tokens);
	assert(!s->runner->options.sets.window || s->n_computed <= s->table.end * s->runner->limits->page_tokens);
	assert(s->request->session == session);
	assert(s->request->state == REQUEST_RUNNING || s->request->state == REQUEST_STARTING);
	assert(s->request->runner == s->runner && s->row < s->request->n_rows);
	assert(s == (s->request->op == RING_OP_GENERATE
		? engine_session_request_sequence(s->request)
		: &session->sequences[s->request->rows[s->row].sequence - 1]));
}

static void check_payloads(const struct engine_session *session)
{
	const struct payload_pool *pool = &session->payloads;
	const struct payload *payload;
	uint32_t end = 0, used = 0, n = 0;
	bool cursor = !pool->cursor;

	DL_FOREACH (pool->first, payload) {
		assert(payload->bytes && payload->offset >= end);
		end = payload->offset + payload->bytes;
		used += payload->bytes;
		cursor |= payload == pool->cursor;
		n++;
	}
	assert(end <= pool->bytes && used == pool->used && cursor);
	for (uint32_t i = 0; i < session->n_requests; i++)
		n -= session->requests[i].payload.bytes != 0;
	assert(n == 0);
}

static void check_requests(const struct engine_session *session)
{
	const struct ring *ring = &session->port->region.ring;
	uint32_t n_in_flight = 0, n_waiting = 0, n_waiting_of[MIMEO_CLASS_BATCH + 1] = {0}, n_held;
	const struct held_entry *entry;
	const struct request *request;

	for (uint32_t i = 0; i < session->n_requests; i++) {
		check_request(&session->requests[i]);
		n_in_flight += session->requests[i].state != REQUEST_FREE;
		n_waiting += check_waits(&session->requests[i]);
	}
	assert(n_in_flight == session->n_in_flight && n_waiting == session->n_waiting);
	DL_FOREACH (session->waiting, request) {
		assert(check_waits(request) && n_waiting > 0);
		n_waiting--;
		n_waiting_of[request->class]++;
	}
	assert(!n_waiting && !memcmp(n_waiting_of, session->n_waiting_of, sizeof(n_waiting_of)));
	/* Each final completion has its entry. */
	assert(session->failed || session->detached ||
		RING_CQ_ENTRIES(ring->entries) - (ring->cq_index - ring->cq_seen) >=
			n_in_flight + session->n_held);
	n_held = session->n_held;
	DL_FOREACH (session->held, entry) {
		assert(entry->held && n_held-- > 0);
		assert(session->requests[entry->sqe.request].state == REQUEST_FREE);
	}
	assert(!n_held);
}

static void check_sequences(const struct engine_session *session)
{
	uint32_t n_open = 0, n_busy = 0, n_pages = 0;

	for (uint32_t i = 0; i < engine_session_n_sequences(session); i++) {
		const struct sequence *s = &session->sequences[i];

		check_sequence(s);
		n_open += s->open;
		n_busy += s->state != SEQUENCE_IDLE;
		n_pages += s->table.n_pages ? kv_table_held(s->runner->kv, &s->table) : 0;
	}
	assert(n_open == session->n_open && n_open == atomic_load(&session->port->n_sequences));
	assert(n_busy == session->n_busy && n_pages == atomic_load(&session->port->n_pages));
}

static void check_buffers(const struct engine_session *session)
{
	uint32_t n_held = 0;

	for (uint32_t i = 0; i < session->n_requests; i++)
		n_held += session->requests[i].n_places;
	for (uint32_t i = 0; i < session->port->n_buffers; i++)
		n_held -= session->port->buffers[i].n_requests;
	assert(n_held == 0);
}

/* ---- what sessions share ---- */

/* How many there are. */
static uint32_t check_deadlines(const struct engine_session *session, const struct deadlines *deadlines)
{
	const uint32_t place = deadlines->place;
	const uint64_t at = deadline_next(deadlines);

	assert(at >= session->accounting->next_deadline_ns && (at == UINT64_MAX) == (place == 0));
	assert(place <= session->n_deadlines);
	assert(!place || deadline_of(session, session->deadlines[place]) == deadlines);
	assert(place <= 1 || at >= deadline_next(deadline_of(session, session->deadlines[place / 2])));
	return (deadlines->end_ns != 0) + (deadlines->first_token_ns != 0);
}

static void check_accounting(const struct engine *engine)
{
	const struct accounting *accounting = &engine->accounting;
	uint32_t n_requests = 0, n_deadlines = 0, n_places = 0, n_open = 0, n_ending = 0;
	const struct request *request;

	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		const struct engine_session *session = accounting->sessions[i];

		check_requests(session);
		check_sequences(session);
		check_payloads(session);
		check_buffers(session);
		n_requests += session->n_in_flight;
		n_open += session->n_open;
		n_places -= session->n_deadlines;
		for (uint32_t j = 0; j < session->n_requests; j++) {
			request = &session->requests[j];
			n_ending += request->state == REQUEST_ENDING;
			n_deadlines += check_deadlines(session, &request->deadlines);
			n_deadlines += check_deadlines(session, &session->entries[j].deadlines);
			n_places += (request->deadlines.place > 0) + (session->entries[j].deadlines.place > 0);
			assert(session->entries[j].held ||
				deadline_next(&session->entries[j].deadlines) == UINT64_MAX);
		}
	}
	DL_FOREACH (accounting->ending, request) {
		assert(request->state == REQUEST_ENDING && n_ending > 0);
		n_ending--;
	}
	assert(!n_places);
	assert(!n_ending && n_requests == accounting->n_requests && n_deadlines == accounting->n_deadlines);
	assert(n_open == atomic_load(&engine->stats.n_sequences));
	assert(accounting->n_sessions == atomic_load(&engine->stats.n_sessions));
	assert(accounting->launched - accounting->completed == engine->lane.n_inflight);
}

/* ---- slots and pages of a model ---- */

/* Idle sequences that may be evicted, with their pages. */
static void check_idle(const struct runner *runner)
{
	const struct sequence *s;
	uint32_t n = 0, n_pages = 0;

	DL_FOREACH2 (runner->slots.idle, s, idle_next) {
		assert(s->state == SEQUENCE_IDLE && s->open && !s->fixed && s->runner == runner);
		n_pages += s->table.n_pages ? kv_table_held(s->runner->kv, &s->table) : 0;
		n++;
	}
	assert(n == runner->slots.n_idle && n_pages == runner->slots.n_idle_pages);
}

/* Each slot is free, or has one sequence. */
static void check_slots(const struct runner *runner, uint32_t *uses)
{
	const struct slots *slots = &runner->slots;
	const uint32_t n = runner->limits->max_requests;
	const struct sequence *s;
	uint32_t n_batch = 0;

	memset(uses, 0, n * sizeof(*uses));
	for (uint32_t i = 0; i < slots->n_free; i++)
		uses[slots->free[i]]++;
	for (uint32_t i = 0; i < slots->n_running; i++) {
		s = slots->running[i];
		assert(s->state == SEQUENCE_RUNNING && s->runner == runner);
		uses[s->slot]++;
		n_batch += s->request->class == MIMEO_CLASS_BATCH;
	}
	assert(n_batch == slots->n_batch);
	LL_FOREACH (slots->releasing, s) {
		assert(s->state == SEQUENCE_RELEASING && s->runner == runner);
		assert(s->last_step > runner->completed && s->last_step <= runner->launched);
		uses[s->slot]++;
	}
	for (uint32_t i = 0; i < n; i++)
		assert(uses[i] == 1);
	check_idle(runner);
	assert(!slots->head || (check_waits(slots->head) && slots->head->runner == runner));
	assert(!slots->blocked || (check_waits(slots->blocked) && slots->blocked->runner == runner));
	assert(slots->n_copies <= slots->max_copies);
}

/* Count the pages of its table. */
static void check_count_table(const struct sequence *s, uint32_t *uses)
{
	for (uint32_t set = 0; set < s->runner->options.sets.n; set++) {
		const struct kv_range range = kv_table_range(s->runner->kv, &s->table, set);

		for (uint32_t i = range.first; i < range.end; i++)
			uses[kv_table_pages(&s->table, set)[i]]++;
	}
}

/* Each page has as many references as sequences, queued copies and launched copies name it; the others
 * are free, or unused in the prefix cache. */
static void check_pages(const struct engine *engine, const struct runner *runner, uint32_t *uses)
{
	const uint32_t n = kv_pages_total(runner->kv) + 1;
	const struct accounting *accounting = &engine->accounting;
	uint32_t n_free = 0;

	memset(uses, 0, n * sizeof(*uses));
	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		const struct engine_session *session = accounting->sessions[i];

		for (uint32_t j = 0; j < engine_session_n_sequences(session); j++) {
			const struct sequence *s = &session->sequences[j];

			if (s->runner == runner)
				check_count_table(s, uses);
		}
	}
	for (uint32_t i = 0; i < runner->slots.n_copies; i++)
		uses[runner->slots.copies[i][0]]++;
	for (uint32_t i = 0; i < engine->lane.n_inflight; i++) {
		const struct inflight *inflight =
			&engine->lane.inflight[(engine->lane.first + i) % LANE_STEPS];

		for (uint32_t j = 0; inflight->runner == runner && j < inflight->n_sources; j++)
			uses[inflight->sources[j]]++;
	}
	assert(!uses[0]);
	for (uint32_t page = 1; page < n; page++) {
		assert(kv_references(runner->kv, page) == uses[page]);
		n_free += !uses[page];
	}
	kv_check(runner->kv);
	assert(n_free == kv_pages_free(runner->kv) && n_free == atomic_load(&runner->pages_free));
}

/* Promises of the session's requests. */
static uint32_t check_promised(const struct engine_session *session, const struct runner *runner)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < session->n_requests; i++)
		n += session->requests[i].runner == runner ? session->requests[i].n_promised : 0;
	return n;
}

/* Each page is pinned by as many pinned sequences as have it, and one user is charged for it. */
static void check_pinned(const struct engine *engine, const struct runner *runner, uint32_t *uses)
{
	const uint32_t n = kv_pages_total(runner->kv) + 1;
	const struct accounting *accounting = &engine->accounting;
	const struct pinned *pinned = &runner->slots.pinned;
	struct pinned_user users[ENGINE_SESSIONS_MAX] = {0};
	uint32_t n_pages = 0, n_users = 0, n_promised = 0;

	memset(uses, 0, n * sizeof(*uses));
	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		const struct engine_session *session = accounting->sessions[i];
		struct pinned_user *user = &users[session->share.user - accounting->users];

		for (uint32_t j = 0; j < engine_session_n_sequences(session); j++) {
			const struct sequence *s = &session->sequences[j];

			if (s->runner == runner && s->pinned)
				check_count_table(s, uses);
		}
		user->n_promised += check_promised(session, runner);
	}
	for (uint32_t page = 1; page < n; page++) {
		assert(pinned->n_tables[page] == uses[page]);
		n_pages += uses[page] > 0;
		if (uses[page] && pinned->holders[page] != PINNED_NOBODY)
			users[pinned->holders[page]].n_pages++;
	}
	for (uint32_t i = 0; i < ENGINE_SESSIONS_MAX; i++) {
		assert(users[i].n_pages == pinned->users[i].n_pages);
		assert(users[i].n_promised == pinned->users[i].n_promised);
		n_promised += users[i].n_promised;
		n_users += users[i].n_pages || users[i].n_promised;
	}
	assert(n_pages == pinned->n_pages && n_promised == pinned->n_promised && n_users == pinned->n_users);
}

static void check_runner(const struct engine *engine, const struct runner *runner, uint32_t *uses)
{
	uint32_t n_inflight = 0;

	for (uint32_t i = 0; i < engine->lane.n_inflight; i++)
		n_inflight += engine->lane.inflight[(engine->lane.first + i) % LANE_STEPS].runner == runner;
	assert(runner->launched - runner->completed == n_inflight);
	check_slots(runner, uses);
	check_pages(engine, runner, uses);
	check_pinned(engine, runner, uses);
}

/* ---- graphs that are captured and dropped ---- */

static void check_graphs(const struct engine *engine)
{
	const struct late *late = &engine->lane.late;
	const struct graph_entry *entry;
	uint32_t n_wanted = 0, n_dropping = 0;

	DL_FOREACH (late->wanted, entry) {
		assert(graph_entry_state(entry) == GRAPH_WANTED);
		n_wanted++;
	}
	DL_FOREACH (late->dropping, entry) {
		assert(graph_entry_state(entry) == GRAPH_DROPPING);
		n_dropping++;
	}
	if (late->busy && graph_entry_state(late->entry) == GRAPH_DROPPING)
		n_dropping++;
	for (uint32_t i = 0; i < engine->runners.n; i++) {
		const struct graph_set *set = &engine->runners.all[i]->graphs;

		for (uint32_t j = 0; j < set->n; j++) {
			enum graph_state state = graph_entry_state(&set->entries[j]);

			n_wanted -= state == GRAPH_WANTED;
			n_dropping -= state == GRAPH_DROPPING;
			assert(state != GRAPH_BUILDING || (late->busy && late->entry == &set->entries[j]));
		}
	}
	assert(!n_wanted && !n_dropping);
}

/* Counters of slots or of pages, allocated at first and when a model with more comes: the engine's thread may not
 * allocate otherwise. */
static uint32_t *check_uses(struct engine *engine)
{
	uint32_t n = engine->options.max_requests;

	for (uint32_t i = 0; i < engine->runners.n; i++) {
		if (kv_pages_total(engine->runners.all[i]->kv) + 1 > n)
			n = kv_pages_total(engine->runners.all[i]->kv) + 1;
	}
	if (n > engine->n_check_uses) {
		free(engine->check_uses);
		engine->check_uses = malloc(n * sizeof(*engine->check_uses));
		engine->n_check_uses = n;
	}
	assert(engine->check_uses);
	return engine->check_uses;
}

void engine_check(struct engine *engine)
{
	uint32_t *uses = check_uses(engine);

	assert(engine->lane.n_inflight <= LANE_STEPS);
	check_accounting(engine);
	for (uint32_t i = 0; i < engine->runners.n; i++)
		check_runner(engine, engine->runners.all[i], uses);
	check_graphs(engine);
}
