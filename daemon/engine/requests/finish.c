/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/finish.h"

#include <assert.h>
#include <utlist.h>

#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/ended.h"
#include "daemon/engine/requests/held.h"
#include "daemon/engine/requests/pinned.h"
#include "daemon/engine/requests/place.h"
#include "ipc/clock.h"

static void finish_stop_sequences(struct request *request)
{
	struct engine_session *session = request->session;

	if (request->op == RING_OP_GENERATE) {
		struct sequence *s = engine_session_request_sequence(request);

		if (s && s->request == request)
			sequence_stop(s);
		return;
	}
	for (uint32_t i = 0; i < request->n_rows; i++) {
		struct sequence *s =
			engine_session_sequence(session, request->rows[i].sequence);

		if (s && s->request == request)
			sequence_stop(s);
	}
}

/* The length of its sequence; of a step, of the last row's sequence. */
static uint32_t finish_sequence_length(const struct request *request)
{
	struct engine_session *session = request->session;
	const struct sequence *s;

	if (request->n_last)
		return request->n_last;
	if (request->op == RING_OP_GENERATE)
		s = engine_session_request_sequence(request);
	else if (request->op == RING_OP_STEP && request->n_rows)
		s = engine_session_sequence(session, request->rows[request->n_rows - 1].sequence);
	else
		s = engine_session_sequence(session, request->sequence);
	return s && (s->open || s->ephemeral) ? s->n_tokens : 0;
}

static void finish_now(struct request *request)
{
	struct engine_session *session = request->session;
	struct accounting *accounting = session->accounting;

	place_drop_all(request);
	payload_release(&session->payloads, &request->payload);
	completion_final(request, request->end.status, request->end.finish, &request->end.detail);
	request->state = REQUEST_FREE;
	assert(session->n_in_flight > 0 && accounting->n_requests > 0);
	if (!--session->n_in_flight)
		share_end(session);
	accounting->n_requests--;
	ended_request(request);
	accounting->admit = true;
}

static void finish_ending(struct request *request)
{
	assert(request->state == REQUEST_ENDING);
	DL_DELETE(request->session->accounting->ending, request);
	finish_now(request);
}

void finish_ended_steps(struct accounting *accounting)
{
	struct request *request, *next;

	DL_FOREACH_SAFE (accounting->ending, request, next) {
		if (request->last_launch <= accounting->completed)
			finish_ending(request);
	}
}

void finish_request(struct request *request, int status, unsigned finish,
	const struct msg_detail *detail)
{
	struct engine_session *session = request->session;
	struct accounting *accounting = session->accounting;

	assert(request->state != REQUEST_FREE);
	if (request->state == REQUEST_ENDING) {
		if (session->detached)
			finish_ending(request);
		return;
	}
	request->end.n_sequence = finish_sequence_length(request);
	if (request->state != REQUEST_RUNNING)
		engine_session_wait_remove(session, request);
	if (request->state != REQUEST_WAITING)
		finish_stop_sequences(request);
	deadline_drop(session, &request->deadlines);
	pinned_end(request);
	request->end.status = status;
	request->end.finish = finish;
	request->end.detail = detail ? *detail : (struct msg_detail){0};
	if (!request->n_places || request->last_launch <= accounting->completed || session->detached) {
		finish_now(request);
		return;
	}
	assert(request->state == REQUEST_RUNNING || request->state == REQUEST_STARTING);
	request->state = REQUEST_ENDING;
	DL_APPEND(accounting->ending, request);
}

static unsigned finish_reason(const struct request *request, int status)
{
	if (request->op != RING_OP_GENERATE)
		return MIMEO_FINISH_NONE;
	return status == MIMEO_E_CANCELLED ? MIMEO_FINISH_CANCELLED : MIMEO_FINISH_ERROR;
}

void finish_cancel(struct request *request, const struct msg_detail *detail)
{
	finish_request(request, MIMEO_E_CANCELLED, finish_reason(request, MIMEO_E_CANCELLED), detail);
}

static void finish_session_requests(struct engine_session *session, int status, const struct msg_detail *detail)
{
	for (uint32_t i = 0; i < session->n_requests; i++) {
		struct request *request = &session->requests[i];

		if (request->state != REQUEST_FREE)
			finish_request(request, status, finish_reason(request, status), detail);
	}
}

void finish_all(struct accounting *accounting, int status, const struct msg_detail *detail)
{
	for (uint32_t i = 0; i < accounting->n_sessions; i++)
		finish_session_requests(accounting->sessions[i], status, detail);
}

void finish_model(struct accounting *accounting, const struct runner *runner)
{
	const struct msg_detail detail = DETAIL(RING_DETAIL_UNLOADED, runner->id);

	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		struct engine_session *session = accounting->sessions[i];
		uint32_t left = session->n_in_flight;

		for (uint32_t j = 0; j < session->n_requests && left > 0; j++) {
			struct request *request = &session->requests[j];

			if (request->state == REQUEST_FREE)
				continue;
			left--;
			if (request->runner == runner)
				finish_request(request, MIMEO_E_UNKNOWN_MODEL,
					finish_reason(request, MIMEO_E_UNKNOWN_MODEL), &detail);
		}
	}
}

static void finish_late(struct engine_session *session, uint32_t owner)
{
	struct msg_detail detail = deadline_detail(deadline_of(session, owner));
	struct request *request = &session->requests[owner / 2];

	if (owner == DEADLINE_HELD(owner / 2))
		held_end(session, &session->entries[owner / 2], MIMEO_E_DEADLINE, &detail);
	else
		finish_request(request, MIMEO_E_DEADLINE, finish_reason(request, MIMEO_E_DEADLINE), &detail);
}

/* Ends the session's overdue requests and held entries; *next: the earliest deadline of the others. */
static bool finish_overdue_of(struct engine_session *session, uint64_t now, uint64_t *next)
{
	uint64_t at = UINT64_MAX;
	bool any = false;
	uint32_t owner;

	while ((owner = deadline_first(session)) != DEADLINE_NOBODY) {
		at = deadline_next(deadline_of(session, owner));
		if (at > now)
			break;
		finish_late(session, owner);
		any = true;
	}
	if (owner != DEADLINE_NOBODY && at < *next)
		*next = at;
	return any;
}

bool finish_overdue(struct accounting *accounting)
{
	uint64_t now, next = UINT64_MAX;
	bool any = false;

	if (!accounting->n_deadlines)
		return false;
	now = clock_ns();
	if (now < accounting->next_deadline_ns)
		return false;
	for (uint32_t i = 0; i < accounting->n_sessions; i++)
		any |= finish_overdue_of(accounting->sessions[i], now, &next);
	accounting->next_deadline_ns = next;
	return any;
}

void finish_session(struct engine_session *session)
{
	assert(!session->detached && !session->source);
	session->detached = true;
	finish_session_requests(session, MIMEO_E_GONE, NULL);
	while (session->held)
		held_remove(session, session->held);
	assert(!session->n_in_flight && !session->n_waiting && !session->waiting);
	assert(!session->payloads.used);
	place_forget_buffers(session);
	for (uint32_t i = 0; i < engine_session_n_sequences(session); i++) {
		struct sequence *s = &session->sequences[i];

		if (s->state != SEQUENCE_IDLE)
			s->forget = true;
		else if (s->open || s->table.n_pages)
			sequence_forget(s);
	}
	assert(session->n_busy > 0 || !session->n_open);
}
