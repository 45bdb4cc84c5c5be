/* SPDX-License-Identifier: MIT */
#include "daemon/config/config.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config/digits.h"
#include "daemon/config/quantity.h"

#define AT(field) .offset = offsetof(struct config, field)
#define AT_LIVE(field) .live = true, AT(field)
#define AT_BOTH(field)                                                                             \
	.per_model = true, .offset = offsetof(struct config, field),                               \
	.model_offset = offsetof(struct config_model, field)

const struct config_key config_keys[CONFIG_N_KEYS] = {
	{"device", "NAME", "auto", NULL,
		"where to compute: auto (a GPU if there is one), cpu, cuda, cuda:N", CONFIG_DEVICE,
		AT(device), .accepted = "auto, cpu, cuda or cuda:N (N at most 255)"},
	{"socket", "PATH", NULL, "$XDG_RUNTIME_DIR/mimeo/mimeod.sock or /run/mimeo/mimeod.sock", "the clients' socket",
		CONFIG_SOCKET, AT(socket), .accepted = "a path of 1 to 101 bytes"},
	{"graph_mode", "MODE", "full_and_piecewise", NULL, "which batches replay captured graphs",
		CONFIG_MODE, AT_BOTH(graph_mode),
		.accepted = "none, piecewise, full, full_decode_only or full_and_piecewise"},
	{"breakable", "yes|no", "yes", NULL, "piecewise graphs, broken at attention",
		CONFIG_CHOICE, AT_BOTH(breakable), .accepted = "yes or no"},
	{"deterministic", "yes|no", "no", NULL,
		"results do not depend, in any bit, on what else runs; slower on a GPU", CONFIG_CHOICE,
		AT_BOTH(deterministic), .accepted = "yes or no"},
	{"head_dtype", "model|fp8", "model", NULL,
		"the output head: as the model has it, or rounded to fp8 at load, smaller and less exact",
		CONFIG_CHOICE, AT_BOTH(head_dtype), .accepted = "model or fp8"},
	{"kv_dtype", "model|fp8", "model", NULL,
		"keys and values: as activations are, or fp8, smaller and less exact",
		CONFIG_CHOICE, AT_BOTH(kv_dtype), .accepted = "model or fp8"},
	{"attention", "BACKEND", "auto", NULL, "attention backend: auto, naive, paged, flex, mla, mla_planned",
		CONFIG_CHOICE, AT_BOTH(attention), .accepted = "auto, naive, paged, flex, mla or mla_planned"},
	{"mask", "MASK", "causal", NULL, "default mask: causal, window:N, window:N+SINKS, prefix",
		CONFIG_MASK, AT_BOTH(mask), .accepted = MASK_TEXT_ACCEPTED},
	{"draft", "DIR", NULL, "none", "directory of a model's draft model; mtp: the model's own MTP head; or none",
		CONFIG_FOLDER, AT_BOTH(draft), .accepted = "a path of 1 to 1023 bytes, mtp, or none"},
	{"draft_tokens", "N", "4", NULL, "draft tokens per row and step", CONFIG_INTEGER,
		AT_BOTH(draft_tokens), .min = 1, .max = 8,
		.accepted = " (--draft none: no draft model)"},
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
		CONFIG_CHOICE, AT(capture), .accepted = "eager or lazy"},
	{"prefix_sharing", "WHOSE", "user", NULL,
		"which requests share cached prefixes: none, those of one user (user), all",
		CONFIG_CHOICE, AT(prefix_sharing), .accepted = "none, user or all"},
	{"weights", "LIST", NULL, "1 each", "weights of users and groups: USER:WEIGHT, @GROUP:WEIGHT",
		CONFIG_WEIGHTS, AT_LIVE(weights), .min = 1, .max = CONFIG_WEIGHT_MAX},
	{"max_requests", "N", NULL, "64, on a GPU of 32 GiB or more 256", "rows that one step may carry", CONFIG_INTEGER,
		AT(max_requests), .min = 1, .max = 4096},
	{"max_batch_tokens", "N", NULL, "512, on a GPU of 32 GiB or more 2048, max_requests at least",
		"tokens that one step may carry", CONFIG_INTEGER,
		AT(max_batch_tokens), .min = 1, .max = 65536},
	{"max_seq_len", "N", "0", NULL, "tokens that a sequence may have; 0: what the model allows",
		CONFIG_INTEGER, AT(max_seq_len), .min = 0, .max = 1u << 24},
	{"page_tokens", "N", "16", NULL, "tokens in a page of the KV cache", CONFIG_INTEGER,
		AT(page_tokens), .min = 1, .max = 1024},
	{"memory", "SIZE", NULL, "90 % of what is free at start", "device memory to use at most",
		CONFIG_SIZE, AT(memory), .min = 1, .max = UINT64_MAX},
	{"max_sessions", "N", "64", NULL, "clients attached at once", CONFIG_INTEGER,
		AT_LIVE(max_sessions), .min = 1, .max = CONFIG_SESSIONS_MAX},
	{"max_sessions_per_uid", "N", "32", NULL, "clients of one user attached at once",
		CONFIG_INTEGER, AT_LIVE(max_sessions_per_uid), .min = 1, .max = CONFIG_SESSIONS_MAX},
	{"max_sequences", "N", "256", NULL, "open sequences a client may have", CONFIG_INTEGER,
		AT(max_sequences), .min = 1, .max = 65536},
	{"max_arena_bytes", "SIZE", "256M", NULL, "largest arena a client may ask for", CONFIG_SIZE,
		AT_LIVE(max_arena_bytes), .min = 65536, .max = UINT64_C(1) << 30},
	{"max_shared_bytes", "SIZE", "2G", NULL, "memory that all clients' rings and arenas may take",
		CONFIG_SIZE, AT_LIVE(max_shared_bytes), .min = UINT64_C(1) << 20, .max = UINT64_MAX},
	{"max_sequence_bytes", "SIZE", "16G", NULL,
		"memory that all clients' sequences and requests may take in the daemon", CONFIG_SIZE,
		AT_LIVE(max_sequence_bytes), .min = UINT64_C(1) << 20, .max = UINT64_MAX},
	{"max_client_buffers", "N", "64", NULL, "device buffers a client may have", CONFIG_INTEGER,
		AT_LIVE(max_client_buffers), .min = 0, .max = 4096},
	{"max_client_buffer_bytes", "SIZE", "256M", NULL, "bytes of a client's device buffers",
		CONFIG_SIZE, AT_LIVE(max_client_buffer_bytes), .min = 0, .max = INT64_MAX},
	{"max_buffer_bytes", "SIZE", "1G", NULL, "bytes of all clients' device buffers",
		CONFIG_SIZE, AT_LIVE(max_buffer_bytes), .min = 0, .max = INT64_MAX},
	{"allow_client_ipc", "WHOM", "same-uid", NULL,
		"whose exported device memory is mapped: same-uid, yes, no", CONFIG_CHOICE,
		AT_LIVE(allow_client_ipc), .accepted = "same-uid, yes or no"},
	{"monitor_group", "GROUP", NULL, "none", "group that may look at the daemon without being its operator, or none",
		CONFIG_GROUP, AT(monitor_group), .accepted = "a group's name of 1 to 32 bytes, a number, or none"},
	{"metrics_port", "N", "0", NULL, "port of 127.0.0.1 that serves metrics to Prometheus over HTTP; 0: none",
		CONFIG_INTEGER, AT(metrics_port), .min = 0, .max = 65535},
	{"token_us", "N", "50000", NULL,
		"target microseconds between a request's tokens beside prompts of others; 0: none", CONFIG_DURATION,
		AT_LIVE(token_us), .unit_us = 1, .min = 0, .max = 60000000},
	{"spin_us", "N", "50", NULL,
		"microseconds to spin before sleeping (0 below 4 CPUs), or forever", CONFIG_SPIN,
		AT_LIVE(spin_us), .unit_us = 1, .min = 0, .max = 1000000},
	{"drain_timeout_s", "N", "30", NULL, "seconds to let requests finish before the end; 0: no limit",
		CONFIG_DURATION, AT_LIVE(drain_timeout_s), .unit_us = 1000000, .min = 0, .max = 86400},
	{"loop", "NAME", NULL, "auto", "event loop: auto, io_uring, epoll",
		CONFIG_CHOICE, AT(loop), .accepted = "auto, io_uring or epoll"},
	{"log_level", "LEVEL", "info", NULL, "error, warn, info, debug", CONFIG_LEVEL,
		AT_LIVE(log_level), .accepted = "error, warn, info or debug"},
	{"log_format", "FORMAT", "auto", NULL, "lines of the log: text, json, or what suits standard error (auto)",
		CONFIG_CHOICE, AT(log_format), .accepted = "auto, text or json"},
	{"request_log", "yes|no", "no", NULL, "a line of the log for each request that ends", CONFIG_CHOICE,
		AT_LIVE(request_log), .accepted = "yes or no"},
};
_Static_assert(CONFIG_SOCKET_MAX == 102 && CONFIG_FOLDER_MAX == 1024, "as config_keys says");

