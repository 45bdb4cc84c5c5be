/* SPDX-License-Identifier: MIT */
/*
 * One step is launched; results.c reads what comes of it. What a decode step costs on the engine's
 * thread, both together:
 *
 *	1 prepare launch        record -> persistent inputs, tails padded, slots initialised
 *	1 metadata build        0 or 1 launch, the backend's
 *	1 graph launch          model, logits, sampling (in pieces: one more than there are layers,
 *	                        an attention for each layer, logits and sampling; eager: one an op)
 *	with a draft            1 launch for its inputs, and of as many passes as the neediest row wants
 *	                        guesses each 0 or 1 metadata launch and 1 graph launch (eager: one an
 *	                        op); its time is the device's to stamp, in launches that are there anyway
 *	1 outbox launch         tokens and the step's number to pinned memory; with a draft's part 1
 *	                        ahead of that, with the tokens, and 1 behind it, with the end
 *	1 completion per row    64 bytes into the session's ring
 *	for a request that names device buffers: 1 copy a row and result; with a fence, 1 recording
 *	of it and 1 completion more, posted before the step has run
 *	0 allocations, 0 locks, 0 system calls while lane and clients spin; one doorbell write for each
 *	  client that sleeps, a line of the log once in a model's life that its draft is of no use or its
 *	  graphs too narrow, one sleep of the engine's own (idle.c), and behind a step whose length
 *	  nobody knows an event and, on the stream beside the lane, a wait and a host function
 *
 * Step k + 1 is launched before the host has read step k's tokens: its decode rows take their token
 * from the slot, where step k's sampling put it. A stop condition seen late costs one discarded row.
 */
#include "daemon/engine/state.h"

#include <string.h>

#include "daemon/output/log.h"

/* Both devices copy the pairs of a launch in order. */
static int launch_copies(struct runner *runner, struct flight *flight)
{
	const struct kernel_ops *kernels = runner->engine->device->kernels;
	struct stream *lane = runner->engine->lane;
	struct inputs_slot *slot = flight->slot;
	const uint32_t n = runner->n_copies;
	struct op_copy_pages copy = {.pairs = slot->copies[0], .n_pairs = n};
	int rc;

	memcpy(slot->copies, runner->copies, n * sizeof(runner->copies[0]));
	for (uint32_t i = 0; i < n; i++)
		flight->sources[i] = slot->copies[i][0];
	flight->n_sources = n;
	runner->n_copies = 0;
	if (!n)
		return 0;
	copy.page_bytes = kv_layer_page_bytes(kv_cache_config(runner->kv));
	for (uint32_t layer = 0; layer < runner->model->config.n_layers; layer++) {
		copy.kv = runner->context.kv_layers[layer];
		rc = kernels->copy_pages(lane, &copy);
		if (rc)
			return rc;
	}
	if (!runner->draft_kv)
		return 0;
	copy.kv = runner->speculator.kv_layer;
	copy.page_bytes = kv_layer_page_bytes(kv_cache_config(runner->draft_kv));
	return kernels->copy_pages(lane, &copy);
}

/* Rows that verify have logits for each of their tokens, and so all of their step have room for them. */
static size_t logits_row(const struct runner *runner, uint32_t i)
{
	return (size_t)i * (runner->inputs.last_only ? 1 : 1 + runner->options.n_drafts);
}

/* The logits of the flight's row i, to the request's buffer or the outbox. */
static int launch_logits(struct runner *runner, struct flight *flight, uint32_t i)
{
	const struct flight_row *row = &flight->rows[i];
	const struct request *request = row->sequence->request;
	const size_t n = runner->model->config.vocab_size;
	float *to = request->logits.at
		? (float *)request->logits.at + row->sequence->row * n
		: flight->slot->logits + (size_t)row->result * n;

	return runner->engine->device->ops->copy_async(runner->engine->lane, to,
		runner->context.buffers.logits + logits_row(runner, i) * n, n * sizeof(float));
}

static int launch_hidden(struct runner *runner, struct flight *flight, uint32_t i)
{
	struct engine *engine = runner->engine;
	const struct flight_row *row = &flight->rows[i];
	const struct request *request = row->sequence->request;
	const size_t n = runner->model->config.hidden_size;
	float *to = request->hidden.at ? (float *)request->hidden.at + row->sequence->row * n
				       : runner->inputs.hidden_f32 + i * n;
	int rc = engine->device->kernels->to_f32(engine->lane, &(struct op_to_f32){
		.x = (uint8_t *)runner->context.buffers.last_hidden +
			logits_row(runner, i) * n * dtype_bytes(runner->activation_dtype),
		.out = to,
		.n = n,
	});

	if (rc || request->hidden.at)
		return rc;
	return engine->device->ops->copy_async(engine->lane,
		flight->slot->hidden + (size_t)row->result * n, to, n * sizeof(float));
}

