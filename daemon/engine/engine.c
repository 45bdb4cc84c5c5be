/* SPDX-License-Identifier: MIT */
/*
 * The engine's life and its thread. A turn looks at the mailbox, the rings, the lane and the waiting
 * requests; when a turn finds nothing the thread waits for something to do (idle.c).
 */
#include "daemon/engine/state.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "daemon/engine/check.h"
#include "daemon/engine/query.h"
#include "daemon/engine/requests/admit.h"
#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/finish.h"
#include "daemon/engine/requests/pinned.h"
#include "daemon/engine/requests/submissions.h"
#include "daemon/engine/requests/place.h"
#include "ipc/clock.h"

/* ---- the thread ---- */

/* Sessions whose last step has completed are handed back. */
static void engine_hand_back(struct engine *engine)
{
	struct accounting *accounting = &engine->accounting;

	for (uint32_t i = 0; i < accounting->n_sessions;) {
		struct engine_session *session = accounting->sessions[i];

		if (!session->detached || !engine_session_is_idle(session)) {
			i++;
			continue;
		}
		assert(!session->n_in_flight && !session->n_open);
		admit_detach(session);
		pinned_detach(session);
		share_detach(session);
		accounting->sessions[i] = accounting->sessions[--accounting->n_sessions];
		atomic_fetch_sub(&engine->stats.n_sessions, 1);
		reports_post(&engine->reports, ENGINE_DETACHED, session->port, NULL);
	}
}

static void engine_show(_Atomic uint32_t *counter, uint32_t value)
{
	atomic_store_explicit(counter, value, memory_order_relaxed);
}

static void engine_show_counters(struct engine *engine)
{
	struct engine_stats *stats = &engine->stats;
	uint32_t waiting = 0, running = 0, slots = 0;

	for (uint32_t i = 0; i < engine->accounting.n_sessions; i++) {
		struct engine_session *session = engine->accounting.sessions[i];

		waiting += session->n_waiting;
		engine_show(&session->port->n_in_flight, session->n_in_flight);
		engine_show(&session->port->n_waiting, session->n_waiting);
	}
	for (uint32_t i = 0; i < engine->runners.n; i++) {
		running += engine->runners.all[i]->slots.n_running;
		slots += engine->runners.all[i]->slots.n_free;
	}
	engine_show(&stats->n_in_lane, engine->lane.n_inflight);
	engine_show(&stats->n_waiting, waiting);
	engine_show(&stats->n_running, running);
	engine_show(&stats->n_slots_free, slots);
}

/* Take what is new: commands, submissions, results, deadlines, a device's failure. */
static bool engine_take(struct engine *engine)
{
	struct accounting *accounting = &engine->accounting;
	struct lane *lane = &engine->lane;
	bool worked = mailbox_take(engine);
	int rc = 0;

	worked |= submissions_take(accounting);
	worked |= results_take(lane);
	worked |= finish_overdue(accounting);
	place_release_buffers(accounting);
	if (lane->n_inflight)
		rc = engine->device->ops->status(engine->device);
	if (rc)
		lane_lose_device(lane, rc);
	return worked || rc;
}

static bool engine_admit(struct engine *engine)
{
	struct trace *trace = &engine->trace;
	const bool traced = trace_is_on(trace);
	const uint64_t begin = traced ? clock_ns() : 0;
	bool worked = admit(&engine->accounting);

	if (traced && worked)
		trace_put(trace, &(struct trace_event){.kind = TRACE_ADMIT, .begin_ns = begin, .end_ns = clock_ns()});
	return worked;
}

bool engine_turn(struct engine *engine)
{
	struct accounting *accounting = &engine->accounting;
	struct lane *lane = &engine->lane;
	bool worked = engine_take(engine);

	/* Results are published before the next step is launched: mostly another is in flight. A client
	 * that reads of an end finds it in the counters. */
	if (worked && accounting->admit)
		engine_show_counters(engine);
	if (worked)
		completion_publish(accounting);
	worked |= late_turn(lane);
	if (!accounting->lost) {
		worked |= engine_admit(engine);
		if (!lane->late.due)
			worked |= step_launch(lane);
	}
	worked |= models_hand_back(engine);
	if (worked) {
		completion_publish(accounting);
		engine_hand_back(engine);
		engine_show_counters(engine);
		if (lane->work_since_ns)
			counter_add(&engine->stats.work_ns, clock_ns() - lane->work_since_ns);
	}
	lane->work_since_ns = 0;
	if (worked && accounting->draining && !engine->drained && !accounting->n_requests) {
		engine->drained = true;
		reports_post(&engine->reports, ENGINE_DRAINED, NULL, NULL);
	}
	if (worked)
		engine_check(engine);
	return worked;
}

static void *engine_main(void *arg)
{
	struct engine *engine = arg;

	idle_init();
	while (!engine->stop) {
		if (engine_turn(engine))
			idle_reset(&engine->lane);
		else
			idle(&engine->lane);
	}
	return NULL;
}

/* ---- life ---- */

