/* SPDX-License-Identifier: MIT */
#include "daemon/serve/user_totals.h"

#include <assert.h>

struct user_total *user_totals_find(struct user_totals *totals, uid_t uid)
{
	assert(totals->n <= USER_TOTALS_MAX);
	for (uint32_t i = 0; i < totals->n; i++) {
		if (totals->users[i].uid == uid)
			return &totals->users[i];
	}
	if (totals->n == USER_TOTALS_MAX)
		return &totals->users[USER_TOTALS_MAX];
	totals->users[totals->n].uid = uid;
	return &totals->users[totals->n++];
}

void user_totals_add(struct user_totals *totals, const struct engine_port *port, bool open)
{
	struct user_total *user = user_totals_find(totals, port->uid);

	user->n_requests += counter_read(&port->n_requests);
	user->n_failed += counter_read(&port->n_failed);
	user->n_deadlines += counter_read(&port->n_deadlines);
	user->n_quotas += counter_read(&port->n_quotas);
	user->n_tokens += counter_read(&port->n_tokens);
	user->n_prompt_tokens += counter_read(&port->n_prompt_tokens);
	user->n_cached_tokens += counter_read(&port->n_cached_tokens);
	if (!open)
		return;
	user->n_sessions++;
	user->n_in_flight += atomic_load(&port->n_in_flight);
	user->n_pages += atomic_load(&port->n_pages);
}
