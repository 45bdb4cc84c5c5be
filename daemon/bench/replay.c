/* SPDX-License-Identifier: MIT */
#include "daemon/bench/replay.h"

#include <assert.h>
#include <errno.h>

#include "daemon/bench/child.h"

static uint32_t replay_positions(const struct replay_run *run)
{
	return run->first + run->n_steps + REPLAY_WARM_UPS;
}

uint32_t replay_middle(const struct replay_run *run)
{
	return run->first + REPLAY_WARM_UPS + run->n_steps / 2 + 1;
}

struct replay_run replay_at(
	const struct bench_options *options, uint32_t index, enum graph_mode mode)
{
	uint32_t context = options->contexts.at[index % options->contexts.n];
	struct replay_run run = {.mode = mode,
		.n_rows = options->batches.at[index / options->contexts.n],
		.n_steps = options->count};
	uint32_t before = replay_middle(&run);

	assert(index < options->batches.n * options->contexts.n);
	run.first = context > before ? context - before : 0;
	return run;
}

/* Widen the options of a lane so that it can hold the run. */
static void replay_needs(const struct replay_run *run, struct decoder_options *options)
{
	uint32_t positions = replay_positions(run);
	uint32_t pages = run->n_rows * decoder_row_pages(positions);

	options->max_rows = run->n_rows > options->max_rows ? run->n_rows : options->max_rows;
	options->max_positions =
		positions > options->max_positions ? positions : options->max_positions;
	options->max_pages = pages > options->max_pages ? pages : options->max_pages;
}

int replay_open(struct decoder *decoder, const struct bench_options *options, struct model_error *error)
{
	struct decoder_options needs = {.device = options->device,
		.model_dir = options->model_dir,
		.attention = options->attention};

	for (uint32_t i = 0; i < options->batches.n * options->contexts.n; i++) {
		const struct replay_run run = replay_at(options, i, GRAPH_FULL);

		replay_needs(&run, &needs);
	}
	return decoder_open(decoder, &needs, error);
}

struct clocks {
	uint64_t host, lane; /* when the last step awaited had ended, on each clock */
};

static int replay_await(struct decoder *decoder, const struct replay_run *run, uint64_t number,
	bool timed, struct clocks *before)
{
	const struct inputs_slot *slot;
	int rc = decoder_await(decoder, number, &slot);
	uint64_t now = stats_now(), began, ended;

	if (rc)
		return rc;
	began = *slot->began;
	ended = *slot->ended;
	if (timed)
		samples_add(run->steps, now - before->host);
	if (timed && run->lanes)
		samples_add(run->lanes, ended > began ? ended - began : 0);
	if (timed && run->gaps)
		samples_add(run->gaps, began > before->lane ? began - before->lane : 0);
	*before = (struct clocks){now, ended};
	return 0;
}

static int replay_launch(
	struct decoder *decoder, const struct replay_run *run, const struct decoder_step *step)
{
	uint64_t before = stats_now();
	int rc = decoder_launch(decoder, step);

	if (!rc && run->launches)
		samples_add(run->launches, stats_now() - before);
	return rc;
}

/* Launches step k + 1 before step k has ended, as the engine does. */
int replay_run(struct decoder *decoder, const struct replay_run *run)
{
	uint32_t n = run->n_steps + REPLAY_WARM_UPS;
	struct decoder_step step = {
		.n_rows = run->n_rows,
		.row_pages = decoder_row_pages(replay_positions(run)),
	};
	struct clocks before = {0};

	if ((uint64_t)run->n_rows * step.row_pages > decoder->n_pages)
		return -ENOSPC;
	int rc = decoder_graph(decoder, run->n_rows, run->mode, &step.entry);
	for (uint32_t i = 0; i <= n && !rc; i++) {
		step.position = run->first + i;
		step.first = i == 0;
		if (i < n)
			rc = replay_launch(decoder, run, &step);
		/* With the last launch past, the one in flight is the newest. */
		if (!rc && i > 0)
			rc = replay_await(decoder, run, decoder->next - (i < n ? 2 : 1),
				i > REPLAY_WARM_UPS, &before);
	}
	return rc;
}

/* ---- the floor of what is served ---- */

struct replay_work {
	const struct bench_options *options;
	const struct replay_run *runs;
};

static int replay_child(void *arg, int fd)
{
	static struct decoder decoder;
	const struct replay_work *work = arg;
	const struct bench_options *o = work->options;
	struct decoder_options needs = {
		.device = o->device, .model_dir = o->model_dir, .attention = o->attention};
	struct model_error error = {""};

	for (uint32_t i = 0; i < o->processes.n; i++)
		replay_needs(&work->runs[i], &needs);
	int rc = decoder_open(&decoder, &needs, &error);
	for (uint32_t i = 0; i < o->processes.n && !rc; i++)
		rc = replay_run(&decoder, &work->runs[i]);
	decoder_close(&decoder);
	return bench_fail_device(rc, "the floor", error.text) != 0;
}

int replay_floors(const struct bench_options *options, struct replay_run *runs)
{
	struct replay_work work = {options, runs};

	for (uint32_t i = 0; i < options->processes.n; i++) {
		runs[i].mode = GRAPH_FULL;
		runs[i].n_rows = options->processes.at[i];
		runs[i].first = options->prompt;
		runs[i].n_steps = options->tokens - 1;
	}
	return child_run("the floor", replay_child, &work, options->timeout_s);
}
