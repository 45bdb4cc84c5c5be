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
 * take at most 1 / (LATE_SHARE + 1) of the engine's time, except when there is no request and no step was
 * launched for quiet_ns. Until its graph is there, a batch runs eager.
 *
 * Idle graphs are dropped when the device is out of memory for a client's buffer, by generation: those
 * that no step has replayed in this one and the one before. A step that wants one again has it captured
 * again. A capture that finds no memory itself has idle graphs dropped, and is tried again by a step
 * RETRY_NS later, then twice that, and so on; one that an operator ordered is FAILED at once.
 *
 * Dropping frees a graph and its states, never what graphs share: pool, inputs, workspaces, buffers of
 * the attention manager.
 */
#include "daemon/engine/lane/lane.h"

#include <assert.h>
#include <errno.h>
#include <utlist.h>

#include "daemon/engine/probes.h"
#include "daemon/output/log.h"
#include "ipc/clock.h"

#define LATE_SHARE 4u
#define RETRY_NS UINT64_C(1000000000)
#define RETRY_MAX_NS UINT64_C(64000000000)

enum late_task { LATE_BUILD, LATE_DROP };
enum late_command { COMMAND_NONE, COMMAND_CAPTURE, COMMAND_DROP };

/* ---- on the builder's thread ---- */

static void late_run_task(struct builder_task *task)
{
	struct late *late = (struct late *)task; /* its first member */
	struct lane *lane = late->lane;
	uint64_t start = clock_ns();

	late->rc = 0;
	if (late->task == LATE_DROP) {
		capture_drop(late->entry, lane->device);
	} else {
		late->rc = capture_instantiate(late->entry, lane->device, late->stream);
		atomic_fetch_add(&late->entry->capture_ns, clock_ns() - start);
	}
	atomic_store(&late->done, true);
	/* From here on *late belongs to the engine's thread. */
	loop_wake(lane->loop);
}

static void late_post_task(struct lane *lane, struct graph_entry *entry, enum late_task task)
{
	struct late *late = &lane->late;

	assert(!late->busy);
	late->entry = entry;
	late->task = task;
	late->busy = true;
	atomic_store(&late->done, false);
	late->base.run = late_run_task;
	builder_post_task(late->builder, &late->base);
}

/* ---- wanting and dropping ---- */

static void late_append_wanted(struct late *late, struct graph_entry *entry)
{
	assert(graph_entry_state(entry) == GRAPH_EMPTY || graph_entry_state(entry) == GRAPH_FAILED);
	graph_entry_set_state(entry, GRAPH_WANTED);
	DL_APPEND(late->wanted, entry);
}

static void late_append_dropping(struct late *late, struct graph_entry *entry)
{
	assert(graph_entry_state(entry) != GRAPH_WANTED && graph_entry_state(entry) != GRAPH_DROPPING);
	graph_entry_set_state(entry, GRAPH_DROPPING);
	DL_APPEND(late->dropping, entry);
}

void late_want(struct lane *lane, struct graph_entry *entry)
{
	if (graph_entry_state(entry) == GRAPH_EMPTY && lane->work_since_ns >= entry->retry_ns)
		late_append_wanted(&lane->late, entry);
}

/* A graph that is being built or destroyed is handled when that is done. */
static void late_obey_capture(struct late *late, struct graph_entry *entry)
{
	enum graph_state state = graph_entry_state(entry);

	entry->command = state == GRAPH_DROPPING ? COMMAND_CAPTURE : COMMAND_NONE;
	entry->ordered = state != GRAPH_READY;
	if (state == GRAPH_EMPTY || state == GRAPH_FAILED)
		late_append_wanted(late, entry);
}

static void late_obey_drop(struct late *late, struct graph_entry *entry)
{
	enum graph_state state = graph_entry_state(entry);

	entry->command = state == GRAPH_BUILDING ? COMMAND_DROP : COMMAND_NONE;
	entry->ordered = entry->failed = false;
	entry->retry_ns = entry->pause_ns = 0;
	if (state == GRAPH_WANTED) {
		DL_DELETE(late->wanted, entry);
		graph_entry_set_state(entry, GRAPH_EMPTY);
	} else if (state == GRAPH_READY || state == GRAPH_FAILED) {
		late_append_dropping(late, entry);
	}
}

static void late_obey_command(struct lane *lane, struct graph_entry *entry)
{
	struct late *late = &lane->late;
	const struct runner *runner = runners_find(lane->runners, entry->owner);
	int command = runner->leaving ? COMMAND_NONE : entry->command;

	entry->command = COMMAND_NONE;
	if (command == COMMAND_CAPTURE)
		late_obey_capture(late, entry);
	else if (command == COMMAND_DROP)
		late_obey_drop(late, entry);
}

