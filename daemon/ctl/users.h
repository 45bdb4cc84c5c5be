/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_USERS_H
#define MIMEO_DAEMON_CTL_USERS_H

/* Names of users. The daemon sends numbers alone: names may come from a network, which it must not wait for. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The user's name, or its number if it has none. */
void users_name(uid_t uid, char *ret, size_t size);
/* By name or number. False: there is no such user. */
bool users_find(const char *name, uid_t *ret);

#endif
