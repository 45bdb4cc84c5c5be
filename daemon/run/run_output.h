/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_OUTPUT_H
#define MIMEO_DAEMON_RUN_OUTPUT_H

/*
 * The answer on standard output, as it arrives: text, bytes, ids or JSON objects. The token that ends the answer is left
 * out of all but JSON: a token that may be it waits until the next event shows whether the answer ended there.
 */

#include <stdio.h>

#include "daemon/run/run_session.h"

/* What a request took. */
struct run_usage {
	uint32_t n_prompt, n_cached, n_generated;
	bool counted;             /* n_cached is known */
	uint32_t n_sequence;      /* tokens that its sequence has */
	double first_s, seconds;  /* from submission */
};

enum run_output_form { RUN_OUTPUT_IDS, RUN_OUTPUT_BYTES, RUN_OUTPUT_TEXT };

struct run_output {
	enum run_output_form form;
	bool json;
	const int32_t *ends[2]; /* ids that end the answer: the model's, the caller's */
	uint32_t n_ends[2];
	int32_t held;           /* the token that waits; -1: none */
	bool started;           /* something has been printed */
	bool stopped;           /* a stop text was found: the rest is dropped */
	struct mimeo_text_stream *stream; /* RUN_OUTPUT_TEXT */
	FILE *copy;             /* the text goes here, too; may be NULL */
};

/* RUN_OK, or another enum run_exit after one line on standard error; release it in either case. `before` are the
 * prompt's tokens. */
int run_output_init(struct run_output *ret, const struct run_session *session, const int32_t *before, uint32_t n_before);
void run_output_deinit(struct run_output *output);
/* Print an event's tokens. RUN_OK, or RUN_DAEMON if they cannot be written. */
int run_output_event(struct run_output *output, const struct mimeo_event *event);
/* No more events come, and a message follows: end the line that was begun. */
void run_output_break(const struct run_output *output);
/* Behind the final event, for which event->status and event->finish count: end the line, or print the last object. */
int run_output_end(struct run_output *output, const struct mimeo_event *event, const struct run_usage *usage);

#endif
