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

#include "daemon/config/digits.h"
#include "daemon/output/log.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define SECONDS_MAX 86400u

static const char http_options_usage[] =
	"usage: mimeo-http --listen ADDRESS [OPTION...]\n"
	"Serve the models of mimeod to clients of OpenAI's HTTP interface.\n"
	"\n"
	"  --listen ADDRESS         unix:PATH, 127.0.0.1:PORT or [::1]:PORT; up to 8 times\n"
	"  --keys FILE              API keys for TCP, one a line\n"
	"  --socket PATH            mimeod's client socket\n"
	"  --socket-mode MODE       of Unix sockets, octal (default 0660)\n"
	"  --max-connections N      (default 1024)\n"
	"  --max-requests N         at mimeod, a power of two (default 256)\n"
	"  --arena-bytes N          memory for prompts and results (default 64M)\n"
	"  --max-choices N          of a request, prompts times n (default 16)\n"
	"  --max-tokens N           of a choice; 0: no limit (default)\n"
	"  --max-header-bytes N     (default 16K)\n"
	"  --max-body-bytes N       (default 1M)\n"
	"  --max-bodies-bytes N     all bodies that are being received (default 64M)\n"
	"  --max-pending-bytes N    of a stream that its client does not read (default 1M)\n"
	"  --receive-seconds N      for a request's header and body (default 30)\n"
	"  --idle-seconds N         between requests of a connection (default 300)\n"
	"  --send-seconds N         without progress of a reply (default 60)\n"
	"  --request-seconds N      at mimeod (default 600)\n"
	"  --drain-seconds N        for requests in flight after SIGTERM (default 30)\n"
	"  --log-level LEVEL        error, warn, info or debug (default info)\n"
	"  --help, --version\n";

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

/* ---- numbers: a table says which option writes which field ---- */

struct http_options_number {
	const char *name;
	size_t offset;
	size_t bytes; /* of the field: 4 or 8 */
	uint64_t initially, least, most;
};

#define NUMBER(option, member, initially, least, most)                                             \
	{option, offsetof(struct http_options, member), sizeof(((struct http_options *)0)->member), \
		initially, least, most}

static const struct http_options_number numbers[] = {
	NUMBER("max-connections", max_connections, 1024, 1, 65536),
	NUMBER("max-requests", max_requests, 256, 2, 4096),
	NUMBER("arena-bytes", arena_bytes, 64 * MIB, 64 * KIB, 1024 * MIB),
	NUMBER("max-choices", max_choices, 16, 1, HTTP_CHOICES_MAX),
	NUMBER("max-tokens", max_tokens, 0, 0, INT32_MAX),
	NUMBER("max-header-bytes", max_header_bytes, 16 * KIB, 4 * KIB, MIB),
	NUMBER("max-body-bytes", max_body_bytes, MIB, KIB, 256 * MIB),
	NUMBER("max-bodies-bytes", max_bodies_bytes, 64 * MIB, KIB, 16384 * MIB),
	NUMBER("max-pending-bytes", max_pending_bytes, MIB, 4 * KIB, 1024 * MIB),
	NUMBER("receive-seconds", receive_s, 30, 1, SECONDS_MAX),
	NUMBER("idle-seconds", idle_s, 300, 1, SECONDS_MAX),
	NUMBER("send-seconds", send_s, 60, 1, SECONDS_MAX),
	NUMBER("request-seconds", request_s, 600, 1, SECONDS_MAX),
	NUMBER("drain-seconds", drain_s, 30, 0, SECONDS_MAX),
};
#define N_NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

static void http_options_store(struct http_options *options, const struct http_options_number *number, uint64_t value)
{
	const uint32_t narrow = (uint32_t)value;

	if (number->bytes == sizeof(narrow))
		memcpy((char *)options + number->offset, &narrow, sizeof(narrow));
	else
		memcpy((char *)options + number->offset, &value, sizeof(value));
}

/* "64M": digits and K, M or G. */
static int http_options_take_number(
	struct http_options *options, const struct http_options_number *number, const char *text)
{
	static const char units[] = "KMG";
	const char *at = text;
	uint64_t value = 0;

	int rc = digits_parse(&at, UINT64_MAX, &value);
	const char *unit = *at ? strchr(units, *at) : NULL;
	if (rc == 0 && unit && __builtin_mul_overflow(value, UINT64_C(1) << 10 * (unit - units + 1), &value))
		rc = -ERANGE;
	if (unit)
		at++;
	if (rc < 0 || *at || value < number->least || value > number->most)
		return http_options_complain("--%s: '%s' is not an integer from %llu to %llu", number->name, text,
			(unsigned long long)number->least, (unsigned long long)number->most);
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

static int http_options_take_level(struct http_options *options, const char *text)
{
	enum log_level level;

	if (log_level_parse(text, &level) < 0)
		return http_options_complain("--log-level: '%s' is not error, warn, info or debug", text);
	options->log_level = level;
	return HTTP_OK;
}

/* ---- the command line ---- */

#define FIRST_NUMBER 256 /* values of options with a number; others are characters */
#define N_OTHERS 7

static const struct option others[N_OTHERS] = {
	{"listen", required_argument, NULL, 'l'},
	{"keys", required_argument, NULL, 'k'},
	{"socket", required_argument, NULL, 's'},
	{"socket-mode", required_argument, NULL, 'm'},
	{"log-level", required_argument, NULL, 'L'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'v'},
};

static int http_options_take(struct http_options *options, int option, const char *value)
{
	switch (option) {
	case 'l':
		return http_options_take_listen(options, value);
	case 'k':
		options->keys = value;
		return HTTP_OK;
	case 's':
		options->socket = value;
		return HTTP_OK;
	case 'm':
		return http_options_take_mode(options, value);
	case 'L':
		return http_options_take_level(options, value);
	default:
		return http_options_take_number(options, &numbers[option - FIRST_NUMBER], value);
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

int http_options_parse(struct http_options *ret, int argc, char **argv)
{
	struct option table[N_OTHERS + N_NUMBERS + 1] = {0};
	int option;

	*ret = (struct http_options){.socket_mode = 0660, .log_level = LOG_LEVEL_INFO};
	memcpy(table, others, sizeof(others));
	for (size_t i = 0; i < N_NUMBERS; i++) {
		table[N_OTHERS + i] =
			(struct option){numbers[i].name, required_argument, NULL, FIRST_NUMBER + (int)i};
		http_options_store(ret, &numbers[i], numbers[i].initially);
	}
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":", table, NULL)) != -1) {
		if (option == 'h' || option == 'v') {
			if (option == 'h')
				fputs(http_options_usage, stdout);
			else
				printf("mimeo-http %s\n", mimeo_version());
			ret->done = true;
			return HTTP_OK;
		}
		if (option == '?' || option == ':')
			return http_options_complain(option == ':' ? "%s: needs a value; see --help"
				: "%s: unknown or misused option; see --help", argv[optind - 1]);
		int rc = http_options_take(ret, option, optarg);
		if (rc != HTTP_OK)
			return rc;
	}
	if (optind < argc)
		return http_options_complain("'%s': no arguments are taken beside options", argv[optind]);
	return http_options_check(ret);
}
