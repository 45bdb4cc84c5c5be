/* SPDX-License-Identifier: MIT */
#include "daemon/engine/lane/lane.h"

#include "daemon/engine/requests/engine_session.h"

static void tracing_row(struct lane *lane, const struct inflight *inflight, uint32_t i, const struct trace_event *step)
{
	const struct inflight_row *row = &inflight->rows[i];

	trace_put(lane->trace, &(struct trace_event){
		.kind = TRACE_ROW,
		.session = row->sequence->session->port->session,
		.begin_ns = step->begin_ns,
		.end_ns = step->end_ns,
		.id = row->request,
		.name = row->verify ? "verify" : row->decodes ? "decode" : "prompt",
		.model = step->model,
		.values = {inflight->slot->record->rows[i].n_tokens, (uint32_t)inflight->number},
	});
}

void tracing_step(struct lane *lane, const struct inflight *inflight, uint64_t began, uint64_t ended)
{
	const struct step_record *record = inflight->slot->record;
	const struct graph_entry *entry = inflight->entry;
	const uint64_t lag = lane->idle.lag_ns;
	/* The lag changes when the clocks are compared again. A step begins no earlier than the last one ended. */
	const uint64_t begin = began + lag > lane->traced_ns ? began + lag : lane->traced_ns;
	const uint64_t end = ended + lag > begin ? ended + lag : begin;
	const struct trace_event step = {
		.kind = TRACE_STEP,
		.begin_ns = begin,
		.end_ns = end,
		.middle_ns = {inflight_is_divided(inflight) ? *inflight->slot->results_ns + lag : 0},
		.id = inflight->number,
		.name = entry ? graph_mode_name(entry->descriptor.mode) : eager_reason_name(inflight->eager),
		.model = inflight->runner->id,
		.values = {inflight->n_rows, record->n_tokens, inflight->n_prompt,
			entry ? graph_entry_padding(entry, record->n_tokens) : 0, entry ? entry->descriptor.tokens : 0,
			entry ? entry->descriptor.rows : 0},
	};

	lane->traced_ns = end;
	trace_put(lane->trace, &step);
	for (uint32_t i = 0; i < inflight->n_rows; i++)
		tracing_row(lane, inflight, i, &step);
}
