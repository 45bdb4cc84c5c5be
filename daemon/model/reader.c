/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "daemon/model/reader.h"
#include "ipc/cleanup.h"

struct reader_chunk {
	uint32_t segment;
	uint64_t offset; /* within the segment */
	size_t bytes, done;
	char *data;
};

/* Where the next chunk begins. */
struct reader_cursor {
	const struct reader_segment *segments;
	uint32_t n_segments, segment;
	uint64_t offset;
};

static bool reader_next(struct reader_cursor *cursor, size_t chunk_bytes, struct reader_chunk *ret)
{
	const struct reader_segment *s;
	uint64_t left, whole = chunk_bytes;

	while (cursor->segment < cursor->n_segments &&
		cursor->offset == cursor->segments[cursor->segment].bytes) {
		cursor->segment++;
		cursor->offset = 0;
	}
	if (cursor->segment == cursor->n_segments)
		return false;
	s = &cursor->segments[cursor->segment];
	left = s->bytes - cursor->offset;
	ret->segment = cursor->segment;
	ret->offset = cursor->offset;
	if (s->multiple) {
		assert(s->multiple <= chunk_bytes);
		whole -= whole % s->multiple;
	}
	ret->bytes = (size_t)(left < whole ? left : whole);
	ret->done = 0;
	cursor->offset += ret->bytes;
	assert(ret->bytes && cursor->offset <= s->bytes);
	return true;
}

/* ---- pread ---- */

static int reader_run_pread(const struct reader_segment *segments, uint32_t n_segments,
	const struct reader_options *options, struct model_error *error)
{
	struct reader_cursor cursor = {.segments = segments, .n_segments = n_segments};
	struct reader_chunk chunk;
	uint64_t kept = 0; /* a bit for each of `depth` places, which the chunks take in turn */

	for (uint64_t i = 0; reader_next(&cursor, options->chunk_bytes, &chunk); i++) {
		const struct reader_segment *s = &segments[chunk.segment];
		uint64_t bit = UINT64_C(1) << i % options->depth;
		char *data = (char *)options->memory + i % options->depth * options->chunk_bytes;
		int rc = kept & bit ? options->release(options->userdata, data) : 0;

		if (rc)
			return rc;
		kept &= ~bit;
		rc = file_read(
			s->fd, s->path, s->offset + chunk.offset, data, chunk.bytes, error);
		if (rc)
			return rc;
		rc = options->deliver(
			options->userdata, chunk.segment, chunk.offset, data, chunk.bytes);
		if (rc == READER_KEPT)
			kept |= bit;
		else if (rc)
			return rc;
	}
	return 0;
}

/* ---- io_uring ---- */

struct reader_uring {
	struct io_uring ring;
	const struct reader_segment *segments;
	const struct reader_options *options;
	struct model_error *error;
	struct reader_cursor cursor;
	uint32_t n_pending; /* reads and, after a stall, cancels */
	bool stalled;
	struct reader_chunk **kept; /* [depth] a ring of those delivered and kept */
	uint32_t first_kept, n_kept;
};

/* Read the chunk. IOSQE_ASYNC has the kernel's workers copy from the page cache, several at once; else
 * this thread would. */
static void reader_queue(struct reader_uring *reader, struct reader_chunk *chunk)
{
	const struct reader_segment *s = &reader->segments[chunk->segment];
	/* the ring has entries for a read and a cancel of each chunk, so one is free */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&reader->ring);

	assert(sqe && chunk->done < chunk->bytes);
	io_uring_prep_read(sqe, s->fd, chunk->data + chunk->done,
		(unsigned)(chunk->bytes - chunk->done), s->offset + chunk->offset + chunk->done);
	io_uring_sqe_set_data(sqe, chunk);
	io_uring_sqe_set_flags(sqe, reader->stalled ? 0 : IOSQE_ASYNC);
	reader->n_pending++;
}

