/* SPDX-License-Identifier: MIT */
/*
 * Graphs that are captured and dropped while the daemon serves, off every client's path.
 *
 *	EMPTY --wanted--> WANTED --engine, lane empty--> BUILDING --builder--> READY
 *	  ^                                                                      |
 *	  +------------------ builder <-- DROPPING <--engine: idle, or by order--+
 *
 * Warm-up and recording take one turn on the engine, with nothing in the lane; instantiating, uploading
 * and destroying are the builder's, one graph at a time. A turn is paid back before the next: captures
 * have at most one part in LATE_SHARE + 1 of the engine's time, but when no request was there for
 * quiet_ns. Until its graph is there, a batch runs eager.
 *
 * Idle graphs are dropped when the device is out of memory for a client's buffer, by generation: those
 * that no step has replayed in this one and the one before. A step that wants one again has it captured
 * again. A capture that finds no memory itself has idle graphs dropped, and is tried again by a step
 * RETRY_NS later, then twice that, and so on; one that an operator ordered is FAILED at once.
 *
 * Dropping frees a graph and its states, never what graphs share: pool, inputs, workspaces, buffers of
 * the attention manager.
 */
#include "daemon/engine/state.h"

#include <errno.h>
#include <utlist.h>

#include "daemon/output/log.h"

#define LATE_SHARE 4u
#define RETRY_NS UINT64_C(1000000000)
#define RETRY_MAX_NS UINT64_C(64000000000)

enum late_task { LATE_BUILD, LATE_DROP };
enum late_wish { WISH_NONE, WISH_CAPTURE, WISH_DROP };

/* ---- on the builder's thread ---- */

static void run_task(struct builder_task *task)
{
	struct late *late = (struct late *)task; /* its first member */
	struct engine *engine = late->engine;
	uint64_t start = clock_ns();

	late->rc = 0;
	if (late->task == LATE_DROP) {
		capture_drop(late->entry, engine->device);
	} else {
		late->rc = capture_instantiate(late->entry, engine->device, late->stream);
		atomic_fetch_add(&late->entry->capture_ns, clock_ns() - start);
	}
	atomic_store(&late->done, true);
	/* From here on *late is the engine's. */
	loop_wake(engine->loop);
}

static void post_task(struct engine *engine, struct graph_entry *entry, enum late_task task)
{
	struct late *late = &engine->late;

	late->entry = entry;
	late->task = task;
	late->busy = true;
	atomic_store(&late->done, false);
	late->base.run = run_task;
	builder_post_task(late->builder, &late->base);
}

/* ---- wanting and dropping ---- */

static void want(struct late *late, struct graph_entry *entry)
{
	graph_entry_set_state(entry, GRAPH_WANTED);
	DL_APPEND(late->wanted, entry);
}

static void drop(struct late *late, struct graph_entry *entry)
{
	graph_entry_set_state(entry, GRAPH_DROPPING);
	DL_APPEND(late->dropping, entry);
}

void late_want(struct runner *runner, struct graph_entry *entry)
{
	struct engine *engine = runner->engine;

	if (graph_entry_state(entry) == GRAPH_EMPTY && engine->work_since_ns >= entry->retry_ns)
		want(&engine->late, entry);
}

/* What is being built or destroyed is seen to when that is done. */
static void obey_capture(struct late *late, struct graph_entry *entry)
{
	enum graph_state state = graph_entry_state(entry);

	entry->wish = state == GRAPH_DROPPING ? WISH_CAPTURE : WISH_NONE;
	entry->ordered = state != GRAPH_READY;
	if (state == GRAPH_EMPTY || state == GRAPH_FAILED)
		want(late, entry);
}

static void obey_drop(struct late *late, struct graph_entry *entry)
{
	enum graph_state state = graph_entry_state(entry);

	entry->wish = state == GRAPH_BUILDING ? WISH_DROP : WISH_NONE;
	entry->ordered = entry->failed = false;
	entry->retry_ns = entry->pause_ns = 0;
	if (state == GRAPH_WANTED) {
		DL_DELETE(late->wanted, entry);
		graph_entry_set_state(entry, GRAPH_EMPTY);
	} else if (state == GRAPH_READY || state == GRAPH_FAILED) {
		drop(late, entry);
	}
}

