/* SPDX-License-Identifier: MIT */
#include "daemon/http/connections.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include <microhttpd.h>

#include "daemon/http/connection_request.h"
#include "daemon/output/log.h"

#define ACCEPTS_A_TURN 64u
#define HANGUPS_A_TURN 64
#define FIRST_REQUEST_MS 1000 /* for a connection that others wait for */
/* libmicrohttpd's memory of a connection: the header, the names and values that it finds in it, and the reply's
 * header. */
#define POOL_BYTES(header_bytes) ((size_t)(header_bytes) * 2 + 4096)

static void connections_expire(struct connections *connections)
{
	static struct log_limit limit = LOG_LIMIT(5);

	for (enum phase phase = 0; phase < N_PHASES; phase++) {
		struct connection *first;

		while ((first = connections->phases[phase]) && first->deadline_ms <= connections->now_ms) {
			if (connection_is_read(first)) {
				connection_enter(first, PHASE_SENDING);
				continue;
			}
			if (phase != PHASE_IDLE) {
				connections->http->counters.connections_timed_out++;
				log_limited(&limit, LOG_LEVEL_DEBUG, "a connection is closed: %s",
					phase == PHASE_SENDING ? "its client does not read"
							       : "no request came in time");
			}
			connection_cut(first);
		}
	}
}

/* ---- connections ---- */

static void connections_drop(struct connection *connection)
{
	struct connections *owner = connection->owner;

	assert(!connection->exchange && owner->by_fd[connection->fd] == connection);
	owner->by_fd[connection->fd] = NULL;
	DL_DELETE(owner->phases[connection->phase], connection);
	owner->http->counters.n_connections--;
	owner->has_space = true;
	free(connection);
}

static void connections_on_connection(void *userdata, struct MHD_Connection *mhd, void **context,
	enum MHD_ConnectionNotificationCode code)
{
	struct connections *owner = userdata;

	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		int fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;

		assert((uint32_t)fd < owner->n_fds && owner->by_fd[fd]);
		owner->by_fd[fd]->started = true;
		*context = owner->by_fd[fd];
	} else {
		connections_drop(*context);
	}
}

static int connections_watch(const struct connection *connection)
{
	struct epoll_event event = {
		.events = EPOLLRDHUP | EPOLLET,
		.data.u64 = (uint64_t)connection->serial << 32 | (uint32_t)connection->fd,
	};

	return epoll_ctl(connection->owner->epoll, EPOLL_CTL_ADD, connection->fd, &event);
}

static struct connection *connections_make(struct connections *owner, int fd, bool is_unix)
{
	struct connection *connection = (uint32_t)fd < owner->n_fds ? calloc(1, sizeof(*connection)) : NULL;

	if (!connection)
		return NULL;
	connection->owner = owner;
	connection->fd = fd;
	connection->serial = ++owner->last_serial;
	connection->is_unix = is_unix;
	if (is_unix)
		connection->request_class = classes_of_peer(&owner->http->options->classes, fd);
	assert(!owner->by_fd[fd]);
	owner->by_fd[fd] = connection;
	DL_APPEND(owner->phases[PHASE_NEW], connection);
	connection_enter(connection, PHASE_NEW);
	owner->http->counters.n_connections++;
	return connection;
}

/* Takes the descriptor. */
static void connections_add(struct connections *connections, int fd, bool is_unix,
	const struct sockaddr *address, socklen_t length)
{
	struct connection *connection = connections_make(connections, fd, is_unix);

	if (!connection || connections_watch(connection) < 0) {
		connections->http->counters.connections_refused++;
		if (connection)
			connections_drop(connection);
		close(fd);
		return;
	}
	connections->http->counters.connections_accepted++;
	/* It closes the descriptor if it fails. */
	if (MHD_add_connection(connections->daemon, fd, address, length) == MHD_YES)
		return;
	connection = connections->by_fd[fd];
	if (connection && !connection->started)
		connections_drop(connection);
}

