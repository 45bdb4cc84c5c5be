/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/sequence_calls.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/finish.h"

static void sequence_calls_refuse(struct request *request, int status, struct msg_detail detail)
{
	finish_request(request, status, MIMEO_FINISH_NONE, &detail);
}

/* Ids begin at 1: one beyond the last asks for all below it. */
static void sequence_calls_refuse_id(struct request *request, uint32_t id)
{
	const struct engine_session *session = request->session;

	if (!id) {
		sequence_calls_refuse(request, MIMEO_E_INVALID, DETAIL(RING_DETAIL_SEQUENCE, id));
		return;
	}
	assert(id > session->max_sequences);
	sequence_calls_refuse(request, MIMEO_E_QUOTA, DETAIL(RING_DETAIL_BUDGET, RING_BUDGET_SEQUENCES,
		(int64_t)id - session->n_open, (int64_t)session->max_sequences - session->n_open));
}

static void sequence_calls_done(struct request *request)
{
	finish_request(request, MIMEO_OK, MIMEO_FINISH_NONE, NULL);
}

static void sequence_calls_open(struct request *request)
{
	struct sequence *s = engine_session_sequence(request->session, request->sequence);
	struct msg_detail detail;
	struct runner *runner = engine_session_model(request->session, request->argument, &detail);

	if (!runner) {
		sequence_calls_refuse(request, MIMEO_E_UNKNOWN_MODEL, detail);
		return;
	}
	if (!s) {
		sequence_calls_refuse_id(request, request->sequence);
		return;
	}
	if (s->open) {
		sequence_calls_refuse(
			request, MIMEO_E_INVALID, DETAIL(RING_DETAIL_OPEN_TWICE, request->sequence));
		return;
	}
	sequence_reset(s, runner);
	sequence_open(s);
	sequence_calls_done(request);
}

static uint32_t sequence_calls_fork(struct request *request, struct sequence *parent)
{
	struct sequence *child = engine_session_sequence(request->session, request->argument);

	if (!child) {
		sequence_calls_refuse_id(request, request->argument);
		return 0;
	}
	if (child->open) {
		sequence_calls_refuse(
			request, MIMEO_E_INVALID, DETAIL(RING_DETAIL_OPEN_TWICE, request->argument));
		return 0;
	}
	if (sequence_fork(child, parent)) {
		sequence_calls_refuse(
			request, MIMEO_E_NO_MEMORY, DETAIL(RING_DETAIL_SEQUENCE, request->argument));
		return 0;
	}
	sequence_calls_done(request);
	return child->n_tokens;
}

static void sequence_calls_truncate(struct request *request, struct sequence *s)
{
	if (request->argument > s->n_tokens) {
		sequence_calls_refuse(request, MIMEO_E_INVALID,
			DETAIL(RING_DETAIL_KEEP, request->argument, s->n_tokens));
		return;
	}
	sequence_truncate(s, request->argument);
	sequence_calls_done(request);
}

static void sequence_calls_close(struct request *request, struct sequence *s)
{
	assert(request->op == RING_OP_CLOSE);
	sequence_forget(s);
	sequence_calls_done(request);
}

uint32_t sequence_call(struct request *request)
{
	struct sequence *s = engine_session_sequence(request->session, request->sequence);

	if (request->op == RING_OP_OPEN)
		sequence_calls_open(request);
	else if (!s || !s->open)
		sequence_calls_refuse(request, MIMEO_E_UNKNOWN_SEQUENCE,
			DETAIL(RING_DETAIL_SEQUENCE, request->sequence));
	else if (!s->runner && (request->op == RING_OP_FORK || request->op == RING_OP_TRUNCATE))
		sequence_calls_refuse(request, MIMEO_E_UNKNOWN_MODEL, DETAIL(RING_DETAIL_UNLOADED, 0));
	else if (request->op == RING_OP_FORK)
		return sequence_calls_fork(request, s);
	else if (request->op == RING_OP_TRUNCATE)
		sequence_calls_truncate(request, s);
	else if (request->op == RING_OP_LENGTH)
		sequence_calls_done(request);
	else
		sequence_calls_close(request, s);
	return 0;
}
