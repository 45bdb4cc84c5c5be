/* SPDX-License-Identifier: MIT */
#include "daemon/config/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define AT(field) .offset = offsetof(struct config, field)
#define AT_BOTH(field)                                                                             \
	.per_model = true, .offset = offsetof(struct config, field),                               \
	.model_offset = offsetof(struct config_model, field)

const struct config_key config_keys[CONFIG_N_KEYS] = {
	{"device", "NAME", "auto", NULL,
		"where to compute: auto (a GPU if there is one), cpu, cuda, cuda:N", CONFIG_DEVICE,
		AT(device)},
	{"socket", "PATH", NULL, "$MIMEO_SOCKET or the default place", "the clients' socket",
		CONFIG_SOCKET, AT(socket)},
	{"graph_mode", "MODE", "full_and_piecewise", NULL, "which batches replay captured graphs",
		CONFIG_MODE, AT_BOTH(graph_mode)},
	{"breakable", "WHETHER", "yes", NULL, "piecewise graphs, broken at attention: yes, no",
		CONFIG_CHOICE, AT_BOTH(breakable), .choices = "yes or no"},
	{"attention", "BACKEND", "auto", NULL, "attention backend: auto, naive, paged, flex, mla, mla_planned",
		CONFIG_CHOICE, AT_BOTH(attention), .choices = "auto, naive, paged, flex, mla or mla_planned"},
	{"mask", "MASK", "causal", NULL, "of requests that bring none: causal, window:N, window:N+SINKS, prefix",
		CONFIG_MASK, AT_BOTH(mask)},
	{"draft", "DIR", NULL, "none", "folder of a draft that speculates for a model, or none",
		CONFIG_FOLDER, AT_BOTH(draft)},
	{"draft_tokens", "N", "4", NULL, "tokens that it drafts a step", CONFIG_INTEGER,
		AT_BOTH(draft_tokens), .min = 1, .max = 8,
		.instead = " (--draft none is without a draft)"},
	{"kv_pages", "N", NULL, "from kv_bytes", "pages of the KV cache of each model",
		CONFIG_INTEGER, AT_BOTH(kv_pages), .min = 1, .max = INT32_MAX},
	{"kv_bytes", "SIZE", NULL, "an eighth of memory, 1G at most",
		"bytes of KV cache, divided among the models", CONFIG_SIZE, AT_BOTH(kv_bytes),
		.min = 1, .max = UINT64_MAX},
	{"capture_sizes", "LIST", NULL,
		"a ladder up to 512 and max_requests, times 1 + draft_tokens with a draft; "
		"max_batch_tokens at most",
		"token counts to capture graphs for, separated by commas", CONFIG_SIZES,
		AT(capture_sizes), .min = 1, .max = 65536},
	{"capture", "WHEN", "eager", NULL, "graphs are captured before serving (eager) or at first use (lazy)",
		CONFIG_CHOICE, AT(capture), .choices = "eager or lazy"},
	{"max_requests", "N", "64", NULL, "requests that one step may carry", CONFIG_INTEGER,
		AT(max_requests), .min = 1, .max = 4096},
	{"max_batch_tokens", "N", "512", NULL, "tokens that one step may carry", CONFIG_INTEGER,
		AT(max_batch_tokens), .min = 1, .max = 65536},
	{"max_seq_len", "N", "0", NULL, "tokens that a sequence may have; 0: what the model allows",
		CONFIG_INTEGER, AT(max_seq_len), .min = 0, .max = 1u << 24},
	{"page_tokens", "N", "16", NULL, "tokens in a page of the KV cache", CONFIG_INTEGER,
		AT(page_tokens), .min = 1, .max = 1024},
	{"memory", "SIZE", NULL, "90 % of what is free at start", "device memory to use at most",
		CONFIG_SIZE, AT(memory), .min = 1, .max = UINT64_MAX},
	{"max_sessions", "N", "64", NULL, "clients attached at once", CONFIG_INTEGER,
		AT(max_sessions), .min = 1, .max = CONFIG_SESSIONS_MAX},
	{"max_sessions_per_uid", "N", "32", NULL, "clients of one user attached at once",
		CONFIG_INTEGER, AT(max_sessions_per_uid), .min = 1, .max = CONFIG_SESSIONS_MAX},
	{"max_sequences", "N", "256", NULL, "open sequences a client may have", CONFIG_INTEGER,
		AT(max_sequences), .min = 1, .max = 65536},
	{"max_arena_bytes", "SIZE", "256M", NULL, "largest arena a client may ask for", CONFIG_SIZE,
		AT(max_arena_bytes), .min = 65536, .max = UINT64_C(1) << 30},
	{"max_shared_bytes", "SIZE", "2G", NULL, "memory that all clients' rings and arenas may take",
		CONFIG_SIZE, AT(max_shared_bytes), .min = UINT64_C(1) << 20, .max = UINT64_MAX},
	{"max_client_buffers", "N", "64", NULL, "device buffers a client may have", CONFIG_INTEGER,
		AT(max_client_buffers), .min = 0, .max = 4096},
	{"max_client_buffer_bytes", "SIZE", "256M", NULL, "bytes of a client's device buffers",
		CONFIG_SIZE, AT(max_client_buffer_bytes), .min = 0, .max = INT64_MAX},
	{"max_buffer_bytes", "SIZE", "1G", NULL, "bytes of all clients' device buffers",
		CONFIG_SIZE, AT(max_buffer_bytes), .min = 0, .max = INT64_MAX},
	{"allow_client_ipc", "WHOM", "same-uid", NULL,
		"whose exported device memory is mapped: same-uid, yes, no", CONFIG_CHOICE,
		AT(allow_client_ipc), .choices = "same-uid, yes or no"},
	{"spin_us", "N", "50", NULL,
		"microseconds to spin before sleeping (0 below 4 CPUs), or forever", CONFIG_SPIN,
		AT(spin_us), .min = 0, .max = 1000000},
	{"drain_timeout_s", "N", "30", NULL, "seconds to let requests finish before the end; 0: no limit",
		CONFIG_INTEGER, AT(drain_timeout_s), .min = 0, .max = 86400},
	{"loop", "NAME", NULL, "$MIMEO_LOOP or auto", "event loop: auto, io_uring, epoll",
		CONFIG_CHOICE, AT(loop), .choices = "auto, io_uring or epoll"},
	{"log_level", "LEVEL", "info", NULL, "error, warn, info, debug, trace", CONFIG_LEVEL,
		AT(log_level)},
};

