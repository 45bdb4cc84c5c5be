/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_CLOCK_H
#define MIMEO_IPC_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of the monotonic clock, through the vDSO; the same for every process. */
static inline uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