static int launch_results(struct runner *runner, struct flight *flight)
{
	int rc = 0;

	for (uint32_t i = 0; i < flight->n_rows && !rc; i++) {
		struct flight_row *row = &flight->rows[i];
		struct request *request = row->sequence->request;

		if (request->n_places)
			request_places_launched(request);
		if (!row->last)
			continue;
		if (request->want_logits)
			rc = launch_logits(runner, flight, i);
		if (!rc && request->want_hidden)
			rc = launch_hidden(runner, flight, i);
		if (!rc && !--request->n_rows_unlaunched && request->fence)
			rc = runner->engine->device->ops->event_record(
				request->fence, runner->engine->lane);
	}
	return rc;
}

/* Whose last row was launched just now: their clients may wait for the fence from now on. */
static void tell_recorded(const struct flight *flight)
{
	for (uint32_t i = 0; i < flight->n_rows; i++) {
		struct request *request = flight->rows[i].sequence->request;

		if (!flight->rows[i].last || !request->fence || request->n_rows_unlaunched)
			continue;
		request->fence = NULL; /* told once, whichever of its rows came last */
		post_recorded(request);
	}
}

/* On a thread of the device's. */
static void on_lane(void *arg)
{
	struct engine *engine = arg;

	if (atomic_load(&engine->sleeping))
		loop_wake(engine->loop);
}

/* What waits for a host function is a stream beside the lane: the next step does not. */
static int ask_bell(struct engine *engine, struct event *event)
{
	const struct device_ops *ops = engine->device->ops;
	int rc = ops->event_record(event, engine->lane);

	if (!rc)
		rc = ops->stream_wait_event(engine->bell, event);
	return rc ? rc : ops->stream_host_func(engine->bell, on_lane, engine);
}

/* The results, ahead of the draft's passes: who waits for a token does not wait for drafts of the next
 * ones. All else of the step goes by its end: the lane, its fences, what goes back. */
static int launch_told(struct runner *runner, struct flight *flight)
{
	struct engine *engine = runner->engine;
	int rc = engine->device->kernels->outbox(engine->lane, &(struct op_outbox){
		.sampled = runner->inputs.sampled,
		.out = flight->slot->sampled,
		.flag = flight->slot->told,
		.step = flight->step,
		.ended = flight->slot->told_ns,
		.n_rows = flight->n_rows * (1 + runner->options.n_drafts),
	});

	return rc || !flight->notify ? rc : ask_bell(engine, flight->told);
}

static int launch_end(struct runner *runner, struct flight *flight)
{
	struct engine *engine = runner->engine;
	int rc = engine->device->kernels->outbox(engine->lane, &(struct op_outbox){
		.sampled = runner->inputs.sampled,
		.out = flight->slot->sampled,
		.flag = flight->slot->flag,
		.step = flight->step,
		.ended = flight->slot->ended,
		/* which were told of before the draft's part */
		.n_rows = flight->drafts ? 0 : flight->n_rows * (1 + runner->options.n_drafts),
	});

	return rc || !flight->notify ? rc : ask_bell(engine, flight->end);
}

/* Behind the target's part. */
static int launch_draft(struct runner *runner, struct flight *flight, const struct batch_shape *shape)
{
	int rc = launch_told(runner, flight);

	return rc ? rc
		  : speculator_run(&runner->speculator, flight->slot->record, shape,
			    runner->query_lens, runner->seq_lens, runner->n_guesses,
			    runner->engine->lane);
}

/* Two processes or more among the rows? */
static bool is_shared(const struct flight *flight)
{
	for (uint32_t i = 1; i < flight->n_rows; i++) {
		if (flight->rows[i].sequence->session->port->pid !=
			flight->rows[0].sequence->session->port->pid)
			return true;
	}
	return false;
}

static void warn_too_wide(struct runner *runner, uint32_t n_tokens)
{
	if (runner->warned_too_wide)
		return;
	runner->warned_too_wide = true;
	log_warn("model %s: a batch of %u tokens is wider than its widest graph, of %u, and runs eager, as "
		"all such do: capture_sizes up to max_batch_tokens mend it", runner->options.name,
		n_tokens, runner->graphs.n ? runner->graphs.descriptors[runner->graphs.n - 1].tokens : 0);
}

