/* SPDX-License-Identifier: MIT */
/*
 * A session's private side: one block of memory made by the loop thread at attach, so that the
 * engine's thread never allocates for a request. It is reserved without commitment; only what a
 * client really uses becomes memory.
 */
#include "daemon/engine/requests/engine_session.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <utlist.h>

#include "kernels/arena.h"

static void engine_session_carve(struct engine_session *session, struct arena *arena,
	uint32_t max_rows)
{
	const uint32_t max_pages = session->limits.max_pages;
	const size_t max_table = (size_t)max_pages * session->limits.max_sets;
	uint32_t n = engine_session_n_sequences(session);
	int32_t *tokens;
	uint32_t *pages;
	uint64_t *serials;
	struct request_row *rows;

	session->sequences = arena_take(arena, n, sizeof(*session->sequences));
	session->requests = arena_take(arena, session->n_requests, sizeof(*session->requests));
	rows = arena_take(arena, (size_t)session->n_requests * max_rows, sizeof(*rows));
	serials = arena_take(arena, (size_t)n * max_pages, sizeof(*serials));
	pages = arena_take(arena, n * max_table, sizeof(*pages));
	tokens = arena_take(arena, (size_t)n * session->limits.max_seq_len, sizeof(*tokens));
	session->payloads.memory = arena_take(arena, session->payloads.bytes / sizeof(*tokens), sizeof(*tokens));
	session->entries = arena_take(arena, session->n_requests, sizeof(*session->entries));
	session->deadlines = arena_take(arena, (size_t)session->n_requests + 2, sizeof(*session->deadlines));
	if (!arena->base || arena->failed)
		return;
	for (uint32_t i = 0; i < n; i++) {
		struct sequence *s = &session->sequences[i];

		s->session = session;
		s->slot = -1;
		s->tokens = tokens + (size_t)i * session->limits.max_seq_len;
		s->table = (struct kv_table){
			.pages = pages + i * max_table,
			.serials = serials + (size_t)i * max_pages,
			.capacity = max_pages,
		};
	}
	for (uint32_t i = 0; i < session->n_requests; i++) {
		session->requests[i].session = session;
		session->requests[i].index = i;
		session->requests[i].rows = rows + (size_t)i * max_rows;
	}
}

/* Set the limits of a session; *ret: the bytes that it needs. */
static void engine_session_measure(struct engine_session *session, const struct accounting *accounting,
	uint32_t entries, uint64_t arena_bytes, struct arena *ret)
{
	uint32_t max_rows = accounting->options->max_requests;

	session->max_sequences = accounting->options->max_sequences;
	session->n_requests = entries;
	session->limits = accounting->limits;
	session->payloads.bytes = payload_pool_bytes(
		session->n_requests, max_rows, session->limits.max_seq_len, session->limits.adjust_bytes, arena_bytes);
	*ret = (struct arena){0};
	engine_session_carve(session, ret, max_rows);
}

uint64_t engine_session_bytes(
	const struct accounting *accounting, uint32_t entries, uint64_t arena_bytes)
{
	struct engine_session session = {0};
	struct arena counting;

	engine_session_measure(&session, accounting, entries, arena_bytes, &counting);
	return counting.failed ? UINT64_MAX : counting.used;
}

