/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/deadline.h"

#include <assert.h>

#include "daemon/engine/requests/completion.h"
#include "ipc/clock.h"

#define NS_PER_MS UINT64_C(1000000)

uint64_t deadline_submitted(uint64_t stamp_ns)
{
	const uint64_t now = clock_ns();

	return !stamp_ns || stamp_ns > now || now - stamp_ns > DEADLINE_STAMP_MAX_NS ? now : stamp_ns;
}

static bool deadline_is_of_first_token(const struct deadlines *deadlines)
{
	return deadlines->first_token_ns && (!deadlines->end_ns || deadlines->first_token_ns < deadlines->end_ns);
}

uint64_t deadline_next(const struct deadlines *deadlines)
{
	if (deadline_is_of_first_token(deadlines))
		return deadlines->first_token_ns;
	return deadlines->end_ns ? deadlines->end_ns : UINT64_MAX;
}

struct deadlines *deadline_of(const struct engine_session *session, uint32_t owner)
{
	assert(owner / 2 < session->n_requests);
	return owner % 2 ? &session->entries[owner / 2].deadlines : &session->requests[owner / 2].deadlines;
}

/* ---- the heap: places from 1, none is earlier than the one at half its place ---- */

static uint64_t deadline_at(const struct engine_session *session, uint32_t place)
{
	return deadline_next(deadline_of(session, session->deadlines[place]));
}

static void deadline_put(struct engine_session *session, uint32_t place, uint32_t owner)
{
	session->deadlines[place] = owner;
	deadline_of(session, owner)->place = place;
}

static void deadline_swap(struct engine_session *session, uint32_t a, uint32_t b)
{
	const uint32_t owner = session->deadlines[a];

	deadline_put(session, a, session->deadlines[b]);
	deadline_put(session, b, owner);
}

/* Move what is at the place to where it belongs. */
static void deadline_settle(struct engine_session *session, uint32_t place)
{
	uint32_t child;

	for (; place > 1 && deadline_at(session, place) < deadline_at(session, place / 2); place /= 2)
		deadline_swap(session, place, place / 2);
	for (; (child = 2 * place) <= session->n_deadlines; place = child) {
		if (child < session->n_deadlines && deadline_at(session, child + 1) < deadline_at(session, child))
			child++;
		if (deadline_at(session, place) <= deadline_at(session, child))
			return;
		deadline_swap(session, place, child);
	}
}

static void deadline_remove(struct engine_session *session, struct deadlines *deadlines)
{
	const uint32_t place = deadlines->place, last = session->n_deadlines--;

	assert(place >= 1 && place <= last);
	deadlines->place = 0;
	if (place == last)
		return;
	deadline_put(session, place, session->deadlines[last]);
	deadline_settle(session, place);
}

uint32_t deadline_first(const struct engine_session *session)
{
	return session->n_deadlines ? session->deadlines[1] : DEADLINE_NOBODY;
}

/* ---- deadlines of one owner ---- */

static uint64_t deadline_after(struct accounting *accounting, uint64_t submitted_ns, uint32_t ms)
{
	const uint64_t at_ns = submitted_ns + ms * NS_PER_MS;

	if (!ms)
		return 0;
	if (!accounting->n_deadlines++ || at_ns < accounting->next_deadline_ns)
		accounting->next_deadline_ns = at_ns;
	return at_ns;
}

void deadline_begin(struct engine_session *session, uint32_t owner, uint64_t submitted_ns, uint32_t end_ms,
	uint32_t first_token_ms)
{
	struct deadlines *deadlines = deadline_of(session, owner);

	assert(!deadlines->end_ns && !deadlines->first_token_ns && !deadlines->place);
	deadlines->submitted_ns = submitted_ns;
	deadlines->end_ns = deadline_after(session->accounting, submitted_ns, end_ms);
	deadlines->first_token_ns = deadline_after(session->accounting, submitted_ns, first_token_ms);
	if (!end_ms && !first_token_ms)
		return;
	/* A held entry keeps its deadlines until its request has some. */
	assert(session->n_deadlines <= session->n_requests);
	deadline_put(session, ++session->n_deadlines, owner);
	deadline_settle(session, session->n_deadlines);
}

static void deadline_clear(struct accounting *accounting, uint64_t *at_ns)
{
	if (!*at_ns)
		return;
	assert(accounting->n_deadlines > 0 && *at_ns >= accounting->next_deadline_ns);
	accounting->n_deadlines--;
	*at_ns = 0;
}

void deadline_meet_first_token(struct engine_session *session, struct deadlines *deadlines)
{
	if (!deadlines->first_token_ns)
		return;
	deadline_clear(session->accounting, &deadlines->first_token_ns);
	if (deadlines->end_ns)
		deadline_settle(session, deadlines->place);
	else
		deadline_remove(session, deadlines);
}

void deadline_drop(struct engine_session *session, struct deadlines *deadlines)
{
	if (deadlines->place)
		deadline_remove(session, deadlines);
	deadline_clear(session->accounting, &deadlines->end_ns);
	deadline_clear(session->accounting, &deadlines->first_token_ns);
}

struct msg_detail deadline_detail(const struct deadlines *deadlines)
{
	const unsigned field = deadline_is_of_first_token(deadlines) ? MSG_FIRST_TOKEN_MS : MSG_DEADLINE_MS;

	return DETAIL(RING_DETAIL_DEADLINE, field,
		(int64_t)((deadline_next(deadlines) - deadlines->submitted_ns) / NS_PER_MS));
}
