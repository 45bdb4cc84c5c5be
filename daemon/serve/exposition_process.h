/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_EXPOSITION_PROCESS_H
#define MIMEO_DAEMON_SERVE_EXPOSITION_PROCESS_H

/* The daemon's process as the kernel sees it, under the names that Prometheus' client libraries give it. */

#include <stdint.h>

#include "daemon/output/metrics.h"

uint32_t exposition_process_open_fds(void);
uint64_t exposition_process_resident_bytes(void);
void exposition_process(struct metrics *metrics);

#endif
