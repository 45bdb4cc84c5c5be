/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "daemon/model/reader.h"

struct chunk {
	uint32_t segment;
	uint64_t offset; /* within the segment */
	size_t bytes, done;
	char *data;
};

/* Where the next chunk begins. */
struct cursor {
	const struct reader_segment *segments;
	uint32_t n_segments, segment;
	uint64_t offset;
};

static bool cursor_next(struct cursor *cursor, size_t chunk_bytes, struct chunk *ret)
{
	const struct reader_segment *s;
	uint64_t left;

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
	ret->bytes = left < chunk_bytes ? (size_t)left : chunk_bytes;
	ret->done = 0;
	cursor->offset += ret->bytes;
	return true;
}

/* ---- pread ---- */

static int run_pread(const struct reader_segment *segments, uint32_t n_segments,
	const struct reader_options *options, struct model_error *error)
{
	struct cursor cursor = {.segments = segments, .n_segments = n_segments};
	struct chunk chunk;
	uint64_t kept = 0; /* a bit for each of `depth` places, which the chunks take in turn */
	int rc = 0;

	for (uint64_t i = 0; cursor_next(&cursor, options->chunk_bytes, &chunk); i++) {
		const struct reader_segment *s = &segments[chunk.segment];
		char *data = (char *)options->memory + i % options->depth * options->chunk_bytes;

		if (i >= options->depth && kept & 1ull << i % options->depth)
			rc = options->release(options->userdata, data);
		if (!rc)
			rc = file_read(s->fd, s->path, s->offset + chunk.offset, data, chunk.bytes,
				error);
		if (!rc)
			rc = options->deliver(options->userdata, chunk.segment, chunk.offset, data,
				chunk.bytes);
		kept &= ~(1ull << i % options->depth);
		if (rc == READER_KEPT) {
			kept |= 1ull << i % options->depth;
			rc = 0;
		}
		if (rc)
			return rc;
	}
	return 0;
}

/* ---- io_uring ---- */

struct uring_reader {
	struct io_uring ring;
	const struct reader_segment *segments;
	const struct reader_options *options;
	struct model_error *error;
	struct cursor cursor;
	uint32_t n_pending; /* reads and, after a stall, cancels */
	bool stalled;
	struct chunk **kept; /* [depth] a ring of those delivered and kept */
	uint32_t first_kept, n_kept;
};

/* Read the chunk. What the page cache holds would be copied here and now, by this one thread: asked
 * to, the kernel's workers do it, several at once. */
static void queue(struct uring_reader *reader, struct chunk *chunk)
{
	const struct reader_segment *s = &reader->segments[chunk->segment];
	/* there are entries for a read and a cancel of each chunk, so one is always free */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&reader->ring);

	io_uring_prep_read(sqe, s->fd, chunk->data + chunk->done,
		(unsigned)(chunk->bytes - chunk->done), s->offset + chunk->offset + chunk->done);
	io_uring_sqe_set_data(sqe, chunk);
	io_uring_sqe_set_flags(sqe, reader->stalled ? 0 : IOSQE_ASYNC);
	reader->n_pending++;
}

/* The chunk's memory is free: read what comes next into it, if there is anything. */
static void reuse(struct uring_reader *reader, struct chunk *chunk)
{
	if (cursor_next(&reader->cursor, reader->options->chunk_bytes, chunk))
		queue(reader, chunk);
}

/* The chunk is there: 0, or why the reading ends. */
static int deliver(struct uring_reader *reader, struct chunk *chunk)
{
	const struct reader_options *o = reader->options;
	int rc = o->deliver(o->userdata, chunk->segment, chunk->offset, chunk->data, chunk->bytes);

	if (rc == READER_KEPT) {
		reader->kept[(reader->first_kept + reader->n_kept++) % o->depth] = chunk;
		return 0;
	}
	if (!rc)
		reuse(reader, chunk);
	return rc;
}

static int release_oldest(struct uring_reader *reader)
{
	const struct reader_options *o = reader->options;
	struct chunk *chunk = reader->kept[reader->first_kept];
	int rc = o->release(o->userdata, chunk->data);

	reader->first_kept = (reader->first_kept + 1) % o->depth;
	reader->n_kept--;
	if (!rc)
		reuse(reader, chunk);
	return rc;
}

