/* SPDX-License-Identifier: MIT */
#include "sdk/request.h"

#include <assert.h>
#include <utlist.h>

#include "ipc/clock.h"
#include "ipc/doorbell.h"
#include "sdk/client.h"

struct mimeo_request *request_take(struct mimeo *m)
{
	struct mimeo_request *request = m->free;

	if (!request)
		return NULL;
	assert(request->state == REQUEST_FREE && request->block.bytes == 0);
	m->free = request->next;
	*request = (struct mimeo_request){
		.m = m,
		.state = REQUEST_HELD,
		.index = request->index,
		.sqe = {.request = request->index, .generation = request->sqe.generation + 1},
	};
	/* No request has the id 0. */
	if (request->sqe.generation == 0)
		request->sqe.generation = 1;
	return request;
}

void request_prepare(struct mimeo_request *request)
{
	assert(request->state == REQUEST_HELD && request->sqe.op != 0);
	request->state = REQUEST_PREPARED;
	DL_APPEND(request->m->prepared, request);
}

void request_release(struct mimeo_request *request)
{
	struct mimeo *m = request->m;

	assert(request->state != REQUEST_FREE);
	assert(request == &m->requests[request->index]);
	if (request->state == REQUEST_PREPARED)
		DL_DELETE(m->prepared, request);
	if (request->state == REQUEST_COMMITTED)
		DL_DELETE(m->committed, request);
	if (request->state == REQUEST_COMMITTED || request->state == REQUEST_IN_FLIGHT) {
		assert(m->n_in_flight > 0);
		m->n_in_flight--;
	}
	if (request->cancelled)
		ring_cancel_clear(&m->region.ring, request->index);
	request->cancelled = false;
	buddy_give(&m->arena, request->block);
	request->block = (struct buddy_block){0};
	request->state = REQUEST_FREE;
	request->next = m->free;
	m->free = request;
}

static bool request_is_callers(const struct mimeo_request *request)
{
	return request && (request->state == REQUEST_HELD || request->state == REQUEST_PREPARED);
}

void mimeo_request_put(struct mimeo_request *request)
{
	if (request_is_callers(request))
		request_release(request);
}

void mimeo_request_set_data(struct mimeo_request *request, uint64_t user_data)
{
	if (request_is_callers(request))
		request->sqe.user_data = user_data;
}

uint64_t mimeo_request_id(const struct mimeo_request *request)
{
	return (uint64_t)request->sqe.generation << 32 | request->index;
}

int mimeo_cancel(struct mimeo *m, uint64_t request_id)
{
	const uint32_t index = (uint32_t)request_id, generation = (uint32_t)(request_id >> 32);
	struct mimeo_request *request;

	if (m->gone)
		return MIMEO_E_GONE;
	if (generation == 0 || index >= m->region.ring.entries)
		return MIMEO_E_INVALID;
	request = &m->requests[index];
	if (request->sqe.generation != generation || request->state == REQUEST_FREE)
		return MIMEO_E_UNKNOWN_REQUEST;
	if (request_is_callers(request))
		return MIMEO_E_INVALID;
	if (request->cancelled)
		return 0;
	request->cancelled = true;
	if (ring_cancel(&m->region.ring, index, generation))
		doorbell_ring(m->sq_bell);
	return 0;
}

int request_flush(struct mimeo *m)
{
	struct ring *ring = &m->region.ring;
	uint32_t n;

	while (m->committed) {
		struct mimeo_request *request = m->committed;
		int rc = ring_sq_push(ring, &request->sqe);

		if (rc < 0)
			return rc;
		if (rc == 0)
			break;
		assert(request->state == REQUEST_COMMITTED);
		DL_DELETE(m->committed, request);
		request->state = REQUEST_IN_FLIGHT;
	}
	if (ring_sq_publish(ring, &n))
		doorbell_ring(m->sq_bell);
	return 0;
}

int mimeo_submit(struct mimeo *m)
{
	struct mimeo_request *request;
	uint64_t now = 0;
	int n = 0;

	if (m->gone)
		return MIMEO_E_GONE;
	DL_FOREACH (m->prepared, request) {
		assert(request->state == REQUEST_PREPARED);
		if (request->timed) {
			now = now ? now : clock_ns();
			request->sqe.submitted_ns = now;
		}
		request->state = REQUEST_COMMITTED;
		n++;
	}
	m->n_in_flight += (uint32_t)n;
	assert(m->n_in_flight <= m->region.ring.entries);
	DL_CONCAT(m->committed, m->prepared);
	m->prepared = NULL;
	/* The next look for events finds a daemon that broke the ring gone. */
	(void)request_flush(m);
	return n;
}
