/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_ROUTES_H
#define MIMEO_DAEMON_HTTP_ROUTES_H

/* Which endpoint serves a path. */

#include "daemon/http/exchange.h"
#include "daemon/http/http.h"

struct route {
	const char *name;   /* of the counters */
	const char *method; /* GET stands for HEAD, too */
	const char *path;   /* one that ends in a slash has an argument behind it */
	bool is_open;       /* without a key */
	void (*serve)(struct exchange *exchange, struct http *http); /* NULL: none of the others */
};

/* The route, whose method may be another one; the last one, which has no `serve`, where there is none.
 * *ret_argument points into the path, or is NULL. */
const struct route *routes_find(const char *path, const char **ret_argument);
unsigned routes_index(const struct route *route);
/* Tell the counters the names. */
void routes_name(struct counters *counters);

#endif
