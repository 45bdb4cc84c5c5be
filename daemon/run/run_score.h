/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_SCORE_H
#define MIMEO_DAEMON_RUN_SCORE_H

#include "daemon/run/run_session.h"

/* Print the log-probability of each token of the prompt behind those before it, and their sum and perplexity. RUN_OK, or
 * another enum run_exit after a line. */
int run_score(const struct run_session *session, const struct run_ids *prompt);

#endif
