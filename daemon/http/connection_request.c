/* SPDX-License-Identifier: MIT */
#include "daemon/http/connection_request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *connection_request_header(struct MHD_Connection *mhd, const char *name)
{
	return MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, name);
}

static bool connection_request_check_method(const struct route *route, const char *method, struct api_error *error)
{
	if (strcmp(method, route->method) == 0 ||
		(strcmp(method, MHD_HTTP_METHOD_HEAD) == 0 && strcmp(route->method, "GET") == 0))
		return true;
	return api_error_set(error, 405, NULL, NULL, "%s takes %s only", route->path, route->method);
}

static bool connection_request_check_key(struct connection *connection, struct MHD_Connection *mhd,
	const struct route *route, struct api_error *error)
{
	const struct keys *keys = connection->owner->keys;

	if (connection->is_unix || route->is_open)
		return true;
	if (keys && keys_have(keys, connection_request_header(mhd, MHD_HTTP_HEADER_AUTHORIZATION)))
		return true;
	return api_error_set(error, 401, "invalid_api_key", NULL,
		"no valid API key: send the header Authorization: Bearer KEY");
}

/* Which headers say where the body ends. */
struct framing {
	unsigned n_codings, n_lengths;
	const char *coding; /* one other than chunked; NULL: there is none */
	bool odd;           /* a name is one that a proxy may read as Transfer-Encoding or Content-Length */
};

/* libmicrohttpd keeps blanks around a name, and appends to it what is folded behind an empty value; names such as
 * Content-Length-Hint are others, and no length or coding begins with '-'. */
static bool framing_is_odd(const char *name)
{
	static const char *const known[] = {MHD_HTTP_HEADER_TRANSFER_ENCODING, MHD_HTTP_HEADER_CONTENT_LENGTH};
	const size_t n = strlen(name);

	if (n == 0 || strchr(" \t", name[0]) || strchr(" \t", name[n - 1]))
		return true;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		const size_t n_known = strlen(known[i]);

		if (n > n_known && strncasecmp(name, known[i], n_known) == 0 && name[n_known] != '-')
			return true;
	}
	return false;
}

static enum MHD_Result framing_on_header(void *ret, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct framing *framing = ret;

	framing->odd |= framing_is_odd(name);
	framing->n_lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
	if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
		framing->n_codings++;
		if (!value || strcasecmp(value, "chunked") != 0)
			framing->coding = value ? value : "";
	}
	return MHD_YES;
}

/* May a proxy have found another end of the body? Then what follows is not the next request (RFC 9112, 6.1, 6.3). */
static bool framing_is_ambiguous(const struct framing *framing, const char *version)
{
	return framing->odd || framing->n_codings > 1 || framing->n_lengths > 1 ||
		(framing->n_codings > 0 &&
			(framing->n_lengths > 0 || strcmp(version, MHD_HTTP_VERSION_1_1) != 0));
}

static bool framing_refuse_coding(const char *coding, struct api_error *error)
{
	size_t n = strlen(coding);

	while (n > 0 && strchr(" \t", coding[n - 1]))
		n--;
	return api_error_set(error, 501, "unsupported", NULL,
		"the transfer coding '%.*s'%s is not supported: send the body with Content-Length or "
		"Transfer-Encoding: chunked",
		n < 100 ? (int)n : 100, coding, coding[n] ? " with a blank behind it" : "");
}

/* What can be refused before the body comes. */
static bool connection_request_check(struct connection *connection, struct MHD_Connection *mhd,
	const struct framing *framing, const char *method, const char *path, struct api_error *error)
{
	const uint64_t most = connection->owner->http->options->max_body_bytes;
	const char *length = connection_request_header(mhd, MHD_HTTP_HEADER_CONTENT_LENGTH);
	const struct route *route = connection->route;

	if (!connection_request_check_key(connection, mhd, route, error))
		return false;
	if (!route->serve)
		return api_error_set(error, 404, NULL, NULL, "there is no %.100s", path);
	if (!connection_request_check_method(route, method, error))
		return false;
	if (framing->coding)
		return framing_refuse_coding(framing->coding, error);
	if (length && strtoull(length, NULL, 10) > most)
		return api_error_set(error, 413, NULL, NULL, "the body has %s bytes: at most %llu are accepted", length,
			(unsigned long long)most);
	return true;
}

