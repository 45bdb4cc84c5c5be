/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_ORDER_H
#define MIMEO_DAEMON_CTL_ORDER_H

#include "daemon/ctl/ask.h"

#define ORDER_WAIT_MS 60000

/* After an order about graphs was taken: wait until no graph is being captured or dropped any more, with
 * progress where stdout is a terminal, at most ORDER_WAIT_MS. The last answer to "graphs" is the
 * caller's. 0, -ETIMEDOUT (*ret is written as well), or -errno. */
int order_await(int fd, struct answer **ret);

/* Is one of the graphs failed? */
bool order_failed(const struct answer *answer);

#endif
