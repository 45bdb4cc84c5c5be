/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SERVED_H
#define MIMEO_DAEMON_BENCH_SERVED_H

/*
 * Each number of processes with a sequence each, served by a daemon, with what the daemon counted
 * meanwhile; and their floor: a bare loop in one process that replays the same graph for as many
 * rows.
 */

#include "daemon/bench/clients.h"

#define SERVED_METRICS_MAX 8u

struct served {
	struct clients clients;
	bool counted; /* what the daemon counted is known: it comes over its admin socket */
	uint64_t counters[SERVED_METRICS_MAX];
	uint64_t resident_bytes, device_bytes; /* of the daemon, in use on the device */
	struct samples *steps, *gaps, *launches; /* of the floor, as in struct replay_run */
};

/* Serve all of options->processes: ret[options->processes.n], to be freed even if it fails. 0, or
 * -errno with a sentence on standard error. */
int served_measure(const struct bench_options *options, const char *const *metrics,
	uint32_t n_metrics, struct results *results, struct served *ret);
void served_free(const struct bench_options *options, struct served *runs);

#endif
