/* SPDX-License-Identifier: MIT */

/* mimeo-http: OpenAI's HTTP interface to mimeod, through the public headers only. */

#include <errno.h>
#include <unistd.h>

#include "daemon/http/server.h"
#include "daemon/output/log.h"

static int main_listen(const struct http_options *options, struct listen_sockets *sockets)
{
	char message[256];

	if (listen_add_passed(sockets, message, sizeof(message)) < 0) {
		log_error("%s", message);
		return HTTP_FAILED;
	}
	for (uint32_t i = 0; i < options->n_listen; i++) {
		int rc = listen_add(sockets, options->listen[i], options->socket_mode, message, sizeof(message));
		if (rc < 0) {
			log_error("%s", message);
			return rc == -EINVAL || rc == -E2BIG ? HTTP_USAGE : HTTP_FAILED;
		}
	}
	if (sockets->n == 0) {
		log_error("no socket to listen on: use --listen; see --help");
		return HTTP_USAGE;
	}
	if (listen_has_tcp(sockets) && !options->keys) {
		log_error("TCP needs --keys FILE: any local user can connect to a loopback address");
		return HTTP_USAGE;
	}
	return HTTP_OK;
}

int main(int argc, char **argv)
{
	struct listen_sockets sockets = {.n = 0};
	struct http_options options;

	int rc = http_options_parse(&options, argc, argv);
	if (rc != HTTP_OK || options.done)
		return rc;
	log_open(STDERR_FILENO);
	log_set_level((enum log_level)options.log_level);
	rc = main_listen(&options, &sockets);
	if (rc == HTTP_OK)
		rc = server_run(&options, &sockets);
	listen_deinit(&sockets);
	return rc;
}
