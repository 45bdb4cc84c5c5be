/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_WELCOME_H
#define MIMEO_DAEMON_SERVE_WELCOME_H

/* Answers to HELLO. */

#include "daemon/serve/session.h"

/* What a session costs its user. */
struct quota_amounts welcome_charges(const struct serve *serve, const struct msg_hello *hello);
/* Check HELLO against the limits. 0, or a negative status and a text that names the limit. */
int welcome_admit(struct serve *serve, const struct socket_peer *peer,
	const struct msg_hello *hello, char text[static MSG_TEXT_MAX]);
/* Send WELCOME with the session's fds; -EAGAIN if the peer's socket has no space for it. */
int welcome_send(struct serve *serve, const struct session *session);
/* Send a refusal in place of WELCOME, if the socket has space for it. */
void welcome_refuse(struct serve *serve, int fd, int status, const char *text);

#endif
