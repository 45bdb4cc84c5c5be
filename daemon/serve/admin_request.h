/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_ADMIN_REQUEST_H
#define MIMEO_DAEMON_SERVE_ADMIN_REQUEST_H

/* A request on the operators' socket, see daemon/serve/admin_wire.h. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct admin_request {
	char op[16];
	uint64_t session;
	bool has_session;
	uint64_t request;
	bool has_request;
	char model[64], graph[32], setting[64]; /* "": not given */
	char path[1024], settings[2048];
};

/* False if these bytes are no request. */
bool admin_request_parse(struct admin_request *ret, const void *data, size_t size);

#endif
