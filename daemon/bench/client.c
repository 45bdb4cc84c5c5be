/* SPDX-License-Identifier: MIT */
#include "daemon/bench/client.h"

#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT_MS 20000
#define NO_REQUEST ((uint64_t)UINT32_MAX << 32) /* a generation that no request of ours gets to */

static int fail(const char *what, int status)
{
	fprintf(stderr, "mimeo-bench: %s: %s (%s)\n", what, mimeo_strerror(status),
		mimeo_status_name(status));
	return status;
}

int client_connect(struct mimeo **ret, const char *socket, uint32_t spin_us)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	config.socket_path = socket;
	config.spin_us = spin_us;
	int r = mimeo_connect(ret, &config);
	return r < 0 ? fail(socket, r) : 0;
}

/* The fixed prompt, or text behind the begin token; the number of tokens that it has. */
static uint32_t fill_prompt(const struct mimeo_model_info *info, const char *text, int32_t *prompt,
	uint32_t n_prompt)
{
	uint32_t n = 0;

	if (info->bos >= 0)
		prompt[n++] = info->bos;
	for (; text && *text && n < n_prompt; text++)
		prompt[n++] = (uint8_t)*text;
	if (text)
		return n;
	for (; n < n_prompt; n++)
		prompt[n] = (int32_t)((' ' + n) % info->vocab_size);
	return n;
}

/* The library has copied the prompt when it is back. */
static int prepare(struct mimeo *m, uint32_t index, const char *text, int32_t *prompt,
	uint32_t n_prompt, uint32_t n_tokens, struct mimeo_request *request)
{
	const struct mimeo_model_info *info = mimeo_model_get(m, index);
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	if (!info)
		return MIMEO_E_UNKNOWN_MODEL;
	if (text && info->vocab_size != 256) {
		fprintf(stderr, "mimeo-bench: --text: the model has a vocabulary of %u, not of 256 "
				"bytes\n", info->vocab_size);
		return MIMEO_E_INVALID;
	}
	n_prompt = fill_prompt(info, text, prompt, n_prompt);
	if (info->max_seq_len <= n_prompt)
		return MIMEO_E_TOO_LONG;
	generate.model = index;
	generate.tokens = prompt;
	generate.n_tokens = n_prompt;
	generate.max_tokens = info->max_seq_len - n_prompt;
	if (generate.max_tokens > n_tokens)
		generate.max_tokens = n_tokens;
	generate.flags = MIMEO_GENERATE_IGNORE_EOS;
	return mimeo_request_prep_generate(request, &generate);
}

int client_generate(
	struct mimeo *m, const char *model_name, uint32_t n_prompt, uint32_t n_tokens)
{
	return client_generate_text(m, model_name, NULL, n_prompt, n_tokens);
}

int client_generate_text(struct mimeo *m, const char *model_name, const char *text,
	uint32_t n_prompt, uint32_t n_tokens)
{
	int index = model_name ? mimeo_model_find(m, model_name) : 0;

	if (index < 0)
		return fail(model_name, index);
	struct mimeo_request *request = mimeo_request_get(m);
	int32_t *prompt = calloc(n_prompt, sizeof(*prompt));
	int r = request ? MIMEO_E_NO_MEMORY : MIMEO_E_FULL;
	if (request && prompt)
		r = prepare(m, (uint32_t)index, text, prompt, n_prompt, n_tokens, request);
	if (r == 0)
		r = mimeo_submit(m);
	free(prompt);
	return r < 0 ? fail("generate", r) : 0;
}

int client_next(struct mimeo *m, struct mimeo_event *ret)
{
	char message[256];
	int r = mimeo_event_wait(m, ret, TIMEOUT_MS);

	if (r == 0)
		return fail("no answer from the daemon", MIMEO_E_DEADLINE);
	if (r < 0)
		return fail("waiting", r);
	if (ret->status < 0) {
		mimeo_event_message(ret, message, sizeof(message));
		return fail(message, ret->status);
	}
	return 0;
}

int client_null(struct mimeo *m)
{
	struct mimeo_request *request = mimeo_request_get(m);
	struct mimeo_event event;

	int r = request ? mimeo_request_prep_cancel(request, NO_REQUEST) : MIMEO_E_FULL;
	if (r == 0)
		r = mimeo_submit(m);
	if (r < 0)
		return fail("null request", r);
	r = mimeo_event_wait(m, &event, TIMEOUT_MS);
	if (r != 1)
		return fail("null request", r < 0 ? r : MIMEO_E_DEADLINE);
	mimeo_event_seen(m, &event);
	return event.status == MIMEO_E_UNKNOWN_REQUEST ? 0 : fail("null request", MIMEO_E_PROTOCOL);
}
