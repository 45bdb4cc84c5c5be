/* SPDX-License-Identifier: MIT */
#include "daemon/serve/accept.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define ACCEPTS_A_TURN 64u

int accept_next(struct serve *serve, int listener, uint32_t *n_turn)
{
	assert(*n_turn <= ACCEPTS_A_TURN);
	if (listener < 0)
		return -EAGAIN;
	if (listener == serve->clients.fd && closer_n(serve->closer) >= CLOSER_MAX) {
		log_limited(&serve->clogged, LOG_LEVEL_WARN,
			"pending closes of clients' descriptors: %u: no connection is accepted until "
			"some complete", CLOSER_MAX);
		serve->accept_closes_full = true;
		return -EAGAIN;
	}
	while (*n_turn < ACCEPTS_A_TURN) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		++*n_turn;
		if (fd >= 0) {
			socket_keep_order(fd);
			return fd;
		}
		if (errno == EAGAIN)
			return -EAGAIN;
		if (errno == EINTR || errno == ECONNABORTED)
			continue;
		serve_complain(serve, "cannot accept: %s", strerror(errno));
		serve->accept_stalled = true;
		return -EAGAIN;
	}
	serve->accept_more = true;
	return -EAGAIN;
}
