/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_CALL_H
#define MIMEO_SDK_CALL_H

/* Calls on the connection's socket, one at a time; each waits for its reply. */

#include <stddef.h>

#include "ipc/msg.h"

struct mimeo;

/* Keep the sentence for mimeo_buffer_message, and return the status. */
int call_refuse(struct mimeo *m, int status, const char *text);
/* The daemon is dead, or its replies break the protocol: GONE. */
int call_lose_daemon(struct mimeo *m);
/*
 * Make a call, with a descriptor unless fd is -1. 0 and the descriptors that came, the caller's,
 * with -1 in the other places of ret_fds[fds_max]; or a status and none, with its sentence. *ret is
 * written whenever the daemon replied.
 */
int call_daemon(struct mimeo *m, const struct msg_call *msg, int fd, struct msg_reply *ret, int *ret_fds,
	size_t fds_max);

#endif
