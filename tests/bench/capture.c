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

#define SEGMENTS_MAX 1024u
#define ROUNDS 5u
#define FLOOR                                                                                      \
	"of a graph: recording, instantiating and uploading as many nodes of one element, in as many segments"
#define LATE_FLOOR "of captures while serving: what one takes of the engine, on average"
#define LATE_NOTE                                                                                  \
	"while serving: the longest time that the device stood idle between two steps of a stream " \
	"because a graph was captured beside it"
#define NO_LATE_NOTE "captures while serving are measured on a private daemon only"

struct capture {
	const struct bench_options *options;
	struct results *results;
	struct answer *graphs; /* the daemon's, with their costs */
	uint64_t n_late;       /* graphs captured while serving */
	double late_gap;       /* longest time that the device stood idle for one, seconds */
	double late_turn;      /* that one takes of the engine, on average */
};

/* ---- the daemon's ---- */

static int capture_order(const struct target *target, const char *op)
{
	CLEANUP(cleanup_answer) struct answer *taken = NULL, *graphs = NULL;
	int rc = ask_once(target->admin, &(struct ask){.op = op, .graph = "all"}, &taken);

	if (rc < 0)
		return rc;
	rc = taken->status < 0 ? -EPROTO : order_await(target->admin, &graphs);
	/* The stream needs the dropped graphs again, so captures may go on. */
	return rc == -ETIMEDOUT ? 0 : rc;
}

static int capture_again(const struct target *target, struct capture *capture)
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
	capture->n_late = answer_count(status, 0, "late_captures", 0);
	capture->late_gap = answer_number(status, 0, "late_gap_s");
	capture->late_turn =
		answer_metric(metrics, "mimeo_late_capture_seconds_total", NULL) / (double)capture->n_late;
	return 0;
}

static int capture_late(struct capture *capture, const struct target *target)
{
	CLEANUP(child_kill) struct child child = {0};
	int rc = stream_start(&child, capture->options, target);

	if (rc < 0)
		return rc;
	rc = capture_again(target, capture);
	return rc < 0 ? bench_fail(rc, "captures while serving: %s", strerror(-rc)) : 0;
}

/* ---- the floor ---- */

enum column { SEGMENTS, NODES, TIME, FLOOR_TIME, RATIO, BYTES, FLOOR_BYTES, N_COLUMNS };

static const struct {
	const char *key, *title;
	enum table_unit unit;
} columns[N_COLUMNS] = {
	{"segments", "SEGMENTS", TABLE_COUNT},
	{"nodes", "NODES", TABLE_COUNT},
	{"seconds", "TIME", TABLE_SECONDS},
	{"floor_s", "FLOOR", TABLE_SECONDS},
	{"ratio", "RATIO", TABLE_NUMBER},
	{"bytes", "BYTES", TABLE_BYTES},
	{"floor_bytes", "FLOOR BYTES", TABLE_BYTES},
};

struct blank {
	struct probe *probe;
	void *x; /* one element, and its float 256 bytes behind */
	uint32_t n_nodes;
};

static int blank_queue(void *arg)
{
	struct blank *blank = arg;
	const struct op_to_f32 op = {.x = blank->x, .out = (float *)blank->x + 64, .n = 1};
	int rc = 0;

	for (uint32_t i = 0; i < blank->n_nodes && !rc; i++)
		rc = blank->probe->device->kernels->to_f32(blank->probe->stream, &op);
	return rc;
}

/* The graph's nodes spread evenly over its segments, each of which is recorded, instantiated and
 * uploaded. */
static int blank_capture(struct blank *blank, double graph[N_COLUMNS], struct samples *samples)
{
	const struct device_ops *ops = blank->probe->device->ops;
	uint32_t n_segments = (uint32_t)graph[SEGMENTS], left = (uint32_t)graph[NODES], n = 0;
	struct graph_exec *execs[SEGMENTS_MAX] = {NULL};
	struct graph_info info = {0};
	uint64_t start = clock_ns();
	int rc = n_segments <= SEGMENTS_MAX ? 0 : -ERANGE;

	graph[FLOOR_BYTES] = 0;
	for (; n < n_segments && !rc; n++) {
		blank->n_nodes = left / (n_segments - n);
		left -= blank->n_nodes;
		rc = probe_capture(blank->probe, blank_queue, blank, &execs[n]);
		if (!rc)
			rc = ops->graph_upload(execs[n], blank->probe->stream);
		if (!rc)
			rc = ops->graph_info(execs[n], &info);
		graph[FLOOR_BYTES] += (double)info.bytes;
	}
	if (!rc)
		rc = ops->stream_sync(blank->probe->stream);
	samples_add(samples, clock_ns() - start);
	while (n-- > 0) {
		if (execs[n])
			ops->graph_exec_free(execs[n]);
	}
	return rc;
}

