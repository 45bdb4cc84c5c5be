/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_NAMES_H
#define MIMEO_DAEMON_CTL_NAMES_H

/* What the daemon has: names for completion and suggestions. */

#include <stddef.h>

enum names_of { NAMES_MODELS, NAMES_GRAPHS, NAMES_SESSIONS, NAMES_REQUESTS, NAMES_USERS };

struct names {
	char **items;        /* [n] each once */
	char **descriptions; /* [n] a line about each, "" where there is nothing to say */
	size_t n;
};

/* Ask the daemon on that connection. 0 or -errno, of a refusal -EPROTO; then names_deinit, in any case. */
int names_ask(int fd, enum names_of of, struct names *ret);
void names_deinit(struct names *names);

#endif
