/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_LISTENER_H
#define MIMEO_DAEMON_SERVE_LISTENER_H

/* A bound socket and its file. */

#include <stdbool.h>
#include <sys/stat.h>

struct serve_listener {
	int fd; /* -1: none */
	bool passed; /* by a service manager; SO_PEERCRED of a client's end then names that manager */
	struct stat file; /* as it was bound */
};

/* With the path's lock held. 0 or -errno. */
int serve_listener_bind(struct serve_listener *listener, const char *path);
/* Remove the file, unless someone else has put another in its place. The descriptor stays open. */
void serve_listener_remove(const struct serve_listener *listener, const char *path);

#endif
