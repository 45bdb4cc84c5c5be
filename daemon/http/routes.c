/* SPDX-License-Identifier: MIT */
#include "daemon/http/routes.h"

#include <assert.h>
#include <string.h>

#include "daemon/http/endpoints.h"

static const struct route routes[] = {
	{"health", "GET", "/health", true, health_serve},
	{"metrics", "GET", "/metrics", false, metrics_serve},
	{"models", "GET", "/v1/models", false, models_serve},
	{"model", "GET", "/v1/models/", false, model_serve},
	{"completions", "POST", "/v1/completions", false, completions_serve},
	{"chat", "POST", "/v1/chat/completions", false, chat_serve},
	{"embeddings", "POST", "/v1/embeddings", false, embeddings_serve},
	{"tokenize", "POST", "/tokenize", false, tokenize_serve},
	{"detokenize", "POST", "/detokenize", false, detokenize_serve},
	{"other", "GET", "", false, NULL},
};
#define N_ROUTES (sizeof(routes) / sizeof(routes[0]))
_Static_assert(N_ROUTES <= COUNTERS_ENDPOINTS_MAX, "each has counters");

const struct route *routes_find(const char *path, const char **ret_argument)
{
	const struct route *route = routes;

	*ret_argument = NULL;
	for (; route->serve; route++) {
		size_t length = strlen(route->path);

		if (strcmp(path, route->path) == 0)
			return route;
		if (route->path[length - 1] == '/' && strncmp(path, route->path, length) == 0) {
			*ret_argument = path + length;
			return route;
		}
	}
	return route;
}

unsigned routes_index(const struct route *route)
{
	assert(route >= routes && route < routes + N_ROUTES);
	return (unsigned)(route - routes);
}

void routes_name(struct counters *counters)
{
	for (unsigned i = 0; i < N_ROUTES; i++)
		counters->endpoints[i] = routes[i].name;
	counters->n_endpoints = N_ROUTES;
}
