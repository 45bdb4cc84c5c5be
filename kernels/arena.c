/* SPDX-License-Identifier: MIT */
#include "kernels/arena.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "kernels/device.h"

/* The alignment of arrays of such elements. */
static size_t arena_unit(size_t size)
{
#ifdef MIMEO_TEST_FAULTS
	size_t natural = size & -size;

	/* without the slack that would hide an array that is too short */
	if (getenv("MIMEO_ARENA_TIGHT"))
		return natural == 0 || natural > 16 ? 16 : natural;
#endif
	(void)size;
	return ARENA_ALIGN;
}

void *arena_take(struct arena *arena, size_t n, size_t size)
{
	size_t unit = arena_unit(size), start, bytes, end;

	assert(arena->base == NULL || arena->used <= arena->size);
	if (arena->failed)
		return NULL;
	if (__builtin_add_overflow(arena->used, unit - 1, &start) ||
		__builtin_mul_overflow(n, size, &bytes))
		goto fail;
	start -= start % unit;
	if (__builtin_add_overflow(start, bytes, &end) ||
		(arena->base != NULL && end > arena->size))
		goto fail;
	assert(start % unit == 0 && arena->used <= start && start <= end);
	arena->used = end;
	return arena->base == NULL ? NULL : arena->base + start;
fail:
	arena->failed = true;
	return NULL;
}

int arena_alloc(struct device *device, void (*carve)(void *userdata, struct arena *arena),
	void *userdata, void **ret, size_t *ret_bytes)
{
	struct arena counting = {0}, placing;
	void *memory;
	int rc;

	carve(userdata, &counting);
	if (counting.failed)
		return -EOVERFLOW;
	rc = device->ops->mem_alloc(device, counting.used, &memory);
	if (rc)
		return rc;
	placing = (struct arena){.base = memory, .size = counting.used};
	assert((uintptr_t)memory % ARENA_ALIGN == 0);
	carve(userdata, &placing);
	assert(!placing.failed && placing.used == counting.used);
	*ret = memory;
	if (ret_bytes)
		*ret_bytes = counting.used;
	return 0;
}
