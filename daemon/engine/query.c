/* SPDX-License-Identifier: MIT */
/* Answers are built by the engine's thread in one allocation, between two steps. */
#include "daemon/engine/query.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/query_run.h"
#include "daemon/engine/requests/names.h"
#include "daemon/engine/requests/finish.h"
#include "daemon/engine/requests/held.h"
#include "daemon/engine/requests/pinned.h"
#include "daemon/engine/state.h"
#include "ipc/clock.h"

#define QUERY_PAGES_A_TURN 256 /* that leave the prefix cache */

void engine_query_free(struct engine_query *query)
{
	if (!query)
		return;
	free(query->requests);
	free(query->pages);
	free(query);
}

struct engine_query *engine_query_take(struct engine *engine)
{
	return reports_take_query(&engine->reports);
}

/* ---- requests ---- */

static enum engine_request_state query_state(const struct request *request)
{
	if (request->state == REQUEST_ENDING)
		return ENGINE_REQUEST_ENDING;
	if (request->state == REQUEST_WAITING)
		return request->started ? ENGINE_REQUEST_PREEMPTED : ENGINE_REQUEST_QUEUED;
	return ENGINE_REQUEST_RUNNING;
}

static void query_set_times(
	struct engine_request_facts *facts, const struct deadlines *deadlines, uint64_t started_ns, uint64_t now)
{
	const uint64_t next = deadline_next(deadlines);

	facts->has_age = deadlines->submitted_ns > 0;
	if (facts->has_age) {
		const uint64_t start = started_ns ? started_ns : now;

		facts->age_ns = now > deadlines->submitted_ns ? now - deadlines->submitted_ns : 0;
		facts->wait_ns = start > deadlines->submitted_ns ? start - deadlines->submitted_ns : 0;
	}
	facts->has_deadline = next != UINT64_MAX;
	if (facts->has_deadline)
		facts->deadline_ns = (int64_t)(next - now);
}

static struct engine_request_facts query_facts(const struct engine_session *session, uint64_t id, unsigned op)
{
	struct engine_request_facts facts = {
		.id = id,
		.op = request_op_name(op),
		.class = request_class_name(MIMEO_CLASS_NORMAL),
		.model = ENGINE_ALL,
		.session = session->port->session,
		.uid = session->port->uid,
		.pid = session->port->pid,
	};

	memcpy(facts.name, session->port->name, sizeof(facts.name));
	return facts;
}

static struct engine_request_facts query_request(const struct request *request, uint64_t now)
{
	struct engine_request_facts facts = query_facts(request->session, request->order, request->op);

	facts.class = request_class_name(request->class);
	facts.state = query_state(request);
	facts.sequence = request->sequence;
	facts.n_rows = request->n_rows;
	if (request->runner)
		facts.model = request->runner->id;
	if (request->n_rows)
		facts.n_tokens = request->rows[request->n_rows - 1].first +
			request->rows[request->n_rows - 1].n_tokens;
	facts.n_prompt = request->n_prompt;
	facts.n_cached = request->n_cached;
	facts.n_generated = request->n_generated;
	facts.max_tokens = request->op == RING_OP_GENERATE ? request->max_tokens : 0;
	query_set_times(&facts, &request->deadlines, request->started_ns, now);
	return facts;
}

static struct engine_request_facts query_held(
	const struct engine_session *session, const struct held_entry *entry, uint64_t now)
{
	struct engine_request_facts facts = query_facts(session, entry->order, entry->sqe.op);

	facts.sequence = entry->sqe.sequence;
	query_set_times(&facts, &entry->deadlines, 0, now);
	return facts;
}

static void query_list_session(struct engine_query *query, const struct engine_session *session, uint64_t now)
{
	const uint32_t end = query->n + session->n_in_flight + session->n_held;

	for (uint32_t i = 0; i < session->n_requests && query->n < end; i++) {
		if (session->entries[i].held)
			query->requests[query->n++] = query_held(session, &session->entries[i], now);
		else if (session->requests[i].state != REQUEST_FREE)
			query->requests[query->n++] = query_request(&session->requests[i], now);
	}
}

