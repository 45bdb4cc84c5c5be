/* SPDX-License-Identifier: MIT */
/*
 * What the graphs of a daemon cost it: each descriptor's seconds (recording, instantiating,
 * uploading) and bytes, as the daemon itself measured them, and all together. The floor is what as
 * many nodes of one element take to record, instantiate and upload, in as many segments. Then what
 * captures cost clients that are served meanwhile: one client streams while all graphs are dropped
 * and captured again.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/child.h"
#include "daemon/bench/probe.h"
#include "daemon/bench/spawn.h"
#include "daemon/ctl/order.h"
#include "tests/bench/stream.h"

#define GRAPHS_MAX 1024u
#define SEGMENTS_MAX 1024u
#define ROUNDS 5u
#define FLOOR                                                                                      \
	"of a graph: recording, instantiating and uploading as many nodes of one element, in as many segments"
#define LATE_FLOOR "of captures while serving: what one takes of the engine, on average"
#define LATE_NOTE                                                                                  \
	"while serving: the longest time that the device stood idle between two steps of a stream " \
	"because a graph was captured beside it"
#define NO_LATE_NOTE "captures while serving are measured on a private daemon only"

struct captured {
	char name[40], mode[24];
	uint32_t tokens, rows, query_len; /* rows, query_len: 0, any */
	uint32_t n_segments, n_nodes;
	double seconds, floor_seconds;
	uint64_t bytes, floor_bytes;
};

/* Shared with the child that measures the floors. */
struct capture_facts {
	struct captured graphs[GRAPHS_MAX];
	uint32_t n;
	uint64_t n_late;     /* graphs captured while serving */
	double late_gap;     /* longest time that the device stood idle for one, seconds */
	double late_turn;    /* that one takes of the engine, on average */
};

struct capture_work {
	const struct bench_options *options;
	struct capture_facts *facts;
};

/* ---- the daemon's ---- */

/* What counts eager steps is no graph, and one that is not captured or was dropped costs nothing. */
static int capture_graphs(const struct target *target, struct capture_facts *facts)
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;
	int rc = target_ask(target, "graphs", &answer);

	if (rc < 0)
		return bench_fail(rc, "graphs: %s", strerror(-rc));
	for (size_t i = 0; i < answer->n_rows && facts->n < GRAPHS_MAX; i++) {
		struct captured *graph = &facts->graphs[facts->n];
		char state[24];

		if (strcmp(answer_text(answer, i, "state", state, sizeof(state)), "ready") != 0)
			continue;
		answer_text(answer, i, "graph", graph->name, sizeof(graph->name));
		answer_text(answer, i, "mode", graph->mode, sizeof(graph->mode));
		graph->tokens = (uint32_t)answer_count(answer, i, "tokens", 0);
		graph->rows = (uint32_t)answer_count(answer, i, "rows", 0);
		graph->query_len = (uint32_t)answer_count(answer, i, "query_len", 0);
		graph->n_segments = (uint32_t)answer_count(answer, i, "segments", 0);
		graph->n_nodes = (uint32_t)answer_count(answer, i, "nodes", 0);
		graph->bytes = answer_count(answer, i, "bytes", 0);
		graph->seconds = answer_number(answer, i, "seconds");
		facts->n++;
	}
	return 0;
}

static int capture_order(const struct target *target, const char *op)
{
	CLEANUP(cleanup_answer) struct answer *taken = NULL, *graphs = NULL;
	int rc = ask_send(target->admin, &(struct ask){.op = op, .graph = "all"});

	if (rc == 0)
		rc = ask_receive(target->admin, &taken);
	if (rc == 0)
		rc = taken->status < 0 ? -EPROTO : order_await(target->admin, &graphs);
	/* The stream needs the dropped graphs again, so captures may go on. */
	return rc == -ETIMEDOUT ? 0 : rc;
}

static int capture_again(const struct target *target, struct capture_facts *facts)
{
	CLEANUP(cleanup_answer) struct answer *status = NULL, *metrics = NULL;
	int rc = capture_order(target, "drop");

	if (rc < 0)
		return rc;
	rc = capture_order(target, "capture");
	if (rc < 0)
		return rc;
	rc = target_ask(target, "metrics", &metrics);
	if (rc < 0)
		return rc;
	rc = target_ask(target, "status", &status);
	if (rc < 0)
		return rc;
	facts->n_late = answer_count(status, 0, "late_captures", 0);
	facts->late_gap = answer_number(status, 0, "late_gap_s");
	facts->late_turn = 1e-9 / (double)facts->n_late *
			   (double)answer_metric(metrics, "mimeo_late_capture_nanoseconds_total", NULL);
	return 0;
}

static int capture_late(const struct bench_options *options, const struct target *target,
	struct capture_facts *facts)
{
	CLEANUP(child_kill) struct child child = {0};
	int rc = stream_start(&child, options, target);

	if (rc < 0)
		return rc;
	rc = capture_again(target, facts);
	return rc < 0 ? bench_fail(rc, "captures while serving: %s", strerror(-rc)) : 0;
}

/* ---- the floor ---- */

struct blank {
	struct probe probe;
	void *x; /* one element, and its float 256 bytes behind */
	uint32_t n_nodes;
};

static int blank_queue(void *arg)
{
	struct blank *blank = arg;
	const struct op_to_f32 op = {.x = blank->x, .out = (float *)blank->x + 64, .n = 1};
	int rc = 0;

	for (uint32_t i = 0; i < blank->n_nodes && !rc; i++)
		rc = blank->probe.device->kernels->to_f32(blank->probe.stream, &op);
	return rc;
}

/* The graph's nodes spread evenly over its segments, each of which is recorded, instantiated and
 * uploaded. */
