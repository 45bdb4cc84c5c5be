/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_GENERATION_REPLY_H
#define MIMEO_DAEMON_HTTP_GENERATION_REPLY_H

/* What a generation's client gets: one reply when all choices have ended, or a stream. */

#include "daemon/http/generation.h"

/* A choice has new text, or has ended. */
void generation_reply_advance(struct generation *generation, struct choice *choice);
/* The last event of a stream that cannot go on. */
void generation_reply_stream_error(struct exchange *exchange, const struct api_error *error);

#endif
