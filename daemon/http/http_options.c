/* SPDX-License-Identifier: MIT */
#include "daemon/http/http_options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mimeo/mimeo.h>

#include "daemon/config/command_line.h"
#include "daemon/config/digits.h"
#include "daemon/config/quantity.h"
#include "daemon/output/log.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define SECONDS_MAX 86400u

/* The options, in the order of --help; those from HTTP_FIRST_NUMBER on are numbers. */
enum http_option {
	HTTP_LISTEN, HTTP_KEYS, HTTP_SOCKET, HTTP_SOCKET_MODE, HTTP_CLASSES, HTTP_LOG_LEVEL,
	HTTP_FIRST_NUMBER,
	HTTP_MAX_CONNECTIONS = HTTP_FIRST_NUMBER, HTTP_MAX_REQUESTS, HTTP_ARENA_BYTES, HTTP_MAX_CHOICES, HTTP_MAX_TOKENS,
	HTTP_MAX_HEADER_BYTES, HTTP_MAX_BODY_BYTES, HTTP_MAX_BODIES_BYTES, HTTP_MAX_PENDING_BYTES,
	HTTP_RECEIVE_SECONDS, HTTP_IDLE_SECONDS, HTTP_SEND_SECONDS, HTTP_REQUEST_SECONDS, HTTP_DRAIN_SECONDS,
	HTTP_N_OPTIONS,
};

static const struct command_option http_options_table[HTTP_N_OPTIONS] = {
	[HTTP_LISTEN] = {"listen", "ADDRESS", "unix:PATH, 127.0.0.1:PORT or [::1]:PORT; up to 8 times"},
	[HTTP_KEYS] = {"keys", "FILE", "API keys for TCP, one a line"},
	[HTTP_SOCKET] = {"socket", "PATH", "mimeod's client socket"},
	[HTTP_SOCKET_MODE] = {"socket-mode", "MODE", "of Unix sockets, octal (default 0660)"},
	[HTTP_CLASSES] = {"classes", "LIST", "of requests over Unix sockets: USER:CLASS, @GROUP:CLASS"},
	[HTTP_LOG_LEVEL] = {"log-level", "LEVEL", "error, warn, info or debug (default info)"},
	[HTTP_MAX_CONNECTIONS] = {"max-connections", "N", "of clients (default 1024)"},
	[HTTP_MAX_REQUESTS] = {"max-requests", "N", "at mimeod, a power of two (default 256)"},
	[HTTP_ARENA_BYTES] = {"arena-bytes", "N", "memory for prompts and results (default 64M)"},
	[HTTP_MAX_CHOICES] = {"max-choices", "N", "of a request: prompts times n (default 16)"},
	[HTTP_MAX_TOKENS] = {"max-tokens", "N", "of a choice; 0: no limit (default)"},
	[HTTP_MAX_HEADER_BYTES] = {"max-header-bytes", "N", "of a request (default 16K)"},
	[HTTP_MAX_BODY_BYTES] = {"max-body-bytes", "N", "of a request (default 1M)"},
	[HTTP_MAX_BODIES_BYTES] = {"max-bodies-bytes", "N", "of all bodies that are being received (default 64M)"},
	[HTTP_MAX_PENDING_BYTES] = {"max-pending-bytes", "N", "of a stream that its client does not read (default 1M)"},
	[HTTP_RECEIVE_SECONDS] = {"receive-seconds", "N", "for a request's header and body (default 30)"},
	[HTTP_IDLE_SECONDS] = {"idle-seconds", "N", "between requests of a connection (default 300)"},
	[HTTP_SEND_SECONDS] = {"send-seconds", "N", "without progress of a reply (default 60)"},
	[HTTP_REQUEST_SECONDS] = {"request-seconds", "N", "for a choice at mimeod (default 600)"},
	[HTTP_DRAIN_SECONDS] = {"drain-seconds", "N", "for requests in flight after SIGTERM (default 30)"},
};

__attribute__((format(printf, 1, 2)))
static int http_options_complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("mimeo-http: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	return HTTP_USAGE;
}

/* ---- numbers: which option sets which field ---- */

struct http_options_number {
	size_t offset;
	size_t bytes; /* of the field: 4 or 8 */
	bool is_size; /* may have a unit */
	uint64_t initial, least, most;
};

#define NUMBER(member, initial, least, most)                                                       \
	{offsetof(struct http_options, member), sizeof(((struct http_options *)0)->member), false, initial, least, most}
#define SIZE(member, initial, least, most)                                                         \
	{offsetof(struct http_options, member), sizeof(((struct http_options *)0)->member), true, initial, least, most}

static const struct http_options_number http_options_numbers[HTTP_N_OPTIONS] = {
	[HTTP_MAX_CONNECTIONS] = NUMBER(max_connections, 1024, 1, 65536),
	[HTTP_MAX_REQUESTS] = NUMBER(max_requests, 256, 2, 4096),
	[HTTP_ARENA_BYTES] = SIZE(arena_bytes, 64 * MIB, 64 * KIB, 1024 * MIB),
	[HTTP_MAX_CHOICES] = NUMBER(max_choices, 16, 1, HTTP_CHOICES_MAX),
	[HTTP_MAX_TOKENS] = NUMBER(max_tokens, 0, 0, INT32_MAX),
	[HTTP_MAX_HEADER_BYTES] = SIZE(max_header_bytes, 16 * KIB, 4 * KIB, MIB),
	[HTTP_MAX_BODY_BYTES] = SIZE(max_body_bytes, MIB, KIB, 256 * MIB),
	[HTTP_MAX_BODIES_BYTES] = SIZE(max_bodies_bytes, 64 * MIB, KIB, 16384 * MIB),
	[HTTP_MAX_PENDING_BYTES] = SIZE(max_pending_bytes, MIB, 4 * KIB, 1024 * MIB),
	[HTTP_RECEIVE_SECONDS] = NUMBER(receive_s, 30, 1, SECONDS_MAX),
	[HTTP_IDLE_SECONDS] = NUMBER(idle_s, 300, 1, SECONDS_MAX),
	[HTTP_SEND_SECONDS] = NUMBER(send_s, 60, 1, SECONDS_MAX),
	[HTTP_REQUEST_SECONDS] = NUMBER(request_s, 600, 1, SECONDS_MAX),
	[HTTP_DRAIN_SECONDS] = NUMBER(drain_s, 30, 0, SECONDS_MAX),
};

