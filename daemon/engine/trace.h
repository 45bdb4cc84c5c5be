/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_TRACE_H
#define MIMEO_DAEMON_ENGINE_TRACE_H

/*
 * What the engine did and when, in a ring of the last TRACE_EVENTS events. The engine's thread writes while the trace
 * is on; the loop thread switches it on and off, and reads when it is off. Memory is allocated when it is switched on
 * first. Off, a place that would write costs one load; on, reads of the clock and a copy: no lock or system call.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TRACE_EVENTS (1u << 17) /* 11 MiB */

/* Times are CLOCK_MONOTONIC in nanoseconds. `values` are 0 where a kind has fewer. */
enum trace_kind {
	/* On the device; id: its number among all models' steps; middle[0]: results were out, if a draft's part or results
	 * of positions follow; name: the graph's mode, or why there is none; values: rows, tokens, prompt tokens, padding,
	 * and the graph's tokens and rows. */
	TRACE_STEP,
	/* A row of the step of these times; id: its request; name: "prompt", "decode", "verify"; values: tokens, the low
	 * half of the step's number. */
	TRACE_ROW,
	TRACE_LAUNCH,  /* the engine launched a step; id: its number */
	TRACE_RESULTS, /* the engine read results */
	TRACE_ADMIT,   /* the engine started requests */
	TRACE_CAPTURE, /* the engine captured a graph */
	TRACE_SLEEP,   /* the engine slept */
	/* From submission to end; id: as in mimeoctl requests; middle: start, first token, or 0; name: its op; values:
	 * tokens of the prompt, of these cached, generated, -status, finish. */
	TRACE_REQUEST,
};

struct trace_event {
	enum trace_kind kind;
	uint32_t session; /* of rows and requests */
	uint64_t begin_ns, end_ns, middle_ns[2];
	uint64_t id;
	const char *name; /* static, or NULL */
	uint32_t model;   /* its id, of steps, rows, launches and requests; it may be gone: engine_model_name */
	uint32_t values[6];
};
_Static_assert(sizeof(struct trace_event) == 88, "TRACE_EVENTS are 11 MiB, as mimeoctl(1) has it");

struct trace {
	_Atomic bool on;
	_Atomic uint64_t n;  /* events written since the engine was made */
	uint64_t first, end; /* of these, where the trace began and ended; `end` when it is off */
	struct trace_event *events; /* [TRACE_EVENTS]; NULL: it was never on */
};

static inline bool trace_is_on(const struct trace *trace)
{
	return atomic_load_explicit(&trace->on, memory_order_acquire);
}

/* The engine's thread. `on` and `n` are sequentially consistent here and in trace_stop, so that at most one event is
 * written after trace_stop has read n. */
static inline void trace_put(struct trace *trace, const struct trace_event *event)
{
	const uint64_t n = atomic_load_explicit(&trace->n, memory_order_relaxed);

	if (!atomic_load(&trace->on))
		return;
	trace->events[n % TRACE_EVENTS] = *event;
	atomic_store(&trace->n, n + 1);
}

/* The loop thread. 0 or -ENOMEM; what was traced before is forgotten. */
int trace_start(struct trace *trace);
void trace_stop(struct trace *trace);
/* Of a trace that is off: the number of the first event that is still there, and of the one behind the last. */
void trace_range(const struct trace *trace, uint64_t *ret_first, uint64_t *ret_end);
void trace_deinit(struct trace *trace);

#endif
