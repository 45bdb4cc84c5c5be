/* SPDX-License-Identifier: MIT */
#include "daemon/serve/buffers.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#ifndef F_DUPFD_QUERY
#define F_DUPFD_QUERY 1027 /* Linux 6.10 */
#endif
#ifndef KCMP_FILE
#define KCMP_FILE 0
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* ---- memory ---- */

/* Are these copies of one descriptor? Where a filter refuses both calls the answer is no, and the memory
 * is mapped once more. */
static bool buffers_is_copy(int a, int b)
{
	pid_t self = getpid();
	int same = fcntl(a, F_DUPFD_QUERY, b);

	return same >= 0 ? same == 1 : syscall(SYS_kcmp, self, self, KCMP_FILE, a, b) == 0;
}

static bool buffers_is_same_file(int a, int b)
{
	struct stat first, second;

	if (a < 0 || b < 0)
		return a == b;
	if (buffers_is_copy(a, b))
		return true;
	/* Two openings of one memfd. Other files are not asked for their inode: their file system may
	 * not answer. */
	return fcntl(a, F_GET_SEALS) >= 0 && fcntl(b, F_GET_SEALS) >= 0 &&
		fstat(a, &first) == 0 && fstat(b, &second) == 0 &&
		first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

/* Memory of a descriptor is imported up to the end of its first handle; a handle that ends later is another
 * import. */
struct session_memory *buffers_memory_find(
	struct session_buffers *buffers, const struct mimeo_handle *handle, int fd, uint64_t end)
{
	struct session_memory *memory;

	DL_FOREACH (buffers->memories, memory) {
		if (memory->imported && memory->thing->address && end <= memory->bytes &&
			memory->key.kind == handle->kind &&
			memcmp(memory->key.opaque, handle->opaque, sizeof(handle->opaque)) == 0 &&
			buffers_is_same_file(memory->fd, fd))
			return memory;
	}
	return NULL;
}

/* The device refuses it without a reason. This looks for the first thing that is wrong, and decides
 * nothing. */
void buffers_explain_memfd(int fd, uint64_t end, size_t size, char *ret_text)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs files;
	struct stat status;

	if (seals < 0)
		snprintf(ret_text, size, "the descriptor is no memfd's");
	else if (~seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		snprintf(ret_text, size, "the memfd lacks seals:%s%s%s",
			seals & F_SEAL_SHRINK ? "" : " F_SEAL_SHRINK",
			seals & F_SEAL_GROW ? "" : " F_SEAL_GROW",
			seals & F_SEAL_SEAL ? "" : " F_SEAL_SEAL");
	else if (fstatfs(fd, &files) == 0 && files.f_type == HUGETLBFS_MAGIC)
		snprintf(ret_text, size, "the memfd is of huge pages (MFD_HUGETLB), which are not taken");
	else if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		snprintf(ret_text, size, "the memfd is sealed against writing");
	else if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
		snprintf(ret_text, size, "the descriptor is not open for reading and writing");
	else if (fstat(fd, &status) == 0 && (uint64_t)status.st_size < end)
		snprintf(ret_text, size,
			"the memfd has %" PRIu64 " bytes, and the handle ends at %" PRIu64,
			(uint64_t)status.st_size, end);
	else
		snprintf(ret_text, size, "the memfd cannot be mapped");
}

/* Drop a buffer's reference. The last one gives the memory to the builder, or frees it if it was never
 * made. */
static void buffers_memory_unref(struct session *session, struct session_memory *memory)
{
	struct session_buffers *buffers = session->buffers;

	assert(memory->n_buffers > 0 && memory->n_buffers <= buffers->n);
	if (--memory->n_buffers > 0)
		return;
	assert(buffers->bytes >= memory->thing->bytes);
	DL_DELETE(buffers->memories, memory);
	buffers->bytes -= memory->thing->bytes;
	if (memory->fd >= 0)
		quota_release(session->serve->quota, session->port.uid,
			&(struct quota_amounts){.of = {[QUOTA_DESCRIPTORS] = 1}});
	if (memory->fd >= 0 && memory->thing->address)
		closer_take_memory(session->serve->closer, memory->fd, session->port.uid);
	else if (memory->fd >= 0)
		closer_take(session->serve->closer, memory->fd, session->port.uid);
	if (memory->thing->address)
		builder_close(session->serve->options.builder, memory->thing);
	else
		buffers_thing_closed(session->serve, memory->thing);
	free(memory);
}

void buffers_thing_closed(struct serve *serve, struct builder_thing *thing)
{
	quota_release(serve->quota, (uid_t)thing->uid,
		&(struct quota_amounts){.of = {[QUOTA_BUFFER_BYTES] = thing->bytes}});
	free(thing);
}

struct session_memory *buffers_memory_new(
	struct session *session, enum builder_kind kind, uint64_t bytes)
{
	struct session_buffers *buffers = session->buffers;
	struct session_memory *memory = calloc(1, sizeof(*memory));
	struct builder_thing *thing = calloc(1, sizeof(*thing));

	if (!memory || !thing) {
		free(memory);
		free(thing);
		return NULL;
	}
	assert(buffers->n_used < buffers->n);
	thing->kind = kind;
	thing->bytes = bytes;
	thing->uid = session->port.uid;
	memory->thing = thing;
	memory->n_buffers = 1;
	memory->fd = -1;
	memory->bytes = bytes;
	DL_APPEND(buffers->memories, memory);
	buffers->bytes += bytes;
	return memory;
}

/* ---- buffers ---- */

uint32_t buffers_take(struct session_buffers *buffers, struct session_memory *memory)
{
	uint32_t i = 0;

	assert(buffers->n_used < buffers->n);
	while (i < buffers->n && buffers->own[i].state != BUFFER_FREE)
		i++;
	assert(i < buffers->n);
	buffers->own[i] = (struct session_buffer){.state = BUFFER_MAKING, .memory = memory};
	buffers->n_used++;
	return i + 1;
}

void buffers_give(struct session *session, uint32_t id)
{
	struct session_buffers *buffers = session->buffers;
	struct session_buffer *buffer = &buffers->own[id - 1];

	assert(id > 0 && id <= buffers->n && buffers->n_used > 0);
	assert(buffer->state != BUFFER_FREE);
	buffers_memory_unref(session, buffer->memory);
	*buffer = (struct session_buffer){.state = BUFFER_FREE};
	buffers->n_used--;
}

void buffers_open(struct session_buffers *buffers, uint32_t id, uint64_t offset,
	uint64_t bytes)
{
	struct engine_buffer *engine = &buffers->engine[id - 1];

	assert(id > 0 && id <= buffers->n && buffers->own[id - 1].state == BUFFER_MAKING);
	assert(offset + bytes <= buffers->own[id - 1].memory->bytes);
	buffers->own[id - 1].state = BUFFER_OPEN;
	engine->address = (uint8_t *)buffers->own[id - 1].memory->thing->address + offset;
	engine->bytes = bytes;
	atomic_store_explicit(&engine->ends, false, memory_order_relaxed);
	atomic_store_explicit(&engine->open, true, memory_order_release);
}

void buffers_closed(struct session *session, uint32_t id)
{
	assert(id > 0 && id <= session->buffers->n);
	assert(session->buffers->own[id - 1].state == BUFFER_CLOSING);
	assert(!atomic_load_explicit(&session->buffers->engine[id - 1].open, memory_order_relaxed));
	buffers_give(session, id);
}

/* ---- life ---- */

int buffers_new(struct session *session)
{
	uint32_t n = session->serve->options.builder
		? session->serve->options.max_client_buffers : 0;
	uint32_t n_fences = n > 0 ? session->port.region.ring.entries : 0;
	struct session_buffers *buffers = calloc(1, sizeof(*buffers));

	if (!buffers)
		return -ENOMEM;
	buffers->call_fd = -1;
	buffers->n = n;
	buffers->n_fences = n_fences;
	buffers->engine = calloc(n + 1, sizeof(*buffers->engine));
	buffers->own = calloc(n + 1, sizeof(*buffers->own));
	buffers->fences = calloc((size_t)n_fences + 1, sizeof(*buffers->fences));
	buffers->fence_things = calloc((size_t)n_fences + 1, sizeof(struct builder_thing *));
	session->buffers = buffers;
	if (!buffers->engine || !buffers->own || !buffers->fences || !buffers->fence_things)
		return -ENOMEM;
	session->port.buffers = buffers->engine;
	session->port.n_buffers = n;
	session->port.fences = n_fences > 0 ? buffers->fences : NULL;
	return 0;
}

bool buffers_busy(const struct session *session)
{
	return session->buffers && session->buffers->busy;
}

uint32_t buffers_count(const struct session *session, uint64_t *ret_bytes)
{
	*ret_bytes = session->buffers->bytes;
	return session->buffers->n_used;
}

/* If the session is being detached, all its buffers and fences are closing. */
static uint32_t buffers_n_closing(const struct session *session)
{
	const struct session_buffers *buffers = session->buffers;
	uint32_t n = 0;

	if (!session->detaching) {
		for (uint32_t i = 0; i < buffers->n; i++)
			n += buffers->own[i].state == BUFFER_CLOSING;
		return n;
	}
	for (uint32_t i = 0; i < buffers->n_fences; i++)
		n += buffers->fence_things[i] != NULL;
	return n + buffers->n_used;
}

uint32_t buffers_count_all(const struct serve *serve, uint32_t *ret_n_closing)
{
	const struct builder *builder = serve->options.builder;
	const struct session *session;
	uint32_t n = 0;

	*ret_n_closing = builder ? builder_n_closing(builder) : 0;
	DL_FOREACH (serve->sessions, session) {
		n += session->buffers->n_used;
		*ret_n_closing += buffers_n_closing(session);
	}
	return n;
}

void buffers_free(struct session *session)
{
	struct session_buffers *buffers = session->buffers;

	if (!buffers)
		return;
	assert(!buffers->busy);
	for (uint32_t i = 0; buffers->own && i < buffers->n; i++) {
		if (buffers->own[i].state != BUFFER_FREE)
			buffers_give(session, i + 1);
	}
	for (uint32_t i = 0; buffers->fence_things && i < buffers->n_fences; i++) {
		if (buffers->fence_things[i])
			builder_close(session->serve->options.builder, buffers->fence_things[i]);
	}
	assert(buffers->n_used == 0 && buffers->bytes == 0 && !buffers->memories);
	if (buffers->call_fd >= 0)
		closer_take(session->serve->closer, buffers->call_fd, session->port.uid);
	free(buffers->fence_things);
	free(buffers->fences);
	free(buffers->own);
	free(buffers->engine);
	free(buffers);
	session->buffers = NULL;
}
