/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_PROGRESS_H
#define MIMEO_DAEMON_PROGRESS_H

/*
 * Progress of stages that take longer than a second: on a terminal one line that is overwritten, else
 * a line in the log every five seconds.
 */

#include <stdbool.h>
#include <stdint.h>

struct progress {
	uint64_t next_ns; /* when the next line is due */
	bool terminal;
};

void progress_begin(struct progress *progress);
/* True if a line is due: the caller then formats one and shows it. */
bool progress_due(struct progress *progress);
void progress_show(const struct progress *progress, const char *text);
/* Clears the terminal's line. */
void progress_end(const struct progress *progress);

#endif