/* Decimal digits only; *end is behind them. */
static int parse_digits(const char *text, const char **end, uint64_t *ret)
{
	uint64_t value = 0;
	const char *at = text;
	int r = 0;

	for (; *at >= '0' && *at <= '9'; at++) {
		if (__builtin_mul_overflow(value, 10, &value) ||
			__builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
			r = -ERANGE;
	}
	*end = at;
	if (at == text)
		return -EINVAL;
	if (r == 0)
		*ret = value;
	return r;
}

int config_parse_size(const char *text, uint64_t *ret)
{
	static const char suffixes[] = "KMGT";
	uint64_t value = 0;
	const char *end, *suffix;
	int r = parse_digits(text, &end, &value);

	if (r < 0)
		return r;
	if (*end) {
		suffix = strchr(suffixes, *end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
		if (!suffix || end[1])
			return -EINVAL;
		if (__builtin_mul_overflow(
			    value, UINT64_C(1) << 10 * (suffix - suffixes + 1), &value))
			return -ERANGE;
	}
	*ret = value;
	return 0;
}

static bool parse_integer(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
	const char *end;

	return parse_digits(text, &end, ret) == 0 && !*end && *ret >= min && *ret <= max;
}

/* "auto, naive or paged": is text one of the words? */
static bool is_choice(const char *choices, const char *text)
{
	size_t length = strlen(text);

	if (length == 0 || strpbrk(text, ", ") || strcmp(text, "or") == 0)
		return false;
	for (const char *at = choices; (at = strstr(at, text)); at += length) {
		if ((at == choices || at[-1] == ' ') && strchr(", ", at[length]))
			return true;
	}
	return false;
}

static bool is_device(const char *text)
{
	uint64_t number;

	if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0)
		return true;
	return strncmp(text, "cuda:", 5) == 0 && strlen(text) < 9 &&
	       parse_integer(text + 5, 0, 255, &number);
}

static bool store_sizes(const struct config_key *key, const char *text, struct config *config)
{
	uint32_t sizes[CONFIG_CAPTURE_SIZES_MAX];
	uint32_t n = 0;

	for (const char *at = text;; at++) {
		uint64_t value;

		if (n == CONFIG_CAPTURE_SIZES_MAX)
			return false;
		while (*at == ' ')
			at++;
		if (parse_digits(at, &at, &value) < 0 || value < key->min || value > key->max)
			return false;
		sizes[n++] = (uint32_t)value;
		while (*at == ' ')
			at++;
		if (!*at)
			break;
		if (*at != ',')
			return false;
	}
	memcpy(config->capture_sizes, sizes, n * sizeof(sizes[0]));
	config->n_capture_sizes = n;
	return true;
}

static bool store_number(const struct config_key *key, const char *text, void *place)
{
	uint64_t value;

	if (key->kind == CONFIG_SIZE) {
		if (config_parse_size(text, &value) < 0 || value < key->min || value > key->max)
			return false;
		memcpy(place, &value, sizeof(value));
		return true;
	}
	if (key->kind == CONFIG_SPIN && strcmp(text, "forever") == 0)
		value = CONFIG_SPIN_FOREVER;
	else if (!parse_integer(text, key->min, key->max, &value))
		return false;
	memcpy(place, &(uint32_t){ (uint32_t)value }, sizeof(uint32_t));
	return true;
}

bool config_store(const struct config_key *key, const char *text, struct config *config,
	struct config_model *model)
{
	void *place = model ? (char *)model + key->model_offset : (char *)config + key->offset;

	switch (key->kind) {
	case CONFIG_INTEGER:
	case CONFIG_SIZE:
	case CONFIG_SPIN:
		return store_number(key, text, place);
	case CONFIG_CHOICE:
		if (!is_choice(key->choices, text))
			return false;
		strcpy(place, text);
		return true;
	case CONFIG_DEVICE:
		if (!is_device(text))
			return false;
		strcpy(place, text);
		return true;
	case CONFIG_SOCKET:
		if (!*text || strlen(text) >= CONFIG_SOCKET_MAX)
			return false;
		strcpy(place, text);
		return true;
	case CONFIG_FOLDER:
		if (!*text || strlen(text) >= CONFIG_FOLDER_MAX)
			return false;
		strcpy(place, strcmp(text, "none") == 0 ? "" : text);
		return true;
	case CONFIG_MODE:
		return graph_mode_parse(text, place) == 0;
	case CONFIG_MASK:
		return mask_text_parse(text, place);
	case CONFIG_LEVEL:
		return log_level_parse(text, place) == 0;
	case CONFIG_SIZES:
		return store_sizes(key, text, config);
	}
	return false;
}

/* 65536 is "64K". */
static void show_size(uint64_t bytes, char *ret, size_t size)
{
	static const char suffixes[] = "\0KMGT";
	int i = 0;

	for (; bytes && bytes % 1024 == 0 && i < 4; i++)
		bytes /= 1024;
	snprintf(ret, size, "%" PRIu64 "%.1s", bytes, &suffixes[i]);
}

const char *config_accepted(const struct config_key *key, char *ret, size_t size)
{
	char min[32], max[32];

	switch (key->kind) {
	case CONFIG_INTEGER:
		snprintf(ret, size, "an integer from %" PRIu64 " to %" PRIu64 "%s", key->min,
			key->max, key->instead ? key->instead : "");
		break;
	case CONFIG_SPIN:
		snprintf(ret, size, "an integer from %" PRIu64 " to %" PRIu64 ", nor forever",
			key->min, key->max);
		break;
	case CONFIG_SIZE:
		show_size(key->min, min, sizeof(min));
		show_size(key->max, max, sizeof(max));
		snprintf(ret, size, "a size from %s to %s: bytes, or with a suffix K, M, G or T",
			min, max);
		break;
	case CONFIG_CHOICE:
		snprintf(ret, size, "%s", key->choices);
		break;
	case CONFIG_MODE:
		snprintf(
			ret, size, "none, piecewise, full, full_decode_only or full_and_piecewise");
		break;
	case CONFIG_MASK:
		snprintf(ret, size, MASK_TEXT_ACCEPTED);
		break;
	case CONFIG_LEVEL:
		snprintf(ret, size, "error, warn, info, debug or trace");
		break;
	case CONFIG_DEVICE:
		snprintf(ret, size, "auto, cpu, cuda or cuda:N (N at most 255)");
		break;
	case CONFIG_SOCKET:
		snprintf(ret, size, "a path of 1 to %d bytes", CONFIG_SOCKET_MAX - 1);
		break;
	case CONFIG_FOLDER:
		snprintf(ret, size, "a folder of 1 to %d bytes, nor none", CONFIG_FOLDER_MAX - 1);
		break;
	case CONFIG_SIZES:
		snprintf(ret, size,
			"a list of at most %d integers from %" PRIu64 " to %" PRIu64
			", separated by commas",
			CONFIG_CAPTURE_SIZES_MAX, key->min, key->max);
		break;
	}
	return ret;
}

static void show_sizes(const struct config *config, char *ret, size_t size)
{
	size_t used = 0;

	ret[0] = '\0';
	for (uint32_t i = 0; i < config->n_capture_sizes && used < size; i++)
		used += (size_t)snprintf(ret + used, size - used, "%s%" PRIu32, i ? "," : "",
			config->capture_sizes[i]);
}

const char *config_show(const struct config_key *key, const struct config *config,
	const struct config_model *model, char *ret, size_t size)
{
	const void *place = model ? (const char *)model + key->model_offset
				  : (const char *)config + key->offset;
	char mask[MASK_TEXT_MAX];

	switch (key->kind) {
	case CONFIG_INTEGER:
		snprintf(ret, size, "%" PRIu32, *(const uint32_t *)place);
		break;
	case CONFIG_SPIN:
		if (*(const uint32_t *)place == CONFIG_SPIN_FOREVER)
			snprintf(ret, size, "forever");
		else
			snprintf(ret, size, "%" PRIu32, *(const uint32_t *)place);
		break;
	case CONFIG_SIZE:
		show_size(*(const uint64_t *)place, ret, size);
		break;
	case CONFIG_CHOICE:
	case CONFIG_DEVICE:
	case CONFIG_SOCKET:
		snprintf(ret, size, "%s", (const char *)place);
		break;
	case CONFIG_FOLDER:
		snprintf(ret, size, "%s", *(const char *)place ? (const char *)place : "none");
		break;
	case CONFIG_MODE:
		snprintf(ret, size, "%s", graph_mode_name(*(const enum graph_mode *)place));
		break;
	case CONFIG_MASK:
		snprintf(ret, size, "%s", mask_text(place, mask));
		break;
	case CONFIG_LEVEL:
		snprintf(ret, size, "%s", log_level_name(*(const enum log_level *)place));
		break;
	case CONFIG_SIZES:
		show_sizes(config, ret, size);
		break;
	}
	return ret;
}