static struct exchange *connection_request_new_exchange(
	struct connection *connection, struct MHD_Connection *mhd, const struct route *route, const char *argument)
{
	struct exchange *exchange = calloc(1, sizeof(*exchange));

	if (!exchange)
		return NULL;
	exchange->connection = mhd;
	exchange->request_class = connection->request_class;
	exchange->endpoint = routes_index(route);
	exchange->max_pending = connection->owner->http->options->max_pending_bytes;
	exchange->argument = argument ? strdup(argument) : NULL;
	return exchange;
}

static enum MHD_Result connection_request_queue(
	struct connection *connection, struct MHD_Connection *mhd, bool is_last)
{
	struct exchange *exchange = connection->exchange;

	if (!exchange->response || exchange->gone)
		return MHD_NO;
	if (is_last || connection->owner->draining)
		MHD_add_response_header(exchange->response, MHD_HTTP_HEADER_CONNECTION, "close");
	enum MHD_Result result = MHD_queue_response(mhd, exchange->status, exchange->response);
	MHD_destroy_response(exchange->response);
	exchange->response = NULL;
	connection_enter(connection, PHASE_SENDING);
	return result;
}

/* How much of a body is read only so that its client gets to read the refusal: many look for a reply when they have
 * sent all. */
static uint64_t connection_request_most_dropped(const struct http_options *options)
{
	return 2 * options->max_body_bytes;
}

/* Is a refusal to be sent before the body? Its client waits for that, or the body is far too long, or its end cannot
 * be found. */
static bool connection_request_is_hopeless(
	const struct connection *connection, struct MHD_Connection *mhd, const struct framing *framing)
{
	const char *length = connection_request_header(mhd, MHD_HTTP_HEADER_CONTENT_LENGTH);

	return connection_request_header(mhd, MHD_HTTP_HEADER_EXPECT) || framing->coding ||
		(length && strtoull(length, NULL, 10) > connection_request_most_dropped(connection->owner->http->options));
}

/* The header is complete. */
static enum MHD_Result connection_request_begin(struct connection *connection, struct MHD_Connection *mhd,
	const char *method, const char *path, const char *version, void **ret_exchange)
{
	const char *argument;
	const struct route *route = routes_find(path, &argument);
	struct framing framing = {0};
	struct api_error error = {0};

	assert(!connection->exchange);
	struct exchange *exchange = connection_request_new_exchange(connection, mhd, route, argument);
	if (!exchange)
		return MHD_NO;
	*ret_exchange = connection->exchange = exchange;
	connection->route = route;
	connection->owner->n_busy++;
	MHD_get_connection_values(mhd, MHD_HEADER_KIND, framing_on_header, &framing);
	bool ambiguous = framing_is_ambiguous(&framing, version);
	if (ambiguous)
		api_error_set(&error, 400, NULL, NULL, "the length of the body is ambiguous: send one "
			"Content-Length or Transfer-Encoding, and header names without blanks");
	else if (connection_request_check(connection, mhd, &framing, method, path, &error))
		return MHD_YES;
	exchange_reply_error(exchange, &error);
	if (error.status == 405 && exchange->response)
		MHD_add_response_header(exchange->response, MHD_HTTP_HEADER_ALLOW, route->method);
	return ambiguous || connection_request_is_hopeless(connection, mhd, &framing)
		? connection_request_queue(connection, mhd, ambiguous) : MHD_YES;
}

/* Bytes of the body. Those of a request that has been refused are read and dropped, so that its client gets to read
 * the reply, but not without limit. */
