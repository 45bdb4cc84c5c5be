/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_OUTPUT_H
#define MIMEO_DAEMON_RUN_OUTPUT_H

/*
 * The answer on standard output, as it arrives. The end token is left out: a token that may be it waits
 * until the next event shows whether the answer ended there.
 */

#include "daemon/run/run_options.h"

struct run_output {
	bool text;             /* else ids */
	const int32_t *ends[2]; /* ids that end the answer: the model's, the caller's */
	uint32_t n_ends[2];
	int32_t held;          /* the token that waits; -1: none */
	bool started;          /* something has been printed */
};

void run_output_init(struct run_output *ret, const struct run_options *options,
	const struct mimeo_model_info *model);
/* Print an event's tokens. RUN_OK, or RUN_DAEMON if they cannot be written. */
int run_output_event(struct run_output *output, const struct mimeo_event *event);
/* End the line of ids. */
int run_output_end(struct run_output *output);

#endif
