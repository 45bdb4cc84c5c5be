/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_CONNECTION_REQUEST_H
#define MIMEO_DAEMON_HTTP_CONNECTION_REQUEST_H

/* Requests on a connection: libmicrohttpd's callbacks. */

#include "daemon/http/connection.h"

/* The request line has come. Returns the request's context: none so far. */
void *connection_request_on_line(void *userdata, const char *uri, struct MHD_Connection *mhd);
/* Called with the header; with each part of the body; when all of it has come; and when the connection is
 * resumed. */
enum MHD_Result connection_request_on_part(void *userdata, struct MHD_Connection *mhd, const char *path,
	const char *method, const char *version, const char *data, size_t *n_data, void **exchange);
/* The reply was sent, or the connection is lost. */
void connection_request_on_end(void *userdata, struct MHD_Connection *mhd, void **context,
	enum MHD_RequestTerminationCode code);

#endif