/* Drop the graphs that no step has replayed in this generation or the one before. */
static uint32_t late_drop_idle(struct lane *lane)
{
	struct late *late = &lane->late;
	uint64_t generation = clock_ns() / late->generation_ns;
	uint32_t n = 0;

	for (uint32_t i = 0; i < lane->runners->n; i++) {
		struct graph_set *set = &lane->runners->all[i]->graphs;

		for (uint32_t j = 0; j < set->n; j++) {
			struct graph_entry *entry = &set->entries[j];

			if (graph_entry_state(entry) != GRAPH_READY ||
				entry->used_ns / late->generation_ns + 1 >= generation)
				continue;
			late_append_dropping(late, entry);
			n++;
		}
	}
	return n;
}

/* ---- results of tasks ---- */

static const char *late_name_of(const struct graph_entry *entry, char buffer[static 32])
{
	descriptor_format(&entry->descriptor, buffer, 32);
	return buffer;
}

/* The builder destroys what is left of it. */
static void late_fail_capture(struct lane *lane, struct graph_entry *entry, int rc)
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
		late_drop_idle(lane);
	log_limited(&limit, LOG_LEVEL_WARN,
		"graph %s cannot be captured: %s: its batches run eager%s", late_name_of(entry, name),
		device_strerror(rc), entry->failed ? ", until mimeoctl graphs capture tries again"
			: " until it is tried again; fewer --capture-sizes or KV pages leave memory");
	late_append_dropping(&lane->late, entry);
}

static void late_take_build(struct lane *lane, struct graph_entry *entry)
{
	struct late *late = &lane->late;
	char name[32];

	assert(graph_entry_state(entry) == GRAPH_BUILDING);
	late->window = lane->accounting->launched + LANE_STEPS;
	entry->used_ns = clock_ns();
	if (late->rc) {
		if (lane->device->ops->status(lane->device))
			lane_lose_device(lane, late->rc);
		late_fail_capture(lane, entry, late->rc);
		return;
	}
	graph_entry_set_state(entry, GRAPH_READY);
	entry->ordered = false;
	entry->pause_ns = 0;
	counter_add(&lane->stats->n_late_captures, 1);
	log_debug("graph %s: captured while serving", late_name_of(entry, name));
	late_obey_command(lane, entry);
}

static void late_take_drop(struct lane *lane, struct graph_entry *entry)
{
	char name[32];

	assert(graph_entry_state(entry) == GRAPH_DROPPING);
	graph_entry_set_state(entry, entry->failed ? GRAPH_FAILED : GRAPH_EMPTY);
	if (!entry->remains) {
		atomic_fetch_add(&entry->n_drops, 1);
		log_debug("graph %s: dropped", late_name_of(entry, name));
	}
	entry->remains = entry->failed = false;
	late_obey_command(lane, entry);
}

static bool late_take_result(struct lane *lane)
{
	struct late *late = &lane->late;

	if (!late->busy || !atomic_load(&late->done))
		return false;
	late->busy = false;
	if (late->task == LATE_BUILD)
		late_take_build(lane, late->entry);
	else
		late_take_drop(lane, late->entry);
	return true;
}

/* ---- the engine's turns ---- */

static bool late_drop_next(struct lane *lane)
{
	struct late *late = &lane->late;
	struct graph_entry *entry;

	DL_FOREACH (late->dropping, entry) {
		if (entry->last_launch > lane->accounting->completed)
			continue;
		DL_DELETE(late->dropping, entry);
		late_post_task(lane, entry, LATE_DROP);
		return true;
	}
	return false;
}

static bool late_is_due(const struct lane *lane)
{
	const struct late *late = &lane->late;
	uint64_t now;

	if (!late->wanted || late->busy || late->relieving || late->dropping || lane->accounting->draining ||
		lane->accounting->lost)
		return false;
	now = clock_ns();
	return now >= late->next_ns || (!lane->accounting->n_requests && now - late->active_ns > late->quiet_ns);
}

static int late_capture(struct lane *lane, struct graph_entry *entry)
{
	struct runner *runner = runners_find(lane->runners, entry->owner);
	int end, rc = capture_warm_up(entry, &runner->context, lane->stream);

	if (rc == 0)
		rc = capture_record(entry, &runner->executor.breakable, lane->stream);
	/* Work that was queued before the failure may still read its states and slot 0. */
	end = lane->device->ops->stream_sync(lane->stream);
	return rc ? rc : end;
}

