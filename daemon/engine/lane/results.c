/* SPDX-License-Identifier: MIT */
/*
 * The results of steps, oldest first: tokens, logits and hidden states are copied from the outbox to their
 * requests. What the step held is released when it has completed; with a draft model that is later. No
 * allocation, no lock; a system call only for a client that sleeps (the head of step.c has the whole
 * account), and for a model's one warning.
 *
 * A row that samples and has no token had logits that are not finite (kernels/ops.h, op_sample). Its
 * request ends, unless it is a step that asks for no tokens.
 */
#include "daemon/engine/lane/lane.h"

#include <assert.h>
#include <string.h>

#include "attention/kv_cache.h"
#include "daemon/engine/lane/speculation.h"
#include "daemon/engine/probes.h"
#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/finish.h"
#include "daemon/engine/requests/sequence.h"
#include "daemon/output/log.h"
#include "ipc/clock.h"

static void results_count_not_finite(struct runner *runner)
{
	if (!counter_read(&runner->n_not_finite))
		log_warn("model %s: logits are not finite: is its checkpoint damaged, or too large for bf16? "
			"Check it on the cpu device", runner->options.name);
	counter_add(&runner->n_not_finite, 1);
}

static bool results_is_stop(const struct request *request, int32_t token)
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

static void results_take_token(struct request *request, struct sequence *s, int32_t token,
	const struct token_logprob *logprobs)
{
	const size_t width = 1 + request->n_top;
	struct engine_port *port = s->session->port;

	assert(s->n_tokens < s->session->limits.max_seq_len);
	assert(request->n_generated < request->max_tokens);
	s->tokens[s->n_tokens++] = token;
	/* It may be preempted from now on. */
	if (s->runner->slots.head || s->n_tokens == s->prompt_end + 1)
		s->session->accounting->admit = true;
	if (request->want_logprobs)
		memcpy(request->out_logprobs + request->n_generated * width, logprobs, width * sizeof(*logprobs));
	request->out_tokens[request->n_generated++] = token;
	deadline_meet_first_token(s->session, &request->deadlines);
	counter_add(&s->session->accounting->stats->n_tokens_out, 1);
	counter_add(&s->runner->n_tokens_out, 1);
	counter_add(&port->n_tokens, 1);
	if (results_is_stop(request, token))
		finish_request(request, MIMEO_OK, MIMEO_FINISH_STOP, NULL);
	else if (request->n_generated == request->max_tokens)
		finish_request(request, MIMEO_OK, MIMEO_FINISH_LENGTH, NULL);
}

/* The request's row has tokens: nanoseconds since its last ones, or since its submission. */
static uint64_t results_since_last(struct request *request, uint64_t now)
{
	const uint64_t since = request->n_generated ? request->last_token_ns : request->deadlines.submitted_ns;

	request->last_token_ns = now;
	if (!request->n_generated)
		request->first_token_ns = now;
	return now > since ? now - since : 0;
}

/* n tokens came together, ns after the last ones; first: the request's first ones, ns after its submission. */
static void results_count_time(struct runner *runner, struct engine_port *port, bool first, uint32_t n, uint64_t ns)
{
	assert(n > 0);
	if (!first) {
		counter_add(&port->between_ns, ns);
		histogram_add_time(&runner->distributions[ENGINE_TOKEN], ns / n, n);
		return;
	}
	counter_add(&port->n_firsts, 1);
	counter_add(&port->first_ns, ns);
	histogram_add_time(&runner->distributions[ENGINE_FIRST_TOKEN], ns, 1);
	if (n > 1)
		histogram_add_time(&runner->distributions[ENGINE_TOKEN], 0, n - 1);
}

/* n: prompt tokens of the request computed so far. */
static void results_take_prompt(struct request *request, uint32_t n)
{
	assert(n >= request->n_prompt || request->preempted);
	if (n <= request->n_prompt)
		return;
	counter_add(&request->session->port->n_prompt_tokens, n - request->n_prompt);
	counter_add(&request->runner->n_prompt_tokens, n - request->n_prompt);
	request->n_prompt = n;
}

static void results_copy(const struct inflight *inflight, const struct inflight_row *row,
	struct request *request, uint32_t to)
{
	const struct model_config *c = &inflight->runner->model->config;
	uint64_t from = (uint64_t)row->result;

	if (row->result < 0)
		return;
	if (request->want_logits && !request->logits.at)
		memcpy(request->out_logits + (uint64_t)to * c->vocab_size,
			inflight->slot->logits + from * c->vocab_size, c->vocab_size * sizeof(float));
	if ((request->want_hidden || request->mean_hidden) && !request->hidden.at)
		memcpy(request->out_hidden + (uint64_t)to * c->hidden_size,
			inflight->slot->hidden + from * c->hidden_size, c->hidden_size * sizeof(float));
}

