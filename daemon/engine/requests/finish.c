/* SPDX-License-Identifier: MIT */
/*
 * How requests end, and what their clients are told.
 *
 * Room in the completion ring: every request in flight has one entry of its own for its final
 * completion. Progress is told only while more entries than that are free; tokens are in the output
 * area by then, and a later completion's count covers those that were not told of. So a slow reader
 * loses nothing and holds up nobody.
 */
#include "daemon/engine/state.h"

#include <stdio.h>
#include <string.h>

#include "ipc/clock.h"

static bool push(struct session *session, const struct ring_cqe *cqe, uint32_t n_reserved)
{
	struct ring *ring = &session->port->region.ring;
	/* The client's index is looked at only when the copy of it leaves no room. */
	int room = ring_cq_room(ring, n_reserved + 1);

	if (room < 0 || (room == 0 && !n_reserved)) {
		engine_session_fail(session, "completion ring: the head is not where it can be");
		return false;
	}
	if (!room)
		return false;
	ring_cq_push(ring, cqe);
	session->publish = true;
	return true;
}

void post_tokens(struct request *request)
{
	struct session *session = request->session;
	struct ring_cqe cqe = {
		.user_data = request->user_data,
		.request = request->index,
		.generation = request->generation,
		.kind = RING_CQE_TOKENS,
		.n_prompt = request->n_prompt,
		.n_generated = request->n_generated,
	};

	if (!session->failed && !session->detached)
		push(session, &cqe, session->n_in_flight);
}

void post_recorded(struct request *request)
{
	struct session *session = request->session;
	struct ring_cqe cqe = {
		.user_data = request->user_data,
		.request = request->index,
		.generation = request->generation,
		.kind = RING_CQE_RECORDED,
		.n_prompt = request->n_prompt,
		.n_generated = request->n_generated,
	};

	if (!session->failed && !session->detached)
		push(session, &cqe, session->n_in_flight);
}

static void set_detail(struct ring_cqe *cqe, const struct msg_detail *detail)
{
	if (!detail)
		return;
	cqe->detail = (uint16_t)detail->detail;
	memcpy(cqe->values, detail->values, sizeof(cqe->values));
}

void post_final(struct request *request, int status, unsigned finish, const struct msg_detail *detail)
{
	struct session *session = request->session;
	struct ring_cqe cqe = {
		.user_data = request->user_data,
		.request = request->index,
		.generation = request->generation,
		.status = status,
		.kind = RING_CQE_FINAL,
		.finish = (uint8_t)finish,
		.n_prompt = request->n_prompt,
		.n_generated = request->n_generated,
	};

	set_detail(&cqe, detail);
	if (!session->failed && !session->detached)
		push(session, &cqe, 0);
}

void post_refusal(struct session *session, const struct ring_sqe *sqe, int status,
	const struct msg_detail *detail)
{
	struct ring_cqe cqe = {
		.user_data = sqe->user_data,
		.request = sqe->request,
		.generation = sqe->generation,
		.status = status,
		.kind = RING_CQE_FINAL,
		.finish = status && sqe->op == RING_OP_GENERATE ? MIMEO_FINISH_ERROR : 0,
	};

	set_detail(&cqe, detail);
	if (status)
		count(&session->engine->stats.n_refused, 1);
	if (!session->failed && !session->detached)
		push(session, &cqe, 0);
}

static void stop_sequences(struct request *request)
{
	struct session *session = request->session;
	uint32_t n = session->max_sequences + session->n_requests;

	if (request->op == RING_OP_GENERATE) {
		struct sequence *s = request->sequence
			? engine_session_sequence(session, request->sequence)
			: &session->sequences[session->max_sequences + request->index];

		if (s && s->request == request)
			sequence_stop(s);
		return;
	}
	for (uint32_t i = 0; i < request->n_rows; i++) {
		struct sequence *s = engine_session_sequence(session, request->rows[i].sequence);

		if (s && s < session->sequences + n && s->request == request)
			sequence_stop(s);
	}
}

static void count_end(struct engine *engine, int status)
{
	if (!status)
		count(&engine->stats.n_finished, 1);
	else if (status == MIMEO_E_CANCELLED)
		count(&engine->stats.n_cancelled, 1);
	else
		count(&engine->stats.n_failed, 1);
}

static void end(struct request *request, int status, unsigned finish,
	const struct msg_detail *detail)
{
	struct engine *engine = request->session->engine;

	request_places_drop(request);
	post_final(request, status, finish, detail);
	request->state = REQUEST_FREE;
	request->session->n_in_flight--;
	engine->n_requests--;
	count_end(engine, status);
	engine->admit = true;
}

static void end_later(struct request *request, int status, unsigned finish,
	const struct msg_detail *detail)
{
	struct engine *engine = request->session->engine;

	request->state = REQUEST_ENDING;
	request->end.status = status;
	request->end.finish = finish;
	request->end.has_detail = detail != NULL;
	if (detail)
		request->end.detail = *detail;
	request->end.next = engine->ending;
	engine->ending = request;
}

