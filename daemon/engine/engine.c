/* SPDX-License-Identifier: MIT */
/*
 * The engine's life and its thread. A turn looks at the mailbox, the rings, the lane and the waiting
 * requests; when a turn finds nothing the thread waits for something to do (idle.c).
 */
#include "daemon/engine/state.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "ipc/clock.h"

/* ---- the thread ---- */

/* Sessions whose last step has completed are handed back. */
static void hand_back(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->n_sessions;) {
		struct session *session = engine->sessions[i];

		if (!session->detached || !engine_session_is_idle(session)) {
			i++;
			continue;
		}
		engine->sessions[i] = engine->sessions[--engine->n_sessions];
		atomic_fetch_sub(&engine->stats.n_sessions, 1);
		report_post(engine, ENGINE_DETACHED, session->port, NULL);
	}
}

static void show_counters(struct engine *engine)
{
	uint32_t waiting = 0, running = 0, slots = 0;

	for (uint32_t i = 0; i < engine->n_sessions; i++) {
		struct session *session = engine->sessions[i];

		waiting += session->n_waiting;
		atomic_store_explicit(&session->port->n_in_flight, session->n_in_flight,
			memory_order_relaxed);
		atomic_store_explicit(&session->port->n_waiting, session->n_waiting,
			memory_order_relaxed);
	}
	for (uint32_t i = 0; i < engine->n_runners; i++) {
		running += engine->runners[i].n_running;
		slots += engine->runners[i].n_free_slots;
	}
	atomic_store_explicit(&engine->stats.n_in_lane, engine->n_flights, memory_order_relaxed);
	atomic_store_explicit(&engine->stats.n_waiting, waiting, memory_order_relaxed);
	atomic_store_explicit(&engine->stats.n_running, running, memory_order_relaxed);
	atomic_store_explicit(&engine->stats.n_slots_free, slots, memory_order_relaxed);
}

static bool turn(struct engine *engine)
{
	bool worked = mailbox_take(engine);
	int rc;

	for (uint32_t i = 0; i < engine->n_sessions; i++)
		worked |= intake(engine->sessions[i]);
	worked |= step_complete(engine);
	worked |= engine_check_deadlines(engine);
	if (engine->closing)
		buffers_release(engine);
	if (engine->n_flights && (rc = engine->device->ops->status(engine->device))) {
		engine_lose_device(engine, rc);
		worked = true;
	}
	/* What is known now is told before the next step is launched: another is in flight already. Who
	 * hears of an end finds it in the counters. */
	if (worked && engine->admit)
		show_counters(engine);
	if (worked)
		engine_publish(engine);
	worked |= late_turn(engine);
	if (!engine->lost) {
		worked |= admit(engine);
		if (!engine->late.due)
			worked |= step_launch(engine);
	}
	if (!worked) {
		engine->work_since_ns = 0;
		return false;
	}
	engine_publish(engine);
	hand_back(engine);
	show_counters(engine);
	if (engine->work_since_ns)
		count(&engine->stats.work_ns, clock_ns() - engine->work_since_ns);
	engine->work_since_ns = 0;
	if (engine->draining && !engine->drained && !engine->n_requests) {
		engine->drained = true;
		report_post(engine, ENGINE_DRAINED, NULL, NULL);
	}
	return true;
}

static void *engine_main(void *arg)
{
	struct engine *engine = arg;

	idle_init();
	while (!engine->stop) {
		if (turn(engine))
			idle_reset(engine);
		else
			idle(engine);
	}
	return NULL;
}

/* ---- life ---- */

static int set_up(struct engine *engine, struct model_error *error)
{
	const struct engine_options *o = &engine->options;
	int rc = engine->device->ops->stream_new(engine->device, &engine->lane);

	if (!rc)
		rc = engine->device->ops->stream_new(engine->device, &engine->bell);
	if (!rc)
		rc = engine->device->ops->stream_new(engine->device, &engine->late.stream);
	for (unsigned i = 0; i < ENGINE_FLIGHTS && !rc; i++) {
		rc = engine->device->ops->event_new(engine->device, &engine->flights[i].end);
		if (!rc)
			rc = engine->device->ops->event_new(
				engine->device, &engine->flights[i].told);
	}
	if (rc) {
		snprintf(error->text, sizeof(error->text), "lane: %s", device_strerror(rc));
		return rc;
	}
	for (uint32_t i = 0; i < o->n_models; i++) {
		rc = runner_init(&engine->runners[i], engine, &o->models[i], error);
		engine->n_runners = i + 1;
		if (rc)
			return rc;
		if (o->models[i].max_seq_len > engine->max_seq_len)
			engine->max_seq_len = o->models[i].max_seq_len;
		if (engine->runners[i].max_pages > engine->max_pages)
			engine->max_pages = engine->runners[i].max_pages;
	}
	for (uint32_t i = 0; i < engine->n_runners && !rc; i++)
		rc = runner_warm_up(&engine->runners[i], error);
	if (rc)
		return rc;
	rc = engine->device->ops->lock(engine->device);
	if (rc) {
		snprintf(error->text, sizeof(error->text), "device lock: %s", device_strerror(rc));
		return rc;
	}
	for (uint32_t i = 0; i < engine->n_runners && !rc; i++)
		rc = runner_capture(&engine->runners[i], error);
	for (uint32_t i = 0; i < engine->n_runners && !rc; i++)
		rc = runner_map(&engine->runners[i], error);
	return rc;
}

