/* SPDX-License-Identifier: MIT */
/*
 * Admission: the order in which waiting requests get slots and pages. start.c starts one of them.
 *
 * Order: requests of one session that name the same sequence start one after another, as submitted.
 * A pass walks a session's waiting list; a sequence that an earlier request waits for, or that is
 * busy, is claimed, and later requests that name it are passed over.
 *
 * Turns: the session whose turn it is (share.h) starts one generate request. Batch requests that would be spare
 * (class.h) have their turns when nothing else can start.
 *
 * Cost: ADMIT_COST bounds what a session's passes of one class cost in a turn. If a pass was cut and nothing of the
 * session started, what may start can be behind what was examined. So one session at a time may cost more, twice as
 * much in each turn, until something of it starts, its list has been examined to the end, or it costs ADMIT_COST_MOST.
 */
#include "daemon/engine/requests/admit.h"

#include <string.h>

#include "daemon/engine/requests/class.h"
#include "daemon/engine/requests/engine_session.h"
#include "daemon/engine/requests/share.h"
#include "daemon/engine/requests/start.h"

#define ADMIT_COST 1024              /* in requests, rows, and tokens to copy or compare (start.h) */
#define ADMIT_COST_MOST (64 * ADMIT_COST) /* above what generate requests that fill a session's ring can cost */

/* ---- order and turns ---- */

static bool admit_is_claimed(const struct sequence *s, uint64_t pass)
{
	return s && (s->state != SEQUENCE_IDLE || s->claim == pass);
}

static void admit_claim(struct sequence *s, uint64_t pass)
{
	if (s)
		s->claim = pass;
}

/* Does the request name a sequence that is busy, or that an earlier request waits for? */
static bool admit_names_claimed(struct request *request, uint64_t pass)
{
	struct engine_session *session = request->session;

	if (request->op == RING_OP_GENERATE)
		return admit_is_claimed(engine_session_request_sequence(request), pass);
	if (request->op != RING_OP_STEP)
		return admit_is_claimed(engine_session_sequence(session, request->sequence), pass) ||
			(request->op == RING_OP_FORK &&
				admit_is_claimed(engine_session_sequence(session, request->argument), pass));
	for (uint32_t i = request->n_rows_started; i < request->n_rows; i++) {
		if (admit_is_claimed(start_row_sequence(request, i), pass))
			return true;
	}
	return false;
}

static void admit_claim_all(struct request *request, uint64_t pass)
{
	struct engine_session *session = request->session;

	if (request->op == RING_OP_GENERATE) {
		admit_claim(engine_session_request_sequence(request), pass);
		return;
	}
	admit_claim(engine_session_sequence(session, request->sequence), pass);
	if (request->op == RING_OP_FORK)
		admit_claim(engine_session_sequence(session, request->argument), pass);
	for (uint32_t i = request->n_rows_started; i < request->n_rows; i++)
		admit_claim(start_row_sequence(request, i), pass);
}

/* The cost of examining the request, without the tokens that start_copies counts. */
static uint32_t admit_cost(const struct request *request)
{
	return request->op == RING_OP_STEP ? 1 + request->n_rows : 1;
}

static enum start_outcome admit_start(struct request *request)
{
	if (request->op == RING_OP_GENERATE)
		return start_generate(request);
	return request->op == RING_OP_STEP ? start_step(request) : start_call(request);
}

/* Walk the waiting list as far as the cost allows; start what may start of the class, spare requests only if `spare`,
 * and one generate request at most. True if there may be more to start. */
static bool admit_walk(struct engine_session *session, uint32_t class, bool spare)
{
	struct accounting *accounting = session->accounting;
	const uint32_t most = session == accounting->grown ? accounting->grown_cost : ADMIT_COST;
	uint64_t pass = ++accounting->pass;
	struct request *request = session->waiting, *next;

	for (; request && session->cost < most; request = next) {
		enum start_outcome outcome = START_BLOCKED;

		next = request->next;
		session->cost += admit_cost(request);
		if (request->class == class && (spare || !class_is_spare(request)) &&
			!admit_names_claimed(request, pass))
			outcome = admit_start(request);
		if (outcome == START_BLOCKED) {
			admit_claim_all(request, pass);
			continue;
		}
		session->started = true;
		if (request->op == RING_OP_GENERATE)
			return true;
	}
	session->cut |= request != NULL;
	/* The rest is examined in the engine's next turn; also that of another class. */
	accounting->admit |= session->cut && session->started;
	return false;
}

/* Each class has a cost of its own: to examine requests of one keeps no other class from starting. */
static bool admit_class(struct engine_session *session, uint32_t class, bool spare)
{
	uint32_t *cost = &session->costs[spare ? MIMEO_CLASS_BATCH + 1 : class];
	bool more;

	session->cost = *cost;
	more = admit_walk(session, class, spare);
	*cost = session->cost;
	return more;
}

static bool admit_session(struct engine_session *session, bool spare)
{
	static const uint32_t order[] = {MIMEO_CLASS_INTERACTIVE, MIMEO_CLASS_NORMAL, MIMEO_CLASS_BATCH};
	struct accounting *accounting = session->accounting;

	if (session->looked != accounting->n_turns) {
		session->looked = accounting->n_turns;
		memset(session->costs, 0, sizeof(session->costs));
		session->started = session->cut = false;
	}
	for (unsigned i = spare ? 2 : 0; i < 3; i++) {
		if (session->n_waiting_of[order[i]] && admit_class(session, order[i], spare))
			return true;
	}
	return false;
}

