/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_READER_H
#define MIMEO_DAEMON_MODEL_READER_H

/*
 * Bulk reads of regular files: segments are cut into chunks, up to `depth` of which are being read or
 * used at a time, and each chunk is delivered when it has been read, in no particular order, while
 * other reads go on. deliver may keep the chunk's memory (for an upload in progress): release is
 * called before the memory is read into again, for the chunk kept longest, and only when no read has
 * completed. Through io_uring; by pread, one chunk at a time, where io_uring is refused or
 * MIMEO_LOOP=epoll.
 *
 * Reads go to the kernel's workers, several of which copy in parallel. If no read completes for
 * stall_ms they are cancelled and done without workers: on Linux 6.18 a thread whose workers had all
 * exited got no new ones, and its reads never began.
 */

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/error.h"

struct reader_segment {
	int fd;
	const char *path; /* for errors */
	uint64_t offset, bytes;
	uint32_t multiple; /* each chunk but the last has a multiple of so many bytes; 0: chunk_bytes */
};

#define READER_DEPTH_MAX 64u
#define READER_STALL_MS 1000u
#define READER_KEPT 1 /* deliver: the memory is still used */

struct reader_options {
	void *memory;       /* depth * chunk_bytes */
	size_t chunk_bytes; /* at most so many; a segment's chunks but for its last have the same size */
	uint32_t depth; /* at most READER_DEPTH_MAX */
	uint32_t stall_ms; /* 0: READER_STALL_MS */
	/* Take `bytes` bytes at `offset` of a segment: 0, or READER_KEPT; any other value ends the
	 * reading. */
	int (*deliver)(
		void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes);
	/* Wait until kept memory is no longer used; a value other than 0 ends the reading. NULL:
	 * chunks are never kept. The caller waits for those still kept when the reading ends. */
	int (*release)(void *userdata, const void *data);
	void *userdata;
};

/* 0 when all chunks have been delivered; -errno with a sentence, or the value of deliver or release.
 * No read is in progress on return. *ret_name, unless NULL: "io_uring", "io_uring without workers"
 * (after a stall) or "pread". */
int reader_run(const struct reader_segment *segments, uint32_t n_segments,
	const struct reader_options *options, const char **ret_name, struct model_error *error);

#endif
