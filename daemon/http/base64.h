/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_BASE64_H
#define MIMEO_DAEMON_HTTP_BASE64_H

#include <stddef.h>

#include <jansson.h>

/* The bytes as a JSON string in base64 (RFC 4648, section 4), with padding. NULL: no memory. */
json_t *base64_json(const void *data, size_t n);

#endif
