/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_DOCTOR_H
#define MIMEO_DAEMON_CTL_DOCTOR_H

/*
 * What of this machine costs the daemon speed or features: found, what it costs, what to do. Works without a daemon;
 * where one answers, its process is examined instead of this one.
 */

#include "daemon/ctl/findings.h"

/* Sockets, and what a daemon says of itself; first. */
void doctor_look_daemon(struct doctor *doctor);
/* Driver, CUDA, devices, MPS, PID namespaces; before doctor_look_host. */
void doctor_look_gpu(struct doctor *doctor);
/* Kernel, limits, memory, processors. */
void doctor_look_host(struct doctor *doctor);
/* What it means that io_uring_setup answered so (0 or -errno). */
void doctor_judge_uring(struct doctor *doctor, int rc);

/* All of it: the exit status of `mimeoctl doctor`; 2: it could not print. */
int doctor_run(const char *socket, enum table_form form);

#endif
