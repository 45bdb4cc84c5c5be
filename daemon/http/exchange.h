/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_EXCHANGE_H
#define MIMEO_DAEMON_HTTP_EXCHANGE_H

/*
 * One request of a client and its reply.
 *
 * An endpoint is called with the whole body. It REPLIES at once, or says that it WAITS and replies later; or it
 * begins a STREAM of server-sent events, sends them as they come, and ends it. Meanwhile libmicrohttpd leaves the
 * connection alone (it is suspended); a reply or an event wakes it.
 *
 * If the client disconnects, or does not read its stream, on_gone is called once: nothing that is sent afterwards
 * arrives, and the exchange must not be used any more.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>
#include <microhttpd.h>

#include "daemon/http/api_error.h"
#include "daemon/http/bytes.h"

struct exchange {
	struct MHD_Connection *connection;
	unsigned endpoint; /* its index, for counters */
	uint32_t request_class; /* of what it asks mimeod: enum mimeo_class */
	const char *argument; /* the rest of the path, behind the endpoint's; owned */
	struct bytes body;
	uint64_t n_dropped; /* bytes of the body of a request that was refused before */
	int64_t began_us; /* when the body was complete */
	uint64_t max_pending;
	/* the reply */
	unsigned status; /* of HTTP; 0: none so far */
	struct MHD_Response *response; /* until it is queued */
	struct bytes pending; /* of a stream, or a whole reply */
	uint64_t n_read; /* of either, so far */
	bool stream, ended;   /* ended: nothing more is sent */
	bool suspended, gone;
	bool slow; /* gone because it did not read */
	void (*on_gone)(void *userdata);
	void *userdata;
};

/* ---- for endpoints ---- */

/* The reply comes later, when the endpoint has returned, unless on_gone comes first. */
void exchange_wait(struct exchange *exchange, void (*on_gone)(void *userdata), void *userdata);

/* Reply with JSON, which is released. NULL: there was no memory for it. */
void exchange_reply_json(struct exchange *exchange, unsigned status, json_t *json);
void exchange_reply_error(struct exchange *exchange, const struct api_error *error);
/* Takes the bytes over. */
void exchange_reply_bytes(struct exchange *exchange, unsigned status, const char *type, struct bytes *bytes);

/* Begin a stream: 200, text/event-stream. */
void exchange_stream(struct exchange *exchange);
/* Send "data: JSON" and release it (NULL as above). */
void exchange_send_json(struct exchange *exchange, json_t *json);
/* End a stream, with the event that tells OpenAI's clients so. */
void exchange_end(struct exchange *exchange);

/* ---- for the connection ---- */

/* The client is gone. */
void exchange_lose(struct exchange *exchange);
/* Bytes of a stream: as MHD_ContentReaderCallback. */
ssize_t exchange_read(struct exchange *exchange, char *buffer, size_t size);
/* Closes the connection unless it has been replied to. */
void exchange_free(struct exchange *exchange);

#endif
