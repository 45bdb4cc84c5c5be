/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_ENDPOINTS_H
#define MIMEO_DAEMON_HTTP_ENDPOINTS_H

/* The endpoints, with the body in exchange->body; mimeo-http(8) describes them. */

#include "daemon/http/exchange.h"
#include "daemon/http/http.h"

void health_serve(struct exchange *exchange, struct http *http);
void metrics_serve(struct exchange *exchange, struct http *http);
void models_serve(struct exchange *exchange, struct http *http);
void model_serve(struct exchange *exchange, struct http *http);
void tokenize_serve(struct exchange *exchange, struct http *http);
void detokenize_serve(struct exchange *exchange, struct http *http);
void completions_serve(struct exchange *exchange, struct http *http);
void chat_serve(struct exchange *exchange, struct http *http);
void embeddings_serve(struct exchange *exchange, struct http *http);

#endif
