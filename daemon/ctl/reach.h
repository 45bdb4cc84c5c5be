/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_REACH_H
#define MIMEO_DAEMON_CTL_REACH_H

#include "ipc/socket.h"

/* The paths of the daemon's sockets. socket: what --socket says, or NULL. 0 or -errno: there is no such path. */
int reach_paths(const char *socket, char client[static SOCKET_PATH_MAX], char admin[static SOCKET_PATH_MAX]);
/* Connect to the operators' socket, or to the monitors' one if the caller may not be an operator. *admin: its path.
 * -errno; prints nothing. */
int reach_quietly(const char *socket, char admin[static SOCKET_PATH_MAX]);
/* The same; -errno after one line that says what to do. */
int reach_daemon(const char *socket);

#endif
