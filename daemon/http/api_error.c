/* SPDX-License-Identifier: MIT */
#include "daemon/http/api_error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <mimeo/mimeo.h>

#include "ipc/text.h"

#define RETRY_SOON_S 1u  /* a request's time, about */
#define RETRY_LATER_S 3u /* a daemon that starts */

/* JSON is UTF-8: a message may quote bytes of a path that are not, or a text that is cut within a character. */
static void api_error_clean(char *text)
{
	size_t left = strlen(text);

	while (left > 0) {
		size_t n = text_step(text, left);

		if (n == 0) {
			*text = '?';
			n = 1;
		}
		text += n;
		left -= n;
	}
}

bool api_error_set(struct api_error *ret, unsigned status, const char *code, const char *param,
	const char *format, ...)
{
	va_list arguments;

	assert(status >= 400 && status < 600);
	*ret = (struct api_error){.status = status, .code = code};
	if (param)
		snprintf(ret->param, sizeof(ret->param), "%s", param);
	va_start(arguments, format);
	vsnprintf(ret->message, sizeof(ret->message), format, arguments);
	va_end(arguments);
	api_error_clean(ret->message);
	if (status == 429)
		ret->retry_after_s = RETRY_SOON_S;
	else if (status == 503)
		ret->retry_after_s = RETRY_LATER_S;
	return false;
}

struct api_error_of_status {
	int status;
	unsigned http;
	const char *code;
};

static const struct api_error_of_status of_status[] = {
	{MIMEO_E_FULL, 429, "rate_limit_exceeded"},
	{MIMEO_E_QUOTA, 429, "rate_limit_exceeded"},
	{MIMEO_E_NO_MEMORY, 503, "out_of_memory"},
	{MIMEO_E_DRAINING, 503, "draining"},
	{MIMEO_E_GONE, 503, "unavailable"},
	{MIMEO_E_UNREACHABLE, 503, "unavailable"},
	{MIMEO_E_VERSION, 503, "unavailable"},
	{MIMEO_E_DEVICE_LOST, 503, "unavailable"},
	{MIMEO_E_DEADLINE, 504, "timeout"},
	{MIMEO_E_TOO_LONG, 400, "context_length_exceeded"},
	{MIMEO_E_INVALID, 400, NULL},
	{MIMEO_E_NO_TOKEN, 400, NULL},
	{MIMEO_E_UNSUPPORTED, 400, "unsupported"},
	{MIMEO_E_DENIED, 403, NULL},
	{MIMEO_E_UNKNOWN_MODEL, 404, "model_not_found"},
};

bool api_error_set_status(struct api_error *ret, int status, const char *text)
{
	struct api_error_of_status found = {status, 500, NULL};

	assert(status < 0);
	/* What mimeod says names a field that the client did not send. */
	if (status == MIMEO_E_DEADLINE)
		text = "the request did not end in the time that this server allows (--request-seconds)";
	for (size_t i = 0; i < sizeof(of_status) / sizeof(of_status[0]); i++) {
		if (of_status[i].status == status)
			found = of_status[i];
	}
	return api_error_set(ret, found.http, found.code, NULL, "%s", text[0] ? text : mimeo_strerror(status));
}

static const char *api_error_type(unsigned status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 403:
		return "permission_error";
	case 429:
		return "rate_limit_error";
	default:
		return status < 500 ? "invalid_request_error" : "server_error";
	}
}

json_t *api_error_json(const struct api_error *error)
{
	assert(error->status >= 400);
	return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", error->message, "type",
		api_error_type(error->status), "param", error->param[0] ? error->param : NULL, "code",
		error->code);
}