static void results_take_step_row(struct request *request, struct sequence *s, const struct inflight_row *row,
	int32_t token)
{
	if (!row->last)
		return;
	results_take_prompt(request, request->n_prompt + request->rows[s->row].n_tokens);
	if (token < 0)
		results_count_not_finite(s->runner);
	if (token < 0 && request->want_tokens) {
		finish_request(request, MIMEO_E_NOT_FINITE, MIMEO_FINISH_NONE, NULL);
		return;
	}
	if (request->want_tokens)
		request->out_tokens[s->row] = token;
	if (s->row == request->n_rows - 1)
		request->n_last = s->n_tokens;
	assert(request->n_rows_left > 0);
	if (!--request->n_rows_left)
		finish_request(request, MIMEO_OK, MIMEO_FINISH_NONE, NULL);
	else /* its slot is for rows that wait */
		sequence_stop(s);
}

/* Prompt tokens of the request that are computed by now. */
static uint32_t results_prompt_done(const struct sequence *s, const struct request *request)
{
	uint32_t start = sequence_request_start(s);
	uint32_t end = s->n_computed < s->target ? s->n_computed : s->target;

	return end > start ? end - start : 0;
}

/* No token: the logits were not finite, or bans left none that are. */
static void results_end_without_token(struct request *request, struct sequence *s)
{
	if (!request->bans)
		results_count_not_finite(s->runner);
	finish_request(request, request->bans ? MIMEO_E_NO_TOKEN : MIMEO_E_NOT_FINITE, MIMEO_FINISH_ERROR, NULL);
}

/* The row's tokens: one, or, if it verifies, the accepted draft tokens and one more; or none. The host had counted
 * one. Tokens behind the request's end are dropped. */
static void results_take_tokens(struct request *request, struct sequence *s, const struct inflight_row *row,
	const int32_t *sampled, const struct token_logprob *logprobs, uint64_t now)
{
	uint32_t n_drafts = s->runner->options.n_drafts, n = 1, taken = 0;
	const bool first = !request->n_generated;
	uint64_t since_last;
	bool ended;

	while (row->verify && n <= n_drafts && sampled[n] >= 0)
		n++;
	assert(s->n_pending > 0);
	assert(n == 1 || s->n_drafts);
	s->n_pending--;
	if (sampled[0] < 0) {
		results_end_without_token(request, s);
		return;
	}
	since_last = results_since_last(request, now);
	s->n_computed += n - 1;
	s->n_drafted += s->n_drafts ? n - 1 : 0;
	while (taken < n && s->request == request) {
		results_take_token(request, s, sampled[taken], logprobs + (size_t)taken * LOGPROBS_WIDTH);
		taken++;
	}
	results_count_time(s->runner, s->session->port, first, taken, since_last);
	ended = s->request != request;
	PROBE_REQUEST_TOKEN(row->request, taken);
	if (!ended)
		completion_progress(request, RING_CQE_TOKENS);
	if (row->verify && s->n_drafts)
		speculation_count_verified(s->runner, s->n_drafts, n - 1, taken, ended);
}

static void results_take_row(struct lane *lane, struct inflight *inflight, uint32_t i)
{
	struct inflight_row *row = &inflight->rows[i];
	struct sequence *s = row->sequence;
	struct request *request = s->request;
	const size_t first = (size_t)i * (1 + inflight->runner->options.n_drafts);
	const int32_t *sampled = inflight->slot->sampled + first;

	if (!request) {
		counter_add(&lane->stats->n_discarded_rows, 1);
		return;
	}
	results_copy(inflight, row, request, s->row);
	positions_take(inflight, row, request);
	if (request->op == RING_OP_STEP) {
		results_take_step_row(request, s, row, sampled[0]);
		return;
	}
	results_take_prompt(request, results_prompt_done(s, request));
	if (row->sample)
		results_take_tokens(
			request, s, row, sampled, inflight->slot->logprobs + first * LOGPROBS_WIDTH,
			lane->work_since_ns);
}

/* Count the device time of this step and, if it continues rows of the step before, the gap between the two. A
 * gap in which the lane waited for a client says nothing about the engine. */
