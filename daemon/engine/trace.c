/* SPDX-License-Identifier: MIT */
#include "daemon/engine/trace.h"

#include <errno.h>
#include <stdlib.h>

int trace_start(struct trace *trace)
{
	if (!trace->events)
		trace->events = calloc(TRACE_EVENTS, sizeof(*trace->events));
	if (!trace->events)
		return -ENOMEM;
	trace->first = atomic_load_explicit(&trace->n, memory_order_acquire);
	atomic_store_explicit(&trace->on, true, memory_order_release);
	return 0;
}

void trace_stop(struct trace *trace)
{
	atomic_store_explicit(&trace->on, false, memory_order_release);
}

/* The engine's thread may be writing one event, in the place of the oldest one of a full ring. */
void trace_range(const struct trace *trace, uint64_t *ret_first, uint64_t *ret_end)
{
	const uint64_t end = atomic_load_explicit(&trace->n, memory_order_acquire);
	const uint64_t oldest = end >= TRACE_EVENTS ? end - TRACE_EVENTS + 1 : 0;

	*ret_first = trace->first > oldest ? trace->first : oldest;
	*ret_end = end;
}

void trace_deinit(struct trace *trace)
{
	free(trace->events);
}
