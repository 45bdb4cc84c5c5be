/* SPDX-License-Identifier: MIT */
/*
 * The results of steps, oldest first: tokens, logits and hidden states go from the outbox to the
 * requests that the rows are of, and what the step held goes back when it has completed, which with a
 * draft is later. No allocation, no lock; a system call only for a client that sleeps (the head of step.c
 * has the whole account).
 */
#include "daemon/engine/state.h"

#include <string.h>

static bool is_stop(const struct request *request, int32_t token)
{
	const struct model_config *c = &request->runner->model->config;

	for (uint32_t i = 0; i < c->n_eos && !request->ignore_eos; i++) {
		if (token == c->eos[i])
			return true;
	}
	for (uint32_t i = 0; i < request->n_stop; i++) {
		if (token == request->stop[i])
			return true;
	}
	return false;
}

static void take_token(struct request *request, struct sequence *s, int32_t token)
{
	struct engine_port *port = s->session->port;

	s->tokens[s->n_tokens++] = token;
	request->out_tokens[request->n_generated++] = token;
	count(&s->runner->engine->stats.n_tokens_out, 1);
	count(&s->runner->n_tokens_out, 1);
	count(&port->n_tokens, 1);
	if (is_stop(request, token))
		request_finish(request, MIMEO_OK, MIMEO_FINISH_STOP, NULL);
	else if (request->n_generated == request->max_tokens)
		request_finish(request, MIMEO_OK, MIMEO_FINISH_LENGTH, NULL);
}

/* n: prompt tokens of the request computed so far. */
static void take_prompt(struct request *request, uint32_t n)
{
	count(&request->session->port->n_prompt_tokens, n - request->n_prompt);
	request->n_prompt = n;
}

static void take_results(const struct flight *flight, const struct flight_row *row,
	struct request *request, uint32_t to)
{
	const struct model_config *c = &flight->runner->model->config;
	uint64_t from = (uint64_t)row->result;

	if (row->result < 0)
		return;
	if (request->want_logits && !request->logits.at)
		memcpy(request->out_logits + (uint64_t)to * c->vocab_size,
			flight->slot->logits + from * c->vocab_size, c->vocab_size * sizeof(float));
	if (request->want_hidden && !request->hidden.at)
		memcpy(request->out_hidden + (uint64_t)to * c->hidden_size,
			flight->slot->hidden + from * c->hidden_size, c->hidden_size * sizeof(float));
}

static void take_step_row(struct request *request, struct sequence *s, const struct flight_row *row,
	int32_t token)
{
	if (!row->last)
		return;
	take_prompt(request, request->n_prompt + request->rows[s->row].n_tokens);
	if (request->want_tokens)
		request->out_tokens[s->row] = token;
	if (!--request->n_rows_left)
		request_finish(request, MIMEO_OK, MIMEO_FINISH_NONE, NULL);
}

/* Prompt tokens of the request that are computed by now. */
static uint32_t prompt_done(const struct sequence *s, const struct request *request)
{
	uint32_t start = sequence_request_start(s);
	uint32_t end = s->n_computed < s->target ? s->n_computed : s->target;

	return end > start ? end - start : 0;
}

/* The row's token, or of one that verified those that held and the one behind them: the host counted on
 * one. Tokens behind the request's end are nobody's. */
static void take_tokens(struct request *request, struct sequence *s, const struct flight_row *row,
	const int32_t *sampled)
{
	uint32_t n_drafts = s->runner->options.n_drafts, n = 1, taken = 0;
	bool ended;

	while (row->verify && n <= n_drafts && sampled[n] >= 0)
		n++;
	s->n_pending--;
	s->n_computed += n - 1;
	s->n_drafted += s->n_drafts ? n - 1 : 0;
	while (taken < n && s->request == request)
		take_token(request, s, sampled[taken++]);
	ended = s->request != request;
	if (!ended)
		post_tokens(request);
	if (row->verify && s->n_drafts)
		speculation_count_verified(s->runner, s->n_drafts, n - 1, taken, ended);
}

