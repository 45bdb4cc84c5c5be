/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_BUFFER_H
#define MIMEO_TESTS_BENCH_BUFFER_H

/*
 * The parts of `mimeo-bench buffer`. Each measures in children, into samples that they share with
 * the bench. What the device does not know, or the daemon does not allow, leaves its samples empty
 * and has no row.
 */

#include <mimeo/mimeo.h>
#include <stdint.h>

#include "daemon/bench/bench.h"
#include "daemon/bench/child.h"
#include "daemon/bench/stats.h"

/* How a buffer comes about; BUFFER_IMPORT is a memfd of the client's own. */
enum buffer_way { BUFFER_MEMFD, BUFFER_IMPORT, BUFFER_VMM_FD, BUFFER_CUDA_IPC, BUFFER_WAYS };

#define BUFFER_SIZES 3
#define BUFFER_BATCHES 2
#define BUFFER_SMALLEST 4096u

/* Times of a step: sampled tokens alone; logits in the arena; in a buffer with a fence, until that
 * is recorded and until the end. */
enum buffer_step { BUFFER_BARE, BUFFER_ARENA, BUFFER_RECORDED, BUFFER_FENCED, BUFFER_STEPS };

/* What one client closes while another one generates. */
enum buffer_closing { BUFFER_NOTHING, BUFFER_DESCRIPTORS, BUFFER_HANDLES, BUFFER_CLOSINGS };

struct buffer_calls {
	struct samples *make, *close;
};

/* What the calls' floor is measured with: the device in the measuring process, and a partner that
 * answers messages. */
struct buffer_floor {
	int ends[2]; /* of a socket: ours, the partner's */
	struct child partner;
	struct device *device;
};

struct buffer_board; /* what the children of buffer_gaps_run tell each other */

struct buffer_bench {
	const struct bench_options *options;
	const char *socket;
	uint32_t count; /* calls of each way and size */
	uint32_t steps; /* of each batch and way */
	struct buffer_floor floor;
	struct buffer_calls calls[BUFFER_WAYS][BUFFER_SIZES], floors[BUFFER_WAYS][BUFFER_SIZES];
	struct samples *step[BUFFER_BATCHES][BUFFER_STEPS];
	uint32_t *vocab_size;                     /* shared; set by buffer_steps_work */
	struct samples *longest[BUFFER_CLOSINGS]; /* gap of each round */
	struct samples *usual;                    /* all gaps while nothing is closed */
};

extern const uint64_t buffer_sizes[BUFFER_SIZES];
extern const uint32_t buffer_batches[BUFFER_BATCHES];

/* Rounds of each closing that buffer_gaps_run has. */
#define BUFFER_ROUNDS 5u
/* KV pages that a private daemon needs for all of it. */
#define BUFFER_KV_PAGES 512u

/* A message on standard error, with the daemon's own words; returns the status. */
int buffer_fail(const struct mimeo *m, const char *what, int status);
/* A memfd as mimeo_buffer_import wants it; the caller's; -errno. */
int buffer_memfd(uint64_t bytes);

/* Its partner, started and ended by the bench: 0 or -errno; to be stopped even then. */
int buffer_floor_start(struct buffer_floor *ret);
void buffer_floor_stop(struct buffer_floor *floor);
/* Its device, for the child that measures: 0, or what went wrong, with a sentence on standard
 * error. */
int buffer_floor_open(struct buffer_floor *floor, const char *device);
void buffer_floor_close(struct buffer_floor *floor);
/* Make the memory and give it back, once. 0, a device's condition or -errno. */
int buffer_floor_once(const struct buffer_floor *floor, enum buffer_way way, uint64_t bytes,
	struct buffer_calls *ret);

/* For child_run, each with a struct buffer_bench; the first has its floor started. */
int buffer_calls_work(void *arg, int fd);
int buffer_steps_work(void *arg, int fd);
/* A client that generates, and one that closes: 0, or -errno with a sentence on standard error. */
int buffer_gaps_run(struct buffer_bench *bench);

#endif
