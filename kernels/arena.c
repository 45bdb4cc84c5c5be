/* SPDX-License-Identifier: MIT */
#include "kernels/arena.h"

void *arena_take(struct arena *arena, size_t n, size_t size)
{
	size_t start, bytes, end;

	if (arena->failed)
		return NULL;
	if (__builtin_add_overflow(arena->used, (size_t)ARENA_ALIGN - 1, &start) ||
		__builtin_mul_overflow(n, size, &bytes))
		goto fail;
	start -= start % ARENA_ALIGN;
	if (__builtin_add_overflow(start, bytes, &end) ||
		(arena->base != NULL && end > arena->size))
		goto fail;
	arena->used = end;
	return arena->base == NULL ? NULL : arena->base + start;
fail:
	arena->failed = true;
	return NULL;
}