int engine_session_new(struct accounting *accounting, struct engine_port *port, struct engine_session **ret)
{
	uint32_t max_rows = accounting->options->max_requests;
	struct engine_session *session = calloc(1, sizeof(*session));
	struct arena counting, arena;

	if (!session)
		return -ENOMEM;
	session->accounting = accounting;
	session->port = port;
	engine_session_measure(session, accounting, port->region.ring.entries, port->region.arena_bytes,
		&counting);
	if (counting.failed) {
		free(session);
		return -EOVERFLOW;
	}
	session->memory_bytes = counting.used;
	session->memory = mmap(NULL, counting.used, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (session->memory == MAP_FAILED) {
		free(session);
		return -ENOMEM;
	}
	arena = (struct arena){.base = session->memory, .size = counting.used};
	engine_session_carve(session, &arena, max_rows);
	assert(arena.used == counting.used && !arena.failed);
	*ret = session;
	return 0;
}

void engine_session_free(struct engine_session *session)
{
	if (!session)
		return;
	munmap(session->memory, session->memory_bytes);
	free(session);
}

struct runner *engine_session_model(
	const struct engine_session *session, uint32_t id, struct msg_detail *ret_detail)
{
	const uint32_t end = session->limits.models_end;
	struct runner *runner;

	if (id >= end) {
		*ret_detail = (struct msg_detail){
			RING_DETAIL_MODEL, {id > INT32_MAX ? INT32_MAX : (int32_t)id, (int32_t)end}};
		return NULL;
	}
	runner = runners_find(session->accounting->runners, id);
	if (runner && !runner->leaving)
		return runner;
	*ret_detail = (struct msg_detail){RING_DETAIL_UNLOADED, {(int32_t)id}};
	return NULL;
}

struct sequence *engine_session_sequence(struct engine_session *session, uint32_t id)
{
	return id >= 1 && id <= session->max_sequences ? &session->sequences[id - 1] : NULL;
}

struct sequence *engine_session_request_sequence(const struct request *request)
{
	struct engine_session *session = request->session;

	assert(request->op == RING_OP_GENERATE && request->index < session->n_requests);
	return request->sequence ? engine_session_sequence(session, request->sequence)
				 : &session->sequences[session->max_sequences + request->index];
}

void engine_session_fail(struct engine_session *session, const char *text)
{
	if (session->failed || session->detached)
		return;
	session->failed = true;
	reports_post(session->accounting->reports, ENGINE_PROTOCOL, session->port, text);
}

void engine_session_wait_beside(struct request *request)
{
	struct slots *slots = request->runner ? &request->runner->slots : NULL;

	if (slots && slots->blocked == request)
		slots->blocked = NULL;
	if (slots && slots->reserved_for == request) {
		slots->reserved_for = NULL;
		request->session->accounting->admit = true;
	}
	if (slots && slots->head == request) {
		slots->head = NULL;
		request->session->accounting->admit = true; /* requests that it delayed are examined again */
	}
}

void engine_session_wait_push(struct engine_session *session, struct request *request)
{
	assert(request->state == REQUEST_FREE);
	request->state = REQUEST_WAITING;
	DL_APPEND(session->waiting, request);
	session->n_waiting++;
	session->n_waiting_of[request->class]++;
	session->accounting->admit = true;
	assert(session->n_waiting <= session->n_in_flight);
}

void engine_session_wait_return(struct engine_session *session, struct request *request)
{
	struct request *later;

	assert(request->state == REQUEST_RUNNING && request->started);
	request->state = REQUEST_WAITING;
	DL_FOREACH (session->waiting, later) {
		if (later->order > request->order)
			break;
	}
	if (later)
		DL_PREPEND_ELEM(session->waiting, later, request);
	else
		DL_APPEND(session->waiting, request);
	session->n_waiting++;
	session->n_waiting_of[request->class]++;
	session->accounting->admit = true;
	assert(session->n_waiting <= session->n_in_flight);
}

void engine_session_wait_remove(struct engine_session *session, struct request *request)
{
	assert(request->state == REQUEST_WAITING || request->state == REQUEST_STARTING);
	assert(session->n_waiting > 0);
	assert(session->n_waiting_of[request->class] > 0);
	DL_DELETE(session->waiting, request);
	session->n_waiting--;
	session->n_waiting_of[request->class]--;
	assert((session->n_waiting == 0) == !session->waiting);
	engine_session_wait_beside(request);
}

bool engine_session_is_idle(const struct engine_session *session)
{
	/* A step that names a device buffer of the session has rows of it, too. */
	return session->n_busy == 0;
}
