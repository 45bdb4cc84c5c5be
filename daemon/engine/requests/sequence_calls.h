/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_SEQUENCE_CALLS_H
#define MIMEO_DAEMON_ENGINE_SEQUENCE_CALLS_H

/* Calls on sequences: open, fork, truncate, close. Hot path: no allocation, no lock, no system call. */

#include "daemon/engine/requests/request.h"

/* Carry out a waiting request with such an op, and end it. The sequences that it names are not in use, and no
 * earlier request waits for them. Returns how many tokens it copied. */
uint32_t sequence_call(struct request *request);

#endif
