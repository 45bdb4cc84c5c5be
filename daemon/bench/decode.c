/* SPDX-License-Identifier: MIT */
/*
 * Decode steps of a model in this process, as the daemon's lane runs them: prepare, graph, sampling
 * and outbox, two steps in flight. The floor is the time that a device copy's bandwidth takes for
 * the bytes that a step must read.
 */
#include "daemon/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/child.h"
#include "daemon/bench/probe.h"
#include "daemon/bench/replay.h"
#include "daemon/bench/report.h"

#define DEFAULT_STEPS 64u
#define FLOOR                                                                                      \
	"reading each weight and each row's keys and values once, at the bandwidth of a device "   \
	"copy"
#define NO_ROOM "the KV cache has no room for it"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"model", NULL, TABLE_TEXT},
	{"batch", "BATCH", TABLE_COUNT},
	{"context", "CONTEXT", TABLE_COUNT},
	{"samples", NULL, TABLE_COUNT},
	{"step_median_s", "STEP", TABLE_SECONDS},
	{"step_p99_s", "P99", TABLE_SECONDS},
	{"tokens_per_s", "TOKENS/S", TABLE_NUMBER},
	{"tb_per_s", "TB/S", TABLE_NUMBER},
	{"floor_median_s", "FLOOR", TABLE_SECONDS},
	{"ratio", "RATIO", TABLE_NUMBER},
	{"gap_median_s", "GAP", TABLE_SECONDS},
	{"weight_bytes", NULL, TABLE_COUNT},
	{"kv_bytes", NULL, TABLE_COUNT},
	{"copy_bytes_per_s", NULL, TABLE_NUMBER},
	{"load_bytes", NULL, TABLE_COUNT},
	{"load_s", NULL, TABLE_NUMBER},
	{"reader", NULL, TABLE_TEXT},
	REPORT_COLUMNS,
};

struct decode_run {
	uint32_t batch, context;
	struct samples *steps, *gaps;
	uint64_t kv_bytes;
	bool no_room;
};

/* Shared with the child that fills it. */
struct decode_facts {
	char device[64], reader[32];
	double copy_rate, load_seconds;
	uint64_t weight_bytes, load_bytes;
	struct decode_run runs[BENCH_RUNS_MAX * BENCH_RUNS_MAX];
	uint32_t n_runs;
};

struct decode_work {
	const struct bench_options *options;
	struct decode_facts *facts;
};

static uint32_t n_steps(const struct bench_options *options)
{
	return options->count ? options->count : DEFAULT_STEPS;
}

/* The context is what the middle step sees. */
static struct replay_run replay_of(
	const struct bench_options *options, const struct decode_run *run)
{
	uint32_t before = n_steps(options) / 2 + REPLAY_WARM_UPS + 1;

	return (struct replay_run){
		.mode = GRAPH_FULL,
		.n_rows = run->batch,
		.first = run->context > before ? run->context - before : 0,
		.n_steps = n_steps(options),
		.steps = run->steps,
		.gaps = run->gaps,
	};
}

static struct lane_options lane_for(const struct decode_work *work)
{
	struct lane_options needs = {
		.device = work->options->device,
		.model_dir = work->options->model_dir,
		.attention = work->options->attention};

	for (uint32_t i = 0; i < work->facts->n_runs; i++) {
		const struct replay_run run = replay_of(work->options, &work->facts->runs[i]);

		replay_needs(&run, &needs);
	}
	return needs;
}

static void note_model(struct decode_facts *facts, const struct lane *lane)
{
	snprintf(facts->reader, sizeof(facts->reader), "%s", lane->model->reader);
	facts->load_seconds = lane->model->load_seconds;
	facts->load_bytes = lane->model->file_bytes;
	facts->weight_bytes = lane_weight_bytes(lane->model);
}

/* The copy's buffers come and go before the model does. */
static int copy_rate(struct decode_work *work, char *why, size_t size)
{
	struct probe probe;
	int rc = probe_open(&probe, work->options->device, why, size);

	if (!rc)
		rc = probe_copy_rate(&probe);
	work->facts->copy_rate = probe.rates.copy;
	snprintf(work->facts->device, sizeof(work->facts->device), "%s", probe.info.name);
	probe_close(&probe);
	return rc;
}

