/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/reclaim.h"

#include <assert.h>
#include <utlist.h>

#include "daemon/engine/models/runner.h"
#include "daemon/engine/requests/class.h"
#include "daemon/engine/requests/engine_session.h"
#include "daemon/engine/requests/pinned.h"

uint32_t reclaim_most(struct runner *runner, uint64_t claim)
{
	struct slots *slots = &runner->slots;
	uint32_t n = slots->pinned.n_pages;
	const struct sequence *s;

	pinned_begin_marks(slots, kv_cache_config(runner->kv)->max_pages);
	DL_FOREACH2 (slots->idle, s, idle_next)
		n += s->claim == claim ? pinned_mark(slots, s) : 0;
	assert(n <= kv_pages_total(runner->kv));
	return kv_pages_total(runner->kv) - n;
}

static void reclaim_evict(struct runner *runner, uint32_t n_pages, uint64_t claim)
{
	struct sequence *s, *next;

	DL_FOREACH_SAFE2 (runner->slots.idle, s, next, idle_next) {
		if (kv_pages_free(runner->kv) >= n_pages)
			return;
		if (s->table.n_pages && (!claim || s->claim != claim))
			sequence_evict(s);
	}
}

/* Does the sequence release all its pages when the launched steps that name it have completed? */
static bool reclaim_leaves(const struct sequence *s)
{
	return s->request || s->ephemeral || s->forget;
}

/* Pages or slots that are free, or will be when the launched steps have completed. */
static uint64_t reclaim_pending(const struct runner *runner, bool pages)
{
	uint64_t n = pages ? kv_pages_free(runner->kv) : runner->slots.n_free;

	for (const struct sequence *s = runner->slots.releasing; s; s = s->next)
		n += !pages ? 1 : reclaim_leaves(s) ? kv_table_held(runner->kv, &s->table) : 0;
	return n;
}

/* ---- what sessions have ---- */

/* Set n_running of all sessions with running sequences of the model, and of `session`: their slots, or pages of
 * these sequences. */
static void reclaim_count(const struct runner *runner, struct engine_session *session, bool pages)
{
	const struct slots *slots = &runner->slots;

	session->n_running = 0;
	for (uint32_t i = 0; i < slots->n_running; i++)
		slots->running[i]->session->n_running = 0;
	for (uint32_t i = 0; i < slots->n_running; i++)
		slots->running[i]->session->n_running +=
			pages ? kv_table_held(runner->kv, &slots->running[i]->table) : 1;
}

/* After reclaim_count. */
static bool reclaim_is_above(const struct runner *runner, const struct engine_session *session, uint32_t n_more,
	bool pages)
{
	const uint32_t n = pages ? kv_pages_total(runner->kv) : runner->limits->max_requests;

	return session->n_running + n_more > share_entitlement(session->accounting, session, n);
}

/* The oldest running generate request. It is preempted only for the model's head. */
static const struct sequence *reclaim_oldest(const struct runner *runner)
{
	const struct sequence *oldest = NULL;

	for (uint32_t i = 0; i < runner->slots.n_running; i++) {
		const struct sequence *s = runner->slots.running[i];

		if (s->request->op == RING_OP_GENERATE && (!oldest || s->request->order < oldest->request->order))
			oldest = s;
	}
	return oldest;
}

/* ---- preemption ---- */

/* Is s preempted before the victim? First those of the session that is furthest ahead (share.h); of one session the
 * lower class, then the younger request. */
static bool reclaim_goes_before(const struct sequence *s, const struct sequence *victim)
{
	if (!victim)
		return true;
	if (s->session != victim->session)
		return share_is_before(victim->session, s->session);
	if (s->request->class != victim->request->class)
		return class_is_before(victim->request->class, s->request->class);
	return s->request->order > victim->request->order;
}

