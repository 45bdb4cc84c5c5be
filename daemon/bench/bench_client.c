/* SPDX-License-Identifier: MIT */
#include "daemon/bench/bench_client.h"

#include <stdlib.h>

#include "daemon/bench/fail.h"
#include "daemon/bench/stats.h"
#include "ipc/cleanup.h"

#define TIMEOUT_MS 60000
#define NO_REQUEST ((uint64_t)UINT32_MAX << 32) /* a generation that no request of this bench reaches */
#define PREFIX_SEED 0x6d696d656f67726dull

static int client_fail(const char *what, int status)
{
	return bench_fail(
		status, "%s: %s (%s)", what, mimeo_strerror(status), mimeo_status_name(status));
}

int client_connect(struct mimeo **ret, const char *socket, uint32_t spin_us)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	config.socket_path = socket;
	config.spin_us = spin_us;
	int rc = mimeo_connect(ret, &config);
	return rc < 0 ? client_fail(socket, rc) : 0;
}

/* Returns the number of tokens. */
static uint32_t client_fill(
	const struct client_prompt *prompt, const struct mimeo_model_info *info, int32_t *tokens)
{
	uint64_t own = prompt->seed, common = PREFIX_SEED;
	uint32_t n = 0;

	if (info->bos >= 0)
		tokens[n++] = info->bos;
	for (const char *c = prompt->text; c && *c && n < prompt->n_prompt; c++)
		tokens[n++] = (uint8_t)*c;
	if (prompt->text)
		return n;
	for (; n < prompt->n_prompt; n++) {
		uint64_t *x = n < prompt->n_prefix ? &common : &own;

		tokens[n] = (int32_t)((prompt->seed ? stats_random(x) : ' ' + n) % info->vocab_size);
	}
	return n;
}

/* The library copies the prompt before it returns. */
static int client_prepare(struct mimeo *m, const struct client_prompt *prompt, uint32_t model,
	struct mimeo_request *request)
{
	CLEANUP(cleanup_free) int32_t *tokens = calloc(prompt->n_prompt + 1, sizeof(*tokens));
	const struct mimeo_model_info *info = mimeo_model_get(m, model);
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	if (!info)
		return client_fail("generate", MIMEO_E_UNKNOWN_MODEL);
	if (!tokens)
		return client_fail("generate", MIMEO_E_NO_MEMORY);
	if (prompt->text && info->vocab_size != 256)
		return bench_fail(MIMEO_E_INVALID,
			"--text: the model has a vocabulary of %u, not of 256 bytes",
			info->vocab_size);
	generate.model = model;
	generate.tokens = tokens;
	generate.n_tokens = client_fill(prompt, info, tokens);
	if (info->max_seq_len <= generate.n_tokens)
		return bench_fail(MIMEO_E_TOO_LONG,
			"a prompt of %u tokens and one to generate: model %s takes %u", generate.n_tokens,
			info->name, info->max_seq_len);
	generate.max_tokens = info->max_seq_len - generate.n_tokens;
	if (generate.max_tokens > prompt->n_tokens)
		generate.max_tokens = prompt->n_tokens;
	generate.flags = MIMEO_GENERATE_IGNORE_EOS;
	int rc = mimeo_request_prep_generate(request, &generate);
	mimeo_request_set_data(request, prompt->user_data);
	return rc < 0 ? client_fail(mimeo_request_message(request), rc) : 0;
}

int client_generate(struct mimeo *m, const struct client_prompt *prompt)
{
	int index = prompt->model ? mimeo_model_find(m, prompt->model) : 0;

	if (index < 0)
		return client_fail(prompt->model, index);
	struct mimeo_request *request = mimeo_request_get(m);
	if (!request)
		return client_fail("generate", MIMEO_E_FULL);
	int rc = client_prepare(m, prompt, (uint32_t)index, request);
	if (rc < 0)
		return rc;
	rc = mimeo_submit(m);
	return rc < 0 ? client_fail("generate", rc) : 0;
}

/* The sequence is closed after the step. */
static int client_prepare_score(
	struct mimeo *m, uint32_t model, struct mimeo_step_row *row, struct mimeo_request *request)
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	int rc = mimeo_sequence_open(m, model, &row->sequence);

	if (rc < 0)
		return client_fail("a sequence", rc);
	step.model = model;
	step.rows = row;
	step.n_rows = 1;
	step.outputs = MIMEO_STEP_LOGPROBS;
	rc = mimeo_request_prep_step(request, &step);
	if (rc < 0)
		return client_fail(mimeo_request_message(request), rc);
	rc = mimeo_sequence_close(m, row->sequence);
	return rc < 0 ? client_fail("a sequence", rc) : 0;
}

int client_score(struct mimeo *m, uint32_t model, const int32_t *tokens, uint32_t n)
{
	struct mimeo_step_row row = {.tokens = tokens, .n_tokens = n};
	struct mimeo_request *request = mimeo_request_get(m);

	if (!request)
		return client_fail("step", MIMEO_E_FULL);
	int rc = client_prepare_score(m, model, &row, request);
	if (rc < 0)
		return rc;
	rc = mimeo_submit(m);
	return rc < 0 ? client_fail("step", rc) : 0;
}

int client_event(const struct mimeo_event *event)
{
	char message[256];

	if (event->status >= 0)
		return 0;
	mimeo_event_message(event, message, sizeof(message));
	return client_fail(message, event->status);
}

int client_next(struct mimeo *m, struct mimeo_event *ret)
{
	int rc = mimeo_event_wait(m, ret, TIMEOUT_MS);

	if (rc <= 0)
		return rc < 0 ? client_fail("waiting", rc)
			      : client_fail("no answer from the daemon", MIMEO_E_DEADLINE);
	return client_event(ret);
}

int client_null(struct mimeo *m)
{
	struct mimeo_request *request = mimeo_request_get(m);
	struct mimeo_event event;

	int rc = request ? mimeo_request_prep_cancel(request, NO_REQUEST) : MIMEO_E_FULL;
	if (rc == 0)
		rc = mimeo_submit(m);
	if (rc < 0)
		return client_fail("null request", rc);
	rc = mimeo_event_wait(m, &event, TIMEOUT_MS);
	if (rc != 1)
		return client_fail("null request", rc < 0 ? rc : MIMEO_E_DEADLINE);
	mimeo_event_seen(m, &event);
	return event.status == MIMEO_E_UNKNOWN_REQUEST
		       ? 0
		       : client_fail("null request", MIMEO_E_PROTOCOL);
}
