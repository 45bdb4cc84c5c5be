/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_SOCKET_ADDRESS_H
#define MIMEO_IPC_SOCKET_ADDRESS_H

struct sockaddr_un;

/* The address of that path. -EINVAL: it is empty; -ENAMETOOLONG: an address has no room for it. */
int socket_address(struct sockaddr_un *ret, const char *path);

#endif
