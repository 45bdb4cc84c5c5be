/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SERVED_H
#define MIMEO_DAEMON_BENCH_SERVED_H

/*
 * Runs the load of the options against a daemon, for each number of processes, and reads the daemon's
 * counters; and the floor: a loop in one process that replays the same graph for as many rows.
 */

#include "daemon/bench/clients.h"
#include "daemon/bench/replay.h"
#include "daemon/bench/spawn.h"

struct served {
	struct clients clients;
	/* The daemon's metrics before and after the run, and its other answers after it; NULL without access
	 * to its operators' socket. */
	struct answer *before, *metrics, *status, *models;
};

/* Measure ret[options->processes.n] with a daemon with the draft model (NULL: without); each load runs once
 * before it is measured. Must be freed even if it fails. 0, or -errno with a sentence on standard error. */
int served_measure(const struct bench_options *options, const char *draft, struct results *results,
	struct served *ret);
void served_free(const struct bench_options *options, struct served *runs);

/* How much a counter grew in the run, summed over models and over all labels, or only for the value `label`.
 * NAN: unknown. */
double served_count(const struct served *run, const char *name, const char *label);

/* Measure the floors of all runs; without the model's directory they have no samples. Errors as of
 * served_measure. */
int served_floors(const struct bench_options *options, struct replay_run *ret);
void served_floors_free(const struct bench_options *options, struct replay_run *floors);

#endif
