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

static enum MHD_Result connection_request_on_coding(void *ret, enum MHD_ValueKind kind, const char *name, const char *value)
{
	const char **coding = ret;

	if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) != 0 || (value && strcasecmp(value, "chunked") == 0))
		return MHD_YES;
	*coding = value ? value : "";
	return MHD_NO;
}

/* A transfer coding other than chunked; NULL: there is none. */
static const char *connection_request_coding(struct MHD_Connection *mhd)
{
	const char *coding = NULL;

	MHD_get_connection_values(mhd, MHD_HEADER_KIND, connection_request_on_coding, &coding);
	return coding;
}

/* What can be refused before the body comes. */
static bool connection_request_check(struct connection *connection, struct MHD_Connection *mhd,
	const struct route *route, const char *method, const char *path, struct api_error *error)
{
	const uint64_t most = connection->owner->http->options->max_body_bytes;
	const char *length = connection_request_header(mhd, MHD_HTTP_HEADER_CONTENT_LENGTH);
	const char *coding = connection_request_coding(mhd);

	if (!connection_request_check_key(connection, mhd, route, error))
		return false;
	if (!route->serve)
		return api_error_set(error, 404, NULL, NULL, "there is no %.100s", path);
	if (!connection_request_check_method(route, method, error))
		return false;
	if (coding)
		return api_error_set(error, 501, "unsupported", NULL,
			"the transfer coding '%.100s' is not supported: send the body as it is, or in chunks", coding);
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

static enum MHD_Result connection_request_queue(struct connection *connection, struct MHD_Connection *mhd)
{
	struct exchange *exchange = connection->exchange;

	if (!exchange->response || exchange->gone)
		return MHD_NO;
	if (connection->owner->draining)
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

/* Is a refusal to be sent before the body? Its client waits for that, or the body is far too long, or has no end that
 * could be found. */
static bool connection_request_is_hopeless(const struct connection *connection, struct MHD_Connection *mhd)
{
	const char *length = connection_request_header(mhd, MHD_HTTP_HEADER_CONTENT_LENGTH);

	return connection_request_header(mhd, MHD_HTTP_HEADER_EXPECT) || connection_request_coding(mhd) ||
		(length && strtoull(length, NULL, 10) > connection_request_most_dropped(connection->owner->http->options));
}

/* The header is complete. */
static enum MHD_Result connection_request_begin(struct connection *connection, struct MHD_Connection *mhd,
	const char *method, const char *path, void **ret_exchange)
{
	const char *argument;
	const struct route *route = routes_find(path, &argument);
	struct api_error error = {0};

	assert(!connection->exchange);
	struct exchange *exchange = connection_request_new_exchange(connection, mhd, route, argument);
	if (!exchange)
		return MHD_NO;
	*ret_exchange = connection->exchange = exchange;
	connection->route = route;
	connection->owner->n_busy++;
	if (!connection_request_check(connection, mhd, route, method, path, &error))
		exchange_reply_error(exchange, &error);
	if (error.status == 405 && exchange->response)
		MHD_add_response_header(exchange->response, MHD_HTTP_HEADER_ALLOW, route->method);
	return error.status != 0 && connection_request_is_hopeless(connection, mhd)
		? connection_request_queue(connection, mhd) : MHD_YES;
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
		return connection_request_begin(connection, mhd, method, path, exchange);
	assert(*exchange == connection->exchange);
	if (*n_data > 0) {
		size_t n = *n_data;

		*n_data = 0;
		return connection_request_take_body(connection, data, n);
	}
	struct exchange *own = connection->exchange;
	if (own->status == 0 && !own->gone)
		connection_request_serve(connection);
	return own->suspended ? MHD_YES : connection_request_queue(connection, mhd);
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
