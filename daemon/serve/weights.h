/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_WEIGHTS_H
#define MIMEO_DAEMON_SERVE_WEIGHTS_H

/* What part of slots, pages and tokens a user gets when users compete for them: a weight by uid or group. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define WEIGHTS_MAX 64

struct user_weight {
	bool group;
	id_t id; /* a uid, or a gid */
	uint32_t weight;
};

struct weights {
	struct user_weight entries[WEIGHTS_MAX];
	uint32_t n;
};

/* Find the user or group of that name, or with that number if it consists of digits. -ENOENT: there is none;
 * -ENOSPC; or the error of the look-up. */
int weights_add(struct weights *weights, const char *name, bool group, uint32_t weight);
/* The user's own weight, else the largest of its groups', else 1. Asks the name service if there are weights
 * of groups. */
uint32_t weights_of(const struct weights *weights, uid_t uid);

#endif