/* The chunk's memory is free: read the next chunk into it, if there is one. */
static void reader_reuse(struct reader_uring *reader, struct reader_chunk *chunk)
{
	if (reader_next(&reader->cursor, reader->options->chunk_bytes, chunk))
		reader_queue(reader, chunk);
}

/* The chunk has been read: 0, or why the reading ends. */
static int reader_deliver(struct reader_uring *reader, struct reader_chunk *chunk)
{
	const struct reader_options *o = reader->options;
	int rc = o->deliver(o->userdata, chunk->segment, chunk->offset, chunk->data, chunk->bytes);

	if (rc == READER_KEPT) {
		assert(o->release && reader->n_kept < o->depth);
		reader->kept[(reader->first_kept + reader->n_kept++) % o->depth] = chunk;
		return 0;
	}
	if (rc)
		return rc;
	reader_reuse(reader, chunk);
	return 0;
}

static int reader_release_oldest(struct reader_uring *reader)
{
	const struct reader_options *o = reader->options;
	struct reader_chunk *chunk = reader->kept[reader->first_kept];
	int rc;

	assert(reader->n_kept);
	reader->first_kept = (reader->first_kept + 1) % o->depth;
	reader->n_kept--;
	rc = o->release(o->userdata, chunk->data);
	if (rc)
		return rc;
	reader_reuse(reader, chunk);
	return 0;
}

/* Is a read without a result to be repeated? -ECANCELED: by reader_cancel_all. */
static bool reader_is_to_repeat(const struct reader_uring *reader, int result)
{
	return result == -EINTR || result == -EAGAIN ||
	       (result == -ECANCELED && reader->stalled);
}

/* One read's result: 0, or why the reading ends. */
static int reader_complete(struct reader_uring *reader, struct reader_chunk *chunk, int result)
{
	const struct reader_segment *s = &reader->segments[chunk->segment];

	if (result < 0 && !reader_is_to_repeat(reader, result))
		return model_fail(reader->error, result, "%s: cannot be read: %s", s->path,
			strerror(-result));
	if (result == 0)
		return model_fail(reader->error, -EIO,
			"%s: ends at byte %" PRIu64 ", it was longer before", s->path,
			s->offset + chunk->offset + chunk->done);
	if (result > 0)
		chunk->done += (size_t)result;
	assert(chunk->done <= chunk->bytes);
	if (chunk->done == chunk->bytes)
		return reader_deliver(reader, chunk);
	reader_queue(reader, chunk);
	return 0;
}

/* Reads and cancels that the kernel has. */
static uint32_t reader_in_progress(struct reader_uring *reader)
{
	assert(reader->n_pending >= io_uring_sq_ready(&reader->ring));
	return reader->n_pending - io_uring_sq_ready(&reader->ring);
}

static int reader_submit(struct reader_uring *reader)
{
	int rc;

	do
		rc = io_uring_submit(&reader->ring);
	while (rc == -EINTR);
	/* short of memory: the next completion makes room */
	if (rc >= 0 || ((rc == -EAGAIN || rc == -EBUSY) && reader_in_progress(reader)))
		return 0;
	return model_fail(reader->error, rc, "io_uring_enter: %s", strerror(-rc));
}

/* No read has completed for a long time. Reads that a worker has started complete normally or with -EINTR,
 * the others with -ECANCELED; those that fail are queued again. */
static void reader_cancel_all(struct reader_uring *reader, struct reader_chunk *chunks)
{
	struct io_uring_sqe *sqe;

	assert(!reader->stalled);
	reader->stalled = true;
	for (uint32_t i = 0; i < reader->options->depth; i++) {
		sqe = io_uring_get_sqe(&reader->ring);
		if (!sqe)
			break;
		io_uring_prep_cancel(sqe, &chunks[i], 0);
		io_uring_sqe_set_data(sqe, NULL);
		reader->n_pending++;
	}
	io_uring_submit(&reader->ring);
}

