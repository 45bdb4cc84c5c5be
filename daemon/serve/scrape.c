/* SPDX-License-Identifier: MIT */
#include "daemon/serve/scrape.h"

#include <errno.h>
#include <unistd.h>

#include "build-config.h"

#if HAVE_MICROHTTPD

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <microhttpd.h>

#include "daemon/serve/exposition.h"
#include "ipc/cleanup.h"

#define SCRAPE_IDLE_S 10u
#define SCRAPE_POOL_BYTES ((size_t)16384) /* libmicrohttpd's memory of a connection */
#define SCRAPE_RUNS 8                     /* in a turn; the next tick goes on */

struct scrape {
	struct serve *serve;
	struct MHD_Daemon *daemon;
	struct loop_source *source;
};

/* Queue a reply; `text` is the response's, and is freed with it. */
static enum MHD_Result scrape_reply(struct MHD_Connection *connection, unsigned status, char *text)
{
	struct MHD_Response *response =
		text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;

	if (!response) {
		free(text);
		return MHD_NO;
	}
	MHD_add_response_header(response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, "Allow", "GET, HEAD");
	enum MHD_Result result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result scrape_on_request(void *userdata, struct MHD_Connection *connection, const char *path,
	const char *method, const char *version, const char *body, size_t *body_size, void **context)
{
	struct scrape *scrape = userdata;
	char *text;

	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
		return scrape_reply(connection, MHD_HTTP_METHOD_NOT_ALLOWED, strdup("GET and HEAD alone\n"));
	if (strcmp(path, "/metrics") != 0)
		return scrape_reply(connection, MHD_HTTP_NOT_FOUND, strdup("nothing but /metrics is here\n"));
	int rc = exposition_text(scrape->serve, &text);
	if (rc < 0)
		return scrape_reply(connection, MHD_HTTP_INTERNAL_SERVER_ERROR,
			strdup(rc == -ENOSPC ? "too many metrics\n" : "out of memory\n"));
	return scrape_reply(connection, MHD_HTTP_OK, text);
}

/* The loop reports readiness once (edge-triggered), so libmicrohttpd handles all events that are ready. */
void scrape_run(struct scrape *scrape)
{
	MHD_UNSIGNED_LONG_LONG ms;

	if (!scrape)
		return;
	for (int i = 0; i < SCRAPE_RUNS; i++) {
		MHD_run(scrape->daemon);
		if (MHD_get_timeout(scrape->daemon, &ms) != MHD_YES || ms > 0)
			return;
	}
}

static void scrape_on_socket(void *userdata, struct loop_source *source, uint32_t events)
{
	scrape_run(userdata);
}

DEFINE_CLEANUP(scrape, struct scrape, scrape_free)

int scrape_new(struct serve *serve, int listener, struct scrape **ret)
{
	CLEANUP(cleanup_close) int fd = listener;
	CLEANUP(cleanup_scrape) struct scrape *scrape = calloc(1, sizeof(*scrape));
	if (!scrape)
		return -ENOMEM;
	scrape->serve = serve;
	scrape->daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, scrape_on_request, scrape,
		MHD_OPTION_LISTEN_SOCKET, fd,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned)SCRAPE_CONNECTIONS,
		MHD_OPTION_CONNECTION_TIMEOUT, SCRAPE_IDLE_S,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, SCRAPE_POOL_BYTES,
		MHD_OPTION_END);
	if (!scrape->daemon)
		return errno ? -errno : -ENOMEM;
	(void)STEAL_FD(fd); /* MHD_stop_daemon closes it */
	int mhd = MHD_get_daemon_info(scrape->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
	int rc = loop_add(serve->loop, mhd, EPOLLIN, scrape_on_socket, scrape, &scrape->source);
	if (rc < 0)
		return rc;
	*ret = STEAL(scrape);
	return 0;
}

void scrape_free(struct scrape *scrape)
{
	if (!scrape)
		return;
	loop_remove(scrape->serve->loop, scrape->source);
	if (scrape->daemon)
		MHD_stop_daemon(scrape->daemon);
	free(scrape);
}

#else

int scrape_new(struct serve *serve, int listener, struct scrape **ret)
{
	close(listener);
	return -ENOTSUP;
}

void scrape_free(struct scrape *scrape)
{
}

void scrape_run(struct scrape *scrape)
{
}

#endif