static void grant_wish(struct late *late, struct graph_entry *entry)
{
	int wish = entry->wish;

	entry->wish = WISH_NONE;
	if (wish == WISH_CAPTURE)
		obey_capture(late, entry);
	else if (wish == WISH_DROP)
		obey_drop(late, entry);
}

/* What no step has replayed in this generation and the one before. */
static uint32_t drop_idle(struct engine *engine)
{
	struct late *late = &engine->late;
	uint64_t generation = clock_ns() / late->generation_ns;
	uint32_t n = 0;

	for (uint32_t i = 0; i < engine->n_runners; i++) {
		struct graph_set *set = &engine->runners[i].graphs;

		for (uint32_t j = 0; j < set->n; j++) {
			struct graph_entry *entry = &set->entries[j];

			if (graph_entry_state(entry) != GRAPH_READY ||
				entry->used_ns / late->generation_ns + 1 >= generation)
				continue;
			drop(late, entry);
			n++;
		}
	}
	return n;
}

/* ---- what came of a task ---- */

static const char *name_of(const struct graph_entry *entry, char buffer[static 32])
{
	descriptor_format(&entry->descriptor, buffer, 32);
	return buffer;
}

/* Its remains are the builder's to destroy. */
static void fail_capture(struct engine *engine, struct graph_entry *entry, int rc)
{
	static struct log_limit limit = LOG_LIMIT(1);
	bool memory = rc == DEVICE_E_MEMORY || rc == -ENOMEM;
	char name[32];

	entry->remains = true;
	entry->failed = !memory || entry->ordered;
	entry->ordered = false;
	entry->pause_ns = entry->pause_ns ? 2 * entry->pause_ns : RETRY_NS;
	if (entry->pause_ns > RETRY_MAX_NS)
		entry->pause_ns = RETRY_MAX_NS;
	entry->retry_ns = clock_ns() + entry->pause_ns;
	if (memory)
		drop_idle(engine);
	log_limited(&limit, LOG_LEVEL_WARN,
		"graph %s cannot be captured: %s: its batches run eager%s", name_of(entry, name),
		device_strerror(rc), entry->failed ? ", until mimeoctl graphs capture tries again"
			: " until it is tried again; fewer --capture-sizes or KV pages leave memory");
	drop(&engine->late, entry);
}

static void take_build(struct engine *engine, struct graph_entry *entry)
{
	struct late *late = &engine->late;
	char name[32];

	late->window = engine->launched + ENGINE_FLIGHTS;
	entry->used_ns = clock_ns();
	if (late->rc) {
		if (engine->device->ops->status(engine->device))
			engine_lose_device(engine, late->rc);
		fail_capture(engine, entry, late->rc);
		return;
	}
	graph_entry_set_state(entry, GRAPH_READY);
	entry->ordered = false;
	entry->pause_ns = 0;
	count(&engine->stats.n_late_captures, 1);
	log_debug("graph %s: captured while serving", name_of(entry, name));
	grant_wish(late, entry);
}

static void take_drop(struct engine *engine, struct graph_entry *entry)
{
	char name[32];

	graph_entry_set_state(entry, entry->failed ? GRAPH_FAILED : GRAPH_EMPTY);
	if (!entry->remains) {
		atomic_fetch_add(&entry->n_drops, 1);
		log_debug("graph %s: dropped", name_of(entry, name));
	}
	entry->remains = entry->failed = false;
	grant_wish(&engine->late, entry);
}

static bool take_result(struct engine *engine)
{
	struct late *late = &engine->late;

	if (!late->busy || !atomic_load(&late->done))
		return false;
	late->busy = false;
	if (late->task == LATE_BUILD)
		take_build(engine, late->entry);
	else
		take_drop(engine, late->entry);
	return true;
}

