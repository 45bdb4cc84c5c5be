/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_VERSIONED_H
#define MIMEO_SDK_VERSIONED_H

/* Structs of callers whose first field is their size: programs may have been compiled with an older or
 * newer header, where the struct has fewer or more fields at its end. */

#include <stdbool.h>
#include <stddef.h>

#define VERSIONED_BYTES_MAX 4096u /* of such a struct */

/* Copy a caller's struct into known[known_size], the rest zero. False if it is smaller than `least`, or
 * sets a field that this library does not know. */
bool versioned_read(void *known, size_t known_size, const void *given, size_t least);
/* Copy known[known_size] into a caller's struct as far as it has space, the rest of it zero. False if
 * it is NULL or its size is impossible. */
bool versioned_write(void *given, const void *known, size_t known_size);

#endif
