/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_ATTACH_H
#define MIMEO_DAEMON_SERVE_ATTACH_H

#include "daemon/serve/session.h"

/* A session that the engine has, and its WELCOME. 0, with fd and the peer's pidfd taken over, or -errno
 * and nothing was sent to the peer. */
int attach_session(struct serve *serve, int fd, const struct socket_peer *peer,
	const struct msg_hello *hello);

#endif