static int query_by_id(const void *a, const void *b)
{
	const struct engine_request_facts *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

static void query_requests(const struct accounting *accounting, struct engine_query *query)
{
	const uint64_t now = clock_ns();
	uint32_t n = accounting->n_requests;

	for (uint32_t i = 0; i < accounting->n_sessions; i++)
		n += accounting->sessions[i]->n_held;
	query->requests = calloc(n ? n : 1, sizeof(*query->requests));
	if (!query->requests) {
		query->rc = -ENOMEM;
		return;
	}
	for (uint32_t i = 0; i < accounting->n_sessions; i++)
		query_list_session(query, accounting->sessions[i], now);
	assert(query->n == n);
	qsort(query->requests, query->n, sizeof(*query->requests), query_by_id);
}

/* False: the session has no such request. */
static bool query_cancel_of(struct engine_session *session, struct engine_query *query)
{
	const struct msg_detail detail = {.detail = RING_DETAIL_OPERATOR};

	uint32_t left = session->n_in_flight + session->n_held;

	for (uint32_t i = 0; i < session->n_requests && left > 0; i++) {
		struct held_entry *entry = &session->entries[i];
		struct request *request = &session->requests[i];

		if (!entry->held && request->state == REQUEST_FREE)
			continue;
		left--;
		if (entry->held && entry->order == query->id) {
			*query->requests = query_held(session, entry, clock_ns());
			held_end(session, entry, MIMEO_E_CANCELLED, &detail);
			return true;
		}
		if (!entry->held && request->order == query->id) {
			*query->requests = query_request(request, clock_ns());
			if (request->state == REQUEST_ENDING)
				query->rc = -EALREADY;
			else
				finish_cancel(request, &detail);
			return true;
		}
	}
	return false;
}

static void query_cancel(struct accounting *accounting, struct engine_query *query)
{
	query->requests = calloc(1, sizeof(*query->requests));
	if (!query->requests) {
		query->rc = -ENOMEM;
		return;
	}
	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		if (!query_cancel_of(accounting->sessions[i], query))
			continue;
		query->n = 1;
		return;
	}
	query->rc = -ENOENT;
}

/* ---- pages ---- */

/* The pages of the table that are in the prefix cache. */
static uint32_t query_chained(const struct runner *runner, const struct kv_table *table)
{
	uint32_t n = 0;

	for (uint32_t set = 0; set < runner->options.sets.n; set++) {
		const struct kv_range range = kv_table_range(runner->kv, table, set);
		const uint32_t end = range.end < table->n_chained ? range.end : table->n_chained;

		n += end > range.first ? end - range.first : 0;
	}
	return n;
}

/* Pages of the session's sequences of that model. */
static void query_count_session(
	struct engine_session *session, const struct runner *runner, struct engine_pages_facts *ret)
{
	*ret = (struct engine_pages_facts){
		.of = ENGINE_PAGES_SESSION,
		.model = runner->id,
		.session = session->port->session,
		.uid = session->port->uid,
	};
	memcpy(ret->name, session->port->name, sizeof(ret->name));
	if (!atomic_load_explicit(&session->port->n_pages, memory_order_relaxed))
		return;
	for (uint32_t i = 0; i < engine_session_n_sequences(session); i++) {
		const struct sequence *s = &session->sequences[i];

		if (s->runner != runner || !s->table.n_pages)
			continue;
		ret->n_sequences++;
		ret->n_pages += kv_table_held(runner->kv, &s->table);
		ret->n_registered += query_chained(runner, &s->table);
		ret->n_pinned += s->pinned ? kv_table_held(runner->kv, &s->table) : 0;
	}
}

static struct engine_pages_facts query_count_model(const struct runner *runner)
{
	const struct prefix_counts counts = kv_prefix_counts(runner->kv);

