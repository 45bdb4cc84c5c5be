/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_FORCED_H
#define MIMEO_KERNELS_FORCED_H

/* Faults and stops that tests force upon a device, by what its environment variables say. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct forced {
	char op[64]; /* "": any */
	uint64_t at; /* run of `op` that fails; 0: never */
	_Atomic uint64_t n_runs;
	char hold_op[64], hold_path[108]; /* that op waits while there is such a file; "": none */
};

/* fault: "launch:N", the Nth op of all, or "op:NAME:N"; hold: "NAME:PATH". NULL or "": none.
 * -EINVAL. */
int forced_parse(struct forced *forced, const char *fault, const char *hold);
/* Counts a run of the op; is it the one that fails? True once. */
bool forced_due(struct forced *forced, const char *op);
/* Is this the op that waits? */
bool forced_holds(const struct forced *forced, const char *op);
/* Wait while there is such a file. `path` is a char *, for use as a host function. */
void forced_wait(void *path);

#endif
