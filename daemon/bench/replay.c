/* SPDX-License-Identifier: MIT */
#include "daemon/bench/replay.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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
	int rc = lane_graph(lane, run->n_rows, &step.entry);
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

int floor_replay(const char *device, const char *model_dir, const struct replay_run *runs,
	uint32_t n_runs, char *why, size_t size)
{
	struct lane_options options = {.device = device, .model_dir = model_dir};
	struct lane *lane = calloc(1, sizeof(*lane));
	struct model_error error = {""};

	if (!lane)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_runs; i++) {
		uint32_t positions = replay_positions(&runs[i]);
		uint32_t pages = runs[i].n_rows * lane_row_pages(positions);

		options.max_rows =
			runs[i].n_rows > options.max_rows ? runs[i].n_rows : options.max_rows;
		options.max_positions =
			positions > options.max_positions ? positions : options.max_positions;
		options.max_pages = pages > options.max_pages ? pages : options.max_pages;
	}
	int rc = lane_open(lane, &options, &error);
	for (uint32_t i = 0; i < n_runs && !rc; i++)
		rc = replay_run(lane, &runs[i]);
	if (rc)
		snprintf(why, size, "%s", error.text[0] ? error.text : device_strerror(rc));
	lane_close(lane);
	free(lane);
	return rc ? -EIO : 0;
}
