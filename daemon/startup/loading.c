/* SPDX-License-Identifier: MIT */
#include "daemon/startup/loading.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "build-config.h"
#include "daemon/serve/admin_request.h"
#include "daemon/serve/admin_wire.h"
#include "daemon/serve/reply.h"
#include "daemon/startup/progress.h"
#include "ipc/cleanup.h"
#include "ipc/clock.h"
#include "ipc/doorbell.h"
#include "ipc/socket.h"

#define REQUEST_MS 1000 /* for an operator to send a request */
#define REST_MS 100     /* for the rest of one that has begun */

struct loading {
	struct loading_options options;
	struct serve_listener clients, operators;
	pthread_t thread;
	bool started;
	int stop; /* an eventfd, readable when the thread is to end; -1: none */
};

/* The one of this process, for loading_abandon. */
static pthread_mutex_t loading_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loading *loading_current;

/* ---- operators ---- */

static void loading_answer(const struct loading *loading, const char *op, struct reply *reply)
{
	char progress[PROGRESS_TEXT_MAX];

	progress_text(progress);
	if (strcmp(op, "status") != 0) {
		reply_sayf(reply, MIMEO_E_UNREACHABLE,
			"the daemon is loading its models and does not serve yet: %s", progress);
		return;
	}
	const struct reply_cell cells[] = {
		CELL_TEXT("state", "loading"),
		CELL_TEXT("progress", progress),
		CELL_COUNT("pid", (uint64_t)getpid()),
		CELL_NUMBER("uptime_s", (double)(clock_ns() - loading->options.since_ns) * 1e-9),
		CELL_TEXT("version", MIMEO_VERSION),
		CELL_TEXT("socket", loading->options.socket),
		CELL_TEXT("device", loading->options.device),
		CELL_COUNT("models", loading->options.n_models),
	};
	reply_row(reply, cells, sizeof(cells) / sizeof(cells[0]));
}

/* The answer to a request of size bytes, or -errno if it is none. */
static int loading_receive(const struct loading *loading, int fd, struct reply *reply)
{
	uint8_t bytes[ADMIN_REQUEST_MAX];
	struct admin_request request;
	struct socket_peer peer;

	int rc = socket_peer(fd, &peer);
	if (rc < 0)
		return rc;
	cleanup_close(&peer.pidfd);
	if (peer.uid != 0 && peer.uid != geteuid()) {
		reply_sayf(reply, MIMEO_E_DENIED, "uid %u is neither root nor the daemon's own",
			(unsigned)peer.uid);
		return 0;
	}
	struct pollfd polls[] = {{.fd = fd, .events = POLLIN}, {.fd = loading->stop, .events = POLLIN}};
	if (poll(polls, 2, REQUEST_MS) <= 0 || polls[1].revents)
		return -ETIMEDOUT;
	ssize_t n = socket_receive(fd, bytes, sizeof(bytes), NULL, 0, NULL, REST_MS);
	if (n < 0)
		return (int)n;
	if (!admin_request_parse(&request, bytes, (size_t)n))
		return -EPROTO;
	loading_answer(loading, request.op, reply);
	return 0;
}

/* A reply is small: the empty socket has space for it, and the thread does not wait. */
static void loading_serve(const struct loading *loading, int fd)
{
	struct reply reply;

	reply_init(&reply);
	if (loading_receive(loading, fd, &reply) == 0 && reply_end(&reply) == 0)
		(void)!send(fd, reply.out.data, reply.out.size, MSG_NOSIGNAL | MSG_DONTWAIT);
	reply_deinit(&reply);
}

static void *loading_main(void *userdata)
{
	const struct loading *loading = userdata;
	struct pollfd polls[] = {
		{.fd = loading->operators.fd, .events = POLLIN},
		{.fd = loading->stop, .events = POLLIN},
	};

	for (;;) {
		if (poll(polls, 2, -1) < 0)
			continue;
		if (polls[1].revents)
			return NULL;
		CLEANUP(cleanup_close) int fd =
			accept4(loading->operators.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0)
			loading_serve(loading, fd);
		else if (errno != EAGAIN && errno != ECONNABORTED)
			poll(polls + 1, 1, REST_MS); /* no descriptor is left */
	}
}

/* ---- life ---- */

static int loading_start(struct loading *loading)
{
	sigset_t all, old;

	loading->stop = doorbell_new();
	if (loading->stop < 0)
		return loading->stop;
	/* Signals are another thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int rc = pthread_create(&loading->thread, NULL, loading_main, loading);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	loading->started = rc == 0;
	return -rc;
}

static void loading_stop(struct loading *loading)
{
	if (loading->started) {
		doorbell_ring(loading->stop);
		pthread_join(loading->thread, NULL);
	}
	loading->started = false;
}

static void loading_set_current(struct loading *loading)
{
	pthread_mutex_lock(&loading_lock);
	loading_current = loading;
	pthread_mutex_unlock(&loading_lock);
}

void loading_abandon(void)
{
	pthread_mutex_lock(&loading_lock);
	if (loading_current) {
		serve_listener_remove(&loading_current->operators, loading_current->options.admin_socket);
		serve_listener_remove(&loading_current->clients, loading_current->options.socket);
	}
	pthread_mutex_unlock(&loading_lock);
}

DEFINE_CLEANUP(loading, struct loading, loading_free)

int loading_new(const struct loading_options *options, struct loading **ret)
{
	CLEANUP(cleanup_loading) struct loading *loading = calloc(1, sizeof(*loading));

	if (!loading)
		return -ENOMEM;
	loading->options = *options;
	loading->clients = options->clients;
	loading->operators = options->operators;
	loading->stop = -1;
	int rc = loading->operators.fd < 0 ? serve_listener_bind(&loading->operators, options->admin_socket) : 0;
	if (rc < 0)
		return rc;
	rc = loading->clients.fd < 0 ? serve_listener_bind(&loading->clients, options->socket) : 0;
	if (rc < 0)
		return rc;
	rc = loading_start(loading);
	if (rc < 0)
		return rc;
	loading_set_current(loading);
	*ret = STEAL(loading);
	return 0;
}

void loading_end(struct loading *loading, struct serve_listener *ret_clients,
	struct serve_listener *ret_operators)
{
	assert(loading->clients.fd >= 0 && loading->operators.fd >= 0);
	loading_set_current(NULL);
	loading_stop(loading);
	*ret_clients = loading->clients;
	*ret_operators = loading->operators;
	loading->clients.fd = loading->operators.fd = -1;
}

void loading_free(struct loading *loading)
{
	if (!loading)
		return;
	loading_set_current(NULL);
	loading_stop(loading);
	serve_listener_remove(&loading->operators, loading->options.admin_socket);
	serve_listener_remove(&loading->clients, loading->options.socket);
	cleanup_close(&loading->operators.fd);
	cleanup_close(&loading->clients.fd);
	cleanup_close(&loading->stop);
	free(loading);
}
