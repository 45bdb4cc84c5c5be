/* SPDX-License-Identifier: MIT */
/*
 * Launches one step; results.c reads its results. What a decode step costs on the engine's thread, both
 * together:
 *
 *	1 prepare launch        record -> persistent inputs, tails padded, slots initialised
 *	1 metadata build        0 or 1 launch, the backend's
 *	1 graph launch          model, logits, sampling (in pieces: one more than there are layers,
 *	                        an attention for each layer, logits and sampling; eager: one an op)
 *	with a draft model      1 launch for its inputs, and a pass for each draft token, up to the most
 *	                        that one of its rows wants: 0 or 1 metadata launch and 1 graph launch
 *	                        (eager: one an op)
 *	1 outbox launch         tokens and the step's number to pinned memory; with draft passes 1
 *	                        ahead of them, with the tokens, and 1 behind them, with the end
 *	1 completion per row    64 bytes into the session's ring
 *	in the first steps of a request with penalties, bias, token mask, min_tokens or logprobs: 1 launch more
 *	  for all slots
 *	for a request that wants results of all positions, or of its own tokens: a product of the head for each
 *	  max_rows positions, and 1 or 2 launches or copies each; and 1 outbox launch ahead of them
 *	for a request that names device buffers: 1 copy a row and result; with a fence, 1 recording
 *	and 1 more completion, posted before the step has run
 *	0 allocations, 0 locks, 0 system calls while lane and clients spin; otherwise
 *	  1 doorbell write for each client that sleeps
 *	  1 sleep of the engine before a launch, and 1 before a step's end (idle.c)
 *	  behind a step of unknown length 1 event, and on the stream beside the lane 1 wait and 1 host function
 *	  once in a model's life a log line that its draft model is of no use, its graphs too narrow, or its
 *	  logits not finite
 *
 * Step k + 1 is launched before the host has read step k's tokens, unless requests end with step k (idle.c): its decode
 * rows take their token from the slot, where step k's sampling put it. A stop condition seen late costs one discarded
 * row.
 *
 * On an H200, of a step of the 1B model at one row, prepare takes 8 us and the plan 3.
 * Tried and not kept: prepare, plan and outbox in the graph (4 us less, but two graphs a size);
 * prepare reading the record ahead of its wait (2 us less, but its reads delay the outbox's flag by
 * as much).
 */
#include "daemon/engine/lane/lane.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/probes.h"
#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/place.h"
#include "daemon/engine/requests/sequence.h"
#include "daemon/output/log.h"
#include "ipc/clock.h"

/* Both devices copy the pairs of a launch in order. */
static int step_copies(struct lane *lane, struct inflight *inflight)
{
	const struct kernel_ops *kernels = lane->device->kernels;
	struct runner *runner = inflight->runner;
	struct slots *slots = &runner->slots;
	const uint32_t n = slots->n_copies;
	struct op_copy_pages copy = {.pairs = inflight->slot->copies[0], .n_pairs = n};
	int rc;

	assert(n <= slots->max_copies);
	memcpy(inflight->slot->copies, slots->copies, n * sizeof(slots->copies[0]));
	for (uint32_t i = 0; i < n; i++)
		inflight->sources[i] = slots->copies[i][0];
	inflight->n_sources = n;
	slots->n_copies = 0;
	if (!n)
		return 0;
	copy.page_bytes = kv_layer_page_bytes(kv_cache_config(runner->kv));
	for (uint32_t place = 0; place < kv_cache_config(runner->kv)->n_layers; place++) {
		copy.kv = kv_layer(runner->kv, place);
		rc = kernels->copy_pages(lane->stream, &copy);
		if (rc)
			return rc;
	}
	if (!runner->draft_kv)
		return 0;
	copy.kv = runner->speculator.kv_layer;
	copy.page_bytes = kv_layer_page_bytes(kv_cache_config(runner->draft_kv));
	return kernels->copy_pages(lane->stream, &copy);
}

/* In a step in which rows verify, each row has space for the logits of 1 + n_drafts tokens. */
static size_t step_logits_row(const struct runner *runner, uint32_t i)
{
	return (size_t)i * (runner->inputs.last_only ? 1 : 1 + runner->options.n_drafts);
}

/* The logits of row i, to the request's buffer or the outbox. */
static int step_logits(struct lane *lane, struct inflight *inflight, uint32_t i)
{
	const struct runner *runner = inflight->runner;
	const struct inflight_row *row = &inflight->rows[i];
	const struct request *request = row->sequence->request;
	const size_t n = runner->model->config.vocab_size;
	float *to = request->logits.at
		? (float *)request->logits.at + row->sequence->row * n
		: inflight->slot->logits + (size_t)row->result * n;

	assert(request->logits.at || row->result >= 0);
	return lane->device->ops->copy_async(lane->stream, to,
		runner->context.buffers.logits + step_logits_row(runner, i) * n,
		n * sizeof(float));
}

