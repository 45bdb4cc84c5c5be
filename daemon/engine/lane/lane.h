/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_LANE_H
#define MIMEO_DAEMON_ENGINE_LANE_H

/*
 * The lane: the one stream on which graphs replay, and the steps that are in flight on it. The engine's thread
 * alone, except where it says otherwise.
 *
 *	schedule.c  which rows the next step carries
 *	step.c      launches it
 *	updates.c   tells slots what their requests say about logits
 *	positions.c computes results of more positions of a row than its last
 *	results.c   reads its results and retires it
 *	tracing.c   writes a step and its rows into the trace
 *	idle.c      waits, with or without steps in flight
 *	late.c      captures and drops graphs while the daemon serves
 */

#include "daemon/engine/lane/idle.h"
#include "daemon/engine/lane/late.h"
#include "daemon/engine/lane/pace.h"
#include "daemon/engine/lane/positions.h"
#include "daemon/engine/requests/accounting.h"
#include "daemon/engine/trace.h"

#define LANE_STEPS 2 /* launched ahead of what the host has read, the current one included */

struct inflight_row {
	struct sequence *sequence;
	uint64_t request; /* its request's order */
	bool sample;
	bool decodes;   /* else it computes tokens of a prompt */
	bool last;      /* completes the sequence's target */
	bool verify;    /* its draft tokens are verified: it yields 1 ... 1 + n_drafts tokens, or none */
	uint32_t end;   /* of its tokens in the sequence; where it verifies, the least */
	int32_t result; /* index into the inputs slot's logits and hidden, or -1 */
	struct positions positions;
};

/* A launched step whose end the host has not seen. */
struct inflight {
	struct runner *runner;
	struct inputs_slot *slot;
	uint64_t step; /* the runner's number of it */
	uint32_t n_rows;
	struct inflight_row *rows; /* [max_requests] */
	uint32_t *sources;         /* [max_requests, KV_SETS_MAX] copied pages to release */
	uint32_t n_sources;
	bool notify;               /* a host function wakes the engine behind it */
	struct event *end;         /* recorded behind it if `notify` */
	struct event *results;     /* the same behind its results, if draft passes follow them */
	struct graph_entry *entry; /* NULL: eager */
	uint64_t expected_ns;      /* the lane's time for the last steps like it; 0: unknown */
	uint64_t results_ns;       /* of that the time up to the results */
	bool follows;              /* a generating row of it was in the runner's step before */
	bool drafts;               /* draft passes are part of it */
	bool positions;            /* and results of positions */
	uint32_t n_drafts;         /* the most draft tokens that one of its rows wants */
	uint32_t n_prompt;         /* tokens of rows that are no decodes */
	uint32_t n_decodes;        /* rows that are */
	enum eager_reason eager;   /* why entry is NULL */
	uint64_t number;           /* among the steps of all models */
	uint32_t n_ending;         /* rows whose requests reach max_tokens with it */
	bool read; /* its results were read, except those of rows with positions; it stays in the lane while its
	              last part runs */
};

/* Its tokens go ahead of its last part: draft passes, results of positions. */
static inline bool inflight_is_divided(const struct inflight *inflight)
{
	return inflight->drafts || inflight->positions;
}

/* What the scheduler remembers of a model from step to step. */
struct schedule {
	uint32_t turn;
	struct pace pace;
	bool whole_waits; /* tokens that must be computed in one step had no space in the last one */
	bool chunks_wait; /* prompts had no space in the last step beside decodes */
	bool warned_too_wide;
};

struct lane {
	const struct engine_options *options;
	struct device *device;
	struct stream *stream, *bell; /* bell: host functions that wake the engine */
	struct loop *loop;
	struct engine_stats *stats;
	struct accounting *accounting;
	struct trace *trace;
	uint64_t traced_ns; /* where the last step of the trace ended */
	struct runners *runners;
	uint32_t runner_turn;
	struct schedule schedules[ENGINE_MODELS_MAX]; /* by the runners' places */
	struct inflight inflight[LANE_STEPS];
	uint32_t first, n_inflight;
	uint64_t work_since_ns; /* this turn's work with steps; 0: none so far */
	uint64_t ended_ns;      /* end of the last step that was read, on the device's clock */
	struct idle idle;
	struct late late;
#ifdef MIMEO_TEST_FAULTS
	uint32_t preempt_every; /* tokens; 0: never without need */
#endif
};

/* Streams and events of `device`; options, device, stats, accounting and loop are set. 0, or the
 * device's answer; then lane_deinit. */
int lane_init(struct lane *lane);
/* Also of a lane that was never or partly made. Nothing is in flight. */
void lane_deinit(struct lane *lane);
static inline struct inflight *lane_oldest(struct lane *lane)
{
	return &lane->inflight[lane->first];
}
/* Results of the oldest step are there and not read, or it has ended. */
bool lane_is_ready(const struct lane *lane);
/* The first work with steps in a turn; it ends with the turn. */
void lane_work_begins(struct lane *lane);
/* The device failed with rc: ends every request with DEVICE_LOST and reports it, once. */
void lane_lose_device(struct lane *lane, int rc);

/* ---- schedule.c ---- */

/* Fill the step with rows that can run now. False if there are none. */
bool schedule_rows(struct lane *lane, struct inflight *inflight, struct batch_shape *ret_shape);

/* ---- step.c ---- */

/* Launch steps until LANE_STEPS are in flight, nothing can run or it is too early (idle.c). True if any was launched. */
bool step_launch(struct lane *lane);

/* ---- tracing.c ---- */

/* The step has ended, at these times of the device's clock. */
void tracing_step(struct lane *lane, const struct inflight *inflight, uint64_t began, uint64_t ended);

/* ---- results.c ---- */

/* Read the results of steps; those that completed leave the lane. True if there was anything. */
bool results_take(struct lane *lane);

#endif