bool connections_have_space(const struct connections *connections)
{
	return connections->has_space;
}

/* The first one in a phase that never brought a whole request, and had time for it. */
static struct connection *connections_find_unserved(const struct connections *connections, enum phase phase)
{
	const int64_t receive_ms = connections->http->options->receive_s * INT64_C(1000);
	struct connection *connection;

	DL_FOREACH (connections->phases[phase], connection) {
		if (connection->deadline_ms - receive_ms > connections->now_ms - FIRST_REQUEST_MS)
			return NULL;
		if (!connection->served)
			return connection;
	}
	return NULL;
}

/* There is none for another connection: close the one that is missed least. */
static void connections_make_space(struct connections *connections)
{
	struct connection *least = connections->phases[PHASE_IDLE];

	if (!least)
		least = connections_find_unserved(connections, PHASE_NEW);
	if (!least)
		least = connections_find_unserved(connections, PHASE_RECEIVING);
	connections->has_space = false;
	if (least)
		connection_cut(least);
}

bool connections_accept(struct connections *connections, int listener, bool is_unix, int64_t now_ms)
{
	static struct log_limit limit = LOG_LIMIT(1);

	connections->now_ms = now_ms;
	for (unsigned n = 0; n < ACCEPTS_A_TURN; n++) {
		struct sockaddr_storage address;
		socklen_t length = sizeof(address);

		if (connections->http->counters.n_connections >= connections->most) {
			connections_make_space(connections);
			return false;
		}
		int fd = accept4(listener, (struct sockaddr *)&address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
			log_limited(&limit, LOG_LEVEL_WARN, "a connection waits: %s", strerror(errno));
			connections_make_space(connections);
			return false;
		}
		if (fd < 0)
			return true;
		connections_add(connections, fd, is_unix, (struct sockaddr *)&address, length);
	}
	return true;
}

static void connections_on_hangup(struct connections *connections, uint64_t data)
{
	uint32_t fd = (uint32_t)data;
	struct connection *connection = fd < connections->n_fds ? connections->by_fd[fd] : NULL;

	if (!connection || connection->serial != data >> 32)
		return;
	struct exchange *exchange = connection->exchange;
	connection->hung_up = true;
	if (exchange && exchange->suspended)
		exchange_lose(exchange);
	else if (exchange && exchange->stream && !exchange->ended)
		connection_cut(connection); /* libmicrohttpd may wait until the socket takes more */
}

/* Their requests have begun to wait in this turn. */
static void connections_lose(struct connections *connections)
{
	struct connection *connection;

	connections->losing = false;
	DL_FOREACH (connections->phases[PHASE_WORKING], connection) {
		if (connection->hung_up && connection->exchange && connection->exchange->suspended)
			exchange_lose(connection->exchange);
	}
}

void connections_run(struct connections *connections, int64_t now_ms)
{
	struct epoll_event events[HANGUPS_A_TURN];

	connections->now_ms = now_ms;
	int n = epoll_wait(connections->epoll, events, HANGUPS_A_TURN, 0);
	for (int i = 0; i < n; i++) {
		if (events[i].data.u64 != UINT64_MAX)
			connections_on_hangup(connections, events[i].data.u64);
	}
	connections_expire(connections);
	MHD_run(connections->daemon);
	if (connections->losing)
		connections_lose(connections);
}

int64_t connections_wait_ms(struct connections *connections, int64_t now_ms)
{
	MHD_UNSIGNED_LONG_LONG mhd_ms;
	int64_t first = INT64_MAX;

	if (MHD_get_timeout(connections->daemon, &mhd_ms) == MHD_YES)
		first = now_ms + (int64_t)mhd_ms;
	for (enum phase phase = 0; phase < N_PHASES; phase++) {
		const struct connection *head = connections->phases[phase];

		if (head && phase != PHASE_WORKING && head->deadline_ms < first)
			first = head->deadline_ms;
	}
	return first == INT64_MAX ? -1 : first > now_ms ? first - now_ms : 0;
}