static int make_flights(struct engine *engine)
{
	uint32_t n = engine->options.max_requests;

	for (unsigned i = 0; i < ENGINE_FLIGHTS; i++) {
		engine->flights[i].rows = calloc(n, sizeof(*engine->flights[i].rows));
		engine->flights[i].sources = calloc(n, sizeof(*engine->flights[i].sources));
		if (!engine->flights[i].rows || !engine->flights[i].sources)
			return -ENOMEM;
	}
	return 0;
}

void engine_model_options_deinit(struct engine_model_options *options)
{
	model_free(options->draft);
	model_free(options->model);
	options->draft = options->model = NULL;
}

static int refuse_all(const struct engine_options *options)
{
	for (uint32_t i = 0; i < options->n_models; i++) {
		struct engine_model_options model = options->models[i];

		engine_model_options_deinit(&model);
	}
	return -ENOMEM;
}

int engine_new(const struct engine_options *options, struct engine **ret, struct model_error *error)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	int rc = -ENOMEM;

	snprintf(error->text, sizeof(error->text), "out of host memory");
	if (!engine)
		return refuse_all(options);
	engine->options = *options;
	engine->device = options->device;
	engine->report_fd = -1;
	engine->admit = true;
	engine->late.engine = engine;
	engine->late.generation_ns = ENGINE_GENERATION_NS;
	engine->late.quiet_ns = ENGINE_QUIET_NS;
	engine->sleepy = options->spin_us == 0;
	engine->runners = calloc(options->n_models, sizeof(*engine->runners));
	if (engine->runners)
		rc = make_flights(engine);
	if (!rc)
		rc = mailbox_init(engine);
	if (!rc)
		rc = msg_codec_new(&engine->codec);
	if (!rc && getrandom(&engine->seed_state, sizeof(engine->seed_state), 0) < 0)
		rc = -errno;
	if (!rc) {
		snprintf(error->text, sizeof(error->text), "the engine's event loop cannot be made");
		rc = loop_new(&engine->loop, options->loop);
	}
	if (!rc)
		rc = set_up(engine, error);
	if (rc) {
		engine_free(engine);
		return rc;
	}
	show_counters(engine);
	*ret = engine;
	return 0;
}

/* On the builder's thread. */
static bool relieve(void *userdata)
{
	return engine_post_relieve(userdata) == 0;
}

int engine_start(struct engine *engine, struct builder *builder)
{
	sigset_t all, old;
	int rc;

	engine->late.builder = builder;
	builder_on_pressure(builder, relieve, engine);
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
	if (engine->lane)
		engine->device->ops->stream_sync(engine->lane);
	for (uint32_t i = 0; i < engine->n_runners; i++)
		runner_deinit(&engine->runners[i]);
	/* Models of runners that were never made are still ours. */
	for (uint32_t i = engine->n_runners; i < engine->options.n_models; i++)
		engine_model_options_deinit(&engine->options.models[i]);
	if (engine->late.stream)
		engine->device->ops->stream_free(engine->late.stream);
	if (engine->bell)
		engine->device->ops->stream_free(engine->bell);
	if (engine->lane)
		engine->device->ops->stream_free(engine->lane);
	for (unsigned i = 0; i < ENGINE_FLIGHTS; i++) {
		if (engine->flights[i].end)
			engine->device->ops->event_free(engine->flights[i].end);
		if (engine->flights[i].told)
			engine->device->ops->event_free(engine->flights[i].told);
		free(engine->flights[i].rows);
		free(engine->flights[i].sources);
	}
	loop_free(engine->loop);
	msg_codec_free(engine->codec);
	mailbox_deinit(engine);
	free(engine->runners);
	free(engine);
}
