/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_START_H
#define MIMEO_DAEMON_ENGINE_START_H

#include "daemon/engine/requests/request.h"
#include "daemon/engine/requests/sequence.h"

enum start_outcome { START_DONE, START_BLOCKED }; /* it no longer waits: it has started or ended; it waits */

/* Start a waiting request whose turn it is: for a step, as many of its rows as may start now. Tokens that are copied or
 * compared are added to the cost of the session's turn. The engine's thread; no system call. */
enum start_outcome start_generate(struct request *request);
enum start_outcome start_step(struct request *request);
/* A call for a sequence: it ends at once. */
enum start_outcome start_call(struct request *request);

/* The sequence of a step's row; NULL: there is none. */
struct sequence *start_row_sequence(const struct request *request, uint32_t i);

#endif
