/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_SHAPE_H
#define MIMEO_DAEMON_BENCH_SHAPE_H

/*
 * A model of a named shape ("1B"), made for this run by the program make-checkpoint in a folder of
 * its own, which goes with the run. TMPDIR says where: a shape of 8B takes 16 GB there.
 */

#include "daemon/bench/bench.h"

struct shape_folder {
	char folder[64], model[80]; /* folder "": none */
	char draft[80];             /* "": none */
};

/* Makes options->shape; config_only: without weights. 0, or -errno with a sentence on standard
 * error. *ret is to be removed even then. */
int shape_make(const struct bench_options *options, bool config_only, struct shape_folder *ret);
/* Makes an EAGLE draft for that model beside it, in the folder of shape_make, and as that. */
int shape_make_draft(const struct bench_options *options, struct shape_folder *folder);
void shape_remove(struct shape_folder *folder);

#endif
