/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_RECORD_H
#define MIMEO_DAEMON_CTL_RECORD_H

#include <stdio.h>

#include "daemon/ctl/ask.h"

/* Fetch the events of the trace that has ended with this answer, and print them as a JSON object. An exit status. */
int record_print(int fd, const struct answer *ended, FILE *out);

#endif