static int engine_init_runners(struct engine *engine, struct model_error *error)
{
	for (uint32_t i = 0; i < engine->options.n_models; i++) {
		struct engine_model_options *options = &engine->options.models[i];
		struct runner *runner = calloc(1, sizeof(*runner));
		int rc;

		if (!runner)
			return -ENOMEM;
		engine->runners.all[engine->runners.n++] = runner;
		rc = runner_init(runner, &engine->options, options, engine->lane.stream, error);
		options->model = options->draft = NULL; /* the runner's */
		if (rc)
			return rc;
		rc = models_name(engine, runner->options.name);
		if (rc)
			return rc;
		runner->place = i;
		runner_set_id(runner, engine->next_id++);
	}
	engine->served = engine->runners;
	engine_set_limits(engine);
	return 0;
}

static int engine_init_models(struct engine *engine, struct model_error *error)
{
	int rc = lane_init(&engine->lane);

	if (rc) {
		snprintf(error->text, sizeof(error->text), "lane: %s", device_strerror(rc));
		return rc;
	}
	rc = engine_init_runners(engine, error);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < engine->runners.n; i++) {
		rc = runner_warm_up(engine->runners.all[i], error);
		if (rc)
			return rc;
	}
	rc = engine->device->ops->lock(engine->device);
	if (rc) {
		snprintf(error->text, sizeof(error->text), "device lock: %s", device_strerror(rc));
		return rc;
	}
	for (uint32_t i = 0; i < engine->runners.n; i++) {
		rc = runner_capture(engine->runners.all[i], error);
		if (rc)
			return rc;
	}
	return runner_map_all(&engine->runners, error);
}

/* Connect the parts. */
static void engine_connect(struct engine *engine)
{
	engine->accounting.options = engine->lane.options = &engine->options;
	engine->accounting.stats = engine->lane.stats = &engine->stats;
	engine->accounting.runners = engine->lane.runners = &engine->runners;
	engine->accounting.loop = engine->lane.loop = engine->loop;
	engine->accounting.reports = &engine->reports;
	engine->accounting.request_log = &engine->request_log;
	engine->accounting.trace = engine->lane.trace = &engine->trace;
	engine->accounting.admit = true;
	engine->lane.device = engine->device;
	engine->lane.accounting = &engine->accounting;
	engine->lane.idle.commands_wait = &engine->mailbox.waits;
}

static int engine_init(struct engine *engine, struct model_error *error)
{
	struct accounting *accounting = &engine->accounting;
	int rc;

	snprintf(error->text, sizeof(error->text), "out of host memory");
	rc = reports_init(&engine->reports);
	if (rc)
		return rc;
	rc = msg_codec_new(&accounting->codec);
	if (rc)
		return rc;
	if (getrandom(&accounting->seed_state, sizeof(accounting->seed_state), 0) < 0)
		return -errno;
	rc = loop_new(&engine->loop, engine->options.loop);
	if (rc) {
		snprintf(error->text, sizeof(error->text), "the engine's event loop cannot be made");
		return rc;
	}
	engine_connect(engine);
	return engine_init_models(engine, error);
}

int engine_new(const struct engine_options *options, struct engine **ret, struct model_error *error)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	int rc;

	if (!engine) {
		for (uint32_t i = 0; i < options->n_models; i++) {
			struct engine_model_options model = options->models[i];

			engine_model_options_deinit(&model);
		}
		snprintf(error->text, sizeof(error->text), "out of host memory");
		return -ENOMEM;
	}
	engine->options = *options;
	engine->device = engine->lane.device = options->device;
	engine->reports.fd = -1;
	mailbox_init(&engine->mailbox);
	rc = engine_init(engine, error);
	if (rc) {
		engine_free(engine);
		return rc;
	}
	engine->options.progress = NULL; /* the caller's, for this call */
	engine_show_counters(engine);
	*ret = engine;
	return 0;
}

/* On the builder's thread. */
static bool engine_relieve(void *userdata)
{
	return engine_post_relieve(userdata) == 0;
}

int engine_start(struct engine *engine, struct builder *builder)
{
	sigset_t all, old;
	int rc;

	engine->lane.late.builder = builder;
	builder_on_pressure(builder, engine_relieve, engine);
	/* Signals are the loop thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&engine->thread, NULL, engine_main, engine);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return -rc;
	pthread_setname_np(engine->thread, "mimeo-engine");
	engine->started = true;
	return 0;
}

void engine_stop(struct engine *engine)
{
	if (!engine || !engine->started)
		return;
	engine_post_stop(engine);
	pthread_join(engine->thread, NULL);
	engine->started = false;
}

void engine_free(struct engine *engine)
{
	if (!engine)
		return;
	engine_stop(engine);
	if (engine->lane.stream)
		engine->device->ops->stream_sync(engine->lane.stream);
	engine_free_models(engine);
	/* Models of runners that were never made are still the engine's. */
	for (uint32_t i = 0; i < engine->options.n_models; i++)
		engine_model_options_deinit(&engine->options.models[i]);
	lane_deinit(&engine->lane);
	loop_free(engine->loop);
	msg_codec_free(engine->accounting.codec);
	for (struct engine_query *query; (query = reports_take_query(&engine->reports));)
		engine_query_free(query);
	reports_deinit(&engine->reports);
	mailbox_deinit(&engine->mailbox);
	free(engine->check_uses);
	trace_deinit(&engine->trace);
	free(engine->names);
	free(engine);
}
