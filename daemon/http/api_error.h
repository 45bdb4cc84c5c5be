/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_API_ERROR_H
#define MIMEO_DAEMON_HTTP_API_ERROR_H

/* Why a request is refused, as OpenAI's clients expect it. */

#include <stdbool.h>

#include <jansson.h>

struct api_error {
	unsigned status;     /* of HTTP; 0: no error */
	const char *code;    /* static; NULL: none */
	char param[64];      /* the field; "": none */
	char message[512];   /* UTF-8, without control characters */
	unsigned retry_after_s; /* 0: trying again is no remedy */
};

/* Fill it in and return false, so that a parser can `return api_error_set(...)`. param may be NULL. */
bool api_error_set(struct api_error *ret, unsigned status, const char *code, const char *param,
	const char *format, ...) __attribute__((format(printf, 5, 6)));
/* The error for a negative enum mimeo_status; `text` says more and may be empty. MIMEO_E_DEADLINE has a text of its
 * own. */
bool api_error_set_status(struct api_error *ret, int status, const char *text);
/* {"error": {...}}; NULL if there is no memory. */
json_t *api_error_json(const struct api_error *error);

#endif
