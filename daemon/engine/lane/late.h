/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_LATE_H
#define MIMEO_DAEMON_ENGINE_LATE_H

/* Captures and drops of graphs while the daemon serves: late.c. */

#include "daemon/engine/builder.h"
#include "daemon/engine/engine.h"
#include "daemon/graph/graph_set.h"

struct lane;
struct runner;

struct late {
	struct builder_task base; /* first */
	struct lane *lane;
	struct builder *builder;
	struct stream *stream; /* the builder's, for uploads */
	/* the one task that the builder has, if busy */
	bool busy;
	struct graph_entry *entry;
	int task, rc;
	_Atomic bool done;
	/* the engine's alone */
	struct graph_entry *wanted, *dropping; /* in order; the builder's is in neither */
	bool relieving;         /* the builder waits for memory */
	bool due;               /* a capture waits for the lane, and no step is launched before */
	uint64_t generation_ns; /* length of a generation */
	uint64_t quiet_ns;      /* time after the last step from which captures are not limited */
	uint64_t active_ns;     /* a step was launched */
	uint64_t next_ns;       /* no capture before, while requests come */
	uint64_t window;        /* the last launch whose gap a capture may have caused */
};

/* Go on with captures and drops. True if anything moved. */
bool late_turn(struct lane *lane);
/* May a capture have caused the gap before the step that was read last? */
bool late_in_gap(const struct lane *lane);
/* Called for a graph that a step could have replayed. */
void late_want(struct lane *lane, struct graph_entry *entry);
/* The builder needs memory. */
void late_relieve(struct lane *lane);
void late_order(struct lane *lane, const struct engine_graphs_order *order);
/* Of a model that is being unloaded: no graph of it is captured any more. */
void late_forget(struct lane *lane, struct runner *runner);
/* Is none of its graphs being built or dropped? */
bool late_is_done_with(const struct runner *runner);

#endif