static int step_hidden(struct lane *lane, struct inflight *inflight, uint32_t i)
{
	const struct runner *runner = inflight->runner;
	const struct inflight_row *row = &inflight->rows[i];
	const struct request *request = row->sequence->request;
	const size_t n = runner->model->config.hidden_size;
	float *to = request->hidden.at ? (float *)request->hidden.at + row->sequence->row * n
				       : runner->inputs.hidden_f32 + i * n;
	int rc = lane->device->kernels->to_f32(lane->stream, &(struct op_to_f32){
		.x = (uint8_t *)runner->context.buffers.last_hidden +
			step_logits_row(runner, i) * n * dtype_bytes(runner->activation_dtype),
		.out = to,
		.n = n,
	});

	if (rc || request->hidden.at)
		return rc;
	assert(row->result >= 0);
	return lane->device->ops->copy_async(lane->stream,
		inflight->slot->hidden + (size_t)row->result * n, to, n * sizeof(float));
}

/* Which results the request of row i wants for the row's last token. */
static int step_last(struct lane *lane, struct inflight *inflight, uint32_t i)
{
	const struct request *request = inflight->rows[i].sequence->request;
	int rc;

	if (request->want_logits && (rc = step_logits(lane, inflight, i)))
		return rc;
	return request->want_hidden ? step_hidden(lane, inflight, i) : 0;
}

/* When the request's last row is launched, record its fence behind all of its results. */
static int step_fence(struct lane *lane, struct request *request)
{
	assert(request->n_rows_unlaunched > 0);
	if (--request->n_rows_unlaunched || !request->fence)
		return 0;
	return lane->device->ops->event_record(request->fence, lane->stream);
}

static int step_results(struct lane *lane, struct inflight *inflight)
{
	for (uint32_t i = 0; i < inflight->n_rows; i++) {
		const struct inflight_row *row = &inflight->rows[i];
		int rc;

		if (row->sequence->request->n_places)
			place_launched(row->sequence->request);
		if (!row->last)
			continue;
		rc = step_last(lane, inflight, i);
		if (!rc && !row->positions.n)
			rc = step_fence(lane, row->sequence->request);
		if (rc)
			return rc;
	}
	return 0;
}

static int step_positions(struct lane *lane, struct inflight *inflight)
{
	int rc = inflight->positions ? positions_launch(lane, inflight) : 0;

	for (uint32_t i = 0; i < inflight->n_rows && !rc; i++) {
		const struct inflight_row *row = &inflight->rows[i];

		if (row->last && row->positions.n)
			rc = step_fence(lane, row->sequence->request);
	}
	return rc;
}

/* Clients may wait from now on for the fences of requests whose last row was launched just now. */
static void step_post_recorded(const struct inflight *inflight)
{
	for (uint32_t i = 0; i < inflight->n_rows; i++) {
		struct request *request = inflight->rows[i].sequence->request;

		if (!inflight->rows[i].last || !request->fence || request->n_rows_unlaunched)
			continue;
		request->fence = NULL; /* posted once, whichever of its rows came last */
		completion_progress(request, RING_CQE_RECORDED);
	}
}

/* On a thread of the device's. */
static void step_wake(void *arg)
{
	struct lane *lane = arg;

	if (atomic_load(&lane->idle.sleeping))
		loop_wake(lane->loop);
}

/* A stream beside the lane waits for the host function: the next step does not. */
static int step_ask_bell(struct lane *lane, struct event *event)
{
	const struct device_ops *ops = lane->device->ops;
	int rc = ops->event_record(event, lane->stream);

	if (rc)
		return rc;
	rc = ops->stream_wait_event(lane->bell, event);
	return rc ? rc : ops->stream_host_func(lane->bell, step_wake, lane);
}

/* Tokens of n_rows rows, the time, then the step's number in `flag`; wakes the engine if it asked for that. */
static int step_outbox(struct lane *lane, struct inflight *inflight, uint32_t n_rows, uint64_t *flag,
	uint64_t *ended, struct event *event)
{
	const struct runner *runner = inflight->runner;
	const uint32_t n_tokens = 1 + runner->options.n_drafts;
	int rc = lane->device->kernels->outbox(lane->stream, &(struct op_outbox){
		.sampled = runner->inputs.sampled,
		.out = inflight->slot->sampled,
		.flag = flag,
		.step = inflight->step,
		.ended = ended,
		.n_rows = n_rows * n_tokens,
		.row_flags = runner->inputs.persistent.row_flags,
		.logprobs = runner->inputs.persistent.row_logprobs,
		.out_logprobs = inflight->slot->has_logprobs ? inflight->slot->logprobs : NULL,
		.n_logprob_rows = n_rows,
		.logprob_tokens = n_tokens,
	});

	return rc || !inflight->notify ? rc : step_ask_bell(lane, event);
}

