/* SPDX-License-Identifier: MIT */
/* GET /health and GET /metrics. */
#include "daemon/http/endpoints.h"

void health_serve(struct exchange *exchange, struct http *http)
{
	struct api_error error;

	if (upstream_session(http->upstream)) {
		exchange_reply_json(exchange, 200, json_pack("{s:s}", "status", "ok"));
		return;
	}
	api_error_set_status(&error, MIMEO_E_UNREACHABLE, upstream_message(http->upstream));
	exchange_reply_error(exchange, &error);
}

void metrics_serve(struct exchange *exchange, struct http *http)
{
	struct bytes text = {0};
	struct api_error error;

	if (counters_expose(&http->counters, upstream_session(http->upstream) != NULL, &text) == 0) {
		exchange_reply_bytes(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
	} else {
		api_error_set_status(&error, MIMEO_E_NO_MEMORY, "");
		exchange_reply_error(exchange, &error);
	}
	bytes_deinit(&text);
}
