/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_STREAM_H
#define MIMEO_TESTS_BENCH_STREAM_H

#include "daemon/bench/spawn.h"

#define STREAM_TOKENS 1500u /* of a request; another follows, until it is killed */

/* Start a client that generates without end; it is in the middle of a request when this returns 0.
 * -errno with a sentence on standard error; the child is to be killed even then. */
int stream_start(
	struct child *ret, const struct bench_options *options, const struct target *target);

#endif
