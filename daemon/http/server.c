/* SPDX-License-Identifier: MIT */
#include "build-config.h"
#include "daemon/http/server.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#if HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "daemon/http/connections.h"
#include "daemon/http/routes.h"
#include "daemon/output/log.h"

#define OWN_DESCRIPTORS 64u /* beside those of connections */
#define FULL_MS 1000        /* how often a full process tries to accept */
#define SETTLE_MS 1000      /* for cancelled requests, at the end */

struct server {
	struct http http;
	struct listen_sockets *sockets;
	struct connections *connections;
	struct keys *keys;
	int epoll, signals;
	unsigned n_signals; /* that end it */
	bool full;          /* the listening sockets are not watched */
	int64_t full_ms;    /* when they are again */
	bool draining;
	int64_t drain_ms;
};

/* What the loop watches: listening sockets by their index, then these. */
enum { SOURCE_SIGNALS = LISTEN_MAX, SOURCE_CONNECTIONS, SOURCE_UPSTREAM, N_SOURCES };

static int server_watch(const struct server *server, int operation, int fd, uint32_t source)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = source};

	return epoll_ctl(server->epoll, operation, fd, &event) < 0 ? -errno : 0;
}

static int server_watch_sockets(const struct server *server, int operation)
{
	for (unsigned i = 0; i < server->sockets->n; i++) {
		int rc = server_watch(server, operation, server->sockets->own[i].fd, i);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- signals ---- */

static void server_notify(const char *state)
{
#if HAVE_SYSTEMD
	sd_notify(0, state);
#endif
}

/* 0, or -errno after a line in the log. */
static int server_load_keys(struct server *server)
{
	struct keys *keys;
	char message[256];

	if (!server->http.options->keys)
		return 0;
	int rc = keys_load(server->http.options->keys, &keys, message, sizeof(message));
	if (rc < 0) {
		log_error("%s", message);
		return rc;
	}
	connections_set_keys(server->connections, keys);
	keys_free(server->keys);
	server->keys = keys;
	return 0;
}

static void server_drain(struct server *server, const char *why)
{
	log_info("received %s: ending, requests in flight: %u", why, connections_n_busy(server->connections));
	server_notify("STOPPING=1");
	server->draining = true;
	server->drain_ms = http_now_ms() + server->http.options->drain_s * INT64_C(1000);
	listen_deinit(server->sockets);
	connections_drain(server->connections);
}

static void server_on_signal(struct server *server)
{
	struct signalfd_siginfo signal;

	while (read(server->signals, &signal, sizeof(signal)) == sizeof(signal)) {
		if (signal.ssi_signo == SIGHUP) {
			if (server_load_keys(server) == 0)
				log_info("received SIGHUP: the keys were read again");
			continue;
		}
		server->n_signals++;
		if (!server->draining)
			server_drain(server, signal.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
	}
}

/* ---- the loop ---- */

static void server_accept(struct server *server, uint32_t source)
{
	const struct listen_socket *own = &server->sockets->own[source];

	/* A signal came in the same turn. */
	if (server->draining)
		return;
	if (server->full || connections_accept(server->connections, own->fd, own->is_unix, http_now_ms()))
		return;
	server->full = true;
	server->full_ms = http_now_ms() + FULL_MS;
	(void)server_watch_sockets(server, EPOLL_CTL_DEL);
}

static int64_t server_least(int64_t a, int64_t b)
{
	return a < 0 || (b >= 0 && b < a) ? b : a;
}

static int server_wait_ms(const struct server *server, int64_t now_ms)
{
	int64_t wait = server_least(connections_wait_ms(server->connections, now_ms),
		upstream_wait_ms(server->http.upstream, now_ms));

	if (server->full && !server->draining)
		wait = server_least(wait, server->full_ms > now_ms ? server->full_ms - now_ms : 0);
	if (server->draining)
		wait = server_least(wait, server->drain_ms > now_ms ? server->drain_ms - now_ms : 0);
	return wait > INT32_MAX ? INT32_MAX : (int)wait;
}

static bool server_is_over(const struct server *server)
{
	return server->draining && (server->n_signals > 1 || connections_n_busy(server->connections) == 0 ||
		http_now_ms() >= server->drain_ms);
}

static void server_turn(struct server *server)
{
	struct epoll_event events[N_SOURCES];
	int n = epoll_wait(server->epoll, events, N_SOURCES, server_wait_ms(server, http_now_ms()));

	for (int i = 0; i < n; i++) {
		if (events[i].data.u32 < LISTEN_MAX)
			server_accept(server, events[i].data.u32);
		else if (events[i].data.u32 == SOURCE_SIGNALS)
			server_on_signal(server);
	}
	/* Events first: the replies that they make are sent in the same turn. */
	upstream_run(server->http.upstream, http_now_ms());
	connections_run(server->connections, http_now_ms());
	upstream_submit(server->http.upstream);
	if (server->full && !server->draining &&
		(connections_have_space(server->connections) || http_now_ms() >= server->full_ms)) {
		server->full = false;
		(void)server_watch_sockets(server, EPOLL_CTL_ADD);
	}
}

/* ---- life ---- */

/* How many connections there are descriptors for. */
static unsigned server_raise_limit(const struct http_options *options)
{
	const rlim_t wanted = options->max_connections + OWN_DESCRIPTORS;
	struct rlimit limit, raised;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= wanted)
		return options->max_connections;
	raised = (struct rlimit){limit.rlim_max < wanted ? limit.rlim_max : wanted, limit.rlim_max};
	if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
		limit = raised;
	if (limit.rlim_cur >= wanted)
		return options->max_connections;
	unsigned possible = limit.rlim_cur > OWN_DESCRIPTORS ? (unsigned)(limit.rlim_cur - OWN_DESCRIPTORS) : 1;
	log_warn("RLIMIT_NOFILE is %llu: at most %u connections are accepted, not %u",
		(unsigned long long)limit.rlim_cur, possible, options->max_connections);
	return possible;
}

/* Before a thread is started, which inherits the mask. */
static int server_open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* 0 or -errno; server_deinit afterwards in either case. */
static int server_init(struct server *server)
{
	const struct http_options *options = server->http.options;
	const struct upstream_options upstream = {
		.socket = options->socket,
		.entries = options->max_requests,
		.arena_bytes = options->arena_bytes,
		.counters = &server->http.counters,
	};

	server->signals = server_open_signals();
	server->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (server->signals < 0 || server->epoll < 0)
		return -errno;
	const unsigned most = server_raise_limit(options);
	routes_name(&server->http.counters);
	int rc = connections_new(&server->http, most, &server->connections);
	if (rc < 0)
		return rc;
	rc = upstream_new(&upstream, &server->http.upstream);
	if (rc < 0)
		return rc;
	rc = server_watch(server, EPOLL_CTL_ADD, server->signals, SOURCE_SIGNALS);
	if (rc == 0)
		rc = server_watch(server, EPOLL_CTL_ADD, connections_fd(server->connections), SOURCE_CONNECTIONS);
	if (rc == 0)
		rc = server_watch(server, EPOLL_CTL_ADD, upstream_fd(server->http.upstream), SOURCE_UPSTREAM);
	return rc < 0 ? rc : server_watch_sockets(server, EPOLL_CTL_ADD);
}

/* Requests whose connections were closed are cancelled; their memory is released with their final events. */
static void server_settle(struct server *server)
{
	const int64_t until_ms = http_now_ms() + SETTLE_MS;
	struct epoll_event event;

	while (server->http.upstream && server->http.counters.n_requests > 0 && http_now_ms() < until_ms) {
		upstream_run(server->http.upstream, http_now_ms());
		(void)epoll_wait(upstream_fd(server->http.upstream), &event, 1, 10);
	}
}

static void server_deinit(struct server *server)
{
	connections_free(server->connections);
	server_settle(server);
	upstream_free(server->http.upstream);
	keys_free(server->keys);
	close(server->epoll);
	close(server->signals);
}

int server_run(const struct http_options *options, struct listen_sockets *sockets)
{
	struct server server = {
		.http = {.options = options, .started = time(NULL)},
		.sockets = sockets,
		.epoll = -1,
		.signals = -1,
	};

	int rc = server_init(&server);
	if (rc < 0)
		log_error("cannot start: %s", strerror(-rc));
	else
		rc = server_load_keys(&server);
	if (rc == 0) {
		for (unsigned i = 0; i < sockets->n; i++)
			log_info("listening on %s", sockets->own[i].name);
		server_notify("READY=1");
		while (!server_is_over(&server))
			server_turn(&server);
	}
	server_deinit(&server);
	return rc < 0 ? HTTP_FAILED : HTTP_OK;
}
