/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SERVED_H
#define MIMEO_DAEMON_BENCH_SERVED_H

/*
 * The load of the options, for each number of processes, served by a daemon, with the daemon's own counts;
 * and its floor: a bare loop in one process that replays the same graph for as many rows.
 */

#include "daemon/bench/clients.h"
#include "daemon/bench/replay.h"

struct served {
	struct clients clients;
	/* The daemon's metrics before and after the run, and its other answers after it; NULL: not known,
	 * they come over its admin socket. */
	struct answer *before, *metrics, *status, *models, *graphs;
};

/* Serve ret[options->processes.n], each load once before it is measured, by a daemon with the draft
 * model, NULL: without. To be freed even if it fails. 0, or -errno with a sentence on standard error. */
int served_measure(const struct bench_options *options, const char *draft, struct results *results,
	struct served *ret);
void served_free(const struct bench_options *options, struct served *runs);

/* How much a counter grew in the run, of all models; label: of this value of a label alone, NULL: any.
 * NAN: not known. */
double served_count(const struct served *run, const char *name, const char *label);

/* The floors of all runs, which need the model's directory: without it they have no samples.
 * As served_measure. */
int served_floors(const struct bench_options *options, struct replay_run *ret);
void served_floors_free(const struct bench_options *options, struct replay_run *floors);

#endif
