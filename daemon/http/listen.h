/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_LISTEN_H
#define MIMEO_DAEMON_HTTP_LISTEN_H

/* Sockets to listen on: Unix sockets, TCP on loopback addresses, and those of a service manager. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define LISTEN_MAX 8
#define LISTEN_NAME_MAX 128

struct listen_socket {
	int fd;
	bool is_unix;
	char name[LISTEN_NAME_MAX]; /* for people: unix:/run/x.sock, 127.0.0.1:8080, [::1]:8080 */
	char path[LISTEN_NAME_MAX]; /* a Unix socket that was made here; "": none to remove */
};

struct listen_sockets {
	struct listen_socket own[LISTEN_MAX];
	unsigned n;
};

/* Listen on `address`: unix:PATH (made with that mode; a socket without a listener is replaced), or
 * ADDRESS:PORT with a loopback address (port 0: any). 0, or -errno with a sentence in message[size]: -EINVAL: the
 * address is wrong; -E2BIG: there are LISTEN_MAX sockets. */
int listen_add(struct listen_sockets *sockets, const char *address, mode_t mode, char *message, size_t size);
/* Take those that a service manager passes (sd_listen_fds). 0, or -errno with a sentence in message[size]. */
int listen_add_passed(struct listen_sockets *sockets, char *message, size_t size);
bool listen_has_tcp(const struct listen_sockets *sockets);
/* Close all, and remove the Unix sockets that were made here. */
void listen_deinit(struct listen_sockets *sockets);

#endif
