/* SPDX-License-Identifier: MIT */
/*
 * Graphs that are captured and dropped while the daemon serves, off every client's path.
 *
 *	EMPTY --wanted--> WANTED --engine, lane empty--> BUILDING --builder--> READY
 *	  ^                                                                      |
 *	  +------------------ builder <-- DROPPING <--engine: idle, or by order--+
 *
 * Warm-up and recording take one turn on the engine, with nothing in the lane; instantiating, uploading
 * and destroying are the builder's, one graph at a time. A turn is paid back before the next: while
 * rows run, captures have at most one part in LATE_SHARE + 1 of the engine's time. Until its graph is
 * there, a batch runs eager.
 *
 * Idle graphs are dropped when the device is out of memory, by generation: those that no step has
 * replayed since the last time. A step that wants one again has it captured again.
 *
 * Dropping frees a graph and its states, never what graphs share: pool, inputs, workspaces, buffers of
 * the attention manager.
 */
#include "daemon/engine/state.h"

#include "daemon/log.h"

#define LATE_SHARE 4u

enum late_task { LATE_BUILD, LATE_DROP };

/* ---- on the builder's thread ---- */

static void run_task(struct builder_task *task)
{
	struct late *late = (struct late *)task; /* its first member */
	struct engine *engine = late->runner->engine;
	struct device *device = engine->device;
	uint64_t start = clock_ns();

	late->rc = 0;
	if (late->task == LATE_DROP) {
		atomic_fetch_add(&late->entry->n_drops, 1);
		capture_drop(late->entry, device);
	} else {
		late->rc = capture_instantiate(late->entry, device, late->stream);
		atomic_fetch_add(&late->entry->capture_ns, clock_ns() - start);
	}
	atomic_store(&late->done, true);
	/* From here on *late is the engine's. */
	loop_wake(engine->loop);
}

/* ---- the engine's turns ---- */

static void post_task(struct engine *engine, struct runner *runner, struct graph_entry *entry,
	enum late_task task)
{
	struct late *late = &engine->late;

	late->runner = runner;
	late->entry = entry;
	late->task = task;
	late->busy = true;
	atomic_store(&late->done, false);
	late->base.run = run_task;
	builder_post_task(late->builder, &late->base);
}

static void fail_capture(struct runner *runner, struct graph_entry *entry, int rc)
{
	char name[32];

	descriptor_format(&entry->descriptor, name, sizeof(name));
	log_warn("model %s: graph %s cannot be captured: %s: its batches run eager",
		runner->options.name, name, device_strerror(rc));
	capture_drop(entry, runner->engine->device);
	graph_entry_set_state(entry, GRAPH_FAILED);
}

static bool take_result(struct engine *engine)
{
	struct late *late = &engine->late;

	if (!late->busy || !atomic_load(&late->done))
		return false;
	late->busy = false;
	late->entry->generation = late->generation;
	if (late->rc)
		fail_capture(late->runner, late->entry, late->rc);
	late->window = engine->launched + ENGINE_FLIGHTS;
	return true;
}

/* The widest of the first model that has one in that state, and may be touched. */
static struct graph_entry *next_in(struct engine *engine, enum graph_state state,
	struct runner **ret_runner)
{
	for (uint32_t i = 0; i < engine->n_runners; i++) {
		struct graph_set *set = &engine->runners[i].graphs;

		for (uint32_t j = set->n; j-- > 0;) {
			if (graph_entry_state(&set->entries[j]) != state ||
				set->entries[j].last_launch > engine->completed)
				continue;
			*ret_runner = &engine->runners[i];
			return &set->entries[j];
		}
	}
	return NULL;
}

static bool drop_next(struct engine *engine)
{
	struct runner *runner;
	struct graph_entry *entry = engine->late.n_dropping
		? next_in(engine, GRAPH_DROPPING, &runner) : NULL;

	if (!entry)
		return false;
	engine->late.n_dropping--;
	post_task(engine, runner, entry, LATE_DROP);
	return true;
}

static bool anything_runs(const struct engine *engine)
{
	for (uint32_t i = 0; i < engine->n_runners; i++) {
		if (engine->runners[i].n_running)
			return true;
	}
	return false;
}

bool late_wants_lane(const struct engine *engine)
{
	const struct late *late = &engine->late;

	return late->n_wanted && !late->busy &&
		(clock_ns() >= late->next_ns || !anything_runs(engine));
}