/* The youngest spare batch request, for any other request; NULL: none. */
static struct sequence *reclaim_spare(const struct runner *runner, const struct request *request)
{
	struct sequence *victim = NULL;

	if (request->class == MIMEO_CLASS_BATCH)
		return NULL;
	for (uint32_t i = 0; i < runner->slots.n_running; i++) {
		struct sequence *s = runner->slots.running[i];

		if (class_is_spare(s->request) && sequence_is_preemptible(s) &&
			(!victim || s->request->order > victim->request->order))
			victim = s;
	}
	return victim;
}

/* A spare request, else the next generate request that may be preempted for the model's head; NULL: none. */
static struct sequence *reclaim_victim_of_head(const struct runner *runner)
{
	const struct request *head = runner->slots.head;
	struct sequence *victim = reclaim_spare(runner, head);

	if (victim)
		return victim;
	for (uint32_t i = 0; i < runner->slots.n_running; i++) {
		struct sequence *s = runner->slots.running[i];

		if (!sequence_is_preemptible(s) || (s->request->order < head->order && s->n_tokens <= s->prompt_end))
			continue;
		if (reclaim_goes_before(s, victim))
			victim = s;
	}
	return victim;
}

/* An upper bound of the pages that evicting idle sequences frees: shared pages are counted, too. */
static uint64_t reclaim_idle_pages(const struct runner *runner, uint64_t claim)
{
	uint64_t n = runner->slots.n_idle_pages;
	const struct sequence *s;

	DL_FOREACH2 (runner->slots.idle, s, idle_next)
		n -= claim && s->claim == claim ? kv_table_held(runner->kv, &s->table) : 0;
	return n;
}

bool reclaim_pages(struct runner *runner, uint32_t n_pages, uint64_t claim, bool head)
{
	struct sequence *victim;

	if (!head && kv_pages_free(runner->kv) + reclaim_idle_pages(runner, claim) < n_pages)
		return false;
	reclaim_evict(runner, n_pages, claim);
	while (head && reclaim_pending(runner, true) < n_pages) {
		victim = reclaim_victim_of_head(runner);
		if (!victim)
			break;
		sequence_preempt(victim);
		/* Its open sequence is idle now and may be evicted, too, or its pages may be shared. */
		reclaim_evict(runner, n_pages, claim);
	}
	return kv_pages_free(runner->kv) >= n_pages;
}

bool reclaim_slots(struct runner *runner, uint32_t n_slots)
{
	struct sequence *victim;

	while (reclaim_pending(runner, false) < n_slots && (victim = reclaim_victim_of_head(runner)))
		sequence_preempt(victim);
	return runner->slots.n_free >= n_slots;
}

/* ---- from spare requests, and from sessions above their entitlement ---- */

/* For an interactive request: the next one to be preempted of its user's others; NULL: none. */
static struct sequence *reclaim_victim_of_user(const struct runner *runner, const struct request *request)
{
	const struct sequence *oldest = reclaim_oldest(runner);
	struct sequence *victim = NULL;

	if (request->class != MIMEO_CLASS_INTERACTIVE)
		return NULL;
	for (uint32_t i = 0; i < runner->slots.n_running; i++) {
		struct sequence *s = runner->slots.running[i];

		if (s->session->share.user != request->session->share.user ||
			s->request->class != MIMEO_CLASS_NORMAL || s == oldest || !sequence_is_preemptible(s) ||
			s->n_tokens <= s->prompt_end)
			continue;
		if (reclaim_goes_before(s, victim))
			victim = s;
	}
	return victim;
}

/* The next preemptible request of another session that is above its entitlement. */
static struct sequence *reclaim_victim_above(
	const struct runner *runner, const struct engine_session *session, bool pages)
{
	const struct sequence *oldest = reclaim_oldest(runner);
	struct sequence *victim = NULL;

	for (uint32_t i = 0; i < runner->slots.n_running; i++) {
		struct sequence *s = runner->slots.running[i];

		if (s->session == session || s == oldest || !sequence_is_preemptible(s) ||
			s->n_tokens <= s->prompt_end || share_leads(session, s->session))
			continue;
		if (reclaim_goes_before(s, victim) && reclaim_is_above(runner, s->session, 0, pages))
			victim = s;
	}
	return victim;
}

