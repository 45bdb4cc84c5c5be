/* SPDX-License-Identifier: MIT */
/*
 * What device buffers cost: the calls that make and close them, a step that leaves its logits in
 * one, and what other clients notice when memory is given back.
 */
#include "tests/bench/buffer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/report.h"
#include "tests/bench/internals.h"

#define DEFAULT_COUNT 20u
#define STEPS_A_COUNT 10u
#define USUAL_MAX (1u << 19) /* gaps */
#define CALL_FLOOR                                                                                 \
	"the same memory made or given back by the device in one process, and a message there "    \
	"and back on a Unix socket, by turns"
#define STEP_FLOOR "the same step with sampled tokens only, by turns"
#define GAP_FLOOR "all gaps of that client while nothing is closed"
#define CPU_NOTE                                                                                   \
	"on the cpu device only ratios count, and a buffer has no pages until they are touched"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"measure", "MEASURE", TABLE_TEXT},
	{"bytes", NULL, TABLE_COUNT},
	{"n_rows", NULL, TABLE_COUNT},
	REPORT_SAMPLES_COLUMNS,
	{"extra_s", "MORE", TABLE_SECONDS},
	{"saved_bytes", "SAVED", TABLE_BYTES},
	REPORT_COLUMNS,
};

static const char *const size_names[BUFFER_SIZES] = {"4 KiB", "2 MiB", "64 MiB"};

static const struct {
	const char *make, *close;
} way_names[BUFFER_WAYS] = {
	[BUFFER_MEMFD] = {"allocate memfd", "close memfd"},
	[BUFFER_IMPORT] = {"import memfd", "close imported memfd"},
	[BUFFER_VMM_FD] = {"allocate VMM fd", "close VMM fd"},
	[BUFFER_CUDA_IPC] = {"allocate CUDA IPC", "close CUDA IPC"},
};

static const char *const step_names[BUFFER_STEPS] = {
	[BUFFER_ARENA] = "step, logits in the arena",
	[BUFFER_RECORDED] = "step, logits in a buffer, to the fence",
	[BUFFER_FENCED] = "step, logits in a buffer, to the end",
};

static const char *const closing_names[BUFFER_CLOSINGS] = {
	[BUFFER_NOTHING] = "longest gap, nothing closed",
	[BUFFER_DESCRIPTORS] = "longest gap, descriptors closed",
	[BUFFER_HANDLES] = "longest gap, CUDA IPC closed",
};

/* ---- the table ---- */

/* Begins a row. */
static void fill(struct table *table, const struct target *target, const char *name,
	struct samples *result, struct samples *floor, const char *floor_name)
{
	table_row(table);
	table_set_text(table, "bench", "buffer");
	table_set_text(table, "measure", name);
	report_samples(table, result, floor);
	report_common(table, target, floor_name,
		strncmp(target->device, "cpu", 3) == 0 ? CPU_NOTE : NULL);
}

static void fill_calls(struct table *table, const struct target *target,
	const struct buffer_bench *bench, enum buffer_way way)
{
	char name[64];

	for (uint32_t i = 0; i < BUFFER_SIZES; i++) {
		const struct buffer_calls *calls = &bench->calls[way][i];
		const struct buffer_calls *floors = &bench->floors[way][i];

		if (calls->make->n == 0)
			continue;
		snprintf(name, sizeof(name), "%s, %s", way_names[way].make, size_names[i]);
		fill(table, target, name, calls->make, floors->make, CALL_FLOOR);
		table_set_count(table, "bytes", buffer_sizes[i]);
		snprintf(name, sizeof(name), "%s, %s", way_names[way].close, size_names[i]);
		fill(table, target, name, calls->close, floors->close, CALL_FLOOR);
		table_set_count(table, "bytes", buffer_sizes[i]);
	}
}

static void fill_steps(struct table *table, const struct target *target,
	const struct buffer_bench *bench, uint32_t batch)
{
	uint64_t bytes = sizeof(float) * buffer_batches[batch] * (uint64_t)*bench->vocab_size;
	struct samples *bare = bench->step[batch][BUFFER_BARE];
	char name[80];

	for (enum buffer_step way = BUFFER_ARENA; way < BUFFER_STEPS; way++) {
		struct samples *result = bench->step[batch][way];

		snprintf(name, sizeof(name), "%s, %u row%s", step_names[way], buffer_batches[batch],
			buffer_batches[batch] == 1 ? "" : "s");
		fill(table, target, name, result, bare, STEP_FLOOR);
		table_set_count(table, "bytes", bytes);
		table_set_count(table, "n_rows", buffer_batches[batch]);
		report_number(table, "extra_s",
			samples_quantile(result, 0.5) - samples_quantile(bare, 0.5));
		table_set_count(table, "saved_bytes", way == BUFFER_ARENA ? 0 : bytes);
	}
}

