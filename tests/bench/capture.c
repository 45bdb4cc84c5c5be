/* SPDX-License-Identifier: MIT */
/*
 * What the graphs of a daemon cost it: each descriptor's seconds (recording,
 * instantiating, uploading) and bytes, as the daemon itself measured them, and all together. The
 * floor is what as many nodes of one element take to record, instantiate and upload, in as many
 * segments. Then what captures cost those who are served meanwhile: capture_late.c.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/capture_late.h"
#include "daemon/bench/child.h"
#include "daemon/bench/probe.h"
#include "daemon/bench/report.h"

#define GRAPHS_MAX 1024u
#define FLOOR                                                                                      \
	"recording, instantiating and uploading as many nodes of one element, in as many segments"
#define ROUNDS 5u
#define LATE_NOTE                                                                                  \
	"while serving: the longest time that the device stood idle between two steps of a stream " \
	"because a graph was captured beside it; its floor is what a capture takes of the engine, "  \
	"on average"
#define NO_LATE_NOTE "captures while serving are measured on a private daemon only"
#define LATE_FLOOR "what a capture takes of the engine, on average"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"graph", "GRAPH", TABLE_TEXT},
	{"mode", NULL, TABLE_TEXT},
	{"tokens", NULL, TABLE_COUNT},
	{"rows", NULL, TABLE_COUNT},
	{"query_len", NULL, TABLE_COUNT},
	{"segments", "SEGMENTS", TABLE_COUNT},
	{"nodes", "NODES", TABLE_COUNT},
	{"seconds", "TIME", TABLE_SECONDS},
	{"floor_s", "FLOOR", TABLE_SECONDS},
	{"ratio", "RATIO", TABLE_NUMBER},
	{"bytes", "BYTES", TABLE_BYTES},
	{"floor_bytes", "FLOOR BYTES", TABLE_BYTES},
	REPORT_COLUMNS,
};

struct captured {
	char name[40], mode[24];
	uint32_t tokens, rows, query_len; /* rows, query_len: 0, any */
	uint32_t n_segments, n_nodes;
	double seconds, floor_seconds;
	uint64_t bytes, floor_bytes;
};

struct capture_facts {
	struct captured graphs[GRAPHS_MAX];
	uint32_t n;
	struct capture_late late;
};

struct capture_work {
	const struct bench_options *options;
	struct capture_facts *facts;
};

/* ---- the daemon's ---- */

static void take(struct captured *graph, const struct answer *answer, size_t row)
{
	answer_text(answer, row, "graph", graph->name, sizeof(graph->name));
	answer_text(answer, row, "mode", graph->mode, sizeof(graph->mode));
	graph->tokens = (uint32_t)answer_count(answer, row, "tokens", 0);
	graph->rows = (uint32_t)answer_count(answer, row, "rows", 0);
	graph->query_len = (uint32_t)answer_count(answer, row, "query_len", 0);
	graph->n_segments = (uint32_t)answer_count(answer, row, "segments", 0);
	graph->n_nodes = (uint32_t)answer_count(answer, row, "nodes", 0);
	graph->bytes = answer_count(answer, row, "bytes", 0);
	graph->seconds = answer_number(answer, row, "seconds");
}

/* What counts eager steps is no graph, and what is not captured, or was dropped, costs nothing. */
static int take_graphs(const struct target *target, struct capture_facts *facts)
{
	struct answer *answer;
	int r = target_ask(target, "graphs", &answer);

	if (r < 0) {
		fprintf(stderr, "mimeo-bench: graphs: %s\n", strerror(-r));
		return r;
	}
	for (size_t i = 0; i < answer->n_rows && facts->n < GRAPHS_MAX; i++) {
		char state[24];

		answer_text(answer, i, "state", state, sizeof(state));
		if (strcmp(state, "ready") == 0)
			take(&facts->graphs[facts->n++], answer, i);
	}
	answer_free(answer);
	return 0;
}

