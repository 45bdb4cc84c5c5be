/* SPDX-License-Identifier: MIT */
#include "sdk/versioned.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

bool versioned_read(void *known, size_t known_size, const void *given, size_t least)
{
	size_t size;

	assert(least <= known_size && known_size <= VERSIONED_BYTES_MAX);
	memcpy(&size, given, sizeof(size));
	if (size < least || size > VERSIONED_BYTES_MAX)
		return false;
	for (size_t i = known_size; i < size; i++) {
		if (((const uint8_t *)given)[i] != 0)
			return false;
	}
	memset(known, 0, known_size);
	memcpy(known, given, size < known_size ? size : known_size);
	return true;
}

bool versioned_write(void *given, const void *known, size_t known_size)
{
	size_t size;

	if (!given)
		return false;
	memcpy(&size, given, sizeof(size));
	if (size < sizeof(size) || size > VERSIONED_BYTES_MAX)
		return false;
	memset(given, 0, size);
	memcpy(given, known, size < known_size ? size : known_size);
	memcpy(given, &size, sizeof(size));
	return true;
}