/* The results, ahead of the draft passes and of results of positions: a client that waits for a token does not wait
 * for draft tokens of the next ones. Slots, pages and device buffers return at the step's end. */
static int step_outbox_results(struct lane *lane, struct inflight *inflight)
{
	return step_outbox(lane, inflight, inflight->n_rows, inflight->slot->results_flag,
		inflight->slot->results_ns, inflight->results);
}

/* With such passes the tokens have gone ahead of it. */
static int step_outbox_end(struct lane *lane, struct inflight *inflight)
{
	return step_outbox(lane, inflight, inflight_is_divided(inflight) ? 0 : inflight->n_rows,
		inflight->slot->flag, inflight->slot->ended, inflight->end);
}

/* Two processes or more among the rows? */
static bool step_is_shared(const struct inflight *inflight)
{
	for (uint32_t i = 1; i < inflight->n_rows; i++) {
		if (inflight->rows[i].sequence->session->port->pid !=
			inflight->rows[0].sequence->session->port->pid)
			return true;
	}
	return false;
}

/* How many sessions the rows are of. */
static uint32_t step_sessions(const struct lane *lane, const struct inflight *inflight)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < inflight->n_rows; i++) {
		struct engine_session *session = inflight->rows[i].sequence->session;

		n += session->last_step != lane->accounting->launched;
		session->last_step = lane->accounting->launched;
	}
	return n;
}

static void step_warn_too_wide(
	struct schedule *schedule, const struct runner *runner, uint32_t n_tokens)
{
	const struct graph_set *graphs = &runner->graphs;

	if (schedule->warned_too_wide)
		return;
	schedule->warned_too_wide = true;
	log_warn("model %s: a batch of %u tokens runs eager: the largest graph has %u tokens; "
		"add larger capture_sizes, up to max_batch_tokens", runner->options.name,
		n_tokens, graphs->n ? graphs->descriptors[graphs->n - 1].tokens : 0);
}

static void step_count(
	struct lane *lane, const struct inflight *inflight, enum eager_reason reason)
{
	struct engine_stats *stats = lane->stats;
	struct runner *runner = inflight->runner;
	struct graph_entry *entry = inflight->entry;
	uint32_t n_tokens = inflight->slot->record->n_tokens;
	bool shared = step_is_shared(inflight);

	lane->late.active_ns = lane->work_since_ns;
	counter_add(&stats->n_steps, 1);
	counter_add(&runner->n_steps, 1);
	counter_add(&stats->n_rows, inflight->n_rows);
	counter_add(&runner->n_rows, inflight->n_rows);
	counter_add(&stats->n_tokens_in, n_tokens);
	histogram_add_count(&runner->distributions[ENGINE_ROWS], inflight->n_rows);
	histogram_add_count(&runner->distributions[ENGINE_STEP_SESSIONS], step_sessions(lane, inflight));
	if (entry) {
		counter_add(&stats->n_replays, 1);
		counter_add(&stats->n_shared_replays, shared);
		counter_add(&stats->n_padded_rows, graph_entry_padding(entry, n_tokens));
		graph_entry_count(entry, n_tokens, shared);
		entry->last_launch = lane->accounting->launched;
		entry->used_ns = lane->work_since_ns;
		return;
	}
	/* Prompts gain nothing by graphs: their kernels take longer than a launch. */
	if (reason == EAGER_TOO_WIDE && !inflight->n_prompt)
		step_warn_too_wide(&lane->schedules[runner->place], runner, n_tokens);
	counter_add(&stats->n_eager[reason], 1);
	counter_add(&runner->n_eager[reason], 1);
}

/* The graph that the step takes, or NULL and why. */
static struct graph_entry *step_choose_graph(struct lane *lane, const struct runner *runner,
	const struct batch_shape *shape, enum eager_reason *ret_reason)
{
	struct graph_entry *entry = graph_set_dispatch(&runner->graphs, shape, ret_reason);

	if (*ret_reason == EAGER_NOT_CAPTURED)
		late_want(lane, entry);
	return *ret_reason == EAGER_NO ? entry : NULL;
}

