/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/submissions.h"

#include <assert.h>

#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/finish.h"
#include "daemon/engine/requests/held.h"
#include "daemon/engine/requests/intake.h"

static bool submissions_cancel_held(
	struct engine_session *session, struct held_entry *entry, uint32_t generation)
{
	if (!entry->held || entry->sqe.generation != generation)
		return false;
	held_end(session, entry, MIMEO_E_CANCELLED, NULL);
	return true;
}

/* Takes effect at once, before entries that wait. */
static int submissions_cancel(struct engine_session *session, uint32_t index, uint32_t generation)
{
	struct request *target;

	if (index >= session->n_requests)
		return MIMEO_E_UNKNOWN_REQUEST;
	if (submissions_cancel_held(session, &session->entries[index], generation))
		return 0;
	target = &session->requests[index];
	if (target->state == REQUEST_FREE || target->generation != generation)
		return MIMEO_E_UNKNOWN_REQUEST;
	finish_cancel(target, NULL);
	return 0;
}

bool submissions_cancels_wait(const struct engine_session *session)
{
	return (session->n_in_flight || session->n_held) && ring_cancels_wait(&session->port->region.ring);
}

/* Read all cancel words, at most once a turn; the word of an entry that is taken later is read then. */
static bool submissions_cancel_by_words(struct engine_session *session)
{
	struct ring *ring = &session->port->region.ring;

	if (!submissions_cancels_wait(session))
		return false;
	ring_cancels_begin(ring);
	for (uint32_t i = 0; i < session->n_requests; i++) {
		uint32_t generation = ring_cancel_word(ring, i);

		if (generation)
			submissions_cancel(session, i, generation);
	}
	return true;
}

static bool submissions_is_cancelled(const struct engine_session *session, const struct ring_sqe *sqe)
{
	return sqe->generation && ring_cancel_word(&session->port->region.ring, sqe->request) == sqe->generation;
}

/* False: the entry has to wait for space in the pool. */
static bool submissions_entry(struct engine_session *session, const struct ring_sqe *sqe)
{
	struct refusal refusal = {0};
	int rc;

	switch (sqe->op) {
	case RING_OP_NOP:
		break;
	case RING_OP_CANCEL:
		refusal.status = submissions_cancel(session, sqe->argument, sqe->generation2);
		break;
	case RING_OP_GENERATE:
	case RING_OP_STEP:
	case RING_OP_OPEN:
	case RING_OP_FORK:
	case RING_OP_TRUNCATE:
	case RING_OP_CLOSE:
	case RING_OP_LENGTH:
		rc = intake_request(session, sqe, &refusal);
		if (rc >= 0)
			return rc == 0;
		break;
	default:
		refusal = (struct refusal){MIMEO_E_INVALID, DETAIL(RING_DETAIL_OP, sqe->op)};
	}
	completion_refusal(session, sqe, refusal.status, &refusal.detail);
	return true;
}

/* Has its client had less of the turn than it may? */
static bool submissions_has_turn(const struct engine_session *session)
{
	return session->n_copied < SUBMISSIONS_SESSION_BYTES;
}

/* Make requests of held entries, up to the first whose payload has no space. */
static bool submissions_held(struct engine_session *session)
{
	bool worked = false;

	while (session->n_held && submissions_has_turn(session)) {
		struct held_entry *first = session->held;

		session->n_copied += SUBMISSIONS_ENTRY_BYTES;
		if (!submissions_entry(session, &first->sqe))
			break;
		assert(session->held == first);
		held_remove(session, first);
		worked = true;
	}
	return worked;
}

static bool submissions_is_in_flight(const struct engine_session *session, uint32_t index)
{
	return index >= session->n_requests || session->requests[index].state != REQUEST_FREE ||
		session->entries[index].held;
}

static void submissions_accept(struct engine_session *session, struct ring_sqe *sqe)
{
	const bool waits = session->n_held && sqe->op != RING_OP_CANCEL && sqe->op != RING_OP_NOP;

	session->n_copied += SUBMISSIONS_ENTRY_BYTES;
	if (submissions_is_in_flight(session, sqe->request)) {
		engine_session_fail(session, "submission ring: a request index that is out of range or in flight");
		return;
	}
	if (submissions_is_cancelled(session, sqe)) {
		held_push(session, sqe);
		held_end(session, &session->entries[sqe->request], MIMEO_E_CANCELLED, NULL);
		return;
	}
	if (sqe->op == RING_OP_GENERATE || sqe->op == RING_OP_STEP)
		sqe->submitted_ns = deadline_submitted(sqe->submitted_ns);
	if (!waits && submissions_entry(session, sqe))
		return;
	held_push(session, sqe);
	intake_deadlines(session, sqe);
}

/* Take what the session submitted, as far as its turn goes. True if there was anything. */
static bool submissions_take_session(struct engine_session *session)
{
	struct ring *ring = &session->port->region.ring;
	struct ring_sqe sqe;
	const bool was_full = session->cq_full;
	bool worked;
	uint32_t n;

	session->n_copied = 0;
	if (session->failed || session->detached)
		return false;
	assert(session->n_in_flight + session->n_held <= session->n_requests);
	session->cq_full = false;
	worked = submissions_cancel_by_words(session);
	worked |= submissions_held(session);
	/* An entry is taken when its final completion fits beside those of the requests in flight. */
	for (n = 0; n < session->n_requests && submissions_has_turn(session); n++) {
		int room = ring_cq_fits(ring, session->n_in_flight + session->n_held + 1);

		session->cq_full = room == 0;
		counter_add(&session->accounting->stats->n_ring_full, session->cq_full && !was_full);
		if (room < 0)
			engine_session_fail(session, "completion ring: invalid head");
		if (room != 1 || !ring_sq_pop(ring, &sqe))
			break;
		submissions_accept(session, &sqe);
		if (session->failed)
			return true;
	}
	if (n)
		ring_sq_release(ring);
	assert(session->n_in_flight + session->n_held <= session->n_requests);
	/* The end of a running request wakes the engine; after an admission it must poll again. */
	return worked || n > 0 || (session->n_held && !session->n_busy);
}

bool submissions_take(struct accounting *accounting)
{
	const uint32_t n = accounting->n_sessions;
	uint64_t n_copied = 0;
	bool worked = false;
	uint32_t i;

	for (i = 0; i < n && n_copied < SUBMISSIONS_TURN_BYTES; i++) {
		struct engine_session *session = accounting->sessions[(accounting->first_session + i) % n];

		worked |= submissions_take_session(session);
		n_copied += session->n_copied;
	}
	accounting->first_session = n ? (accounting->first_session + i) % n : 0;
	return worked;
}