static void take_row(struct flight *flight, uint32_t i)
{
	struct flight_row *row = &flight->rows[i];
	struct sequence *s = row->sequence;
	struct request *request = s->request;
	const int32_t *sampled =
		flight->slot->sampled + (size_t)i * (1 + flight->runner->options.n_drafts);

	if (!request) {
		count(&flight->runner->engine->stats.n_discarded_rows, 1);
		return;
	}
	take_results(flight, row, request, s->row);
	if (request->op == RING_OP_STEP) {
		take_step_row(request, s, row, sampled[0]);
		return;
	}
	take_prompt(request, prompt_done(s, request));
	if (row->sample)
		take_tokens(request, s, row, sampled);
}

/* What the lane did for this step and, if it goes on with rows of the one before, in between. A step
 * that had to wait for a client says nothing about the engine. */
static void count_lane(struct engine *engine, const struct flight *flight)
{
	uint64_t began = *flight->slot->began, ended = *flight->slot->ended;
	uint64_t before = engine->lane_ended_ns;

	idle_follow(engine, ended);
	if (!flight->n_rows)
		return;
	engine->lane_ended_ns = ended;
	if (flight->entry && ended > began)
		graph_entry_timed(flight->entry, ended - began);
	if (flight->entry && flight->drafts && *flight->slot->told_ns > began)
		graph_entry_told(flight->entry, *flight->slot->told_ns - began);
	count(&engine->stats.lane_ns, ended - began);
	if (flight->drafts) {
		count(&flight->runner->draft_ns, ended - *flight->slot->draft_began);
		count(&flight->runner->n_draft_steps, 1);
	}
	if (!flight->follows || !before)
		return;
	/* The next launch may begin before the last one's very end. */
	uint64_t gap = began > before ? began - before : 0;

	if (late_in_gap(engine) && gap > atomic_load(&engine->stats.late_gap_ns))
		atomic_store(&engine->stats.late_gap_ns, gap);
	count(&engine->stats.n_gaps, 1);
	count(&engine->stats.gap_ns, gap);
	if (gap <= ENGINE_LONG_GAP_NS)
		return;
	count(&engine->stats.n_long_gaps, 1);
	count(&engine->stats.long_gap_ns, gap);
}

bool step_ready(const struct engine *engine)
{
	const struct flight *oldest = &engine->flights[engine->first_flight];

	if (!engine->n_flights)
		return false;
	return inputs_slot_done(oldest->slot) ||
	       (oldest->drafts && !oldest->read && inputs_slot_told(oldest->slot));
}

static void take_rows(struct flight *flight)
{
	for (uint32_t i = 0; i < flight->n_rows && !flight->read; i++)
		take_row(flight, i);
	flight->read = true;
}

/* The oldest flight is out of the lane. */
static void end_flight(struct engine *engine, struct flight *flight)
{
	struct runner *runner = flight->runner;

	engine->first_flight = (engine->first_flight + 1) % ENGINE_FLIGHTS;
	engine->n_flights--;
	runner->completed = flight->step;
	engine->completed++;
	count_lane(engine, flight);
	take_rows(flight);
	kv_release(runner->kv, flight->sources, flight->n_sources);
	engine->admit |= flight->n_sources > 0;
	runner_release(runner);
}

bool step_complete(struct engine *engine)
{
	bool any = false, ended = false;

	while (step_ready(engine)) {
		struct flight *flight = &engine->flights[engine->first_flight];

		engine_work_begins(engine);
		any = true;
		if (inputs_slot_done(flight->slot)) {
			end_flight(engine, flight);
			ended = true;
		} else {
			take_rows(flight);
		}
	}
	if (any)
		requests_end(engine);
	/* Once for all that ended: two steps that ended in one sleep are a reason to be woken between
	 * the next two. */
	if (ended) {
		engine->sleepy = engine->slept;
		engine->slept = false;
	}
	return any;
}