	return (struct engine_pages_facts){
		.of = ENGINE_PAGES_MODEL,
		.model = runner->id,
		.n_pages = kv_pages_total(runner->kv),
		.n_pinned = (uint64_t)runner->slots.pinned.n_pages + runner->slots.pinned.n_promised,
		.n_registered = kv_prefix_pages_registered(runner->kv),
		.n_free = kv_pages_free(runner->kv),
		.n_unused = kv_prefix_pages_unused(runner->kv),
		.n_hits = counts.hits,
		.n_evicted = counts.evicted,
	};
}

static struct engine_pages_facts query_count_user(
	const struct accounting *accounting, const struct runner *runner, uint32_t index)
{
	const struct pinned_user *pinned = &runner->slots.pinned.users[index];

	return (struct engine_pages_facts){
		.of = ENGINE_PAGES_USER,
		.model = runner->id,
		.uid = accounting->users[index].uid,
		.n_pinned = (uint64_t)pinned->n_pages + pinned->n_promised,
		.n_left = pinned_left_of(runner, (uint16_t)index),
	};
}

static void query_add(struct engine_pages_facts *sum, const struct engine_pages_facts *part)
{
	sum->n_sequences += part->n_sequences;
	if (sum->of != ENGINE_PAGES_USER)
		return;
	sum->n_registered += part->n_registered;
	sum->n_pages += part->n_pages;
}

/* A user and the sessions of it. */
static void query_list_user(const struct accounting *accounting, const struct runner *runner, uint32_t index,
	struct engine_pages_facts *model, struct engine_query *query)
{
	struct engine_pages_facts *user = &query->pages[query->n++];

	*user = query_count_user(accounting, runner, index);
	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		struct engine_pages_facts *facts = &query->pages[query->n];

		if (accounting->sessions[i]->share.user != &accounting->users[index])
			continue;
		query_count_session(accounting->sessions[i], runner, facts);
		query->n++;
		query_add(user, facts);
		query_add(model, facts);
	}
}

static void query_pages(const struct accounting *accounting, struct engine_query *query)
{
	const size_t most = (size_t)accounting->runners->n * (1 + 2 * (size_t)accounting->n_sessions);

	query->pages = calloc(most ? most : 1, sizeof(*query->pages));
	if (!query->pages) {
		query->rc = -ENOMEM;
		return;
	}
	for (uint32_t m = 0; m < accounting->runners->n; m++) {
		const struct runner *runner = accounting->runners->all[m];
		struct engine_pages_facts *model = &query->pages[query->n++];

		*model = query_count_model(runner);
		for (uint32_t i = 0; i < ENGINE_SESSIONS_MAX; i++) {
			if (accounting->users[i].n_sessions)
				query_list_user(accounting, runner, i, model, query);
		}
	}
	assert(query->n <= most);
}

/* A part in each turn, so that steps go on. False: there are more. */
static bool query_drop_pages(struct accounting *accounting, struct engine_query *query)
{
	uint32_t most = QUERY_PAGES_A_TURN;

	for (uint32_t i = 0; i < accounting->runners->n; i++) {
		struct runner *runner = accounting->runners->all[i];
		uint32_t n;

		if (query->model != ENGINE_ALL && query->model != runner->id)
			continue;
		n = kv_prefix_drop(runner->kv, most);
		runner_show_pages(runner);
		query->n += n;
		most -= n;
	}
	return most > 0;
}

bool query_run(struct engine *engine, struct engine_query *query)
{
	struct accounting *accounting = &engine->accounting;

	switch (query->kind) {
	case ENGINE_QUERY_REQUESTS:
		query_requests(accounting, query);
		break;
	case ENGINE_QUERY_CANCEL:
		query_cancel(accounting, query);
		break;
	case ENGINE_QUERY_PAGES:
		query_pages(accounting, query);
		break;
	case ENGINE_QUERY_DROP_PAGES:
		if (!query_drop_pages(accounting, query))
			return false;
		break;
	}
	reports_post_query(&engine->reports, query);
	return true;
}
