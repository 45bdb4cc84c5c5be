/* SPDX-License-Identifier: MIT */
#include "daemon/http/bytes.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_LEAST 256u

int bytes_append(struct bytes *bytes, const void *data, size_t n)
{
	size_t wanted;

	assert(bytes->n <= bytes->capacity);
	if (__builtin_add_overflow(bytes->n + 1, n, &wanted))
		return -ENOMEM;
	if (wanted > bytes->capacity) {
		size_t capacity = bytes->capacity > 0 ? bytes->capacity : BYTES_LEAST;

		while (capacity < wanted && capacity <= SIZE_MAX / 2)
			capacity *= 2;
		char *larger = capacity < wanted ? NULL : realloc(bytes->data, capacity);
		if (!larger)
			return -ENOMEM;
		bytes->data = larger;
		bytes->capacity = capacity;
	}
	if (n > 0)
		memcpy(bytes->data + bytes->n, data, n);
	bytes->n += n;
	bytes->data[bytes->n] = '\0';
	return 0;
}

int bytes_append_text(struct bytes *bytes, const char *text)
{
	return bytes_append(bytes, text, strlen(text));
}

void bytes_drop(struct bytes *bytes, size_t n)
{
	assert(n <= bytes->n);
	if (n == 0)
		return;
	bytes->n -= n;
	memmove(bytes->data, bytes->data + n, bytes->n + 1);
}

void bytes_deinit(struct bytes *bytes)
{
	free(bytes->data);
	*bytes = (struct bytes){0};
}
