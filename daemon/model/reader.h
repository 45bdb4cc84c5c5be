/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_READER_H
#define MIMEO_DAEMON_MODEL_READER_H

/*
 * Bulk reads of regular files: segments are cut into chunks, `depth` of which are being read or
 * used at any time, and each chunk is delivered when it is there, in no particular order. While one
 * is delivered the others go on. Its taker may keep using the chunk's memory when deliver returns
 * (an upload under way): then it is asked to release it before it is read into again, the one kept
 * longest first, and not before there is nothing else to do. Through io_uring; by pread, one chunk
 * at a time, where io_uring is refused or MIMEO_LOOP=epoll.
 *
 * Reads go to the kernel's workers, of which several copy at once. Should none of them end a read for
 * stall_ms, what they have is taken back, and the reading goes on without them: seen on Linux 6.18, where
 * a thread whose workers had all gone got no new ones, and its reads were never begun.
 */

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/model.h"

struct reader_segment {
	int fd;
	const char *path; /* for errors */
	uint64_t offset, bytes;
};

#define READER_DEPTH_MAX 64u
#define READER_STALL_MS 1000u
#define READER_KEPT 1 /* deliver: the memory is still used */

struct reader_options {
	void *memory;       /* depth * chunk_bytes */
	size_t chunk_bytes; /* chunks begin at multiples of it within their segment */
	uint32_t depth; /* at most READER_DEPTH_MAX */
	uint32_t stall_ms; /* 0: READER_STALL_MS */
	/* Take `bytes` bytes at `offset` of segment `segment`: 0, or READER_KEPT; anything else ends
	 * the reading. */
	int (*deliver)(
		void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes);
	/* Wait until kept memory is used no more. Not 0: the reading ends with it. NULL: nothing is
	 * ever kept. What is still kept when the reading ends is the caller's to wait for. */
	int (*release)(void *userdata, const void *data);
	void *userdata;
};

/* 0 when everything has been delivered; -errno with a sentence, or what deliver returned. No read
 * is under way on return. *ret_name, if not NULL, says who read: "io_uring", "io_uring without workers" (of
 * the kernel's, which stalled) or "pread". */
int reader_run(const struct reader_segment *segments, uint32_t n_segments,
	const struct reader_options *options, const char **ret_name, struct model_error *error);

#endif