static void http_options_store(struct http_options *options, const struct http_options_number *number, uint64_t value)
{
	const uint32_t narrow = (uint32_t)value;

	if (number->bytes == sizeof(narrow))
		memcpy((char *)options + number->offset, &narrow, sizeof(narrow));
	else
		memcpy((char *)options + number->offset, &value, sizeof(value));
}

static int http_options_take_number(struct http_options *options, enum http_option option, const char *text)
{
	const struct http_options_number *number = &http_options_numbers[option];
	const char *at = text;
	uint64_t value;
	int rc = number->is_size ? quantity_parse_size(text, &value) : digits_parse(&at, UINT64_MAX, &value);

	if (rc < 0 || (!number->is_size && *at) || value < number->least || value > number->most)
		return http_options_complain("--%s: '%s' is not an integer from %llu to %llu",
			http_options_table[option].name, text, (unsigned long long)number->least,
			(unsigned long long)number->most);
	http_options_store(options, number, value);
	return HTTP_OK;
}

static int http_options_take_mode(struct http_options *options, const char *text)
{
	char *end;
	unsigned long mode = strtoul(text, &end, 8);

	if (text[0] < '0' || text[0] > '7' || *end || mode > 0777)
		return http_options_complain("--socket-mode: '%s' is not an octal mode such as 0660", text);
	options->socket_mode = (mode_t)mode;
	return HTTP_OK;
}

static int http_options_take_listen(struct http_options *options, const char *text)
{
	if (options->n_listen == LISTEN_MAX)
		return http_options_complain("--listen: at most %u times", LISTEN_MAX);
	options->listen[options->n_listen++] = text;
	return HTTP_OK;
}

static int http_options_take_classes(struct http_options *options, const char *text)
{
	char message[320];

	options->classes.n = 0;
	if (!classes_parse(&options->classes, text, message, sizeof(message)))
		return http_options_complain("--classes: %s", message);
	return HTTP_OK;
}

static int http_options_take_level(struct http_options *options, const char *text)
{
	enum log_level level;

	if (log_level_parse(text, &level) < 0)
		return http_options_complain("--log-level: '%s' is not error, warn, info or debug", text);
	options->log_level = level;
	return HTTP_OK;
}

/* ---- the command line ---- */

static int http_options_take(struct http_options *options, enum http_option option, const char *value)
{
	switch (option) {
	case HTTP_LISTEN:
		return http_options_take_listen(options, value);
	case HTTP_KEYS:
		options->keys = value;
		return HTTP_OK;
	case HTTP_SOCKET:
		options->socket = value;
		return HTTP_OK;
	case HTTP_SOCKET_MODE:
		return http_options_take_mode(options, value);
	case HTTP_CLASSES:
		return http_options_take_classes(options, value);
	case HTTP_LOG_LEVEL:
		return http_options_take_level(options, value);
	default:
		return http_options_take_number(options, option, value);
	}
}

static int http_options_check(const struct http_options *options)
{
	if (options->max_requests & (options->max_requests - 1))
		return http_options_complain("--max-requests: %u is not a power of two", options->max_requests);
	if (options->max_choices > options->max_requests)
		return http_options_complain("--max-choices %u exceeds --max-requests %u", options->max_choices,
			options->max_requests);
	if (options->max_body_bytes > options->max_bodies_bytes)
		return http_options_complain("--max-body-bytes exceeds --max-bodies-bytes");
	return HTTP_OK;
}

static void http_options_help(void)
{
	fputs("Usage: mimeo-http --listen ADDRESS [OPTION]...\n\n"
	      "Serve the models of mimeod to clients of OpenAI's HTTP interface.\n\n", stdout);
	command_line_print_options(stdout, http_options_table, HTTP_N_OPTIONS);
}

int http_options_parse(struct http_options *ret, int argc, char **argv)
{
	struct command_line line = {.argc = argc, .argv = argv, .options = http_options_table,
		.n_options = HTTP_N_OPTIONS};
	int option;

	*ret = (struct http_options){.socket_mode = 0660, .log_level = LOG_LEVEL_INFO};
	for (size_t i = HTTP_FIRST_NUMBER; i < HTTP_N_OPTIONS; i++)
		http_options_store(ret, &http_options_numbers[i], http_options_numbers[i].initial);
	while ((option = command_line_next(&line)) != COMMAND_END) {
		ret->done = option == COMMAND_HELP || option == COMMAND_VERSION;
		if (option == COMMAND_HELP)
			http_options_help();
		if (option == COMMAND_VERSION)
			printf("mimeo-http %s\n", mimeo_version());
		if (ret->done)
			return HTTP_OK;
		if (option == COMMAND_WRONG)
			return http_options_complain("%s; see --help", line.error);
		int rc = http_options_take(ret, (enum http_option)option, line.value);
		if (rc != HTTP_OK)
			return rc;
	}
	if (optind < argc)
		return http_options_complain("'%s': not an option; see --help", argv[optind]);
	return http_options_check(ret);
}
