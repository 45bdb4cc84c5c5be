/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_BUFFER_H
#define MIMEO_SDK_TEXT_BUFFER_H

/*
 * Growing arrays of bytes and of ids. The first failure is kept in `rc`, and what is added later is
 * dropped, so that a caller adds many times and looks at rc once. A zeroed struct is empty.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <mimeo/types.h>

/* More bytes than any text of MIMEO_TEXT_MAX bytes needs; bounds what a normalizer may make of one.
 */
#define BUFFER_BYTES_MAX ((size_t)1 << 30)

struct bytes {
	char *data;
	size_t length, capacity;
	int rc; /* 0, NO_MEMORY, or TOO_LONG: more than BUFFER_BYTES_MAX */
};

struct ids {
	int32_t *data; /* [n] */
	size_t n, capacity;
	int rc; /* 0, NO_MEMORY, or TOO_LONG: more ids than fit BUFFER_BYTES_MAX */
};

void bytes_deinit(struct bytes *bytes);
/* Make room for n more bytes at data + length. 0, or rc. */
int bytes_reserve_slow(struct bytes *bytes, size_t n);
/* Add the terminator, which is not counted. 0, or rc. */
int bytes_terminate(struct bytes *bytes);

void ids_deinit(struct ids *ids);
int ids_reserve_slow(struct ids *ids, size_t n);

static inline int bytes_reserve(struct bytes *bytes, size_t n)
{
	if (bytes->capacity - bytes->length >= n && bytes->rc == 0)
		return 0;
	return bytes_reserve_slow(bytes, n);
}

static inline void bytes_add(struct bytes *bytes, const char *data, size_t n)
{
	if (n == 0 || bytes_reserve(bytes, n) < 0)
		return;
	memcpy(bytes->data + bytes->length, data, n);
	bytes->length += n;
}

/* Add a terminated string. */
static inline void bytes_put(struct bytes *bytes, const char *text)
{
	bytes_add(bytes, text, strlen(text));
}

static inline void bytes_fill(struct bytes *bytes, char value, size_t n)
{
	if (n == 0 || bytes_reserve(bytes, n) < 0)
		return;
	memset(bytes->data + bytes->length, value, n);
	bytes->length += n;
}

/* Empty, and without a failure; what was allocated stays. */
static inline void bytes_clear(struct bytes *bytes)
{
	bytes->length = 0;
	bytes->rc = 0;
}

static inline int ids_reserve(struct ids *ids, size_t n)
{
	if (ids->capacity - ids->n >= n && ids->rc == 0)
		return 0;
	return ids_reserve_slow(ids, n);
}

static inline void ids_add(struct ids *ids, int32_t id)
{
	if (ids_reserve(ids, 1) < 0)
		return;
	ids->data[ids->n++] = id;
}

#endif