/* Sessions that have their entitlement of slots come after those below it, which would preempt them at once.
 * Of a user's sessions one with an interactive request comes first. */
static bool admit_is_before(
	const struct accounting *accounting, const struct engine_session *a, const struct engine_session *b)
{
	const uint32_t n = accounting->options->max_requests;
	const bool a_has = a->n_busy >= share_entitlement(accounting, a, n) || share_leads(a, b);
	const bool b_has = b->n_busy >= share_entitlement(accounting, b, n) || share_leads(b, a);
	const bool a_interactive = a->n_waiting_of[MIMEO_CLASS_INTERACTIVE] > 0;
	const bool b_interactive = b->n_waiting_of[MIMEO_CLASS_INTERACTIVE] > 0;

	if (a_has != b_has)
		return b_has;
	if (a->share.user == b->share.user && a_interactive != b_interactive)
		return a_interactive;
	return share_is_before(a, b);
}

static bool admit_is_tried(const struct engine_session *session, bool spare)
{
	const uint64_t turn = session->accounting->n_turns;

	return spare ? !session->n_waiting_of[MIMEO_CLASS_BATCH] || session->tried_batch == turn
		     : !session->waiting || session->tried == turn;
}

/* The session whose turn it is; NULL: none has more to start. */
static struct engine_session *admit_next(const struct accounting *accounting, bool spare)
{
	struct engine_session *ret = NULL;

	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		struct engine_session *session = accounting->sessions[i];

		if (!admit_is_tried(session, spare) && (!ret || admit_is_before(accounting, session, ret)))
			ret = session;
	}
	return ret;
}

static bool admit_try(struct accounting *accounting, struct request *request, bool spare)
{
	return request && class_is_spare(request) == spare && !admit_names_claimed(request, ++accounting->pass) &&
		admit_start(request) == START_DONE;
}

/* The models' heads, and those for which slots and pages are reserved (start.h), are tried wherever they are in their
 * sessions' lists: nothing else starts. */
static bool admit_heads(struct accounting *accounting, bool spare)
{
	bool any = false;

	for (uint32_t i = 0; i < accounting->runners->n; i++) {
		const struct slots *slots = &accounting->runners->all[i]->slots;

		any |= admit_try(accounting, slots->head, spare);
		any |= admit_try(accounting, slots->reserved_for, spare);
	}
	return any;
}

static bool admit_turns(struct accounting *accounting, bool spare)
{
	struct engine_session *session;
	bool any = admit_heads(accounting, spare);

	while ((session = admit_next(accounting, spare))) {
		if (admit_session(session, spare))
			any = true;
		else if (spare)
			session->tried_batch = accounting->n_turns;
		else
			session->tried = accounting->n_turns;
	}
	return any;
}

/* Drop a reservation whose request has had a turn since the reserved slots and pages became free. */
static void admit_disinherit(struct accounting *accounting)
{
	for (uint32_t i = 0; i < accounting->runners->n; i++) {
		struct runner *runner = accounting->runners->all[i];

		if (!runner->slots.reserved_for || runner->completed < runner->slots.reserved_step ||
			runner->slots.reserved_turn == accounting->n_turns)
			continue;
		runner->slots.reserved_for = NULL;
		accounting->admit = true;
	}
}

/* Was the session's list cut in this turn, with nothing started, and not examined to its end in this round? */
static bool admit_is_cut(const struct engine_session *session)
{
	const struct accounting *accounting = session->accounting;

	return session->looked == accounting->n_turns && session->cut && !session->started &&
		session->whole != accounting->n_rounds;
}

/* Of those that were cut, the one whose list was examined to the end the longest time ago. */
static struct engine_session *admit_next_cut(const struct accounting *accounting)
{
	struct engine_session *ret = NULL;

	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		struct engine_session *session = accounting->sessions[i];

		if (admit_is_cut(session) && (!ret || session->whole < ret->whole))
			ret = session;
	}
	return ret;
}

/* Choose the session that may cost more in the next turn. */
static void admit_grow(struct accounting *accounting)
{
	struct engine_session *session = accounting->grown;

	if (session && admit_is_cut(session) && accounting->grown_cost < ADMIT_COST_MOST) {
		accounting->grown_cost *= 2;
		return;
	}
	if (session)
		session->whole = accounting->n_rounds;
	accounting->grown = admit_next_cut(accounting);
	accounting->grown_cost = 2 * ADMIT_COST;
}

bool admit(struct accounting *accounting)
{
	bool any;

	if ((!accounting->admit && !accounting->grown) || !accounting->n_sessions)
		return false;
	accounting->n_rounds += accounting->admit;
	accounting->admit = false;
	accounting->n_turns++;
	any = admit_turns(accounting, false);
	any |= admit_turns(accounting, true);
	admit_disinherit(accounting);
	admit_grow(accounting);
	return any || accounting->admit || accounting->grown;
}

void admit_detach(const struct engine_session *session)
{
	struct accounting *accounting = session->accounting;

	if (accounting->grown != session)
		return;
	accounting->grown = NULL;
	accounting->admit = true;
}