static bool config_value_parse_integer(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
	return digits_parse(&text, max, ret) == 0 && !*text && *ret >= min;
}

static bool config_value_is_group(const char *text)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

	return *text && strlen(text) < CONFIG_GROUP_MAX && !text[strspn(text, letters)];
}

/* "auto, naive or paged": is text one of the words? */
static bool config_value_is_choice(const char *choices, const char *text)
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

static bool config_value_is_device(const char *text)
{
	uint64_t number;

	if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0)
		return true;
	return strncmp(text, "cuda:", 5) == 0 && strlen(text) < 9 &&
		config_value_parse_integer(text + 5, 0, 255, &number);
}

static bool config_value_store_sizes(
	const struct config_key *key, const char *text, struct config *config)
{
	uint32_t sizes[CONFIG_CAPTURE_SIZES_MAX];
	uint32_t n = 0;

	for (;; text++) {
		uint64_t value = 0;

		if (n == CONFIG_CAPTURE_SIZES_MAX)
			return false;
		text += strspn(text, " ");
		if (digits_parse(&text, key->max, &value) < 0 || value < key->min)
			return false;
		sizes[n++] = (uint32_t)value;
		text += strspn(text, " ");
		if (!*text)
			break;
		if (*text != ',')
			return false;
	}
	memcpy(config->capture_sizes, sizes, n * sizeof(sizes[0]));
	config->n_capture_sizes = n;
	return true;
}

