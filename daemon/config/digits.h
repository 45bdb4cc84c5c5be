/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_DIGITS_H
#define MIMEO_DAEMON_DIGITS_H

#include <errno.h>
#include <stdint.h>

/* Parse the decimal digits at *at, without sign or space, and move *at behind them. 0, -EINVAL if there
 * are none, or -ERANGE if the number exceeds `most`. */
static inline int digits_parse(const char **at, uint64_t most, uint64_t *ret)
{
	uint64_t value = 0;
	int rc = **at >= '0' && **at <= '9' ? 0 : -EINVAL;

	for (; **at >= '0' && **at <= '9'; ++*at) {
		if (__builtin_mul_overflow(value, 10, &value) ||
			__builtin_add_overflow(value, (uint64_t)(**at - '0'), &value))
			rc = -ERANGE;
	}
	if (rc == 0 && value > most)
		rc = -ERANGE;
	if (rc == 0)
		*ret = value;
	return rc;
}

#endif
