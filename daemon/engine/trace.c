/* SPDX-License-Identifier: MIT */
#include "daemon/engine/trace.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int trace_start(struct trace *trace)
{
	if (!trace->events) {
		const size_t size = TRACE_EVENTS * sizeof(*trace->events);

		/* Written here, so that the engine's thread takes no page faults. */
		trace->events = aligned_alloc(_Alignof(max_align_t), size);
		if (!trace->events)
			return -ENOMEM;
		memset(trace->events, 0, size);
	}
	trace->first = atomic_load_explicit(&trace->n, memory_order_acquire);
	atomic_store(&trace->on, true);
	return 0;
}

void trace_stop(struct trace *trace)
{
	atomic_store(&trace->on, false);
	trace->end = atomic_load(&trace->n);
}

/* The engine's thread may still be writing one event, in the place of the oldest one of a full ring. */
void trace_range(const struct trace *trace, uint64_t *ret_first, uint64_t *ret_end)
{
	const uint64_t oldest = trace->end >= TRACE_EVENTS ? trace->end - TRACE_EVENTS + 1 : 0;

	*ret_first = trace->first > oldest ? trace->first : oldest;
	*ret_end = trace->end;
}

void trace_deinit(struct trace *trace)
{
	free(trace->events);
}