/* One of the list, and *at behind it. */
static bool config_value_parse_weight(const struct config_key *key, const char **at, struct config_weight *ret)
{
	uint64_t weight = 0;

	if (!account_parse(at, &ret->account))
		return false;
	if (digits_parse(at, key->max, &weight) < 0 || weight < key->min)
		return false;
	ret->weight = (uint32_t)weight;
	return true;
}

static bool config_value_has_weight(const struct config_weight *weights, uint32_t n, const struct account *account)
{
	for (uint32_t i = 0; i < n; i++) {
		if (weights[i].account.group == account->group && strcmp(weights[i].account.name, account->name) == 0)
			return true;
	}
	return false;
}

static bool config_value_store_weights(const struct config_key *key, const char *text, struct config *config)
{
	struct config_weight weights[CONFIG_WEIGHTS_MAX];
	uint32_t n = 0;

	for (;; text++) {
		if (n == CONFIG_WEIGHTS_MAX)
			return false;
		text += strspn(text, " ");
		if (!config_value_parse_weight(key, &text, &weights[n]) ||
			config_value_has_weight(weights, n, &weights[n].account))
			return false;
		n++;
		text += strspn(text, " ");
		if (!*text)
			break;
		if (*text != ',')
			return false;
	}
	memcpy(config->weights, weights, n * sizeof(weights[0]));
	config->n_weights = n;
	return true;
}

