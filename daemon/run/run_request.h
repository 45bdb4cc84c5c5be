/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_REQUEST_H
#define MIMEO_DAEMON_RUN_REQUEST_H

/* One generate request: checked against the model, submitted, and its answer printed as it comes. */

#include <signal.h>

#include "daemon/run/run_output.h"
#include "daemon/run/run_session.h"

struct run_request {
	const int32_t *tokens; /* [n_tokens] the prompt, of a sequence what is new of it */
	uint32_t n_tokens;
	uint32_t sequence;     /* 0: its own */
	uint32_t max_tokens;   /* 0: no limit */
	uint32_t flags;        /* MIMEO_GENERATE_..., beside those of the options */
	/* Looks at the final event; may be NULL. */
	int (*final)(const struct run_session *session, const struct mimeo_event *event, void *data);
	void *data;
	int32_t *generated;    /* [n_capacity] copies of the answer's tokens; may be NULL */
	uint32_t n_capacity, n_generated;
};

/* Set by a signal: the request that runs is cancelled, and its answer ends there. */
extern volatile sig_atomic_t run_interrupted;

/* The most tokens to generate: as the options say, or else `most` or what the prompt leaves. RUN_OK, or RUN_REFUSED after
 * a line: the model cannot hold them. */
int run_request_limit(const struct run_session *session, uint32_t n_prompt, uint32_t most, uint32_t *ret_max_tokens);
/* The options that depend on the model and the prompt. RUN_OK, or RUN_REFUSED after a line. */
int run_request_check(const struct run_session *session, uint32_t n_prompt);
/* RUN_OK, or another enum run_exit after a line. output NULL: nothing is printed. */
int run_request(const struct run_session *session, struct run_request *request, struct run_output *output,
	struct run_usage *ret_usage);

#endif
