/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_PROGRESS_H
#define MIMEO_DAEMON_PROGRESS_H

/*
 * Progress of the stages of loading. Stages that take longer than a second are shown: on a terminal one
 * line that is overwritten, else a line in the log every five seconds. The latest text can be read by any
 * thread at any time.
 */

#include <stdbool.h>
#include <stdint.h>

#define PROGRESS_TEXT_MAX 256

struct progress {
	uint64_t next_ns; /* when the next text is due */
	uint64_t show_ns; /* and when it is shown */
	bool terminal;
};

/* stage: the text until the first one is due. */
void progress_begin(struct progress *progress, const char *stage);
/* True if a text is due; then the caller formats one and calls progress_show. */
bool progress_due(struct progress *progress);
void progress_show(struct progress *progress, const char *text);
/* Clears the terminal's line. */
void progress_end(const struct progress *progress);
/* The latest text. */
void progress_text(char ret[static PROGRESS_TEXT_MAX]);

#endif
