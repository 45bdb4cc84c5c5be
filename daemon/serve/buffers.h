/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_BUFFERS_H
#define MIMEO_DAEMON_SERVE_BUFFERS_H

/*
 * The state of a session's device buffers and fences; calls.c changes it as clients ask.
 *
 * A BUFFER is an id with a place in some MEMORY, which the builder exported or imported from the
 * client. A client that imports the same handle again (with another offset, say) gets another buffer of
 * the same memory, as long as any of its buffers is open. Memory is returned to the builder when the
 * engine has returned its last buffer, or the whole session.
 */

#include "daemon/serve/session.h"
#include "ipc/handle.h"

enum buffer_state { BUFFER_FREE, BUFFER_MAKING, BUFFER_OPEN, BUFFER_CLOSING };

struct session_memory {
	struct builder_thing *thing;
	uint32_t n_buffers;
	bool imported;
	struct mimeo_handle key; /* of an import */
	int fd;            /* its descriptor, kept to know it again; -1: none */
	uint64_t bytes;    /* its length */
	struct session_memory *prev, *next;
};

struct session_buffer {
	enum buffer_state state;
	struct session_memory *memory;
};

#define SESSION_FENCES_MAX 64u

struct session_buffers {
	struct engine_buffer *engine; /* [n] what the engine sees */
	struct session_buffer *own;           /* [n] */
	uint32_t n, n_used;              /* used: not BUFFER_FREE */
	_Atomic(struct event *) *fences; /* [n_fences] */
	struct builder_thing **fence_things;
	uint32_t n_fences;      /* requests that may have one */
	uint32_t n_fences_made; /* SESSION_FENCES_MAX at most: each is the kernel's or the driver's */
	struct session_memory *memories;
	uint64_t bytes;
	/* the call in progress */
	uint8_t call[4 + MSG_CALL_MAX + 1]; /* one byte more than allowed, to detect it */
	uint32_t n_call;
	int call_fd;
	bool clogged; /* its descriptor is refused: its user has too many pending closes */
	bool busy;    /* its job is with the builder */
};

/* An import of the same handle that reaches `end`, or NULL. */
struct session_memory *buffers_memory_find(
	struct session_buffers *buffers, const struct mimeo_handle *handle, int fd, uint64_t end);
/* Explain why the device refused this descriptor as a memfd that reaches `end`. */
void buffers_explain_memfd(int fd, uint64_t end, size_t size, char *ret_text);
/* Memory that is to be made, for one buffer; the user has been charged for its bytes, and if it keeps a
 * descriptor for that. NULL: out of memory. */
struct session_memory *buffers_memory_new(
	struct session *session, enum builder_kind kind, uint64_t bytes);
/* The builder has closed it: its user is no longer charged for it. Frees it. */
void buffers_thing_closed(struct serve *serve, struct builder_thing *thing);
/* A free id for that memory; the caller has checked that there is one (n_used < n). */
uint32_t buffers_take(struct session_buffers *buffers, struct session_memory *memory);
/* Free the id, and the memory with its last id. */
void buffers_give(struct session *session, uint32_t id);
/* Let requests name it. */
void buffers_open(
	struct session_buffers *buffers, uint32_t id, uint64_t offset, uint64_t bytes);

/* 0 or -errno; buffers_free afterwards in either case. */
int buffers_new(struct session *session);
/* Once the engine and the builder have let go of the session. */
void buffers_free(struct session *session);
/* A job of the session's is with the builder, so that it cannot be freed now. */
bool buffers_busy(const struct session *session);
uint32_t buffers_count(const struct session *session, uint64_t *ret_bytes);
/* The buffers of all sessions, and how many buffers and fences are closed but not given back: they wait
 * for the last step that names them, or in the builder's queue. */
uint32_t buffers_count_all(const struct serve *serve, uint32_t *ret_n_closing);
/* No request and no step names the closed buffer any more. */
void buffers_closed(struct session *session, uint32_t id);

#endif