int connections_fd(const struct connections *connections)
{
	return connections->epoll;
}

unsigned connections_n_busy(const struct connections *connections)
{
	return connections->n_busy;
}

void connections_set_keys(struct connections *connections, const struct keys *keys)
{
	connections->keys = keys;
}

static void connections_cut_phase(struct connections *connections, enum phase phase)
{
	while (connections->phases[phase])
		connection_cut(connections->phases[phase]);
}

void connections_drain(struct connections *connections)
{
	connections->draining = true;
	connections_cut_phase(connections, PHASE_NEW);
	connections_cut_phase(connections, PHASE_IDLE);
}

/* ---- life ---- */

static void connections_log(void *userdata, const char *format, va_list arguments)
{
	static struct log_limit limit = LOG_LIMIT(5);
	char text[512];

	if (!log_enabled(LOG_LEVEL_DEBUG))
		return;
	vsnprintf(text, sizeof(text), format, arguments);
	text[strcspn(text, "\n")] = '\0';
	log_limited(&limit, LOG_LEVEL_DEBUG, "libmicrohttpd: %s", text);
}

static struct MHD_Daemon *connections_start(struct connections *connections)
{
	const struct http_options *options = connections->http->options;

	return MHD_start_daemon(
		MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL,
		NULL, connection_request_on_part, NULL,
		MHD_OPTION_EXTERNAL_LOGGER, connections_log, NULL,
		MHD_OPTION_CONNECTION_LIMIT, connections->most,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, POOL_BYTES(options->max_header_bytes),
		MHD_OPTION_NOTIFY_CONNECTION, connections_on_connection, connections,
		MHD_OPTION_NOTIFY_COMPLETED, connection_request_on_end, NULL,
		MHD_OPTION_URI_LOG_CALLBACK, connection_request_on_line, NULL,
		MHD_OPTION_STRICT_FOR_CLIENT, 1,
		MHD_OPTION_END);
}

/* 0 or -errno; connections_free afterwards in either case. */
static int connections_init(struct connections *connections)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return -errno;
	connections->n_fds = limit.rlim_cur < (1u << 20) ? (uint32_t)limit.rlim_cur : 1u << 20;
	connections->by_fd = calloc(connections->n_fds, sizeof(struct connection *));
	if (!connections->by_fd)
		return -ENOMEM;
	connections->daemon = connections_start(connections);
	if (!connections->daemon)
		return errno ? -errno : -ENOMEM;
	connections->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (connections->epoll < 0)
		return -errno;
	int mhd = MHD_get_daemon_info(connections->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
	return epoll_ctl(connections->epoll, EPOLL_CTL_ADD, mhd, &event) < 0 ? -errno : 0;
}

int connections_new(struct http *http, unsigned most, struct connections **ret)
{
	struct connections *connections = calloc(1, sizeof(*connections));
	if (!connections)
		return -ENOMEM;
	connections->http = http;
	connections->most = most;
	connections->epoll = -1;
	connections->now_ms = http_now_ms();
	int rc = connections_init(connections);
	if (rc < 0) {
		connections_free(connections);
		return rc;
	}
	*ret = connections;
	return 0;
}

void connections_free(struct connections *connections)
{
	if (!connections)
		return;
	/* It must not find a connection that is suspended. */
	for (enum phase phase = 0; phase < N_PHASES; phase++) {
		struct connection *connection;

		DL_FOREACH (connections->phases[phase], connection) {
			if (connection->exchange)
				exchange_lose(connection->exchange);
		}
	}
	if (connections->daemon)
		MHD_stop_daemon(connections->daemon);
	assert(connections->n_busy == 0);
	if (connections->epoll >= 0)
		close(connections->epoll);
	free(connections->by_fd);
	free(connections);
}