static void count_step(struct runner *runner, const struct flight *flight, struct graph_entry *entry,
	enum eager_reason reason)
{
	struct engine_stats *stats = &runner->engine->stats;
	uint32_t n_tokens = flight->slot->record->n_tokens;
	bool shared = is_shared(flight);

	runner->engine->late.active_ns = runner->engine->work_since_ns;
	count(&stats->n_steps, 1);
	count(&runner->n_steps, 1);
	count(&stats->n_rows, flight->n_rows);
	count(&stats->n_tokens_in, n_tokens);
	if (entry) {
		count(&stats->n_replays, 1);
		count(&stats->n_shared_replays, shared);
		count(&stats->n_padded_rows, graph_entry_padding(entry, n_tokens));
		graph_entry_count(entry, n_tokens, shared);
		entry->last_launch = runner->engine->launched;
		entry->used_ns = runner->engine->work_since_ns;
		return;
	}
	if (reason == EAGER_TOO_WIDE)
		warn_too_wide(runner, n_tokens);
	count(&stats->n_eager[reason], 1);
	count(&runner->n_eager[reason], 1);
}

/* The graph that the step takes, or NULL and why. */
static struct graph_entry *choose_graph(
	struct runner *runner, const struct batch_shape *shape, enum eager_reason *ret_reason)
{
	struct graph_entry *entry = graph_set_dispatch(&runner->graphs, shape, ret_reason);

	if (*ret_reason == EAGER_NOT_CAPTURED)
		late_want(runner, entry);
	return *ret_reason == EAGER_NO ? entry : NULL;
}

/* What comes of it, and when: of a graph's last replays, if there is one. */
static void expect(struct flight *flight, struct graph_entry *entry)
{
	flight->entry = entry;
	flight->drafts = flight->n_rows && flight->runner->drafts;
	flight->expected_ns = entry ? entry->lane_ns : 0;
	flight->told_ns = entry ? entry->told_ns : 0;
	flight->notify = idle_wants_bell(flight->runner->engine,
		flight->drafts && !flight->told_ns ? 0 : flight->expected_ns);
}

/* 0 and whether anything was launched, or the device's answer. */
static int launch(struct runner *runner, bool *ret_launched)
{
	struct engine *engine = runner->engine;
	struct flight *flight =
		&engine->flights[(engine->first_flight + engine->n_flights) % ENGINE_FLIGHTS];
	struct graph_entry *entry = NULL;
	enum eager_reason reason = EAGER_NO;
	struct batch_shape shape;
	int rc;

	if (!runner->n_running && !runner->n_copies)
		return 0;
	engine_work_begins(engine);
	flight->slot = inputs_begin(&runner->inputs, runner->launched + 1);
	if (!flight->slot)
		return 0;
	flight->runner = runner;
	flight->step = runner->launched + 1;
	flight->n_rows = 0;
	flight->follows = flight->read = false;
	/* Copies go ahead without rows if those that asked for them have ended: they hold pages. */
	if (!schedule(runner, flight, &shape) && !runner->n_copies) {
		flight->slot->step = 0;
		return 0;
	}
	if (flight->n_rows)
		entry = choose_graph(runner, &shape, &reason);
	expect(flight, entry);
	if (!engine->n_flights)
		idle_begin(engine);
	runner->launched++;
	engine->launched++;
	engine->n_flights++;
	rc = launch_copies(runner, flight);
	if (!rc && flight->n_rows)
		rc = executor_run(&runner->executor, entry, flight->slot, runner->query_lens,
			runner->seq_lens, engine->lane);
	if (!rc)
		rc = launch_results(runner, flight);
	if (!rc && flight->drafts)
		rc = launch_draft(runner, flight, &shape);
	if (!rc)
		rc = launch_end(runner, flight);
	if (rc)
		return rc;
	tell_recorded(flight);
	if (flight->n_rows)
		count_step(runner, flight, entry, reason);
	*ret_launched = true;
	return 0;
}

bool step_launch(struct engine *engine)
{
	bool any = false;

	/* Models take turns. */
	for (uint32_t idle = 0; idle < engine->n_runners && engine->n_flights < ENGINE_FLIGHTS;) {
		bool launched = false;
		int rc = launch(&engine->runners[engine->runner_turn], &launched);

		engine->runner_turn = (engine->runner_turn + 1) % engine->n_runners;
		if (rc) {
			engine_lose_device(engine, rc);
			return true;
		}
		idle = launched ? 0 : idle + 1;
		any |= launched;
	}
	return any;
}