static void fill_all(
	struct table *table, const struct target *target, const struct buffer_bench *bench)
{
	for (enum buffer_way way = 0; way < BUFFER_WAYS; way++)
		fill_calls(table, target, bench, way);
	for (uint32_t i = 0; i < BUFFER_BATCHES; i++)
		fill_steps(table, target, bench, i);
	for (enum buffer_closing i = 0; i < BUFFER_CLOSINGS; i++) {
		if (bench->longest[i]->n > 0)
			fill(table, target, closing_names[i], bench->longest[i], bench->usual,
				GAP_FLOOR);
	}
}

static int print(const struct buffer_bench *bench, const struct target *target)
{
	struct table *table;
	int r = table_new(&table, columns, sizeof(columns) / sizeof(columns[0]), 0);

	if (r < 0)
		return r;
	fill_all(table, target, bench);
	r = report_whole(table, "buffer", target, bench->options->json);
	if (r < 0 || bench->options->json)
		return r;
	printf("floor of calls: " CALL_FLOOR "\n"
	       "floor of steps: " STEP_FLOOR "; more: beyond it; saved: bytes a step that are "
	       "not copied to the host and into the arena\n"
	       "floor of gaps: " GAP_FLOOR "; a sample is the longest of a round\n");
	if (strncmp(target->device, "cpu", 3) == 0)
		printf("note: %s\n", CPU_NOTE);
	return 0;
}

/* ---- the run ---- */

static bool take(struct samples **ret, uint32_t capacity)
{
	*ret = samples_new(capacity);
	return *ret;
}

static bool take_calls(struct buffer_calls *calls, uint32_t count)
{
	return take(&calls->make, count) && take(&calls->close, count);
}

static int init(struct buffer_bench *bench)
{
	bool ok = take(&bench->usual, USUAL_MAX);

	for (enum buffer_way way = 0; way < BUFFER_WAYS; way++) {
		for (uint32_t i = 0; i < BUFFER_SIZES && ok; i++)
			ok = take_calls(&bench->calls[way][i], bench->count) &&
			     take_calls(&bench->floors[way][i], bench->count);
	}
	for (uint32_t i = 0; i < BUFFER_BATCHES; i++) {
		for (enum buffer_step way = 0; way < BUFFER_STEPS && ok; way++)
			ok = take(&bench->step[i][way], bench->steps);
	}
	for (enum buffer_closing i = 0; i < BUFFER_CLOSINGS && ok; i++)
		ok = take(&bench->longest[i], BUFFER_ROUNDS);
	bench->vocab_size = child_memory(sizeof(*bench->vocab_size));
	return ok && bench->vocab_size ? 0 : -ENOMEM;
}

static void give_calls(struct buffer_calls *calls)
{
	samples_free(calls->close);
	samples_free(calls->make);
}

static void deinit(struct buffer_bench *bench)
{
	child_memory_free(bench->vocab_size, sizeof(*bench->vocab_size));
	for (enum buffer_closing i = 0; i < BUFFER_CLOSINGS; i++)
		samples_free(bench->longest[i]);
	for (uint32_t i = 0; i < BUFFER_BATCHES; i++) {
		for (enum buffer_step way = 0; way < BUFFER_STEPS; way++)
			samples_free(bench->step[i][way]);
	}
	for (enum buffer_way way = 0; way < BUFFER_WAYS; way++) {
		for (uint32_t i = 0; i < BUFFER_SIZES; i++) {
			give_calls(&bench->floors[way][i]);
			give_calls(&bench->calls[way][i]);
		}
	}
	samples_free(bench->usual);
}

/* With a partner for their floor. */
static int run_calls(struct buffer_bench *bench)
{
	int r = buffer_floor_start(&bench->floor);

	if (r == 0)
		r = child_run("buffers", buffer_calls_work, bench, bench->options->timeout_s);
	else
		fprintf(stderr, "mimeo-bench: the floor: %s\n", strerror(-r));
	buffer_floor_stop(&bench->floor);
	return r;
}

static int run(struct buffer_bench *bench)
{
	const struct spawn_needs needs = {.kv_pages = BUFFER_KV_PAGES};
	struct target target;
	int r = target_open(bench->options, &needs, &target);

	bench->socket = target.socket;
	if (r == 0)
		r = run_calls(bench);
	if (r == 0)
		r = child_run("steps", buffer_steps_work, bench, bench->options->timeout_s);
	if (r == 0)
		r = buffer_gaps_run(bench);
	target_close(&target);
	return r == 0 ? print(bench, &target) : r;
}

int bench_buffer(const struct bench_options *options, struct results *results)
{
	uint32_t count = options->count ? options->count : DEFAULT_COUNT;
	struct buffer_bench bench = {
		.options = options, .count = count, .steps = STEPS_A_COUNT * count};
	int r = init(&bench);

	if (r == 0)
		r = run(&bench);
	deinit(&bench);
	return r;
}
