/* SPDX-License-Identifier: MIT */
#include "sdk/text/buffer.h"

#include <assert.h>
#include <stdlib.h>

#define BUFFER_FIRST 64u
#define BUFFER_IDS_MAX (BUFFER_BYTES_MAX / sizeof(int32_t))

void bytes_deinit(struct bytes *bytes)
{
	free(bytes->data);
	*bytes = (struct bytes){0};
}

void ids_deinit(struct ids *ids)
{
	free(ids->data);
	*ids = (struct ids){0};
}

/* The next capacity for `needed` elements of at most `most`. */
static size_t buffer_grow(size_t capacity, size_t needed, size_t most)
{
	size_t grown = capacity < BUFFER_FIRST ? BUFFER_FIRST : capacity + capacity / 2;

	if (grown < needed)
		grown = needed;
	return grown < most ? grown : most;
}

int bytes_reserve_slow(struct bytes *bytes, size_t n)
{
	if (bytes->rc < 0)
		return bytes->rc;
	assert(bytes->length <= BUFFER_BYTES_MAX);
	if (n > BUFFER_BYTES_MAX - bytes->length) {
		bytes->rc = MIMEO_E_TOO_LONG;
		return bytes->rc;
	}
	if (bytes->capacity - bytes->length >= n)
		return 0;
	size_t capacity = buffer_grow(bytes->capacity, bytes->length + n, BUFFER_BYTES_MAX);
	char *data = realloc(bytes->data, capacity);
	if (!data) {
		bytes->rc = MIMEO_E_NO_MEMORY;
		return bytes->rc;
	}
	bytes->data = data;
	bytes->capacity = capacity;
	return 0;
}

int bytes_terminate(struct bytes *bytes)
{
	if (bytes_reserve(bytes, 1) < 0)
		return bytes->rc;
	bytes->data[bytes->length] = '\0';
	return 0;
}

int ids_reserve_slow(struct ids *ids, size_t n)
{
	if (ids->rc < 0)
		return ids->rc;
	assert(ids->n <= BUFFER_IDS_MAX);
	if (n > BUFFER_IDS_MAX - ids->n) {
		ids->rc = MIMEO_E_TOO_LONG;
		return ids->rc;
	}
	if (ids->capacity - ids->n >= n)
		return 0;
	size_t capacity = buffer_grow(ids->capacity, ids->n + n, BUFFER_IDS_MAX);
	int32_t *data = realloc(ids->data, capacity * sizeof(*data));
	if (!data) {
		ids->rc = MIMEO_E_NO_MEMORY;
		return ids->rc;
	}
	ids->data = data;
	ids->capacity = capacity;
	return 0;
}
