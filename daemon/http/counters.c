/* SPDX-License-Identifier: MIT */
#include "daemon/http/counters.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/output/metrics.h"
#include "ipc/cleanup.h"

static const unsigned statuses[] = {200, 400, 401, 403, 404, 405, 413, 429, 500, 501, 503, 504};
#define N_STATUSES (sizeof(statuses) / sizeof(statuses[0]))
_Static_assert(N_STATUSES + 1 <= COUNTERS_STATUSES_MAX, "and one for the others");
#define COUNTERS_LINE_MAX 160u /* of the text, the help lines' share included */

void counters_add_reply(struct counters *counters, unsigned endpoint, unsigned status)
{
	unsigned i = 0;

	assert(endpoint < COUNTERS_ENDPOINTS_MAX);
	while (i < N_STATUSES && statuses[i] != status)
		i++;
	counters->replies[endpoint][i]++;
}

static void counters_add_replies(const struct counters *counters, struct metrics *metrics,
	char codes[static COUNTERS_STATUSES_MAX][8])
{
	for (unsigned i = 0; i <= N_STATUSES; i++) {
		if (i < N_STATUSES)
			snprintf(codes[i], sizeof(codes[i]), "%u", statuses[i]);
		else
			snprintf(codes[i], sizeof(codes[i]), "other");
	}
	for (unsigned e = 0; e < counters->n_endpoints; e++) {
		for (unsigned i = 0; i <= N_STATUSES; i++) {
			const struct metric_label labels[METRIC_LABELS_MAX] = {
				{"endpoint", counters->endpoints[e]}, {"status", codes[i]}};

			if (counters->replies[e][i] > 0)
				metrics_add_labelled(metrics, METRIC_COUNTER, "mimeo_http_replies_total",
					"Replies by endpoint and status.", labels,
					(double)counters->replies[e][i]);
		}
	}
}

static void counters_add_totals(const struct counters *c, bool connected, struct metrics *metrics)
{
#define COUNTER(name, help, value) \
	metrics_add(metrics, METRIC_COUNTER, "mimeo_http_" name "_total", help, (double)(value))
#define SECONDS(name, help, value) \
	metrics_add(metrics, METRIC_SECONDS, "mimeo_http_" name "_total", help, (double)(value))
#define GAUGE(name, help, value) metrics_add(metrics, METRIC_GAUGE, "mimeo_http_" name, help, (double)(value))
	COUNTER("connections", "Connections accepted.", c->connections_accepted);
	COUNTER("connections_refused", "Connections that were closed because the limit was reached.", c->connections_refused);
	COUNTER("connections_timed_out", "Connections that were closed after a time limit.", c->connections_timed_out);
	COUNTER("cancelled", "Requests that were cancelled because their client was gone or too slow.", c->cancelled);
	COUNTER("slow", "Requests that were cancelled because the client did not read its stream.", c->slow);
	COUNTER("prompt_tokens", "Tokens of prompts, cached ones included.", c->tokens_prompt);
	COUNTER("cached_tokens", "Tokens of prompts that the prefix cache had.", c->tokens_cached);
	COUNTER("completion_tokens", "Tokens generated.", c->tokens_generated);
	COUNTER("first_tokens", "Requests that had a first token.", c->first_tokens);
	SECONDS("first_token_seconds", "Time from requests' bodies to their first tokens, summed over all requests.",
		(double)c->first_token_us * 1e-6);
	COUNTER("daemon_connections", "Connections to mimeod that were made.", c->reconnects);
	GAUGE("daemon_connected", "1 while there is a connection to mimeod, else 0.", connected);
	GAUGE("open_connections", "Connections of clients that are open.", c->n_connections);
	GAUGE("requests_in_flight", "Requests that mimeod has not ended.", c->n_requests);
	GAUGE("body_bytes", "Memory of requests' bodies while they are received.", c->body_bytes);
#undef COUNTER
#undef SECONDS
#undef GAUGE
}

int counters_expose(const struct counters *counters, bool connected, struct bytes *ret)
{
	CLEANUP(cleanup_free) struct metrics *metrics = calloc(1, sizeof(*metrics));
	char codes[COUNTERS_STATUSES_MAX][8];

	assert(counters->n_endpoints <= COUNTERS_ENDPOINTS_MAX);
	if (!metrics)
		return -ENOMEM;
	counters_add_totals(counters, connected, metrics);
	counters_add_replies(counters, metrics, codes);
	size_t size = (metrics->n_samples + 1) * 2 * COUNTERS_LINE_MAX;
	CLEANUP(cleanup_free) char *text = malloc(size);
	if (!text)
		return -ENOMEM;
	int n = metrics_render(metrics, text, size);
	assert(n >= 0 && metrics->n_dropped == 0);
	return bytes_append(ret, text, (size_t)n);
}
