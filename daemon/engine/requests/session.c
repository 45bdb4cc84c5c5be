/* SPDX-License-Identifier: MIT */
/*
 * A session's private side: one block of memory made by the loop thread at attach, so that the
 * engine's thread never allocates for a request. It is reserved without commitment; only what a
 * client really uses becomes memory.
 */
#include "daemon/engine/state.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/arena.h"

static void carve(struct session *session, struct arena *arena, uint32_t max_rows, uint32_t max_pages,
	uint64_t arena_bytes)
{
	uint32_t n = session->max_sequences + session->n_requests;
	int32_t *tokens;
	uint32_t *pages;
	struct request_row *rows;

	session->sequences = arena_take(arena, n, sizeof(*session->sequences));
	session->requests = arena_take(arena, session->n_requests, sizeof(*session->requests));
	rows = arena_take(arena, (size_t)session->n_requests * max_rows, sizeof(*rows));
	pages = arena_take(arena, (size_t)n * max_pages, sizeof(*pages));
	tokens = arena_take(arena, (size_t)n * session->max_seq_len, sizeof(*tokens));
	session->mirror = arena_take(arena, arena_bytes, 1);
	if (!arena->base || arena->failed)
		return;
	for (uint32_t i = 0; i < n; i++) {
		struct sequence *s = &session->sequences[i];

		s->session = session;
		s->slot = -1;
		s->tokens = tokens + (size_t)i * session->max_seq_len;
		s->table = (struct kv_table){
			.pages = pages + (size_t)i * max_pages,
			.capacity = max_pages,
		};
	}
	for (uint32_t i = 0; i < session->n_requests; i++) {
		session->requests[i].session = session;
		session->requests[i].index = i;
		session->requests[i].rows = rows + (size_t)i * max_rows;
	}
}

int engine_session_new(struct engine *engine, struct engine_port *port, struct session **ret)
{
	uint32_t max_rows = engine->options.max_requests;
	uint64_t arena_bytes = port->region.arena_bytes;
	struct session *session = calloc(1, sizeof(*session));
	struct arena counting = {0}, arena;

	if (!session)
		return -ENOMEM;
	session->engine = engine;
	session->port = port;
	session->max_sequences = engine->options.max_sequences;
	session->n_requests = port->region.ring.entries;
	session->max_seq_len = engine->max_seq_len;
	carve(session, &counting, max_rows, engine->max_pages, arena_bytes);
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
	carve(session, &arena, max_rows, engine->max_pages, arena_bytes);
	*ret = session;
	return 0;
}

void engine_session_free(struct session *session)
{
	if (!session)
		return;
	munmap(session->memory, session->memory_bytes);
	free(session);
}

struct sequence *engine_session_sequence(struct session *session, uint32_t id)
{
	if (id < 1 || id > session->max_sequences)
		return NULL;
	return &session->sequences[id - 1];
}

void engine_session_fail(struct session *session, const char *text)
{
	if (session->failed || session->detached)
		return;
	session->failed = true;
	report_post(session->engine, ENGINE_PROTOCOL, session->port, text);
}

void engine_session_wait_push(struct session *session, struct request *request)
{
	request->state = REQUEST_WAITING;
	request->previous = session->waiting_last;
	request->next = NULL;
	if (session->waiting_last)
		session->waiting_last->next = request;
	else
		session->waiting_first = request;
	session->waiting_last = request;
	session->n_waiting++;
	session->engine->admit = true;
}

void engine_session_wait_remove(struct session *session, struct request *request)
{
	if (request->previous)
		request->previous->next = request->next;
	else
		session->waiting_first = request->next;
	if (request->next)
		request->next->previous = request->previous;
	else
		session->waiting_last = request->previous;
	request->previous = request->next = NULL;
	session->n_waiting--;
	if (request->runner && request->runner->head == request)
		request->runner->head = NULL;
}

bool engine_session_is_idle(const struct session *session)
{
	/* A step that names a buffer of the session's has rows of it, too. */
	return session->n_busy == 0;
}

void engine_session_detach(struct session *session)
{
	uint32_t n = session->max_sequences + session->n_requests;

	session->detached = true;
	for (uint32_t i = 0; i < session->n_requests; i++) {
		if (session->requests[i].state != REQUEST_FREE)
			request_finish(&session->requests[i], MIMEO_E_GONE, 0, NULL);
	}
	buffers_forget(session);
	for (uint32_t i = 0; i < n; i++) {
		struct sequence *s = &session->sequences[i];

		if (s->state != SEQUENCE_IDLE)
			s->forget = true;
		else if (s->open || s->table.n_pages)
			sequence_forget(s);
	}
}