static int blank_capture(struct blank *blank, struct captured *graph, struct samples *samples)
{
	const struct device_ops *ops = blank->probe.device->ops;
	struct graph_exec *execs[SEGMENTS_MAX] = {NULL};
	struct graph_info info = {0};
	uint32_t left = graph->n_nodes, n = 0;
	uint64_t start = stats_now();
	int rc = graph->n_segments <= SEGMENTS_MAX ? 0 : -ERANGE;

	graph->floor_bytes = 0;
	for (; n < graph->n_segments && !rc; n++) {
		blank->n_nodes = left / (graph->n_segments - n);
		left -= blank->n_nodes;
		rc = probe_capture(&blank->probe, blank_queue, blank, &execs[n]);
		if (!rc)
			rc = ops->graph_upload(execs[n], blank->probe.stream);
		if (!rc)
			rc = ops->graph_info(execs[n], &info);
		graph->floor_bytes += info.bytes;
	}
	if (!rc)
		rc = ops->stream_sync(blank->probe.stream);
	samples_add(samples, stats_now() - start);
	while (n-- > 0) {
		if (execs[n])
			ops->graph_exec_free(execs[n]);
	}
	return rc;
}

static int blank_measure(struct blank *blank, struct captured *graph)
{
	CLEANUP(cleanup_samples) struct samples *samples = samples_new(ROUNDS);

	if (!samples)
		return -ENOMEM;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		int rc = blank_capture(blank, graph, samples);

		if (rc)
			return rc;
	}
	graph->floor_seconds = samples_quantile(samples, 0.5);
	return 0;
}

static int blank_measure_all(
	struct blank *blank, const struct capture_work *work, char *why, size_t size)
{
	int rc = probe_open(&blank->probe, work->options->device, why, size);

	if (rc)
		return rc;
	rc = probe_take(&blank->probe, 512, DTYPE_F32, &blank->x);
	if (rc)
		return rc;
	rc = blank_queue(blank); /* the op's first use */
	for (uint32_t i = 0; i < work->facts->n && !rc; i++)
		rc = blank_measure(blank, &work->facts->graphs[i]);
	return rc;
}

static int capture_child(void *arg, int fd)
{
	struct blank blank = {.n_nodes = 1};
	char why[512] = "";
	int rc = blank_measure_all(&blank, arg, why, sizeof(why));

	probe_close(&blank.probe);
	return bench_fail_device(rc, "the floor", why) != 0;
}

/* ---- rows ---- */

/* Of one graph, or of all: `whole`. */
static void capture_row(struct results *results, const struct captured *graph, bool whole)
{
	results_row(results);
	results_text(results, "graph", "GRAPH", graph->name);
	if (!whole) {
		results_text(results, "mode", NULL, graph->mode);
		results_count(results, "tokens", NULL, graph->tokens);
		results_count(results, "rows", NULL, graph->rows);
		results_count(results, "query_len", NULL, graph->query_len);
	}
	results_count(results, "segments", "SEGMENTS", graph->n_segments);
	results_count(results, "nodes", "NODES", graph->n_nodes);
	results_seconds(results, "seconds", "TIME", graph->seconds);
	results_seconds(results, "floor_s", "FLOOR", graph->floor_seconds);
	results_number(results, "ratio", "RATIO", graph->seconds / graph->floor_seconds);
	results_value(results, "bytes", "BYTES", TABLE_BYTES, (double)graph->bytes);
	results_value(
		results, "floor_bytes", "FLOOR BYTES", TABLE_BYTES, (double)graph->floor_bytes);
	results_floor(results, FLOOR);
}

static void capture_rows(struct results *results, const struct capture_facts *facts)
{
	struct captured all = {.name = "all"};

	for (uint32_t i = 0; i < facts->n; i++) {
		const struct captured *graph = &facts->graphs[i];

		capture_row(results, graph, false);
		all.n_segments += graph->n_segments;
		all.n_nodes += graph->n_nodes;
		all.seconds += graph->seconds;
		all.floor_seconds += graph->floor_seconds;
		all.bytes += graph->bytes;
		all.floor_bytes += graph->floor_bytes;
	}
	capture_row(results, &all, true);
	if (!facts->n_late) {
		results_note(results, NO_LATE_NOTE);
		return;
	}
	results_row(results);
	results_text(results, "graph", "GRAPH", "while serving");
	results_seconds(results, "seconds", "TIME", facts->late_gap);
	results_seconds(results, "floor_s", "FLOOR", facts->late_turn);
	results_number(results, "ratio", "RATIO", facts->late_gap / facts->late_turn);
	results_floor(results, LATE_FLOOR);
	results_note(results, LATE_NOTE);
}

/* The daemon is gone when the floor is measured. */
static int capture_serve(const struct bench_options *options, struct results *results,
	struct capture_facts *facts)
{
	CLEANUP(target_close) struct target target;
	int rc = target_open(options, &(struct spawn_needs){.kv_pages = 256}, results, &target);

	if (rc < 0)
		return rc;
	rc = capture_graphs(&target, facts);
	if (rc < 0 || !target.is_private || !facts->n)
		return rc;
	return capture_late(options, &target, facts);
}

int bench_capture(const struct bench_options *options, struct results *results)
{
	struct capture_facts *facts = child_memory(sizeof(*facts));
	struct capture_work work = {options, facts};

	if (!facts)
		return bench_fail(-ENOMEM, "no memory");
	int rc = capture_serve(options, results, facts);
	if (rc == 0)
		rc = child_run("the floor", capture_child, &work, options->timeout_s);
	if (rc == 0)
		capture_rows(results, facts);
	child_memory_free(facts, sizeof(*facts));
	return rc;
}