/* ---- rows ---- */

static void capture_row(struct results *results, double graph[N_COLUMNS])
{
	graph[RATIO] = graph[TIME] / graph[FLOOR_TIME];
	for (enum column c = 0; c < N_COLUMNS; c++)
		results_value(results, columns[c].key, columns[c].title, columns[c].unit, graph[c]);
	results_floor(results, FLOOR);
}

/* The row of the daemon's graph i, which is added to `all`. */
static int capture_graph(
	const struct capture *capture, size_t i, struct blank *blank, double all[N_COLUMNS])
{
	static const char *const counts[] = {"tokens", "rows", "query_len"};
	CLEANUP(cleanup_samples) struct samples *samples = samples_new(ROUNDS);
	const struct answer *answer = capture->graphs;
	double graph[N_COLUMNS];
	char text[40];
	int rc = samples ? 0 : -ENOMEM;

	for (enum column c = 0; c < N_COLUMNS; c++)
		graph[c] = columns[c].unit == TABLE_SECONDS
			? answer_number(answer, i, columns[c].key)
			: (double)answer_count(answer, i, columns[c].key, 0);
	for (uint32_t round = 0; round < ROUNDS && !rc; round++)
		rc = blank_capture(blank, graph, samples);
	if (rc)
		return rc;
	graph[FLOOR_TIME] = samples_quantile(samples, 0.5);
	results_row(capture->results);
	answer_text(answer, i, "graph", text, sizeof(text));
	results_text(capture->results, "graph", "GRAPH", text);
	answer_text(answer, i, "mode", text, sizeof(text));
	results_text(capture->results, "mode", NULL, text);
	for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++)
		results_count(capture->results, counts[k], NULL, answer_count(answer, i, counts[k], 0));
	capture_row(capture->results, graph);
	for (enum column c = 0; c < N_COLUMNS; c++)
		all[c] += graph[c];
	return 0;
}

static void capture_late_row(const struct capture *capture)
{
	struct results *results = capture->results;

	if (!capture->n_late) {
		results_note(results, NO_LATE_NOTE);
		return;
	}
	results_row(results);
	results_text(results, "graph", "GRAPH", "while serving");
	results_seconds(results, "seconds", "TIME", capture->late_gap);
	results_seconds(results, "floor_s", "FLOOR", capture->late_turn);
	results_number(results, "ratio", "RATIO", capture->late_gap / capture->late_turn);
	results_floor(results, LATE_FLOOR);
	results_note(results, LATE_NOTE);
}

/* What counts eager steps is no graph, and one that is not captured or was dropped costs nothing. */
static int capture_rows(const struct capture *capture, char *why, size_t size)
{
	CLEANUP(probe_close) struct probe probe = {0};
	struct blank blank = {.probe = &probe, .n_nodes = 1};
	double all[N_COLUMNS] = {0};
	char state[24];
	int rc = probe_open(&probe, capture->options->device, why, size);

	if (rc)
		return rc;
	rc = probe_take(&probe, 512, DTYPE_F32, &blank.x);
	if (rc)
		return rc;
	rc = blank_queue(&blank); /* the op's first use */
	for (size_t i = 0; i < capture->graphs->n_rows && !rc; i++) {
		answer_text(capture->graphs, i, "state", state, sizeof(state));
		rc = strcmp(state, "ready") == 0 ? capture_graph(capture, i, &blank, all) : 0;
	}
	if (rc)
		return rc;
	results_row(capture->results);
	results_text(capture->results, "graph", "GRAPH", "all");
	capture_row(capture->results, all);
	capture_late_row(capture);
	return 0;
}

static int capture_child(void *arg, int fd)
{
	char why[512] = "";

	return bench_fail_device(capture_rows(arg, why, sizeof(why)), "the floor", why) != 0;
}

/* The daemon is gone when the floor is measured. */
static int capture_serve(struct capture *capture)
{
	CLEANUP(target_close) struct target target;
	int rc = target_open(
		capture->options, &(struct spawn_needs){.kv_pages = 256}, capture->results, &target);

	if (rc < 0)
		return rc;
	rc = target_ask(&target, "graphs", &capture->graphs);
	if (rc < 0)
		return bench_fail(rc, "graphs: %s", strerror(-rc));
	return target.is_private && capture->graphs->n_rows ? capture_late(capture, &target) : 0;
}

int bench_capture(const struct bench_options *options, struct results *results)
{
	struct capture capture = {options, results};
	int rc = capture_serve(&capture);

	if (rc == 0)
		rc = child_run("the floor", capture_child, &capture, options->timeout_s);
	cleanup_answer(&capture.graphs);
	return rc;
}
