/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/share.h"

#include <assert.h>

#include "daemon/engine/requests/engine_session.h"

#define SHARE_UNIT 1024u /* of a counter, for a token at weight 1 */

/* The user's entry, or one that may become his: an unused one, else that of an absent user with the lowest
 * counter, who loses least. There are as many entries as sessions. */
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
	if (!user->n_sessions++)
		user->weight = port->weight && port->weight <= ENGINE_WEIGHT_MAX ? port->weight : 1;
	session->share = (struct share_session){.user = user};
}

void share_detach(struct engine_session *session)
{
	struct share_user *user = session->share.user;

	assert(user && user->n_sessions > 0 && !session->n_in_flight);
	user->n_sessions--;
	session->share.user = NULL;
}

static uint64_t share_lowest_user(const struct accounting *accounting, uint64_t otherwise)
{
	uint64_t lowest = UINT64_MAX;

	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		const struct share_user *user = accounting->sessions[i]->share.user;

		if (user && user->n_active && user->counter < lowest)
			lowest = user->counter;
	}
	return lowest == UINT64_MAX ? otherwise : lowest;
}

static uint64_t share_lowest_session(
	const struct accounting *accounting, const struct engine_session *session, uint64_t otherwise)
{
	uint64_t lowest = UINT64_MAX;

	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		const struct engine_session *other = accounting->sessions[i];

		if (other != session && other->share.user == session->share.user && other->n_in_flight &&
			other->share.counter < lowest)
			lowest = other->share.counter;
	}
	return lowest == UINT64_MAX ? otherwise : lowest;
}

void share_begin(struct accounting *accounting, struct engine_session *session)
{
	struct share_user *user = session->share.user;
	uint64_t lowest;

	if (!user->n_active) {
		lowest = share_lowest_user(accounting, user->counter);
		user->counter = lowest > user->counter ? lowest : user->counter;
		accounting->active_weight += user->weight;
	}
	lowest = share_lowest_session(accounting, session, session->share.counter);
	if (lowest > session->share.counter)
		session->share.counter = lowest;
	user->n_active++;
	assert(user->n_active <= user->n_sessions);
}

void share_end(struct engine_session *session)
{
	struct share_user *user = session->share.user;

	assert(user->n_active > 0);
	if (--user->n_active)
		return;
	assert(session->accounting->active_weight >= user->weight);
	session->accounting->active_weight -= user->weight;
}

void share_charge(struct engine_session *session, uint64_t n_tokens)
{
	struct share_user *user = session->share.user;

	user->counter += n_tokens * SHARE_UNIT / user->weight;
	session->share.counter += n_tokens * SHARE_UNIT;
}

bool share_is_before(const struct engine_session *a, const struct engine_session *b)
{
	if (a->share.user != b->share.user)
		return a->share.user->counter < b->share.user->counter;
	return a->share.counter < b->share.counter;
}

bool share_leads(const struct engine_session *a, const struct engine_session *b)
{
	const uint64_t lead = (uint64_t)SHARE_LEAD * a->accounting->options->max_batch_tokens * SHARE_UNIT;

	return a->share.user->counter > b->share.user->counter + lead;
}

uint32_t share_entitlement(const struct accounting *accounting, const struct engine_session *session, uint32_t n)
{
	const struct share_user *user = session->share.user;
	uint64_t part;

	assert(user->n_active > 0 && accounting->active_weight >= user->weight);
	part = (uint64_t)n * user->weight / accounting->active_weight / user->n_active;
	return part ? (uint32_t)part : 1;
}
