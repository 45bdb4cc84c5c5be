/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_HTTP_OPTIONS_H
#define MIMEO_DAEMON_HTTP_HTTP_OPTIONS_H

/* The command line of mimeo-http; mimeo-http(8) describes each option. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/http/classes.h"
#include "daemon/http/listen.h"

enum http_exit {
	HTTP_OK = 0,
	HTTP_FAILED = 1, /* a socket or file that cannot be used */
	HTTP_USAGE = 2,  /* a wrong option */
};

#define HTTP_CHOICES_MAX 128 /* of a request: what --max-choices may say */

struct http_options {
	const char *listen[LISTEN_MAX];
	uint32_t n_listen;
	const char *socket; /* mimeod's; NULL: the default one */
	const char *keys;   /* NULL: no TCP */
	mode_t socket_mode;
	struct classes classes; /* of Unix sockets' clients */
	uint32_t max_connections;
	uint32_t max_requests;  /* at mimeod, a power of two */
	uint64_t arena_bytes;
	uint32_t max_choices;   /* of a request: prompts times n */
	uint32_t max_tokens;    /* of a choice; 0: as many as the sequence holds */
	uint64_t max_header_bytes, max_body_bytes;
	uint64_t max_bodies_bytes;  /* of all bodies that are being received */
	uint64_t max_pending_bytes; /* of a stream that its client does not read */
	uint32_t receive_s, idle_s, send_s, request_s, drain_s;
	int log_level; /* enum log_level */
	bool done; /* --help or --version: nothing left to do */
};

/* HTTP_OK, or HTTP_USAGE after one line on standard error. */
int http_options_parse(struct http_options *ret, int argc, char **argv);

#endif
