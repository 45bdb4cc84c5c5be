/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_WORKSPACE_H
#define MIMEO_KERNELS_WORKSPACE_H

/*
 * A stream's scratch memory: a list; the first is the current one. Smaller ones stay until
 * the stream is freed, because queued and recorded nodes may name them. One thread at a time adds to a list, also while
 * another reads it. A reader takes the size first: the memory that it reads afterwards is at least that large.
 */

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

struct workspace {
	struct workspace *next;
	void *memory;
	size_t bytes;
};

static inline void *workspace_memory(const struct workspace *first)
{
	return first != NULL ? first->memory : NULL;
}

static inline size_t workspace_bytes(const struct workspace *first)
{
	return first != NULL ? first->bytes : 0;
}

/* Makes larger memory the current one. 0 or -ENOMEM. */
static inline int workspace_push(_Atomic(struct workspace *) *first, void *memory, size_t bytes)
{
	struct workspace *workspace = malloc(sizeof(*workspace));

	if (workspace == NULL)
		return -ENOMEM;
	assert(memory != NULL && bytes > workspace_bytes(*first));
	*workspace = (struct workspace){.next = *first, .memory = memory, .bytes = bytes};
	atomic_store_explicit(first, workspace, memory_order_release);
	return 0;
}

#endif