/* Of a read that did nothing: is it to be done again? -ECANCELED: by take_back. */
static bool is_to_repeat(const struct uring_reader *reader, int result)
{
	return result == -EINTR || result == -EAGAIN ||
	       (result == -ECANCELED && reader->stalled);
}

/* One read's result: 0, or why the reading ends. */
static int complete(struct uring_reader *reader, struct chunk *chunk, int result)
{
	const struct reader_segment *s = &reader->segments[chunk->segment];

	if (result < 0 && !is_to_repeat(reader, result))
		return model_fail(reader->error, result, "%s: cannot be read: %s", s->path,
			strerror(-result));
	if (result == 0)
		return model_fail(reader->error, -EIO,
			"%s: ends at byte %" PRIu64 ", it was longer before", s->path,
			s->offset + chunk->offset + chunk->done);
	if (result > 0)
		chunk->done += (size_t)result;
	if (chunk->done == chunk->bytes)
		return deliver(reader, chunk);
	queue(reader, chunk);
	return 0;
}

/* Reads that the kernel has. */
static uint32_t under_way(struct uring_reader *reader)
{
	return reader->n_pending - io_uring_sq_ready(&reader->ring);
}

static int submit(struct uring_reader *reader)
{
	int rc;

	do
		rc = io_uring_submit(&reader->ring);
	while (rc == -EINTR);
	/* short of memory: the next completion makes room */
	if (rc >= 0 || ((rc == -EAGAIN || rc == -EBUSY) && under_way(reader)))
		return 0;
	return model_fail(reader->error, rc, "io_uring_enter: %s", strerror(-rc));
}

/* No read has ended for long. Those that a worker has begun end on their own or with -EINTR, the others
 * with -ECANCELED; all but the former are queued again. */
static void take_back(struct uring_reader *reader, struct chunk *chunks)
{
	struct io_uring_sqe *sqe;

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

/* Until something has ended, or -ETIME: that was not for stall_ms. */
static int wait_for_one(struct uring_reader *reader, struct io_uring_cqe **ret)
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

static int run_uring(struct uring_reader *reader, struct chunk *chunks)
{
	const struct reader_options *options = reader->options;
	struct io_uring_cqe *cqe;
	int rc = 0, waited;

	for (uint32_t i = 0; i < options->depth; i++) {
		chunks[i].data = (char *)options->memory + i * options->chunk_bytes;
		if (!cursor_next(&reader->cursor, options->chunk_bytes, &chunks[i]))
			break;
		queue(reader, &chunks[i]);
	}
	for (;;) {
		if (!rc)
			rc = submit(reader);
		/* Nothing has been read: what was kept may be free by now. */
		if (!rc && reader->n_kept && io_uring_peek_cqe(&reader->ring, &cqe)) {
			rc = release_oldest(reader);
			continue;
		}
		/* after a failure the reads under way still write into the memory */
		if (!under_way(reader))
			return rc;
		waited = wait_for_one(reader, &cqe);
		if (waited == -ETIME) {
			take_back(reader, chunks);
			continue;
		}
		if (waited < 0)
			return model_fail(
				reader->error, waited, "io_uring_enter: %s", strerror(-waited));
		reader->n_pending--;
		if (!rc && io_uring_cqe_get_data(cqe))
			rc = complete(reader, io_uring_cqe_get_data(cqe), cqe->res);
		io_uring_cqe_seen(&reader->ring, cqe);
	}
}

/* Is io_uring wanted, and there? Without EXT_ARG (Linux 5.11) a limited wait would take an entry. */
static bool uring_init(struct io_uring *ring, uint32_t depth)
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
	struct uring_reader reader = {
		.segments = segments,
		.options = options,
		.error = error,
		.cursor = {.segments = segments, .n_segments = n_segments},
	};
	struct chunk *chunks;
	int rc;

	if (!uring_init(&reader.ring, options->depth)) {
		if (ret_name)
			*ret_name = "pread";
		return run_pread(segments, n_segments, options, error);
	}
	if (ret_name)
		*ret_name = "io_uring";
	chunks = calloc(options->depth, sizeof(*chunks));
	reader.kept = calloc(options->depth, sizeof(struct chunk *));
	rc = chunks && reader.kept ? run_uring(&reader, chunks)
				   : model_fail(error, -ENOMEM, "no memory for reads");
	if (ret_name && reader.stalled)
		*ret_name = "io_uring without workers";
	io_uring_queue_exit(&reader.ring);
	free(reader.kept);
	free(chunks);
	return rc;
}