/* Until a read or a cancel has ended, or -ETIME: none has for stall_ms. */
static int reader_wait(struct reader_uring *reader, struct io_uring_cqe **ret)
{
	uint32_t limit_ms = reader->options->stall_ms ? reader->options->stall_ms : READER_STALL_MS;
	struct __kernel_timespec limit = {
		.tv_sec = limit_ms / 1000,
		.tv_nsec = (long long)(limit_ms % 1000) * 1000000,
	};
	int rc;

	do
		rc = io_uring_wait_cqe_timeout(
			&reader->ring, ret, reader->stalled ? NULL : &limit);
	while (rc == -EINTR);
	return rc;
}

static int reader_run_uring(struct reader_uring *reader, struct reader_chunk *chunks)
{
	const struct reader_options *options = reader->options;
	struct io_uring_cqe *cqe;
	int rc = 0, waited;

	for (uint32_t i = 0; i < options->depth; i++) {
		chunks[i].data = (char *)options->memory + i * options->chunk_bytes;
		if (!reader_next(&reader->cursor, options->chunk_bytes, &chunks[i]))
			break;
		reader_queue(reader, &chunks[i]);
	}
	for (;;) {
		if (!rc)
			rc = reader_submit(reader);
		/* No read has completed: what was kept may be free by now. */
		if (!rc && reader->n_kept && io_uring_peek_cqe(&reader->ring, &cqe)) {
			rc = reader_release_oldest(reader);
			continue;
		}
		/* after a failure the reads in progress still write into the memory */
		if (!reader_in_progress(reader))
			return rc;
		waited = reader_wait(reader, &cqe);
		if (waited == -ETIME) {
			reader_cancel_all(reader, chunks);
			continue;
		}
		if (waited < 0)
			return model_fail(
				reader->error, waited, "io_uring_enter: %s", strerror(-waited));
		reader->n_pending--;
		if (!rc && io_uring_cqe_get_data(cqe))
			rc = reader_complete(reader, io_uring_cqe_get_data(cqe), cqe->res);
		io_uring_cqe_seen(&reader->ring, cqe);
	}
}

/* Is io_uring wanted and available? Without EXT_ARG (Linux 5.11) a wait with a limit would take an
 * entry. */
static bool reader_ring_init(struct io_uring *ring, uint32_t depth)
{
	const char *loop = getenv("MIMEO_LOOP");

	if (loop && !strcmp(loop, "epoll"))
		return false;
	if (io_uring_queue_init(2 * depth, ring, 0))
		return false;
	if (ring->features & IORING_FEAT_EXT_ARG)
		return true;
	io_uring_queue_exit(ring);
	return false;
}

int reader_run(const struct reader_segment *segments, uint32_t n_segments,
	const struct reader_options *options, const char **ret_name, struct model_error *error)
{
	CLEANUP(cleanup_free) struct reader_chunk *chunks = calloc(options->depth, sizeof(*chunks));
	CLEANUP(cleanup_free) struct reader_chunk **kept = calloc(options->depth, sizeof(*kept));
	struct reader_uring reader = {
		.segments = segments,
		.options = options,
		.error = error,
		.cursor = {.segments = segments, .n_segments = n_segments},
		.kept = kept,
	};
	const char *name = "pread";
	int rc;

	assert(options->depth && options->depth <= READER_DEPTH_MAX && options->chunk_bytes);
	if (!chunks || !kept)
		return model_fail(error, -ENOMEM, "no memory for reads");
	if (reader_ring_init(&reader.ring, options->depth)) {
		rc = reader_run_uring(&reader, chunks);
		io_uring_queue_exit(&reader.ring);
		name = reader.stalled ? "io_uring without workers" : "io_uring";
	} else {
		rc = reader_run_pread(segments, n_segments, options, error);
	}
	if (ret_name)
		*ret_name = name;
	return rc;
}