static enum MHD_Result connection_request_take_body(struct connection *connection, const char *data, size_t n)
{
	struct http *http = connection->owner->http;
	struct exchange *exchange = connection->exchange;
	struct api_error error = {0};

	if (exchange->response) {
		exchange->n_dropped += n;
		return exchange->n_dropped > connection_request_most_dropped(http->options) ? MHD_NO : MHD_YES;
	}
	if (exchange->body.n + n > http->options->max_body_bytes)
		api_error_set(&error, 413, NULL, NULL, "the body is too long: at most %llu bytes are accepted",
			(unsigned long long)http->options->max_body_bytes);
	else if (http->counters.body_bytes + n > http->options->max_bodies_bytes)
		api_error_set(&error, 429, "rate_limit_exceeded", NULL,
			"the bodies of all requests that are being received exceed %llu bytes",
			(unsigned long long)http->options->max_bodies_bytes);
	else if (bytes_append(&exchange->body, data, n) < 0)
		api_error_set_status(&error, MIMEO_E_NO_MEMORY, "");
	if (error.status == 0) {
		http->counters.body_bytes += n;
		return MHD_YES;
	}
	http->counters.body_bytes -= exchange->body.n;
	bytes_deinit(&exchange->body);
	exchange_reply_error(exchange, &error);
	return MHD_YES;
}

static void connection_request_serve(struct connection *connection)
{
	struct exchange *exchange = connection->exchange;
	struct http *http = connection->owner->http;

	connection_enter(connection, PHASE_WORKING);
	connection->served = true;
	exchange->began_us = http_now_us();
	/* Endpoints parse it at once. */
	http->counters.body_bytes -= exchange->body.n;
	connection->route->serve(exchange, http);
	bytes_deinit(&exchange->body);
	assert(exchange->status != 0 || exchange->suspended);
	connection->owner->losing |= connection->hung_up && exchange->suspended;
}

enum MHD_Result connection_request_on_part(void *userdata, struct MHD_Connection *mhd, const char *path,
	const char *method, const char *version, const char *data, size_t *n_data, void **exchange)
{
	struct connection *connection =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;

	if (!*exchange)
		return connection_request_begin(connection, mhd, method, path, version, exchange);
	assert(*exchange == connection->exchange);
	if (*n_data > 0) {
		size_t n = *n_data;

		*n_data = 0;
		return connection_request_take_body(connection, data, n);
	}
	struct exchange *own = connection->exchange;
	if (own->status == 0 && !own->gone)
		connection_request_serve(connection);
	return own->suspended ? MHD_YES : connection_request_queue(connection, mhd, false);
}

void *connection_request_on_line(void *userdata, const char *uri, struct MHD_Connection *mhd)
{
	struct connection *connection =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;

	connection_enter(connection, PHASE_RECEIVING);
	return NULL; /* the request's context: none so far */
}

static void connection_request_count(struct counters *counters, const struct exchange *exchange)
{
	if (exchange->status != 0)
		counters_add_reply(counters, exchange->endpoint, exchange->status);
	counters->cancelled += exchange->gone;
	counters->slow += exchange->slow;
}

void connection_request_on_end(void *userdata, struct MHD_Connection *mhd, void **context,
	enum MHD_RequestTerminationCode code)
{
	struct connection *connection =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
	struct connections *owner = connection->owner;
	struct exchange *exchange = *context;

	if (!exchange)
		return;
	assert(exchange == connection->exchange && owner->n_busy > 0);
	exchange->suspended = false;
	if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK)
		exchange_lose(exchange);
	connection_request_count(&owner->http->counters, exchange);
	/* Its body was not served. */
	if (exchange->body.data)
		owner->http->counters.body_bytes -= exchange->body.n;
	bool trusted = exchange->status != 401;
	exchange_free(exchange);
	connection->exchange = NULL;
	*context = NULL;
	owner->n_busy--;
	connection_enter(connection, trusted ? PHASE_IDLE : PHASE_NEW);
}
