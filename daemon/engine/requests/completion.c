/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/completion.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/requests/ended.h"

struct msg_detail completion_detail(const int64_t from[static 5])
{
	struct msg_detail ret = {.detail = (unsigned)from[0]};

	for (int i = 0; i < 4; i++)
		ret.values[i] = from[i + 1] > INT32_MAX ? INT32_MAX
			: from[i + 1] < INT32_MIN ? INT32_MIN : (int32_t)from[i + 1];
	return ret;
}

static struct ring_cqe completion_of(const struct request *request, enum ring_cqe_kind kind)
{
	return (struct ring_cqe){
		.user_data = request->user_data,
		.request = request->index,
		.generation = request->generation,
		.kind = (uint8_t)kind,
		.n_prompt = request->n_prompt,
		.n_generated = request->n_generated,
		.n_cached = request->n_cached,
	};
}

static void completion_set_detail(struct ring_cqe *cqe, const struct msg_detail *detail)
{
	if (!detail)
		return;
	cqe->detail = (uint16_t)detail->detail;
	memcpy(cqe->values, detail->values, sizeof(cqe->values));
}

/* Push only if more than n_reserved entries are free; with n_reserved 0 there always is one. */
static void completion_push(
	struct engine_session *session, const struct ring_cqe *cqe, uint32_t n_reserved)
{
	struct ring *ring = &session->port->region.ring;
	int room;

	if (session->failed || session->detached)
		return;
	assert(n_reserved <= session->n_requests);
	/* Reads the client's index only if the copy of it leaves no entry free. */
	room = ring_cq_fits(ring, n_reserved + 1);
	if (room < 0 || (room == 0 && !n_reserved)) {
		engine_session_fail(session, "completion ring: invalid head");
		return;
	}
	if (!room)
		return;
	ring_cq_push(ring, cqe);
	session->publish = true;
}

void completion_progress(const struct request *request, enum ring_cqe_kind kind)
{
	struct ring_cqe cqe = completion_of(request, kind);

	assert(kind != RING_CQE_FINAL && request->state != REQUEST_FREE);
	completion_push(request->session, &cqe,
		request->session->n_in_flight + request->session->n_held);
}

void completion_final(const struct request *request, int status, unsigned finish,
	const struct msg_detail *detail)
{
	struct ring_cqe cqe = completion_of(request, RING_CQE_FINAL);

	assert(request->state != REQUEST_FREE);
	cqe.status = status;
	cqe.finish = (uint8_t)finish;
	cqe.n_sequence = request->end.n_sequence;
	completion_set_detail(&cqe, detail);
	completion_push(request->session, &cqe, 0);
}

void completion_refusal(struct engine_session *session, const struct ring_sqe *sqe, int status,
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

	completion_set_detail(&cqe, detail);
	if (status)
		ended_refused(session, sqe, status);
	completion_push(session, &cqe, 0);
}

void completion_publish(struct accounting *accounting)
{
	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		struct engine_session *session = accounting->sessions[i];

		if (!session->publish)
			continue;
		session->publish = false;
		if (ring_cq_publish(&session->port->region.ring))
			loop_ring(accounting->loop, session->port->cq_bell);
	}
	loop_ring_flush(accounting->loop);
}
