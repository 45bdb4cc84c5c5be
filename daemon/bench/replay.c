/* SPDX-License-Identifier: MIT */
#include "daemon/bench/replay.h"

#include <errno.h>

#include "daemon/bench/child.h"
#include "daemon/bench/report.h"

uint32_t replay_positions(const struct replay_run *run)
{
	return run->first + run->n_steps + REPLAY_WARM_UPS;
}

struct clocks {
	uint64_t host, lane; /* when the last step awaited had ended, on each clock */
};

static int await(struct lane *lane, const struct replay_run *run, uint64_t number, bool timed,
	struct clocks *before)
{
	const struct inputs_slot *slot;
	int rc = lane_await(lane, number, &slot);
	uint64_t now = stats_now();

	if (rc)
		return rc;
	if (timed)
		samples_add(run->steps, now - before->host);
	if (timed && run->gaps)
		samples_add(
			run->gaps, *slot->began > before->lane ? *slot->began - before->lane : 0);
	*before = (struct clocks){now, *slot->ended};
	return 0;
}

static int launch(struct lane *lane, const struct replay_run *run, const struct lane_step *step)
{
	uint64_t before = stats_now();
	int rc = lane_launch(lane, step);

	if (!rc && run->launches)
		samples_add(run->launches, stats_now() - before);
	return rc;
}

/* Launch step k + 1 before step k has ended, as the engine does. */
int replay_run(struct lane *lane, const struct replay_run *run)
{
	uint32_t n = run->n_steps + REPLAY_WARM_UPS;
	struct lane_step step = {
		.n_rows = run->n_rows,
		.row_pages = lane_row_pages(replay_positions(run)),
	};
	struct clocks before = {0};

	if ((uint64_t)run->n_rows * step.row_pages > lane->n_pages)
		return -ENOSPC;
	int rc = lane_graph(lane, run->n_rows, run->mode, &step.entry);
	for (uint32_t i = 0; i <= n && !rc; i++) {
		step.position = run->first + i;
		step.first = i == 0;
		if (i < n)
			rc = launch(lane, run, &step);
		/* With the last launch past, the one in flight is the newest. */
		if (!rc && i > 0)
			rc = await(lane, run, lane->next - (i < n ? 2 : 1), i > REPLAY_WARM_UPS,
				&before);
	}
	return rc;
}

void replay_needs(const struct replay_run *run, struct lane_options *options)
{
	uint32_t positions = replay_positions(run);
	uint32_t pages = run->n_rows * lane_row_pages(positions);

	options->max_rows = run->n_rows > options->max_rows ? run->n_rows : options->max_rows;
	options->max_positions =
		positions > options->max_positions ? positions : options->max_positions;
	options->max_pages = pages > options->max_pages ? pages : options->max_pages;
}

/* ---- the floor of what is served ---- */

struct floor_work {
	const struct bench_options *options;
	const struct replay_run *runs;
};

static int work_floors(void *arg, int fd)
{
	static struct lane lane;
	const struct floor_work *work = arg;
	const struct bench_options *o = work->options;
	struct lane_options needs = {
		.device = o->device, .model_dir = o->model_dir, .attention = o->attention};
	struct model_error error = {""};

	(void)fd;
	for (uint32_t i = 0; i < o->n_processes; i++)
		replay_needs(&work->runs[i], &needs);
	int rc = lane_open(&lane, &needs, &error);
	for (uint32_t i = 0; i < o->n_processes && !rc; i++)
		rc = replay_run(&lane, &work->runs[i]);
	rc = report_outcome("the floor", rc, error.text);
	lane_close(&lane);
	return rc;
}

int replay_floors(const struct bench_options *options, struct replay_run *runs)
{
	struct floor_work work = {options, runs};

	for (uint32_t i = 0; i < options->n_processes; i++) {
		runs[i].mode = GRAPH_FULL;
		runs[i].n_rows = options->processes[i];
		runs[i].first = options->prompt;
		runs[i].n_steps = options->tokens - 1;
	}
	return child_run("the floor", work_floors, &work, options->timeout_s);
}