/* ---- the floor ---- */

struct blank {
	struct probe probe;
	void *x; /* one element, and room for its float */
	float *out;
};

static int record(struct blank *blank, uint32_t n_nodes, struct graph **ret)
{
	const struct device_ops *ops = blank->probe.device->ops;
	int rc = ops->capture_begin(blank->probe.stream), end;

	for (uint32_t i = 0; i < n_nodes && !rc; i++)
		rc = blank->probe.device->kernels->to_f32(blank->probe.stream,
			&(struct op_to_f32){.x = blank->x, .out = blank->out, .n = 1});
	end = ops->capture_end(blank->probe.stream, ret);
	if (rc && !end)
		ops->graph_free(*ret);
	return rc ? rc : end;
}

/* One segment; *ret_exec is the caller's, and the bytes are added. */
static int capture_segment(struct blank *blank, uint32_t n_nodes, struct graph_exec **ret_exec,
	uint64_t *bytes)
{
	const struct device_ops *ops = blank->probe.device->ops;
	struct graph_info info = {0};
	struct graph_exec *exec = NULL;
	struct graph *graph;
	int rc = record(blank, n_nodes, &graph);

	if (rc)
		return rc;
	rc = ops->graph_instantiate(blank->probe.device, graph, &exec);
	if (!rc)
		rc = ops->graph_upload(exec, blank->probe.stream);
	if (!rc)
		rc = ops->graph_info(exec, &info);
	ops->graph_free(graph);
	*bytes += info.bytes;
	*ret_exec = exec;
	return rc;
}

/* The graph's nodes spread evenly over its segments. */
static int capture_blank(struct blank *blank, const struct captured *graph, double *ret_seconds,
	uint64_t *ret_bytes)
{
	const struct device_ops *ops = blank->probe.device->ops;
	struct graph_exec **execs = calloc(graph->n_segments, sizeof(struct graph_exec *));
	uint32_t left = graph->n_nodes;
	uint64_t start = stats_now(), bytes = 0;
	int rc = execs ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < graph->n_segments && !rc; i++) {
		uint32_t n = left / (graph->n_segments - i);

		rc = capture_segment(blank, n, &execs[i], &bytes);
		left -= n;
	}
	if (!rc)
		rc = ops->stream_sync(blank->probe.stream);
	*ret_seconds = (double)(stats_now() - start) * 1e-9;
	*ret_bytes = bytes;
	for (uint32_t i = 0; execs && i < graph->n_segments; i++) {
		if (execs[i])
			ops->graph_exec_free(execs[i]);
	}
	free(execs);
	return rc;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median; a graph of as many nodes and segments as one before costs what that one did. */
static int measure_floor(struct blank *blank, struct capture_facts *facts, uint32_t index)
{
	struct captured *graph = &facts->graphs[index];
	double seconds[ROUNDS];
	int rc = 0;

	for (uint32_t i = 0; i < index; i++) {
		if (facts->graphs[i].n_nodes != graph->n_nodes ||
			facts->graphs[i].n_segments != graph->n_segments)
			continue;
		graph->floor_seconds = facts->graphs[i].floor_seconds;
		graph->floor_bytes = facts->graphs[i].floor_bytes;
		return 0;
	}
	for (uint32_t i = 0; i < ROUNDS && !rc; i++)
		rc = capture_blank(blank, graph, &seconds[i], &graph->floor_bytes);
	if (rc)
		return rc;
	qsort(seconds, ROUNDS, sizeof(seconds[0]), by_value);
	graph->floor_seconds = seconds[ROUNDS / 2];
	return 0;
}

