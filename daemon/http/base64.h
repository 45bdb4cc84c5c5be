/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_BASE64_H
#define MIMEO_DAEMON_HTTP_BASE64_H

#include <stddef.h>

#include "daemon/http/bytes.h"

/* Append n bytes in base64 (RFC 4648, section 4), with padding. 0 or -ENOMEM. */
int base64_append(struct bytes *bytes, const void *data, size_t n);

#endif