/* ---- the engine's turns ---- */

static bool drop_next(struct engine *engine)
{
	struct late *late = &engine->late;
	struct graph_entry *entry;

	DL_FOREACH (late->dropping, entry) {
		if (entry->last_launch > engine->completed)
			continue;
		DL_DELETE(late->dropping, entry);
		post_task(engine, entry, LATE_DROP);
		return true;
	}
	return false;
}

static bool is_due(const struct engine *engine)
{
	const struct late *late = &engine->late;
	uint64_t now;

	if (!late->wanted || late->busy || late->relieving || late->dropping || engine->draining ||
		engine->lost)
		return false;
	now = clock_ns();
	return now >= late->next_ns || (!engine->n_requests && now - late->active_ns > late->quiet_ns);
}

static int capture(struct engine *engine, struct graph_entry *entry)
{
	struct runner *runner = &engine->runners[entry->owner];
	int rc = capture_warm_up(entry, &runner->context, engine->lane), end;

	if (!rc)
		rc = capture_record(entry, &runner->executor.breakable, engine->lane);
	/* What was queued before it failed may still read its states, and slot 0. */
	end = engine->device->ops->stream_sync(engine->lane);
	return rc ? rc : end;
}

static bool capture_next(struct engine *engine)
{
	struct late *late = &engine->late;
	struct graph_entry *entry = late->wanted;
	uint64_t start, took;
	int rc;

	if (!late->due || engine->n_flights)
		return false;
	late->due = false;
	DL_DELETE(late->wanted, entry);
	graph_entry_set_state(entry, GRAPH_BUILDING);
	/* The closing queue must not take the lane for empty. */
	atomic_store(&engine->stats.n_in_lane, 1);
	start = clock_ns();
	rc = capture(engine, entry);
	took = clock_ns() - start;
	atomic_store(&engine->stats.n_in_lane, 0);
	engine->work_since_ns = 0; /* steps' work is what counts there */
	late->next_ns = start + took + LATE_SHARE * took;
	late->window = rc ? engine->launched + ENGINE_FLIGHTS : UINT64_MAX;
	atomic_store(&entry->capture_ns, took);
	count(&engine->stats.late_capture_ns, took);
	if (rc && engine->device->ops->status(engine->device))
		engine_lose_device(engine, rc);
	else if (rc)
		fail_capture(engine, entry, rc);
	else
		post_task(engine, entry, LATE_BUILD);
	return true;
}

bool late_turn(struct engine *engine)
{
	struct late *late = &engine->late;
	bool worked;

	late->due = false;
	if (!late->busy && !late->wanted && !late->dropping && !late->relieving)
		return false;
	worked = take_result(engine);
	late->due = is_due(engine);
	if (!late->busy && !engine->lost)
		worked |= drop_next(engine) || capture_next(engine);
	if (late->relieving && (engine->lost || (!late->busy && !late->dropping))) {
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

void late_relieve(struct engine *engine)
{
	uint32_t n = engine->lost ? 0 : drop_idle(engine);

	engine->late.relieving = true;
	if (n)
		log_info("the device is out of memory for a buffer: %u idle graphs are dropped", n);
}

void late_order(struct engine *engine, const struct engine_graphs_order *order)
{
	struct late *late = &engine->late;

	if (order->order == ENGINE_GRAPH_DROP_IDLE)
		drop_idle(engine);
	for (uint32_t i = 0; order->order != ENGINE_GRAPH_DROP_IDLE && i < engine->n_runners; i++) {
		struct graph_set *set = &engine->runners[i].graphs;

		for (uint32_t j = set->n; j-- > 0;) {
			if ((order->model != ENGINE_ALL && order->model != i) ||
				(order->graph != ENGINE_ALL && order->graph != j))
				continue;
			if (order->order == ENGINE_GRAPH_CAPTURE)
				obey_capture(late, &set->entries[j]);
			else
				obey_drop(late, &set->entries[j]);
		}
	}
	atomic_fetch_sub(&engine->stats.n_graph_orders, 1);
}
