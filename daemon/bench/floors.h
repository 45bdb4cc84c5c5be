/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_FLOORS_H
#define MIMEO_DAEMON_BENCH_FLOORS_H

/*
 * Floors: the least that two processes of this machine need for what Mimeo does between them. Each
 * is measured by the calling process with a partner that it forks; a floor that hangs is ended by
 * the deadline of whoever waits for the caller. 0, or -errno.
 */

#include <stdint.h>

#include "daemon/bench/child.h"
#include "daemon/bench/stats.h"

/* How word gets from one process to the other: it spins on a cache line or sleeps on an eventfd. */
enum hop { HOP_LINE, HOP_EVENTFD };

/* Round trips to a partner that answers at once: `count` of them, until clock_ns() is until_ns. */
int floor_ping_pong(enum hop forth, enum hop back, uint32_t count, uint64_t until_ns,
	struct samples *samples);

/* Connecting to a Unix socket, receiving a memfd, mapping it: a partner that does nothing else. */
struct floor_attach {
	struct child partner;
	int listener;
	uint64_t region_bytes;
};
/* To be stopped even if it fails. */
int floor_attach_start(struct floor_attach *ret, uint64_t region_bytes);
int floor_attach_once(const struct floor_attach *attach, struct samples *samples);
void floor_attach_stop(struct floor_attach *attach);

#endif
