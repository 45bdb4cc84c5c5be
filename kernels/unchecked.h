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

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif
#ifndef ADDRESS_SANITIZER
#define ADDRESS_SANITIZER 0
#endif

#define UNCHECKED_LOOP __attribute__((no_sanitize("address", "undefined"))) static inline

/* Accesses the first and the last byte of a range that may be empty. */
static inline void check_range(const void *range, size_t bytes)
{
	if (ADDRESS_SANITIZER && bytes) {
		(void)*(const volatile uint8_t *)range;
		(void)*((const volatile uint8_t *)range + bytes - 1);
	}
}

#endif
