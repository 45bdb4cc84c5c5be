/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/follow.h"

#include <assert.h>
#include <string.h>

#define FOLLOW_LOOKS 16u /* running requests whose tokens are compared for one that may wait */
#define FOLLOW_STEPS 4u  /* it waits for at most: so many steps, and so many times those that the tokens take */

/* The running sequence of the request that it waits for; NULL: that runs no more. */
static struct sequence *follow_leader(const struct request *request)
{
	const struct slots *slots = &request->runner->slots;

	for (uint32_t i = 0; i < slots->n_running && request->follow.order; i++) {
		struct sequence *s = slots->running[i];

		if (s->request->order == request->follow.order && s->n_computed < request->follow.end)
			return s;
	}
	return NULL;
}

/* Admission looks at the request again when the leader has launched its tokens, and when it has waited long enough. */
static void follow_note(const struct request *request, struct sequence *leader)
{
	struct slots *slots = &request->runner->slots;

	if (!leader->follow_end || request->follow.end < leader->follow_end)
		leader->follow_end = request->follow.end;
	if (!slots->follow_last_step || request->follow.last_step < slots->follow_last_step)
		slots->follow_last_step = request->follow.last_step;
}

bool follow_waits(const struct request *request)
{
	struct sequence *leader;

	if (request->runner->launched >= request->follow.last_step)
		return false;
	leader = follow_leader(request);
	if (leader)
		follow_note(request, leader);
	return leader;
}

/* Leading tokens, in whole pages, that the sequence could take of what the other one is to compute; 0 if none beyond
 * n_cached. */
static uint32_t follow_common(const struct sequence *sequence, const struct sequence *other, uint64_t salt,
	uint32_t n_cached)
{
	const uint32_t page = sequence->runner->limits->page_tokens;
	const uint32_t most = sequence->n_tokens - 1 < other->prompt_end ? sequence->n_tokens - 1 : other->prompt_end;
	uint32_t n = n_cached;

	if (other->salt != salt || !sequence_shares(other, other->request) || other->n_computed >= most / page * page)
		return 0;
	while (n + page <= most &&
		!memcmp(sequence->tokens + n, other->tokens + n, page * sizeof(*other->tokens)))
		n += page;
	if (n == n_cached || memcmp(sequence->tokens, other->tokens, n_cached * sizeof(*other->tokens)) != 0)
		return 0;
	return n;
}

/* The running sequence that is to compute the most of its prompt; NULL: none. */
static struct sequence *follow_find(const struct request *request, const struct sequence *sequence, uint32_t n_cached,
	uint32_t *ret_end, uint32_t *ret_compared)
{
	const struct slots *slots = &request->runner->slots;
	const uint64_t salt = sequence_salt_of(sequence, request);
	struct sequence *leader = NULL;
	uint32_t n_looks = 0, end = 0;

	*ret_compared = 0;
	for (uint32_t i = 0; i < slots->n_running && n_looks < FOLLOW_LOOKS; i++) {
		struct sequence *other = slots->running[i];
		uint32_t n = follow_common(sequence, other, salt, n_cached);

		n_looks += n > 0;
		*ret_compared += n;
		if (n <= end || n <= other->n_computed)
			continue;
		leader = other;
		end = n;
	}
	*ret_end = end;
	return leader;
}

/* Those that keep slots or pages from others do not wait for them. */
static bool follow_may_wait(const struct request *request)
{
	const struct slots *slots = &request->runner->slots;

	return !request->started && slots->head != request && slots->reserved_for != request && slots->blocked != request;
}

bool follow_begin(struct request *request, const struct sequence *sequence, uint32_t n_cached, uint32_t *ret_compared)
{
	const struct runner *runner = request->runner;
	struct sequence *leader;
	uint32_t end;

	*ret_compared = 0;
	if (!follow_may_wait(request) ||
		(request->follow.last_step && runner->launched >= request->follow.last_step))
		return false;
	leader = follow_find(request, sequence, n_cached, &end, ret_compared);
	if (!leader)
		return false;
	assert(leader->n_computed < end && leader->state == SEQUENCE_RUNNING);
	if (!request->follow.last_step)
		request->follow.last_step = runner->launched + FOLLOW_STEPS +
			(uint64_t)FOLLOW_STEPS * (end - leader->n_computed) / runner->limits->max_batch_tokens;
	request->follow.order = leader->request->order;
	request->follow.end = end;
	follow_note(request, leader);
	return true;
}

void follow_launched(struct sequence *sequence)
{
	if (!sequence->follow_end || sequence->n_computed < sequence->follow_end)
		return;
	sequence->follow_end = 0; /* those that wait for more say so again */
	sequence->session->accounting->admit = true;
}

void follow_expire(struct runner *runner, struct accounting *accounting)
{
	if (!runner->slots.follow_last_step || runner->launched < runner->slots.follow_last_step)
		return;
	runner->slots.follow_last_step = 0;
	accounting->admit = true;
}
