/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_EXPOSITION_USERS_H
#define MIMEO_DAEMON_SERVE_EXPOSITION_USERS_H

/* The metrics of each user. The label is the number: a name may need a look-up over a network. */

#include "daemon/output/metrics.h"
#include "daemon/serve/serve_state.h"

struct exposition_names {
	char users[USER_TOTALS_MAX + 1][16]; /* the labels' values */
};
void exposition_users(const struct serve *serve, struct exposition_names *names, struct metrics *metrics);

#endif
