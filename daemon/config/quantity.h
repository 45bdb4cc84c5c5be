/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_QUANTITY_H
#define MIMEO_DAEMON_QUANTITY_H

/*
 * Sizes and durations as operators write them: a number, which may have up to six decimals behind a point, and a
 * unit, which may follow a space. The case of a unit's letters does not matter.
 *
 *	sizes		K M G T, or KiB MiB GiB TiB: powers of 1024; KB MB GB TB: powers of 1000; none: bytes
 *	durations	us ms s min h; none: the unit of the setting, a whole number
 *
 * Functions return 0, -EINVAL, or -ERANGE where the result exceeds 64 bits; *ret is written on success only.
 */

#include <stdint.h>

#define QUANTITY_SIZE_ACCEPTED "bytes, or with a unit such as M or MiB (2^20 bytes) or MB (10^6 bytes)"
#define QUANTITY_DURATION_ACCEPTED "or with a unit: us, ms, s, min or h"

/* Bytes; a fraction of a byte that remains is dropped. */
int quantity_parse_size(const char *text, uint64_t *ret);
/* In units of unit_us microseconds; it has to be a whole number of them. */
int quantity_parse_duration(const char *text, uint64_t unit_us, uint64_t *ret);

#endif