static bool config_value_store_size(const struct config_key *key, const char *text, void *place)
{
	uint64_t value = 0;

	if (quantity_parse_size(text, &value) < 0 || value < key->min || value > key->max)
		return false;
	memcpy(place, &value, sizeof(value));
	return true;
}

static bool config_value_store_integer(const struct config_key *key, const char *text, void *place)
{
	uint64_t value = CONFIG_SPIN_FOREVER;

	if (key->kind == CONFIG_INTEGER && !config_value_parse_integer(text, key->min, key->max, &value))
		return false;
	if (key->kind != CONFIG_INTEGER && !(key->kind == CONFIG_SPIN && strcmp(text, "forever") == 0) &&
		(quantity_parse_duration(text, key->unit_us, &value) < 0 || value < key->min || value > key->max))
		return false;
	assert(value <= UINT32_MAX);
	memcpy(place, &(uint32_t){ (uint32_t)value }, sizeof(uint32_t));
	return true;
}

static bool config_value_store_text(bool accepted, const char *text, char *place)
{
	if (accepted)
		strcpy(place, text);
	return accepted;
}

bool config_store(const struct config_key *key, const char *text, struct config *config,
	struct config_model *model)
{
	void *place = model ? (char *)model + key->model_offset : (char *)config + key->offset;

	switch (key->kind) {
	case CONFIG_INTEGER:
	case CONFIG_DURATION:
	case CONFIG_SPIN:
		return config_value_store_integer(key, text, place);
	case CONFIG_SIZE:
		return config_value_store_size(key, text, place);
	case CONFIG_CHOICE:
		return config_value_store_text(
			config_value_is_choice(key->accepted, text), text, place);
	case CONFIG_DEVICE:
		return config_value_store_text(config_value_is_device(text), text, place);
	case CONFIG_SOCKET:
		return config_value_store_text(
			*text && strlen(text) < CONFIG_SOCKET_MAX, text, place);
	case CONFIG_FOLDER:
		return config_value_store_text(*text && strlen(text) < CONFIG_FOLDER_MAX,
			strcmp(text, "none") == 0 ? "" : text, place);
	case CONFIG_GROUP:
		return config_value_store_text(
			config_value_is_group(text), strcmp(text, "none") == 0 ? "" : text, place);
	case CONFIG_MODE:
		return graph_mode_parse(text, place) == 0;
	case CONFIG_MASK:
		return mask_text_parse(text, place);
	case CONFIG_LEVEL:
		return log_level_parse(text, place) == 0;
	case CONFIG_SIZES:
		return config_value_store_sizes(key, text, config);
	case CONFIG_WEIGHTS:
		return config_value_store_weights(key, text, config);
	}
	return false;
}

/* 65536 is "64K". */
static void config_value_show_size(uint64_t bytes, char *ret, size_t size)
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
			key->max, key->accepted ? key->accepted : "");
		break;
	case CONFIG_DURATION:
		snprintf(ret, size, "an integer from %" PRIu64 " to %" PRIu64 ", " QUANTITY_DURATION_ACCEPTED,
			key->min, key->max);
		break;
	case CONFIG_SPIN:
		snprintf(ret, size, "an integer from %" PRIu64 " to %" PRIu64 ", " QUANTITY_DURATION_ACCEPTED
			", nor forever", key->min, key->max);
		break;
	case CONFIG_SIZE:
		config_value_show_size(key->min, min, sizeof(min));
		config_value_show_size(key->max, max, sizeof(max));
		/* A maximum of 64 bits is not worth printing. */
		if (key->max >= INT64_MAX)
			snprintf(ret, size, "a size of at least %s: " QUANTITY_SIZE_ACCEPTED, min);
		else
			snprintf(ret, size, "a size from %s to %s: " QUANTITY_SIZE_ACCEPTED, min, max);
		break;
	case CONFIG_SIZES:
		snprintf(ret, size,
			"a list of at most %d integers from %" PRIu64 " to %" PRIu64
			", separated by commas",
			CONFIG_CAPTURE_SIZES_MAX, key->min, key->max);
		break;
	case CONFIG_WEIGHTS:
		snprintf(ret, size,
			"a list of at most %d of USER:WEIGHT, UID:WEIGHT and @GROUP:WEIGHT, weights from %" PRIu64
			" to %" PRIu64 ", each named once, separated by commas",
			CONFIG_WEIGHTS_MAX, key->min, key->max);
		break;
	default:
		assert(key->accepted);
		snprintf(ret, size, "%s", key->accepted);
	}
	return ret;
}