static bool late_capture_next(struct lane *lane)
{
	struct late *late = &lane->late;
	struct graph_entry *entry = late->wanted;
	uint64_t start, took;
	int rc;

	if (!late->due || lane->n_inflight)
		return false;
	late->due = false;
	assert(!late->busy && graph_entry_state(entry) == GRAPH_WANTED);
	DL_DELETE(late->wanted, entry);
	graph_entry_set_state(entry, GRAPH_BUILDING);
	/* The builder's closing queue must not consider the lane empty. */
	atomic_store(&lane->stats->n_in_lane, 1);
	start = clock_ns();
	rc = late_capture(lane, entry);
	took = clock_ns() - start;
	atomic_store(&lane->stats->n_in_lane, 0);
	lane->work_since_ns = 0; /* only work for steps is counted there */
	late->next_ns = start + took + LATE_SHARE * took;
	late->window = rc ? lane->accounting->launched + LANE_STEPS : UINT64_MAX;
	atomic_store(&entry->capture_ns, took);
	counter_add(&lane->stats->late_capture_ns, took);
	PROBE_CAPTURE(took);
	if (trace_is_on(lane->trace))
		trace_put(lane->trace, &(struct trace_event){.kind = TRACE_CAPTURE,
			.begin_ns = start,
			.end_ns = start + took,
			.name = graph_mode_name(entry->descriptor.mode),
			.values = {0, 0, 0, 0, entry->descriptor.tokens, entry->descriptor.rows}});
	if (rc && lane->device->ops->status(lane->device))
		lane_lose_device(lane, rc);
	if (rc)
		late_fail_capture(lane, entry, rc);
	else
		late_post_task(lane, entry, LATE_BUILD);
	return true;
}

bool late_turn(struct lane *lane)
{
	struct late *late = &lane->late;
	bool worked;

	late->due = false;
	if (!late->busy && !late->wanted && !late->dropping && !late->relieving)
		return false;
	worked = late_take_result(lane);
	late->due = late_is_due(lane);
	if (!late->busy && !lane->accounting->lost)
		worked |= late_drop_next(lane) || late_capture_next(lane);
	if (late->relieving && (lane->accounting->lost || (!late->busy && !late->dropping))) {
		late->relieving = false;
		builder_relieved(late->builder);
	}
	return worked;
}

bool late_in_gap(const struct lane *lane)
{
	return lane->accounting->completed <= lane->late.window;
}

/* ---- what is asked for ---- */

void late_relieve(struct lane *lane)
{
	uint32_t n = lane->accounting->lost ? 0 : late_drop_idle(lane);

	lane->late.relieving = true;
	if (n)
		log_info("the device is out of memory for a buffer: idle graphs dropped: %u", n);
}

static bool late_is_named(uint32_t named, uint32_t index)
{
	return named == ENGINE_ALL || named == index;
}

static void late_order_each(struct lane *lane, const struct engine_graphs_order *order)
{
	for (uint32_t i = 0; i < lane->runners->n; i++) {
		struct graph_set *set = &lane->runners->all[i]->graphs;

		for (uint32_t j = lane->runners->all[i]->leaving ? 0 : set->n; j-- > 0;) {
			if (!late_is_named(order->model, lane->runners->all[i]->id) || !late_is_named(order->graph, j))
				continue;
			if (order->order == ENGINE_GRAPH_CAPTURE)
				late_obey_capture(&lane->late, &set->entries[j]);
			else
				late_obey_drop(&lane->late, &set->entries[j]);
		}
	}
}

void late_forget(struct lane *lane, struct runner *runner)
{
	for (uint32_t i = 0; i < runner->graphs.n; i++) {
		struct graph_entry *entry = &runner->graphs.entries[i];

		if (graph_entry_state(entry) != GRAPH_WANTED)
			continue;
		DL_DELETE(lane->late.wanted, entry);
		graph_entry_set_state(entry, GRAPH_EMPTY);
	}
}

bool late_is_done_with(const struct runner *runner)
{
	for (uint32_t i = 0; i < runner->graphs.n; i++) {
		const enum graph_state state = graph_entry_state(&runner->graphs.entries[i]);

		if (state == GRAPH_WANTED || state == GRAPH_BUILDING || state == GRAPH_DROPPING)
			return false;
	}
	return true;
}

void late_order(struct lane *lane, const struct engine_graphs_order *order)
{
	if (order->order == ENGINE_GRAPH_DROP_IDLE)
		late_drop_idle(lane);
	else
		late_order_each(lane, order);
	assert(atomic_load(&lane->stats->n_graph_orders) > 0);
	atomic_fetch_sub(&lane->stats->n_graph_orders, 1);
}