/* How long it will take: as long as the graph's last replays, if there were any. Results of positions take a time of
 * their own. */
static void step_expect(
	const struct lane *lane, struct inflight *inflight, struct graph_entry *entry)
{
	const bool known = entry && !inflight->positions;

	inflight->entry = entry;
	inflight->expected_ns = known ? entry->lane_ns : 0;
	inflight->results_ns = known ? entry->results_ns : 0;
	inflight->notify = idle_wants_bell(lane,
		inflight->drafts && !inflight->results_ns ? 0 : inflight->expected_ns);
}

static int step_passes(
	struct lane *lane, struct inflight *inflight, const struct batch_shape *shape)
{
	struct runner *runner = inflight->runner;
	int rc = step_copies(lane, inflight);

	if (rc)
		return rc;
	rc = inputs_update(&runner->inputs, inflight->slot, lane->stream);
	if (rc)
		return rc;
	if (inflight->n_rows) {
		rc = executor_run(&runner->executor, inflight->entry, inflight->slot,
			runner->query_lens, runner->seq_lens, lane->stream);
		if (rc)
			return rc;
	}
	rc = step_results(lane, inflight);
	if (rc || !inflight_is_divided(inflight))
		return rc;
	rc = step_outbox_results(lane, inflight);
	if (!rc && inflight->drafts)
		rc = speculator_run(&runner->speculator, inflight->slot->record, shape, runner->query_lens,
			runner->seq_lens, inflight->n_drafts, lane->stream);
	return rc ? rc : step_positions(lane, inflight);
}

/* 0 and whether anything was launched, or the device's answer. */
static int step_launch_one(struct lane *lane, struct runner *runner, bool *ret_launched)
{
	struct inflight *inflight = &lane->inflight[(lane->first + lane->n_inflight) % LANE_STEPS];
	struct graph_entry *entry = NULL;
	enum eager_reason reason = EAGER_NO;
	const bool traced = trace_is_on(lane->trace);
	const uint64_t begin = traced ? clock_ns() : 0;
	struct batch_shape shape;
	int rc;

	assert(lane->n_inflight < LANE_STEPS && runner->launched - runner->completed <= lane->n_inflight);
	if (!runner->slots.n_running && !runner->slots.n_copies)
		return 0;
	lane_work_begins(lane);
	inflight->slot = inputs_begin(&runner->inputs, runner->launched + 1);
	if (!inflight->slot)
		return 0;
	inflight->runner = runner;
	inflight->step = runner->launched + 1;
	inflight->read = false;
	/* A step without rows is launched for copies, which hold pages even if their requests have ended, and for
	 * updates, for which rows wait. */
	if (!schedule_rows(lane, inflight, &shape) && !runner->slots.n_copies && !inflight->slot->n_updates) {
		inflight->slot->step = 0;
		return 0;
	}
	if (inflight->n_rows)
		entry = step_choose_graph(lane, runner, &shape, &reason);
	inflight->eager = reason;
	inflight->number = lane->accounting->launched + 1;
	step_expect(lane, inflight, entry);
	if (!lane->n_inflight) {
		inflight->follows &= !lane->idle.hold_until_ns; /* the lane waited for clients */
		idle_begin(lane);
	}
	runner->launched++;
	lane->accounting->launched++;
	lane->n_inflight++;
	rc = step_passes(lane, inflight, &shape);
	if (rc)
		return rc;
	rc = step_outbox_end(lane, inflight);
	if (rc)
		return rc;
	step_post_recorded(inflight);
	if (inflight->n_rows)
		step_count(lane, inflight, reason);
	PROBE_STEP_LAUNCH(inflight->number, inflight->n_rows, inflight->slot->record->n_tokens);
	if (traced)
		trace_put(lane->trace, &(struct trace_event){.kind = TRACE_LAUNCH,
			.begin_ns = begin,
			.end_ns = clock_ns(),
			.id = inflight->number,
			.model = runner->id});
	*ret_launched = true;
	return 0;
}

bool step_launch(struct lane *lane)
{
	bool any = false;

	/* Models take turns. */
	for (uint32_t idle = 0; idle < lane->runners->n && lane->n_inflight < LANE_STEPS && !idle_is_early(lane);) {
		bool launched = false;
		int rc = step_launch_one(lane, lane->runners->all[lane->runner_turn], &launched);

		lane->runner_turn = (lane->runner_turn + 1) % lane->runners->n;
		if (rc) {
			lane_lose_device(lane, rc);
			return true;
		}
		idle = launched ? 0 : idle + 1;
		any |= launched;
	}
	return any;
}
