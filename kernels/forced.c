/* SPDX-License-Identifier: MIT */
#include "kernels/forced.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int forced_parse_fault(struct forced *forced, const char *text)
{
	unsigned long long at;
	int end = 0;

	if (sscanf(text, "launch:%llu%n", &at, &end) != 1 &&
		sscanf(text, "op:%63[^:]:%llu%n", forced->op, &at, &end) != 2)
		return -EINVAL;
	if (text[end] != '\0' || at == 0)
		return -EINVAL;
	forced->at = at;
	return 0;
}

static int forced_parse_hold(struct forced *forced, const char *text)
{
	int end = 0;

	if (sscanf(text, "%63[^:]:%107s%n", forced->hold_op, forced->hold_path, &end) != 2 ||
		text[end] != '\0')
		return -EINVAL;
	return 0;
}

int forced_parse(struct forced *forced, const char *fault, const char *hold)
{
	int rc;

	if (fault && fault[0]) {
		rc = forced_parse_fault(forced, fault);
		if (rc)
			return rc;
	}
	return hold && hold[0] ? forced_parse_hold(forced, hold) : 0;
}

bool forced_due(struct forced *forced, const char *op)
{
	if (forced->at == 0 || (forced->op[0] != '\0' && strcmp(forced->op, op) != 0))
		return false;
	return atomic_fetch_add(&forced->n_runs, 1) + 1 == forced->at;
}

bool forced_holds(const struct forced *forced, const char *op)
{
	return forced->hold_op[0] != '\0' && strcmp(forced->hold_op, op) == 0;
}

void forced_wait(void *path)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	while (access(path, F_OK) == 0)
		nanosleep(&pause, NULL);
}
