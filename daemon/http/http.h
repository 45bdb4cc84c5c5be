/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_HTTP_H
#define MIMEO_DAEMON_HTTP_HTTP_H

/* What endpoints use. All of it belongs to the loop's thread. */

#include <time.h>

#include "daemon/http/counters.h"
#include "daemon/http/http_options.h"
#include "daemon/http/upstream.h"

struct http {
	const struct http_options *options;
	struct upstream *upstream;
	struct counters counters;
	time_t started; /* what /v1/models says that models were created */
};

static inline int64_t http_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static inline int64_t http_now_ms(void)
{
	return http_now_us() / 1000;
}

#endif