static int capture(struct runner *runner, struct graph_entry *entry)
{
	struct stream *lane = runner->engine->lane;
	int rc = capture_warm_up(entry, &runner->context, lane);

	return rc ? rc : capture_record(entry, &runner->executor.breakable, lane);
}

static bool capture_next(struct engine *engine)
{
	struct late *late = &engine->late;
	uint64_t start = clock_ns(), took;
	struct graph_entry *entry;
	struct runner *runner;
	int rc;

	if (engine->n_flights || !late_wants_lane(engine))
		return false;
	entry = next_in(engine, GRAPH_WANTED, &runner);
	if (!entry)
		return false;
	late->n_wanted--;
	late->window = UINT64_MAX;
	graph_entry_set_state(entry, GRAPH_BUILDING);
	rc = capture(runner, entry);
	took = clock_ns() - start;
	late->next_ns = start + took + LATE_SHARE * took;
	atomic_store(&entry->capture_ns, took);
	count(&engine->stats.late_capture_ns, took);
	if (!rc)
		count(&engine->stats.n_late_captures, 1);
	if (rc && engine->device->ops->status(engine->device))
		engine_lose_device(engine, rc);
	else if (rc)
		fail_capture(runner, entry, rc);
	else
		post_task(engine, runner, entry, LATE_BUILD);
	return true;
}

bool late_turn(struct engine *engine)
{
	struct late *late = &engine->late;
	bool worked;

	if (!late->busy && !late->n_wanted && !late->n_dropping && !late->relieving)
		return false;
	worked = take_result(engine);
	if (!late->busy && !engine->lost)
		worked |= drop_next(engine) || capture_next(engine);
	if (late->relieving && (engine->lost || (!late->busy && !late->n_dropping))) {
		late->relieving = false;
		builder_relieved(late->builder);
	}
	return worked;
}

bool late_in_gap(const struct engine *engine)
{
	return engine->completed <= engine->late.window;
}

/* ---- what is asked for ---- */

static bool want(struct runner *runner, struct graph_entry *entry)
{
	graph_entry_set_state(entry, GRAPH_WANTED);
	runner->engine->late.n_wanted++;
	return true;
}

void late_want(struct runner *runner, struct graph_entry *entry)
{
	if (graph_entry_state(entry) == GRAPH_EMPTY)
		want(runner, entry);
}

static void drop(struct runner *runner, struct graph_entry *entry)
{
	enum graph_state state = graph_entry_state(entry);

	if (state == GRAPH_WANTED) {
		graph_entry_set_state(entry, GRAPH_EMPTY);
		runner->engine->late.n_wanted--;
	} else if (state == GRAPH_READY) {
		graph_entry_set_state(entry, GRAPH_DROPPING);
		runner->engine->late.n_dropping++;
	}
}

static void drop_idle(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->n_runners; i++) {
		struct graph_set *set = &engine->runners[i].graphs;

		for (uint32_t j = 0; j < set->n; j++) {
			if (set->entries[j].generation != engine->late.generation)
				drop(&engine->runners[i], &set->entries[j]);
		}
	}
	engine->late.generation++;
}

void late_relieve(struct engine *engine)
{
	drop_idle(engine);
	engine->late.relieving = true;
	log_info("the device is out of memory: %u idle graphs are dropped", engine->late.n_dropping);
}

static void obey(struct runner *runner, struct graph_entry *entry, enum engine_graph_order order)
{
	enum graph_state state = graph_entry_state(entry);

	if (order == ENGINE_GRAPH_DROP)
		drop(runner, entry);
	else if (state == GRAPH_EMPTY || state == GRAPH_FAILED)
		want(runner, entry);
}

void late_order(struct engine *engine, const struct engine_graphs_order *order)
{
	if (order->order == ENGINE_GRAPH_DROP_IDLE) {
		drop_idle(engine);
		return;
	}
	for (uint32_t i = 0; i < engine->n_runners; i++) {
		struct graph_set *set = &engine->runners[i].graphs;

		for (uint32_t j = 0; j < set->n; j++) {
			if ((order->model == ENGINE_ALL || order->model == i) &&
				(order->graph == ENGINE_ALL || order->graph == j))
				obey(&engine->runners[i], &set->entries[j], order->order);
		}
	}
}
