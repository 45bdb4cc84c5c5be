/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/ended.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/probes.h"
#include "daemon/engine/request_log.h"
#include "daemon/engine/requests/names.h"
#include "daemon/engine/trace.h"
#include "ipc/clock.h"

static void ended_count(struct engine_session *session, int status)
{
	struct engine_stats *stats = session->accounting->stats;

	if (!status || status == MIMEO_E_CANCELLED) {
		counter_add(status ? &stats->n_cancelled : &stats->n_finished, 1);
		return;
	}
	assert(status < 0 && status > -ENGINE_STATUSES);
	counter_add(&stats->n_failed, 1);
	counter_add(&stats->n_failed_with[-status], 1);
	counter_add(&session->port->n_failed, 1);
	counter_add(&session->port->n_deadlines, status == MIMEO_E_DEADLINE);
	counter_add(&session->port->n_quotas, status == MIMEO_E_QUOTA);
}

/* Complete the record, and hand it on. */
static void ended_record(const struct engine_session *session, struct request_record *record)
{
	const struct engine_port *port = session->port;

	record->session = port->session;
	record->pid = port->pid;
	record->uid = port->uid;
	_Static_assert(sizeof(record->client) == sizeof(port->name), "as long");
	memcpy(record->client, port->name, sizeof(record->client));
	request_log_put(session->accounting->request_log, record);
}

static bool ended_runs(unsigned op)
{
	return op == RING_OP_GENERATE || op == RING_OP_STEP;
}

static void ended_trace(const struct request *request, uint64_t now)
{
	trace_put(request->session->accounting->trace, &(struct trace_event){
		.kind = TRACE_REQUEST,
		.session = request->session->port->session,
		.begin_ns = request->deadlines.submitted_ns,
		.end_ns = now,
		.middle_ns = {request->started_ns, request->first_token_ns},
		.id = request->order,
		.name = request_op_name(request->op),
		.model = request->runner->id,
		.values = {request->n_prompt, request->n_cached, request->n_generated, (uint32_t)-request->end.status,
			request->end.finish},
	});
}

void ended_request(const struct request *request)
{
	const uint64_t now = clock_ns();

	ended_count(request->session, request->end.status);
	if (!ended_runs(request->op))
		return;
	histogram_add_time(
		&request->runner->distributions[ENGINE_REQUEST], now - request->deadlines.submitted_ns, 1);
	PROBE_REQUEST_END(
		request->order, request->session->port->session, request->end.status, request->n_generated);
	if (trace_is_on(request->session->accounting->trace))
		ended_trace(request, now);
	if (!request_log_is_on(request->session->accounting->request_log))
		return;
	struct request_record record = {
		.id = request->order,
		.op = request_op_name(request->op),
		.class = request_class_name(request->class),
		.status = request->end.status,
		.finish = request->end.finish,
		.n_prompt = request->n_prompt,
		.n_cached = request->n_cached,
		.n_generated = request->n_generated,
		.submitted_ns = request->deadlines.submitted_ns,
		.started_ns = request->started_ns,
		.first_token_ns = request->first_token_ns,
		.ended_ns = now,
	};
	_Static_assert(sizeof(record.model) == sizeof(request->runner->options.name), "as long");
	memcpy(record.model, request->runner->options.name, sizeof(record.model));
	ended_record(request->session, &record);
}

/* An entry that became no request; id 0: it has none. */
static void ended_record_entry(
	const struct engine_session *session, const struct ring_sqe *sqe, uint64_t id, int status)
{
	if (!ended_runs(sqe->op) || !request_log_is_on(session->accounting->request_log))
		return;
	ended_record(session, &(struct request_record){
		.id = id,
		.op = request_op_name(sqe->op),
		.status = status,
		.submitted_ns = sqe->submitted_ns,
		.ended_ns = clock_ns(),
	});
}

void ended_held(struct engine_session *session, const struct ring_sqe *sqe, uint64_t order, int status)
{
	ended_count(session, status);
	ended_record_entry(session, sqe, order, status);
}

void ended_refused(struct engine_session *session, const struct ring_sqe *sqe, int status)
{
	counter_add(&session->accounting->stats->n_refused, 1);
	ended_record_entry(session, sqe, 0, status);
}
