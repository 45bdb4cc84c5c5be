/* SPDX-License-Identifier: MIT */
/*
 * Device buffers as requests name them. A buffer is held by each request that names it and, fenced
 * like pages and slots, by the last launched step that does: the loop thread gets it back only when
 * neither is left. Hot path: no allocation, no lock, no system call; but closing takes a lock.
 */
#include "daemon/engine/state.h"

static void set_detail(struct msg_detail *ret, unsigned kind, uint32_t buffer, uint64_t a,
	uint64_t b, uint64_t c)
{
	const uint64_t v[3] = {a, b, c};

	*ret = (struct msg_detail){.detail = kind, .values = {(int32_t)buffer}};
	for (int i = 0; i < 3; i++)
		ret->values[i + 1] = v[i] > INT32_MAX ? INT32_MAX : (int32_t)v[i];
}

int request_place_take(struct request *request, const struct mimeo_place *place, uint64_t bytes,
	struct request_place *ret, struct msg_detail *ret_detail)
{
	const struct engine_port *port = request->session->port;
	struct engine_buffer *buffer;
	uint64_t end;

	*ret = (struct request_place){0};
	if (place->buffer == 0)
		return 0;
	buffer = place->buffer <= port->n_buffers ? &port->buffers[place->buffer - 1] : NULL;
	if (!buffer || !atomic_load_explicit(&buffer->open, memory_order_acquire)) {
		set_detail(ret_detail, RING_DETAIL_BUFFER, place->buffer, 0, 0, 0);
		return MIMEO_E_UNKNOWN_BUFFER;
	}
	if (place->offset % MIMEO_PLACE_ALIGN) {
		set_detail(ret_detail, RING_DETAIL_BUFFER_OFFSET, place->buffer, place->offset,
			MIMEO_PLACE_ALIGN, 0);
		return MIMEO_E_INVALID;
	}
	if (__builtin_add_overflow(place->offset, bytes, &end) || end > buffer->bytes) {
		set_detail(ret_detail, RING_DETAIL_BUFFER_RANGE, place->buffer, place->offset, bytes,
			buffer->bytes);
		return MIMEO_E_INVALID;
	}
	buffer->n_requests++;
	request->n_places++;
	*ret = (struct request_place){buffer, (uint8_t *)buffer->address + place->offset};
	return 0;
}

static void drop(struct request_place *place)
{
	if (place->buffer)
		place->buffer->n_requests--;
	*place = (struct request_place){0};
}

void request_places_drop(struct request *request)
{
	drop(&request->logits);
	drop(&request->hidden);
	drop(&request->embeddings);
	request->n_places = 0;
}

static void launched(const struct request_place *place, uint64_t launch)
{
	if (place->buffer)
		place->buffer->last_launch = launch;
}

void request_places_launched(struct request *request)
{
	request->last_launch = request->session->engine->launched;
	const uint64_t launch = request->session->engine->launched;

	launched(&request->logits, launch);
	launched(&request->hidden, launch);
	launched(&request->embeddings, launch);
}

void buffer_close(struct session *session, uint32_t id)
{
	struct engine *engine = session->engine;
	struct engine_buffer *buffer = &session->port->buffers[id - 1];

	buffer->port = session->port;
	buffer->closing = true;
	buffer->next = engine->closing;
	engine->closing = buffer;
}

void buffers_forget(struct session *session)
{
	struct engine_buffer **link = &session->engine->closing;

	while (*link) {
		if ((*link)->port == session->port)
			*link = (*link)->next;
		else
			link = &(*link)->next;
	}
}

void buffers_release(struct engine *engine)
{
	struct engine_buffer **link = &engine->closing;

	while (*link) {
		struct engine_buffer *buffer = *link;

		if (buffer->n_requests || buffer->last_launch > engine->completed) {
			link = &buffer->next;
			continue;
		}
		*link = buffer->next;
		buffer->closing = false;
		buffer_post(engine, buffer);
	}
}
