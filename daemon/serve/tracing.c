/* SPDX-License-Identifier: MIT */
#include "daemon/serve/tracing.h"

#include <stdlib.h>
#include <string.h>

#include <mimeo/types.h>

#include "daemon/engine/trace.h"
#include "daemon/serve/trace_json.h"
#include "ipc/cleanup.h"

#define TRACING_EVENTS_A_REPLY 2048u /* up to a megabyte of text, some milliseconds of the loop thread */

static void tracing_start(struct serve *serve, struct reply *reply)
{
	struct trace *trace = engine_trace(serve->options.engine);

	if (trace_is_on(trace)) {
		reply_say(reply, MIMEO_E_INVALID, "a trace is being taken already: mimeoctl trace stop ends it");
		return;
	}
	if (trace_start(trace) < 0) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "out of memory for the trace");
		return;
	}
	log_info("an operator began a trace");
	reply_sayf(reply, 0, "tracing the last %u events, until mimeoctl trace stop", TRACE_EVENTS);
}

static void tracing_stop(struct serve *serve, struct reply *reply)
{
	struct trace *trace = engine_trace(serve->options.engine);
	uint64_t first, end;

	if (!trace_is_on(trace)) {
		reply_say(reply, MIMEO_E_INVALID, "no trace is being taken: mimeoctl trace start begins one");
		return;
	}
	trace_stop(trace);
	trace_range(trace, &first, &end);
	log_info("an operator ended the trace, of %llu events", (unsigned long long)(end - trace->first));
	REPLY_ROW(reply, CELL_COUNT("first", first), CELL_COUNT("end", end), CELL_COUNT("lost", first - trace->first));
}

static void tracing_read(struct serve *serve, uint64_t from, struct reply *reply)
{
	const struct trace *trace = engine_trace(serve->options.engine);
	CLEANUP(cleanup_free) char *text = NULL;
	uint64_t first, end, at;
	size_t size;

	trace_range(trace, &first, &end);
	if (trace_is_on(trace) || !trace->events || from < first || from > end) {
		reply_say(reply, MIMEO_E_INVALID, "the trace is gone: another has begun");
		return;
	}
	FILE *out = open_memstream(&text, &size);
	if (!out) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "out of memory for the trace");
		return;
	}
	if (from == first)
		trace_json_begin(out);
	for (at = from; at < end && at - from < TRACING_EVENTS_A_REPLY; at++)
		trace_json_event(out, serve->options.engine, &trace->events[at % TRACE_EVENTS]);
	if (fclose(out) != 0) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "out of memory for the trace");
		return;
	}
	reply_say(reply, 0, text);
	REPLY_ROW(reply, CELL_COUNT("next", at), CELL_COUNT("end", end));
}

void tracing_answer(struct serve *serve, const char *what, uint64_t from, struct reply *reply)
{
	if (strcmp(what, "start") == 0)
		tracing_start(serve, reply);
	else if (strcmp(what, "stop") == 0)
		tracing_stop(serve, reply);
	else if (strcmp(what, "read") == 0)
		tracing_read(serve, from, reply);
	else
		reply_say(reply, MIMEO_E_INVALID, "trace takes start, stop or read");
}