static int work_floor(void *arg, int fd)
{
	struct capture_work *work = arg;
	struct blank blank = {.out = NULL};
	char why[512] = "";
	int rc = probe_open(&blank.probe, work->options->device, why, sizeof(why));

	(void)fd;
	if (!rc)
		rc = probe_random(&blank.probe, 512, DTYPE_F32, &blank.x);
	if (!rc) {
		blank.out = (float *)((char *)blank.x + 256);
		/* the op's first use, and the first graph's */
		rc = blank.probe.device->kernels->to_f32(blank.probe.stream,
			&(struct op_to_f32){.x = blank.x, .out = blank.out, .n = 1});
	}
	for (uint32_t i = 0; i < work->facts->n && !rc; i++)
		rc = measure_floor(&blank, work->facts, i);
	rc = report_outcome("the floor", rc, why);
	if (blank.probe.device && blank.x)
		blank.probe.device->ops->mem_free(blank.probe.device, blank.x);
	probe_close(&blank.probe);
	return rc;
}

/* ---- the table ---- */

static void fill(
	struct table *table, const struct target *target, const struct captured *graph, bool whole)
{
	table_row(table);
	table_set_text(table, "bench", "capture");
	table_set_text(table, "graph", graph->name);
	if (!whole) {
		table_set_text(table, "mode", graph->mode);
		table_set_count(table, "tokens", graph->tokens);
		table_set_count(table, "rows", graph->rows);
		table_set_count(table, "query_len", graph->query_len);
	}
	table_set_count(table, "segments", graph->n_segments);
	table_set_count(table, "nodes", graph->n_nodes);
	table_set_number(table, "seconds", graph->seconds);
	table_set_number(table, "floor_s", graph->floor_seconds);
	report_number(table, "ratio", graph->seconds / graph->floor_seconds);
	table_set_count(table, "bytes", graph->bytes);
	table_set_count(table, "floor_bytes", graph->floor_bytes);
	report_common(table, target, FLOOR, NULL);
}

static void fill_late(
	struct table *table, const struct target *target, const struct capture_late *late)
{
	table_row(table);
	table_set_text(table, "bench", "capture");
	table_set_text(table, "graph", "while serving");
	table_set_number(table, "seconds", late->gap_seconds);
	table_set_number(table, "floor_s", late->turn_seconds);
	report_number(table, "ratio", late->gap_seconds / late->turn_seconds);
	report_common(table, target, LATE_FLOOR, LATE_NOTE);
}

static int print(const struct bench_options *options, const struct target *target,
	const struct capture_facts *facts)
{
	struct captured all = {.name = "all"};
	struct table *table;
	int r = table_new(&table, columns, sizeof(columns) / sizeof(columns[0]), 0);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < facts->n; i++) {
		const struct captured *graph = &facts->graphs[i];

		fill(table, target, graph, false);
		all.n_segments += graph->n_segments;
		all.n_nodes += graph->n_nodes;
		all.seconds += graph->seconds;
		all.floor_seconds += graph->floor_seconds;
		all.bytes += graph->bytes;
		all.floor_bytes += graph->floor_bytes;
	}
	fill(table, target, &all, true);
	if (facts->late.n)
		fill_late(table, target, &facts->late);
	r = report_whole(table, "capture", target, options->json);
	if (r == 0 && !options->json)
		printf("floor: %s\nnote: %s\n", FLOOR, facts->late.n ? LATE_NOTE : NO_LATE_NOTE);
	return r;
}

int bench_capture(const struct bench_options *options)
{
	struct capture_facts *facts = child_memory(sizeof(*facts));
	struct capture_work work = {options, facts};
	struct target target = {.admin = -1};
	int r = facts ? 0 : -ENOMEM;

	if (r == 0)
		r = target_open(options, &(struct spawn_needs){.kv_pages = 64}, &target);
	if (r == 0)
		r = take_graphs(&target, facts);
	if (r == 0 && target.is_private && facts->n)
		r = capture_late_measure(options, &target, &facts->late);
	target_close(&target);
	if (r == 0)
		r = child_run("the floor", work_floor, &work, options->timeout_s);
	if (r == 0)
		r = print(options, &target, facts);
	child_memory_free(facts, sizeof(*facts));
	return r;
}