static struct sequence *reclaim_victim_of_others(
	const struct runner *runner, uint32_t n_more, const struct request *request, bool pages)
{
	struct sequence *victim = reclaim_spare(runner, request);

	if (!victim)
		victim = reclaim_victim_of_user(runner, request);
	if (victim || class_is_spare(request))
		return victim;
	reclaim_count(runner, request->session, pages);
	if (reclaim_is_above(runner, request->session, n_more, pages))
		return NULL;
	return reclaim_victim_above(runner, request->session, pages);
}

static bool reclaim_of_others(struct runner *runner, uint32_t n, const struct request *request, bool pages)
{
	struct sequence *victim;
	bool any = false;

	while (reclaim_pending(runner, pages) < n &&
		(victim = reclaim_victim_of_others(runner, n, request, pages))) {
		sequence_preempt(victim);
		any = true;
	}
	return any;
}

bool reclaim_pages_of_others(struct runner *runner, uint32_t n_pages, const struct request *request)
{
	return reclaim_of_others(runner, n_pages, request, true);
}

/* Many requests of a session ask for a slot in one turn, and the answer is the same for all of a class. */
bool reclaim_slots_of_others(struct runner *runner, uint32_t n_slots, const struct request *request)
{
	const struct engine_session *session = request->session;
	struct slots *slots = &runner->slots;
	const uint64_t turn = session->accounting->n_turns;

	if (slots->no_victim_turn == turn && slots->no_victim_of == session && slots->no_victim_class == request->class)
		return false;
	if (reclaim_of_others(runner, n_slots, request, false))
		return true;
	slots->no_victim_of = session;
	slots->no_victim_class = request->class;
	slots->no_victim_turn = turn;
	return false;
}

/* ---- for a decode ---- */

/* The next one of those that were submitted after the decode's request. any: also of sessions that are not above their
 * entitlement. A spare request takes from batch requests only. */
static struct sequence *reclaim_younger(const struct runner *runner, const struct sequence *decode, bool any)
{
	const bool spare = class_is_spare(decode->request);
	struct sequence *victim = NULL;

	reclaim_count(runner, decode->session, true);
	for (uint32_t i = 0; i < runner->slots.n_running; i++) {
		struct sequence *s = runner->slots.running[i];

		if (!sequence_is_preemptible(s) || s->request->order <= decode->request->order ||
			(spare && s->request->class != MIMEO_CLASS_BATCH) || !reclaim_goes_before(s, victim))
			continue;
		if (any || s->session == decode->session || reclaim_is_above(runner, s->session, 0, true))
			victim = s;
	}
	return victim;
}

static struct sequence *reclaim_victim_of_decode(const struct runner *runner, const struct sequence *decode)
{
	struct sequence *victim = reclaim_spare(runner, decode->request);

	if (!victim)
		victim = reclaim_younger(runner, decode, false);
	return victim || reclaim_oldest(runner) != decode ? victim : reclaim_younger(runner, decode, true);
}

bool reclaim_pages_for_decode(struct runner *runner, uint32_t n_pages, const struct sequence *decode)
{
	struct sequence *victim;

	reclaim_evict(runner, n_pages, 0);
	while (reclaim_pending(runner, true) < n_pages && (victim = reclaim_victim_of_decode(runner, decode))) {
		sequence_preempt(victim);
		reclaim_evict(runner, n_pages, 0);
	}
	if (reclaim_pending(runner, true) < n_pages)
		reclaim_pages_of_others(runner, n_pages, decode->request);
	return kv_pages_free(runner->kv) >= n_pages;
}
