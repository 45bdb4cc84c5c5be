/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_BUFFERS_H
#define MIMEO_DAEMON_SERVE_BUFFERS_H

/*
 * The books of a session's device buffers, for the two files that keep them: buffers.c has what there
 * is, calls.c what clients ask for.
 *
 * A BUFFER is an id with a place in some MEMORY: one that the builder exported, or a client's that it
 * imported. A client that brings the same handle again (another offset, say) gets another buffer of
 * the same memory, as long as any of its buffers is open. Memory goes back to the builder when its
 * last buffer has come back from the engine, or the whole session has.
 */

#include "daemon/serve/session.h"
#include "ipc/handle.h"

enum buffer_state { BUFFER_FREE, BUFFER_MAKING, BUFFER_OPEN, BUFFER_CLOSING };

struct memory {
	struct builder_thing *thing;
	uint32_t n_buffers;
	bool imported;
	struct mimeo_handle key; /* of an import */
	int fd;            /* its descriptor, kept to know it again; -1: none */
	uint64_t bytes;    /* that there are */
	struct memory *prev, *next;
};

struct buffer {
	enum buffer_state state;
	struct memory *memory;
};

#define SESSION_FENCES_MAX 64u

struct session_buffers {
	struct engine_buffer *engine; /* [n] what the engine sees */
	struct buffer *own;           /* [n] */
	uint32_t n, n_used;
	_Atomic(struct event *) *fences; /* [n_fences] */
	struct builder_thing **fence_things;
	uint32_t n_fences;      /* requests that may have one */
	uint32_t n_fences_made; /* SESSION_FENCES_MAX at most: each is the kernel's or the driver's */
	struct memory *memories;
	uint64_t bytes;
	/* the call under way */
	uint8_t call[4 + MSG_CALL_MAX + 1]; /* one more than allowed, to see that it came */
	uint32_t n_call;
	int call_fd;
	bool clogged; /* its descriptor was not taken: too many wait to be closed */
	bool busy; /* its job is with the builder */
};

/* An import of that very handle, with room up to `end`; or NULL. */
struct memory *buffers_memory_find(
	struct session_buffers *buffers, const struct mimeo_handle *handle, int fd, uint64_t end);
/* One sentence on why the device refused this descriptor as a memfd that goes as far as `end`. */
void buffers_explain_memfd(int fd, uint64_t end, size_t size, char *ret_text);
/* Memory to be made, of one buffer, its bytes held from now on; or NULL: no memory of ours. */
struct memory *buffers_memory_new(
	struct session_buffers *buffers, enum builder_kind kind, uint64_t bytes);
/* A free id, which there is, for that memory. */
uint32_t buffers_take(struct session_buffers *buffers, struct memory *memory);
/* Give the id back, and its memory with the last one. */
void buffers_give(struct session *session, uint32_t id);
/* Requests may name it from now on. */
void buffers_open(
	struct session_buffers *buffers, uint32_t id, uint64_t offset, uint64_t bytes);

int session_buffers_new(struct session *session);
/* After the engine has let go, and the builder. */
void session_buffers_free(struct session *session);
/* A job of the session's is with the builder: it cannot be freed yet. */
bool session_buffers_busy(const struct session *session);
uint32_t session_buffers_count(const struct session *session, uint64_t *ret_bytes);
/* Of all sessions: buffers, and buffers and fences that are to be given back: those that wait for the
 * last step that names them, and those in the builder's queue. */
uint32_t serve_buffers(const struct serve *serve, uint32_t *ret_n_closing);
/* Nothing names the closed buffer any more. */
void session_buffer_closed(struct session *session, uint32_t id);

#endif
