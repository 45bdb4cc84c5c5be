/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_CLASSES_H
#define MIMEO_DAEMON_HTTP_CLASSES_H

/* Which class (enum mimeo_class) the requests of a Unix socket's client have, by its user and groups. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CLASSES_MAX 256

struct class_entry {
	bool group;
	id_t id; /* a uid, or a gid */
	uint32_t request_class;
};

struct classes {
	struct class_entry entries[CLASSES_MAX]; /* in the order of the list */
	uint32_t n;
};

/* Add the entries of "USER:CLASS,UID:CLASS,@GROUP:CLASS", whose names are looked up. False: message[size] says what is
 * wrong with which entry. */
bool classes_parse(struct classes *classes, const char *list, char *message, size_t size);
/* For the client of a connected Unix socket, as it was when it connected: its user's entry, else the first one of a
 * group that it is in, else MIMEO_CLASS_NORMAL. If its user cannot be read it is MIMEO_CLASS_NORMAL, if its groups
 * cannot, its primary group alone counts: either may be more than its class, and is logged as a warning. */
uint32_t classes_of_peer(const struct classes *classes, int fd);

#endif