static void results_count_lane(struct lane *lane, const struct inflight *inflight)
{
	uint64_t began = *inflight->slot->began, ended = *inflight->slot->ended;
	uint64_t before = lane->ended_ns;

	idle_follow(lane, ended);
	if (!inflight->n_rows)
		return;
	lane->ended_ns = ended;
	if (ended > began && !inflight->positions)
		pace_follow(&lane->schedules[inflight->runner->place].pace, ended - began, inflight->n_prompt,
			inflight->n_decodes);
	if (inflight->entry && ended > began && !inflight->positions)
		graph_entry_follow(&inflight->entry->lane_ns, ended - began);
	if (inflight->entry && inflight->drafts && !inflight->positions && *inflight->slot->results_ns > began)
		graph_entry_follow(&inflight->entry->results_ns, *inflight->slot->results_ns - began);
	counter_add(&lane->stats->lane_ns, ended - began);
	histogram_add_time(&inflight->runner->distributions[ENGINE_STEP], ended - began, 1);
	PROBE_STEP_END(inflight->number, ended - began);
	if (trace_is_on(lane->trace))
		tracing_step(lane, inflight, began, ended);
	if (inflight->drafts) {
		counter_add(&inflight->runner->speculation.draft_ns, ended - *inflight->slot->draft_began);
		counter_add(&inflight->runner->speculation.n_draft_steps, 1);
	}
	if (!inflight->follows || !before)
		return;
	/* The next launch may begin before the last one's very end. */
	uint64_t gap = began > before ? began - before : 0;

	if (late_in_gap(lane) && gap > atomic_load(&lane->stats->late_gap_ns))
		atomic_store(&lane->stats->late_gap_ns, gap);
	counter_add(&lane->stats->n_gaps, 1);
	counter_add(&lane->stats->gap_ns, gap);
	if (gap <= ENGINE_LONG_GAP_NS)
		return;
	counter_add(&lane->stats->n_long_gaps, 1);
	counter_add(&lane->stats->long_gap_ns, gap);
}

/* Those of rows with positions are there when the step has ended. */
static void results_take_rows(struct lane *lane, struct inflight *inflight, bool ended)
{
	for (uint32_t i = 0; i < inflight->n_rows; i++) {
		if (inflight->rows[i].positions.n ? ended : !inflight->read)
			results_take_row(lane, inflight, i);
	}
	inflight->read = true;
}

/* Pages that have left the window: no step from now on has a row of the sequence before this one's end.
 * Sequences that were preempted or have ended still have their pages, and are released after this. */
static void results_leave_windows(const struct inflight *inflight)
{
	for (uint32_t i = 0; i < inflight->n_rows && inflight->runner->options.sets.window; i++)
		sequence_leave_window(inflight->rows[i].sequence, inflight->rows[i].end);
}

/* The oldest step leaves the lane. */
static void results_retire(struct lane *lane, struct inflight *inflight)
{
	struct accounting *accounting = lane->accounting;
	struct runner *runner = inflight->runner;

	assert(inflight == lane_oldest(lane) && lane->n_inflight > 0);
	assert(inflight->step == runner->completed + 1 && inflight->step <= runner->launched);
	lane->first = (lane->first + 1) % LANE_STEPS;
	lane->n_inflight--;
	runner->completed = inflight->step;
	accounting->completed++;
	assert(accounting->completed + lane->n_inflight == accounting->launched);
	results_count_lane(lane, inflight);
	idle_hold(lane, inflight);
	results_leave_windows(inflight);
	results_take_rows(lane, inflight, true);
	kv_release(runner->kv, inflight->sources, inflight->n_sources);
	accounting->admit |= inflight->n_sources > 0;
	/* What is reserved is free now: the request has a turn, or the reservation ends. */
	accounting->admit |= runner->slots.reserved_for && runner->completed >= runner->slots.reserved_step;
	sequence_release_all(runner);
}

static void results_trace(struct lane *lane, uint64_t begin)
{
	trace_put(lane->trace, &(struct trace_event){.kind = TRACE_RESULTS, .begin_ns = begin, .end_ns = clock_ns()});
}

bool results_take(struct lane *lane)
{
	const bool traced = trace_is_on(lane->trace);
	const uint64_t begin = traced ? clock_ns() : 0;
	bool any = false, ended = false;

	while (lane_is_ready(lane)) {
		struct inflight *inflight = lane_oldest(lane);

		lane_work_begins(lane);
		any = true;
		if (inputs_slot_done(inflight->slot)) {
			results_retire(lane, inflight);
			ended = true;
		} else {
			results_take_rows(lane, inflight, false);
		}
	}
	if (any)
		finish_ended_steps(lane->accounting);
	if (any && traced)
		results_trace(lane, begin);
	/* Once for all steps that ended: if two ended during one sleep, the engine asks to be woken between
	 * the next two. */
	if (ended) {
		lane->idle.sleepy = lane->idle.slept;
		lane->idle.slept = false;
	}
	return any;
}
