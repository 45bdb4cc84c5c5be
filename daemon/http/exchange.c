/* SPDX-License-Identifier: MIT */
#include "daemon/http/exchange.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define JSON_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(9)) /* the numbers are of float32 */
#define BLOCK (16u << 10) /* of a reply, at once */
#define NO_MEMORY_BODY "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}"

/* ---- waking the connection ---- */

static void exchange_wake(struct exchange *exchange)
{
	if (!exchange->suspended)
		return;
	exchange->suspended = false;
	MHD_resume_connection(exchange->connection);
}

static void exchange_suspend(struct exchange *exchange)
{
	assert(!exchange->suspended);
	exchange->suspended = true;
	MHD_suspend_connection(exchange->connection);
}

void exchange_wait(struct exchange *exchange, void (*on_gone)(void *userdata), void *userdata)
{
	assert(exchange->status == 0 && !exchange->on_gone);
	exchange->on_gone = on_gone;
	exchange->userdata = userdata;
	exchange_suspend(exchange);
}

/* ---- whole replies ---- */

static void exchange_set_header(struct exchange *exchange, const char *name, const char *value)
{
	if (exchange->response)
		MHD_add_response_header(exchange->response, name, value);
}

/* By parts, so that n_read tells whether the client takes them. */
static ssize_t exchange_on_read_whole(void *userdata, uint64_t position, char *buffer, size_t size)
{
	struct exchange *exchange = userdata;
	const struct bytes *whole = &exchange->pending;

	if (exchange->gone || position >= whole->n)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	size_t n = whole->n - position < size ? whole->n - (size_t)position : size;
	memcpy(buffer, whole->data + position, n);
	exchange->n_read += n;
	return (ssize_t)n;
}

/* Takes `text` over: malloc'd, or NULL where there was no memory. */
static void exchange_reply(
	struct exchange *exchange, unsigned status, const char *type, char *text, size_t n)
{
	assert(exchange->status == 0 && !exchange->response && !exchange->gone);
	exchange->status = text ? status : 503;
	exchange->ended = true;
	exchange->on_gone = NULL;
	exchange->pending = (struct bytes){.data = text, .n = n, .capacity = n};
	exchange->response = text
		? MHD_create_response_from_callback(n, n < BLOCK ? n + 1 : BLOCK, exchange_on_read_whole, exchange, NULL)
		: MHD_create_response_from_buffer(
			sizeof(NO_MEMORY_BODY) - 1, (void *)(uintptr_t)NO_MEMORY_BODY, MHD_RESPMEM_PERSISTENT);
	exchange_set_header(exchange, "Content-Type", text ? type : "application/json");
	exchange_set_header(exchange, "Cache-Control", "no-store");
	exchange_wake(exchange);
}

void exchange_reply_json(struct exchange *exchange, unsigned status, json_t *json)
{
	char *text = json ? json_dumps(json, JSON_FLAGS) : NULL;

	json_decref(json);
	exchange_reply(exchange, status, "application/json", text, text ? strlen(text) : 0);
}

void exchange_reply_bytes(struct exchange *exchange, unsigned status, const char *type, struct bytes *bytes)
{
	exchange_reply(exchange, status, type, bytes->data, bytes->n);
	*bytes = (struct bytes){0};
}

void exchange_reply_error(struct exchange *exchange, const struct api_error *error)
{
	char seconds[16];

	exchange_reply_json(exchange, error->status, api_error_json(error));
	if (error->retry_after_s > 0) {
		snprintf(seconds, sizeof(seconds), "%u", error->retry_after_s);
		exchange_set_header(exchange, "Retry-After", seconds);
	}
	if (error->status == 401)
		exchange_set_header(exchange, "WWW-Authenticate", "Bearer");
}

/* ---- streams ---- */

static ssize_t exchange_on_read(void *userdata, uint64_t position, char *buffer, size_t size)
{
	return exchange_read(userdata, buffer, size);
}

void exchange_stream(struct exchange *exchange)
{
	assert(exchange->status == 0 && !exchange->response && !exchange->gone);
	exchange->status = 200;
	exchange->stream = true;
	exchange->response = MHD_create_response_from_callback(
		MHD_SIZE_UNKNOWN, BLOCK, exchange_on_read, exchange, NULL);
	exchange_set_header(exchange, "Content-Type", "text/event-stream; charset=utf-8");
	exchange_set_header(exchange, "Cache-Control", "no-store");
	/* A proxy that collects the events would delay them. */
	exchange_set_header(exchange, "X-Accel-Buffering", "no");
	exchange_wake(exchange);
}

/* libmicrohttpd waits until the socket takes more: it has to find it closed. */
static void exchange_give_up(struct exchange *exchange, bool slow)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CONNECTION_FD);

	exchange->slow = slow;
	shutdown(info->connect_fd, SHUT_RDWR);
	exchange_lose(exchange);
}

static void exchange_send(struct exchange *exchange, const char *text, size_t n)
{
	assert(exchange->stream && !exchange->ended);
	if (exchange->gone)
		return;
	bool fits = exchange->pending.n + n <= exchange->max_pending;
	if (!fits || bytes_append(&exchange->pending, "data: ", 6) < 0 ||
		bytes_append(&exchange->pending, text, n) < 0 || bytes_append(&exchange->pending, "\n\n", 2) < 0) {
		exchange_give_up(exchange, !fits);
		return;
	}
	exchange_wake(exchange);
}

void exchange_send_json(struct exchange *exchange, json_t *json)
{
	char *text = json ? json_dumps(json, JSON_FLAGS) : NULL;

	json_decref(json);
	if (text)
		exchange_send(exchange, text, strlen(text));
	else
		exchange_give_up(exchange, false);
	free(text);
}

void exchange_end(struct exchange *exchange)
{
	exchange_send(exchange, "[DONE]", 6);
	if (exchange->gone)
		return;
	exchange->ended = true;
	exchange->on_gone = NULL;
	exchange_wake(exchange);
}

ssize_t exchange_read(struct exchange *exchange, char *buffer, size_t size)
{
	struct bytes *pending = &exchange->pending;
	size_t n = pending->n < size ? pending->n : size;

	if (exchange->gone)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (n > 0) {
		memcpy(buffer, pending->data, n);
		bytes_drop(pending, n);
		exchange->n_read += n;
		return (ssize_t)n;
	}
	if (exchange->ended)
		return MHD_CONTENT_READER_END_OF_STREAM;
	exchange_suspend(exchange);
	return 0;
}

/* ---- the end ---- */

void exchange_lose(struct exchange *exchange)
{
	void (*on_gone)(void *userdata) = exchange->on_gone;

	if (exchange->gone)
		return;
	exchange->gone = true;
	exchange->on_gone = NULL;
	if (on_gone)
		on_gone(exchange->userdata);
	exchange_wake(exchange);
}

void exchange_free(struct exchange *exchange)
{
	if (!exchange)
		return;
	assert(!exchange->on_gone);
	if (exchange->response)
		MHD_destroy_response(exchange->response);
	bytes_deinit(&exchange->body);
	bytes_deinit(&exchange->pending);
	free((void *)(uintptr_t)exchange->argument);
	free(exchange);
}
