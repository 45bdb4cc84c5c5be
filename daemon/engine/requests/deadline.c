/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/deadline.h"

#include <assert.h>

#include "daemon/engine/requests/accounting.h"
#include "daemon/engine/requests/completion.h"
#include "ipc/clock.h"

#define NS_PER_MS UINT64_C(1000000)

uint64_t deadline_submitted(uint64_t stamp_ns)
{
	const uint64_t now = clock_ns();

	return !stamp_ns || stamp_ns > now || now - stamp_ns > DEADLINE_STAMP_MAX_NS ? now : stamp_ns;
}

static void deadline_add(struct accounting *accounting, uint64_t *at_ns, uint64_t submitted_ns, uint32_t ms)
{
	*at_ns = ms ? submitted_ns + ms * NS_PER_MS : 0;
	if (!ms)
		return;
	if (!accounting->n_deadlines++ || *at_ns < accounting->next_deadline_ns)
		accounting->next_deadline_ns = *at_ns;
}

void deadline_begin(struct accounting *accounting, struct deadlines *deadlines, uint64_t submitted_ns,
	uint32_t end_ms, uint32_t first_token_ms)
{
	assert(!deadlines->end_ns && !deadlines->first_token_ns);
	deadlines->submitted_ns = submitted_ns;
	deadline_add(accounting, &deadlines->end_ns, submitted_ns, end_ms);
	deadline_add(accounting, &deadlines->first_token_ns, submitted_ns, first_token_ms);
}

static void deadline_remove(struct accounting *accounting, uint64_t *at_ns)
{
	if (!*at_ns)
		return;
	assert(accounting->n_deadlines > 0 && *at_ns >= accounting->next_deadline_ns);
	accounting->n_deadlines--;
	*at_ns = 0;
}

void deadline_meet_first_token(struct accounting *accounting, struct deadlines *deadlines)
{
	deadline_remove(accounting, &deadlines->first_token_ns);
}

void deadline_drop(struct accounting *accounting, struct deadlines *deadlines)
{
	deadline_remove(accounting, &deadlines->end_ns);
	deadline_remove(accounting, &deadlines->first_token_ns);
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

struct msg_detail deadline_detail(const struct deadlines *deadlines)
{
	const unsigned field = deadline_is_of_first_token(deadlines) ? MSG_FIRST_TOKEN_MS : MSG_DEADLINE_MS;

	return DETAIL(RING_DETAIL_DEADLINE, field,
		(int64_t)((deadline_next(deadlines) - deadlines->submitted_ns) / NS_PER_MS));
}