static void config_value_show_sizes(const struct config *config, char *ret, size_t size)
{
	size_t used = 0;

	ret[0] = '\0';
	for (uint32_t i = 0; i < config->n_capture_sizes && used < size; i++)
		used += (size_t)snprintf(ret + used, size - used, "%s%" PRIu32, i ? "," : "",
			config->capture_sizes[i]);
}

static void config_value_show_weights(const struct config *config, char *ret, size_t size)
{
	size_t used = 0;

	ret[0] = '\0';
	for (uint32_t i = 0; i < config->n_weights && used < size; i++) {
		const struct config_weight *weight = &config->weights[i];

		used += (size_t)snprintf(ret + used, size - used, "%s%s%s:%" PRIu32, i ? ", " : "",
			weight->account.group ? "@" : "", weight->account.name, weight->weight);
	}
}

const char *config_show(const struct config_key *key, const struct config *config,
	const struct config_model *model, char *ret, size_t size)
{
	const void *place = model ? (const char *)model + key->model_offset
				  : (const char *)config + key->offset;
	const char *text = place;
	char mask[MASK_TEXT_MAX];

	switch (key->kind) {
	case CONFIG_INTEGER:
	case CONFIG_DURATION:
	case CONFIG_SPIN:
		snprintf(ret, size, "%" PRIu32, *(const uint32_t *)place);
		if (key->kind != CONFIG_SPIN || *(const uint32_t *)place != CONFIG_SPIN_FOREVER)
			return ret;
		text = "forever";
		break;
	case CONFIG_SIZE:
		config_value_show_size(*(const uint64_t *)place, ret, size);
		return ret;
	case CONFIG_SIZES:
		config_value_show_sizes(config, ret, size);
		return ret;
	case CONFIG_WEIGHTS:
		config_value_show_weights(config, ret, size);
		return ret;
	case CONFIG_CHOICE:
	case CONFIG_DEVICE:
	case CONFIG_SOCKET:
		break;
	case CONFIG_FOLDER:
	case CONFIG_GROUP:
		text = *text ? text : "none";
		break;
	case CONFIG_MODE:
		text = graph_mode_name(*(const enum graph_mode *)place);
		break;
	case CONFIG_MASK:
		text = mask_text(place, mask);
		break;
	case CONFIG_LEVEL:
		text = log_level_name(*(const enum log_level *)place);
		break;
	}
	snprintf(ret, size, "%s", text);
	return ret;
}

void config_copy(const struct config_key *key, const struct config *from, struct config *to)
{
	const char *source = (const char *)from + key->offset;
	char *place = (char *)to + key->offset;

	assert(key->live);
	switch (key->kind) {
	case CONFIG_INTEGER:
	case CONFIG_DURATION:
	case CONFIG_SPIN:
		memcpy(place, source, sizeof(uint32_t));
		break;
	case CONFIG_SIZE:
		memcpy(place, source, sizeof(uint64_t));
		break;
	case CONFIG_CHOICE:
		memcpy(place, source, sizeof(to->allow_client_ipc)); /* as all of this kind */
		break;
	case CONFIG_LEVEL:
		to->log_level = from->log_level;
		break;
	case CONFIG_WEIGHTS:
		memcpy(to->weights, from->weights, sizeof(to->weights));
		to->n_weights = from->n_weights;
		break;
	default:
		assert(!"a live setting of such a kind");
	}
}
