/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/place.h"

#include <assert.h>
#include <utlist.h>

#include "daemon/engine/requests/completion.h"

static int64_t place_clip(uint64_t bytes)
{
	return bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes;
}

static bool place_is_before(uint32_t index, uint32_t end)
{
	return (int32_t)(index - end) < 0;
}

/* May the ring entry with that index name the buffer? */
static bool place_may_name(struct engine_buffer *buffer, uint32_t index)
{
	return atomic_load_explicit(&buffer->open, memory_order_acquire) &&
		(!atomic_load_explicit(&buffer->ends, memory_order_acquire) ||
			place_is_before(index, buffer->end));
}

int place_take(struct request *request, const struct mimeo_place *place, uint64_t bytes,
	struct request_place *ret, struct msg_detail *ret_detail)
{
	const struct engine_port *port = request->session->port;
	struct engine_buffer *buffer;
	uint64_t end;

	assert(request->state == REQUEST_FREE && request->n_places < 3);
	*ret = (struct request_place){0};
	if (place->buffer == 0)
		return 0;
	buffer = place->buffer <= port->n_buffers ? &port->buffers[place->buffer - 1] : NULL;
	if (!buffer || !place_may_name(buffer, request->entry)) {
		*ret_detail = DETAIL(RING_DETAIL_BUFFER, place->buffer);
		return MIMEO_E_UNKNOWN_BUFFER;
	}
	if (place->offset % MIMEO_PLACE_ALIGN) {
		*ret_detail = DETAIL(RING_DETAIL_BUFFER_OFFSET, place->buffer,
			place_clip(place->offset), MIMEO_PLACE_ALIGN);
		return MIMEO_E_INVALID;
	}
	if (__builtin_add_overflow(place->offset, bytes, &end) || end > buffer->bytes) {
		*ret_detail = DETAIL(RING_DETAIL_BUFFER_RANGE, place->buffer, place_clip(place->offset),
			place_clip(bytes), place_clip(buffer->bytes));
		return MIMEO_E_INVALID;
	}
	buffer->n_requests++;
	request->n_places++;
	*ret = (struct request_place){buffer, (uint8_t *)buffer->address + place->offset};
	return 0;
}

static void place_drop(struct request *request, struct request_place *place)
{
	if (!place->buffer)
		return;
	assert(place->buffer->n_requests > 0 && request->n_places > 0);
	place->buffer->n_requests--;
	request->n_places--;
	*place = (struct request_place){0};
}

void place_drop_all(struct request *request)
{
	place_drop(request, &request->logits);
	place_drop(request, &request->hidden);
	place_drop(request, &request->embeddings);
	assert(!request->n_places);
}

void place_launched(struct request *request)
{
	assert(request->state == REQUEST_RUNNING || request->state == REQUEST_STARTING);
	assert(request->n_places > 0);
	request->last_launch = request->session->accounting->launched;
}

void place_close_buffer(struct engine_session *session, uint32_t id)
{
	struct engine_buffer *buffer = &session->port->buffers[id - 1];

	assert(id >= 1 && id <= session->port->n_buffers && !buffer->closing);
	assert(atomic_load(&buffer->open) && atomic_load(&buffer->ends));
	buffer->port = session->port;
	buffer->closing = true;
	LL_PREPEND(session->accounting->closing, buffer);
}

void place_forget_buffers(struct engine_session *session)
{
	struct engine_buffer *buffer, *next;

	LL_FOREACH_SAFE (session->accounting->closing, buffer, next) {
		if (buffer->port == session->port)
			LL_DELETE(session->accounting->closing, buffer);
	}
}

/* Have all entries that may name the buffer been taken from the ring? */
static bool place_is_passed(const struct engine_buffer *buffer)
{
	const struct engine_session *session = buffer->port->engine_private;

	if (place_is_before(session->port->region.ring.sq_index, buffer->end))
		return false;
	return !session->held || !place_is_before(session->held->sqe.stamp, buffer->end);
}

void place_release_buffers(struct accounting *accounting)
{
	struct engine_buffer *buffer, *next;

	LL_FOREACH_SAFE (accounting->closing, buffer, next) {
		assert(buffer->closing);
		if (atomic_load_explicit(&buffer->open, memory_order_relaxed) && place_is_passed(buffer))
			atomic_store_explicit(&buffer->open, false, memory_order_relaxed);
		if (buffer->open || buffer->n_requests)
			continue;
		LL_DELETE(accounting->closing, buffer);
		buffer->closing = false;
		reports_post_buffer(accounting->reports, buffer);
	}
}