static int run_all(struct decode_work *work, struct lane *lane)
{
	int rc = 0;

	note_model(work->facts, lane);
	for (uint32_t i = 0; i < work->facts->n_runs && !rc; i++) {
		struct decode_run *run = &work->facts->runs[i];
		const struct replay_run replay = replay_of(work->options, run);

		run->kv_bytes = lane_kv_bytes(lane, run->batch,
			replay.first + REPLAY_WARM_UPS + n_steps(work->options) / 2 + 1);
		rc = replay_run(lane, &replay);
		run->no_room = rc == -ENOSPC;
		rc = run->no_room ? 0 : rc;
	}
	return rc;
}

static int work_decode(void *arg, int fd)
{
	static struct lane lane;
	struct decode_work *work = arg;
	struct model_error error = {""};
	const struct lane_options options = lane_for(work);
	int rc = copy_rate(work, error.text, sizeof(error.text));

	(void)fd;
	if (!rc)
		rc = lane_open(&lane, &options, &error);
	if (!rc)
		rc = run_all(work, &lane);
	rc = report_outcome("decode", rc, error.text);
	lane_close(&lane);
	return rc;
}

/* ---- the table ---- */

static void fill(struct table *table, const struct bench_options *options,
	const struct target *target, const struct decode_facts *facts, const struct decode_run *run)
{
	double step = samples_quantile(run->steps, 0.5);
	double bytes = (double)(facts->weight_bytes + run->kv_bytes);
	double floor = bytes / facts->copy_rate;

	table_row(table);
	table_set_text(table, "bench", "decode");
	report_model(table, options);
	table_set_count(table, "batch", run->batch);
	table_set_count(table, "context", run->context);
	table_set_count(table, "samples", run->steps->n);
	report_number(table, "step_median_s", step);
	report_number(table, "step_p99_s", samples_quantile(run->steps, 0.99));
	report_number(table, "tokens_per_s", run->batch / step);
	report_number(table, "tb_per_s", bytes / step * 1e-12);
	report_number(table, "floor_median_s", floor);
	report_number(table, "ratio", step / floor);
	report_number(table, "gap_median_s", samples_quantile(run->gaps, 0.5));
	table_set_count(table, "weight_bytes", facts->weight_bytes);
	table_set_count(table, "kv_bytes", run->kv_bytes);
	report_number(table, "copy_bytes_per_s", facts->copy_rate);
	table_set_count(table, "load_bytes", facts->load_bytes);
	table_set_number(table, "load_s", facts->load_seconds);
	table_set_text(table, "reader", facts->reader);
	report_common(table, target, FLOOR, run->no_room ? NO_ROOM : NULL);
}

static int print(const struct bench_options *options, const struct decode_facts *facts)
{
	struct target target;
	struct table *table;
	bool no_room = false;
	int r = table_new(&table, columns, sizeof(columns) / sizeof(columns[0]), 0);

	if (r < 0)
		return r;
	target_none(&target, facts->device);
	for (uint32_t i = 0; i < facts->n_runs; i++) {
		fill(table, options, &target, facts, &facts->runs[i]);
		no_room = no_room || facts->runs[i].no_room;
	}
	r = report_whole(table, "decode", &target, options->json);
	if (r < 0 || options->json)
		return r;
	printf("floor: %s, %.3g TB/s read and written\n", FLOOR, facts->copy_rate * 1e-12);
	printf("weights: %.3f GB read and uploaded in %.2f s (%s, %.2f GB/s)\n",
		(double)facts->load_bytes * 1e-9, facts->load_seconds, facts->reader,
		(double)facts->load_bytes * 1e-9 / facts->load_seconds);
	if (no_room)
		printf("note: a dash: %s\n", NO_ROOM);
	return 0;
}

int bench_decode(const struct bench_options *options)
{
	struct decode_facts *facts = child_memory(sizeof(*facts));
	struct decode_work work = {options, facts};
	int r = facts ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < options->n_batches * options->n_contexts && r == 0; i++) {
		struct decode_run *run = &facts->runs[facts->n_runs++];

		run->batch = options->batches[i / options->n_contexts];
		run->context = options->contexts[i % options->n_contexts];
		run->steps = samples_new(n_steps(options));
		run->gaps = samples_new(n_steps(options));
		r = run->steps && run->gaps ? 0 : -ENOMEM;
	}
	if (r == 0)
		r = child_run("decode", work_decode, &work, options->timeout_s);
	if (r == 0)
		r = print(options, facts);
	for (uint32_t i = 0; facts && i < facts->n_runs; i++) {
		samples_free(facts->runs[i].gaps);
		samples_free(facts->runs[i].steps);
	}
	child_memory_free(facts, sizeof(*facts));
	return r;
}
