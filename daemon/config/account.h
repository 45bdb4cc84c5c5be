/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ACCOUNT_H
#define MIMEO_DAEMON_ACCOUNT_H

/* Users and groups in operators' lists, whose entries are "USER:VALUE", "UID:VALUE" or "@GROUP:VALUE". */

#include <stdbool.h>
#include <sys/types.h>

#define ACCOUNT_NAME_MAX 64 /* with terminator */

struct account {
	char name[ACCOUNT_NAME_MAX]; /* of a user or group; of digits: a uid or gid */
	bool group;
};

/* Parse what is before the colon, and move *at behind that. False: there is no name, a longer one or no colon. */
bool account_parse(const char **at, struct account *ret);
/* 0; -ENOENT: there is none of that name; or the error of the look-up. A number is not looked up. Not thread-safe. */
int account_find(const char *name, bool group, id_t *ret);

#endif