/* Off the list, at its link. */
static void end_now(struct request **link)
{
	struct request *request = *link;

	*link = request->end.next;
	end(request, request->end.status, request->end.finish,
		request->end.has_detail ? &request->end.detail : NULL);
}

void requests_end(struct engine *engine)
{
	struct request **link = &engine->ending;

	while (*link) {
		if ((*link)->last_launch > engine->completed)
			link = &(*link)->end.next;
		else
			end_now(link);
	}
}

/* Its session lets go of everything, and hears nothing. */
static void end_unheard(struct request *request)
{
	struct request **link = &request->session->engine->ending;

	while (*link != request)
		link = &(*link)->end.next;
	end_now(link);
}

void request_finish(struct request *request, int status, unsigned finish,
	const struct msg_detail *detail)
{
	struct session *session = request->session;
	struct engine *engine = session->engine;

	if (request->state == REQUEST_ENDING) {
		if (session->detached)
			end_unheard(request);
		return;
	}
	if (request->state == REQUEST_WAITING)
		engine_session_wait_remove(session, request);
	else
		stop_sequences(request);
	if (request->deadline_ns)
		engine->n_deadlines--;
	request->deadline_ns = 0;
	if (request->n_places && request->last_launch > engine->completed && !session->detached)
		end_later(request, status, finish, detail);
	else
		end(request, status, finish, detail);
}

static unsigned finish_of(const struct request *request, int status)
{
	if (request->op != RING_OP_GENERATE)
		return MIMEO_FINISH_NONE;
	return status == MIMEO_E_CANCELLED ? MIMEO_FINISH_CANCELLED : MIMEO_FINISH_ERROR;
}

static void session_end_all(struct session *session, int status)
{
	for (uint32_t i = 0; i < session->n_requests; i++) {
		struct request *request = &session->requests[i];

		if (request->state != REQUEST_FREE)
			request_finish(request, status, finish_of(request, status), NULL);
	}
}

void engine_end_all(struct engine *engine, int status)
{
	for (uint32_t i = 0; i < engine->n_sessions; i++)
		session_end_all(engine->sessions[i], status);
}

bool engine_check_deadlines(struct engine *engine)
{
	uint64_t now, next = UINT64_MAX;
	bool any = false;

	if (!engine->n_deadlines)
		return false;
	now = clock_ns();
	if (now < engine->next_deadline_ns)
		return false;
	for (uint32_t i = 0; i < engine->n_sessions; i++) {
		struct session *session = engine->sessions[i];

		for (uint32_t k = 0; k < session->n_requests; k++) {
			struct request *request = &session->requests[k];

			if (request->state == REQUEST_FREE || !request->deadline_ns)
				continue;
			if (request->deadline_ns > now) {
				next = request->deadline_ns < next ? request->deadline_ns : next;
				continue;
			}
			request_finish(request, MIMEO_E_DEADLINE,
				finish_of(request, MIMEO_E_DEADLINE), NULL);
			any = true;
		}
	}
	engine->next_deadline_ns = next;
	return any;
}

void engine_lose_device(struct engine *engine, int rc)
{
	struct device_fault fault = {0};
	char text[256];

	if (engine->lost)
		return;
	engine->lost = true;
	atomic_store(&engine->stats.device_condition, rc);
	/* On the cpu device an op may still run; others answer at once. */
	engine->device->ops->stream_sync(engine->lane);
	engine->completed = engine->launched;
	requests_end(engine);
	/* Nothing runs any more, so nothing names a page or a slot. */
	for (; engine->n_flights; engine->n_flights--) {
		struct flight *flight = &engine->flights[engine->first_flight];

		kv_release(flight->runner->kv, flight->sources, flight->n_sources);
		engine->first_flight = (engine->first_flight + 1) % ENGINE_FLIGHTS;
	}
	for (uint32_t i = 0; i < engine->n_runners; i++) {
		struct runner *runner = &engine->runners[i];

		runner->completed = runner->launched;
		for (uint32_t k = 0; k < runner->n_copies; k++)
			kv_release(runner->kv, &runner->copies[k][0], 1);
		runner->n_copies = 0;
		runner_release(runner);
	}
	engine_end_all(engine, MIMEO_E_DEVICE_LOST);
	engine->device->ops->last_fault(engine->device, &fault);
	snprintf(text, sizeof(text), "%s, at %s", device_strerror(rc), fault.call ? fault.call : "?");
	report_post(engine, ENGINE_DEVICE_LOST, NULL, text);
}

void engine_publish(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->n_sessions; i++) {
		struct session *session = engine->sessions[i];

		if (!session->publish)
			continue;
		session->publish = false;
		if (ring_cq_publish(&session->port->region.ring))
			loop_ring(engine->loop, session->port->cq_bell);
	}
	loop_ring_flush(engine->loop);
}
