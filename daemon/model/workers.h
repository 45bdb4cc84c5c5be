/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_WORKERS_H
#define MIMEO_DAEMON_MODEL_WORKERS_H

/* Threads that share the parts of a task. They sleep between tasks, with all signals blocked. */

#include <stdint.h>

#define WORKERS_MAX 8u /* the caller counted in; memory's bandwidth ends before */

struct workers;

/* A thread for each CPU that the process may use, the caller's included, WORKERS_MAX at most. With fewer, or none, if
 * threads cannot be created. NULL: no memory. */
struct workers *workers_new(void);
/* NULL is allowed. */
void workers_free(struct workers *workers);
/* Including the caller. */
uint32_t workers_n(const struct workers *workers);
/* Call each(userdata, i) once for each i below n, on the caller's thread and others. Returns when all calls have; what
 * they wrote is visible to the caller. One caller at a time. */
void workers_run(struct workers *workers, void (*each)(void *userdata, uint32_t i), void *userdata, uint32_t n);

#endif
