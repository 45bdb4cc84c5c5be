/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/share.h"

#include <assert.h>

#include "daemon/engine/requests/engine_session.h"

/* The user's entry; else an unused one; else that of the user without sessions who has the lowest counter and
 * thus loses least. There are as many entries as sessions. */
static struct share_user *share_find(struct accounting *accounting, uid_t uid)
{
	struct share_user *ret = NULL;

	for (uint32_t i = 0; i < ENGINE_SESSIONS_MAX; i++) {
		struct share_user *user = &accounting->users[i];

		if (!user->weight)
			return user;
		if (user->uid == uid)
			return user;
		if (!user->n_sessions && (!ret || user->counter < ret->counter))
			ret = user;
	}
	return ret;
}

void share_attach(struct accounting *accounting, struct engine_session *session)
{
	const struct engine_port *port = session->port;
	struct share_user *user = share_find(accounting, port->uid);

	assert(user);
	if (!user->weight || user->uid != port->uid)
		*user = (struct share_user){.uid = port->uid};
	user->n_sessions++;
	session->share = (struct share_session){.user = user};
	/* Also of a user who is there: the other sessions may be detaching, and got no new weight from a reload. */
	share_weigh(session, port->weight && port->weight <= ENGINE_WEIGHT_MAX ? port->weight : 1);
}

void share_detach(struct engine_session *session)
{
	struct share_user *user = session->share.user;

	assert(user && user->n_sessions > 0 && !session->n_in_flight);
	user->n_sessions--;
	session->share.user = NULL;
}

void share_weigh(struct engine_session *session, uint32_t weight)
{
	struct share_user *user = session->share.user;

	if (!user)
		return;
	if (user->n_active)
		session->accounting->active_weight += weight - user->weight;
	user->weight = weight;
}

static void share_raise(uint64_t *counter, uint64_t lowest)
{
	if (lowest != UINT64_MAX && *counter < lowest)
		*counter = lowest;
}

static void share_lower(uint64_t *lowest, uint64_t counter)
{
	*lowest = counter < *lowest ? counter : *lowest;
}

/* The user had no request: it is raised to the others who have some, or to the last one who had. */
static void share_begin_user(const struct accounting *accounting, struct share_user *user)
{
	uint64_t counter = UINT64_MAX, computed = UINT64_MAX;

	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		const struct share_user *other = accounting->sessions[i]->share.user;

		if (!other || !other->n_active)
			continue;
		share_lower(&counter, other->counter);
		share_lower(&computed, other->computed);
	}
	share_raise(&user->counter, accounting->active_weight ? counter : accounting->last_counter);
	share_raise(&user->computed, accounting->active_weight ? computed : accounting->last_computed);
}

void share_begin(struct accounting *accounting, struct engine_session *session)
{
	struct share_user *user = session->share.user;
	uint64_t counter = UINT64_MAX, computed = UINT64_MAX;

	if (!user->n_active) {
		share_begin_user(accounting, user);
		accounting->active_weight += user->weight;
	}
	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		const struct engine_session *other = accounting->sessions[i];

		if (other == session || other->share.user != user || !other->n_in_flight)
			continue;
		share_lower(&counter, other->share.counter);
		share_lower(&computed, other->share.computed);
	}
	share_raise(&session->share.counter, user->n_active ? counter : user->last_counter);
	share_raise(&session->share.computed, user->n_active ? computed : user->last_computed);
	user->n_active++;
	assert(user->n_active <= user->n_sessions);
}

void share_end(struct engine_session *session)
{
	struct accounting *accounting = session->accounting;
	struct share_user *user = session->share.user;

	assert(user->n_active > 0);
	if (--user->n_active)
		return;
	user->last_counter = session->share.counter;
	user->last_computed = session->share.computed;
	assert(accounting->active_weight >= user->weight);
	accounting->active_weight -= user->weight;
	if (accounting->active_weight)
		return;
	accounting->last_counter = user->counter;
	accounting->last_computed = user->computed;
}

/* Tokens of so many steps. */
static uint64_t share_steps(const struct accounting *accounting, uint32_t n)
{
	return (uint64_t)n * accounting->options->max_batch_tokens * SHARE_UNIT;
}

void share_submit(struct engine_session *session)
{
	const struct accounting *accounting = session->accounting;
	struct share_user *user = session->share.user;
	const uint64_t credit = share_steps(accounting, SHARE_CREDIT);
	uint64_t most = 0;

	if (accounting->active_weight == user->weight)
		return;
	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		const struct share_user *other = accounting->sessions[i]->share.user;

		if (!other || !other->n_active)
			continue;
		share_raise(&most, other->computed);
	}
	/* Not by what the others were charged: a prompt is charged as a whole when it starts. */
	if (most <= credit)
		return;
	share_raise(&user->counter, most - credit);
	share_raise(&user->computed, most - credit);
}

void share_charge(struct engine_session *session, uint64_t n_tokens)
{
	struct share_user *user = session->share.user;

	user->counter += n_tokens * SHARE_UNIT / user->weight;
	session->share.counter += n_tokens * SHARE_UNIT;
}

void share_compute(struct engine_session *session, uint64_t n_tokens)
{
	struct share_user *user = session->share.user;

	user->computed += n_tokens * SHARE_UNIT / user->weight;
	session->share.computed += n_tokens * SHARE_UNIT;
}

bool share_is_before(const struct engine_session *a, const struct engine_session *b)
{
	if (a->share.user != b->share.user)
		return a->share.user->counter < b->share.user->counter;
	return a->share.counter < b->share.counter;
}

bool share_computes_before(const struct engine_session *a, const struct engine_session *b)
{
	if (a->share.user != b->share.user)
		return a->share.user->computed < b->share.user->computed;
	return a->share.computed < b->share.computed;
}

bool share_leads(const struct engine_session *a, const struct engine_session *b)
{
	return a->share.user->counter > b->share.user->counter + share_steps(a->accounting, SHARE_LEAD);
}

uint32_t share_entitlement(const struct accounting *accounting, const struct engine_session *session, uint32_t n)
{
	const struct share_user *user = session->share.user;
	uint64_t part;

	assert(user->n_active > 0 && accounting->active_weight >= user->weight);
	part = (uint64_t)n * user->weight / accounting->active_weight / user->n_active;
	return part ? (uint32_t)part : 1;
}
