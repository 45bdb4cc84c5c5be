/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_UNCHECKED_H
#define MIMEO_KERNELS_UNCHECKED_H

/*
 * Loops that sanitizers do not instrument. They would check every access and keep the loop from being vectorised,
 * which was half of the time of the tests. A function that calls such a loop passes each range to check_range, so
 * that an access outside of it is still reported.
 */

#include <stddef.h>
#include <stdint.h>

#define UNCHECKED_LOOP __attribute__((no_sanitize("address", "undefined"))) static inline

/* Accesses the first and the last byte of a range that may be empty. */
static inline void check_range(const void *range, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
	if (bytes) {
		(void)*(const volatile uint8_t *)range;
		(void)*((const volatile uint8_t *)range + bytes - 1);
	}
#else
	(void)range;
	(void)bytes;
#endif
}

#endif
