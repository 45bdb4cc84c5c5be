/* SPDX-License-Identifier: MIT */

/* mimeo-run: one generate request from the command line, through the public header only. */

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/run/run_options.h"
#include "daemon/run/run_output.h"

#define MAX_TOKENS_DEFAULT 128u
#define ENTRIES 4u
#define CONNECT_MS 5000u
#define GRACE_MS 1000 /* behind the deadline, which the daemon keeps itself: its answer should come first */

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "the file of logits is little endian");

/* ---- prompt ---- */

/* The begin token, if the model has one, and one token per byte. */
static int main_prompt(struct run_options *options, const struct mimeo_model_info *model)
{
	size_t length = strlen(options->prompt);

	if (model->vocab_size != 256) {
		run_complain("--prompt: model %s has a vocabulary of %u, not of 256 bytes: "
			     "use --tokens", model->name, model->vocab_size);
		return RUN_USAGE;
	}
	options->tokens = calloc(length + 1, sizeof(*options->tokens));
	if (!options->tokens) {
		run_complain("--prompt: out of memory");
		return RUN_USAGE;
	}
	if (model->bos >= 0)
		options->tokens[options->n_tokens++] = model->bos;
	for (size_t i = 0; i < length; i++)
		options->tokens[options->n_tokens++] = (uint8_t)options->prompt[i];
	if (options->n_tokens > 0)
		return RUN_OK;
	run_complain("--prompt: it is empty, and model %s has no begin token", model->name);
	return RUN_USAGE;
}

static int main_resolve_limit(struct run_options *options, const struct mimeo_model_info *model)
{
	uint32_t most = options->n_tokens < model->max_seq_len
	                        ? model->max_seq_len - options->n_tokens : 0;

	if (!options->has_max_tokens)
		options->max_tokens = most < MAX_TOKENS_DEFAULT ? most : MAX_TOKENS_DEFAULT;
	if (most > 0 && options->max_tokens <= most)
		return RUN_OK;
	run_complain("%u prompt token%s and %u to generate exceed the %u that model %s can hold",
		options->n_tokens, options->n_tokens == 1 ? "" : "s",
		options->max_tokens > 0 ? options->max_tokens : 1,
		model->max_seq_len, model->name);
	return RUN_REFUSED;
}

static int main_check_stop(const struct run_options *options, const struct mimeo_model_info *model)
{
	for (uint32_t i = 0; i < options->n_stop; i++) {
		if ((uint32_t)options->stop[i] < model->vocab_size)
			continue;
		run_complain("--stop: token %d is outside the vocabulary of %u of model %s",
			options->stop[i], model->vocab_size, model->name);
		return RUN_REFUSED;
	}
	return RUN_OK;
}

/* The daemon would refuse these masks; this message names the option. */
static int main_check_mask(const struct run_options *options, const struct mimeo_model_info *model)
{
	const struct mask_text *mask = &options->mask;

	if (!options->mask_text)
		return RUN_OK;
	if (!model->masks && (mask->window || mask->prefix)) {
		run_complain("--mask %s: the attention backend of model %s supports the causal mask only: "
			     "start mimeod with --attention flex, unless the attention is latent",
			options->mask_text, model->name);
		return RUN_REFUSED;
	}
	if (mask->prefix && options->n_tokens > model->max_batch_tokens) {
		run_complain("--mask %s: the prompt has %u tokens and must fit one step: mimeod's "
			     "--max-batch-tokens is %u",
			options->mask_text, options->n_tokens, model->max_batch_tokens);
		return RUN_REFUSED;
	}
	return RUN_OK;
}

/* Causal is the default mask if the model has no other, else a window of the longest sequence. */
static struct mimeo_mask main_mask(
	const struct run_options *options, const struct mimeo_model_info *model)
{
	const struct mask_text *mask = &options->mask;

	if (!options->mask_text)
		return (struct mimeo_mask){.kind = MIMEO_MASK_DEFAULT};
	if (mask->window)
		return (struct mimeo_mask){.kind = MIMEO_MASK_WINDOW, .window = mask->window,
			.sinks = mask->sinks};
	if (mask->prefix)
		return (struct mimeo_mask){
			.kind = MIMEO_MASK_PREFIX, .prefix = options->n_tokens};
	return model->mask.kind == MIMEO_MASK_DEFAULT
		? (struct mimeo_mask){.kind = MIMEO_MASK_DEFAULT}
		: (struct mimeo_mask){.kind = MIMEO_MASK_WINDOW, .window = model->max_seq_len};
}

/* A note and no error: the answer does not depend on draft tokens. */
static void main_note_draft(const struct run_options *options, const struct mimeo_model_info *model)
{
	if (options->draft_tokens && options->draft_tokens != MIMEO_DRAFT_NONE && !model->draft_tokens)
		run_complain("--draft-tokens is ignored: model %s has no draft model (mimeod --draft)", model->name);
}

/* ---- connection ---- */

static int main_connect(struct mimeo **ret, const struct run_options *options)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	char message[256] = "";

	config.socket_path = options->socket;
	config.message = message;
	config.message_size = sizeof(message);
	config.name = "mimeo-run";
	config.entries = ENTRIES;
	config.connect_timeout_ms = CONNECT_MS;
	if (options->timeout_ms > 0 && options->timeout_ms < CONNECT_MS)
		config.connect_timeout_ms = options->timeout_ms;
	int rc = mimeo_connect(ret, &config);
	if (rc == 0)
		return RUN_OK;
	const char *remedy = "";
	if (strstr(message, "Permission denied"))
		remedy = ": be the daemon's user, or in its group";
	else if (rc == MIMEO_E_UNREACHABLE)
		remedy = ": start mimeod, or name its socket with --socket";
	run_complain("%s%s", message[0] ? message : mimeo_strerror(rc), remedy);
	return rc == MIMEO_E_INVALID ? RUN_USAGE : RUN_DAEMON;
}

static int main_find_model(struct mimeo *m, const char *name)
{
	int index = mimeo_model_find(m, name);
	uint32_t n = mimeo_model_count(m);

	if (index >= 0)
		return index;
	fprintf(stderr, "mimeo-run: no model '%s'; the daemon serves:", name);
	for (uint32_t i = 0; i < n; i++)
		fprintf(stderr, "%s %s", i > 0 ? "," : "", mimeo_model_get(m, i)->name);
	fputs(n > 0 ? "\n" : " none\n", stderr);
	return -1;
}

/* ---- the request ---- */

/* Statuses of one request are refusals; the others are the daemon's. */
static int main_exit_status(int status)
{
	if (status >= 0)
		return RUN_OK;
	return status <= MIMEO_E_GONE ? RUN_DAEMON : RUN_REFUSED;
}

static int main_submit(struct mimeo *m, uint32_t model, const struct run_options *options)
{
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_request *request = mimeo_request_get(m);

	generate.mask = main_mask(options, mimeo_model_get(m, model));
	generate.model = model;
	generate.tokens = options->tokens;
	generate.n_tokens = options->n_tokens;
	generate.max_tokens = options->max_tokens;
	generate.sampling = options->sampling;
	generate.stop = options->stop;
	generate.n_stop = options->n_stop;
	generate.flags = (options->ignore_eos ? MIMEO_GENERATE_IGNORE_EOS : 0) |
	                 (options->logits ? MIMEO_GENERATE_PROMPT_LOGITS : 0) |
	                 (options->deterministic ? MIMEO_GENERATE_DETERMINISTIC : 0);
	generate.deadline_ms = options->timeout_ms;
	generate.first_token_ms = options->first_token_ms;
	generate.draft_tokens = options->draft_tokens;
	int rc = mimeo_request_prep_generate(request, &generate);
	if (rc == 0)
		rc = mimeo_submit(m);
	if (rc < 0)
		run_complain("%s", mimeo_strerror(rc));
	return main_exit_status(rc);
}

static int main_write_logits(FILE *file, const struct run_options *options,
	const struct mimeo_event *event, uint32_t vocab_size)
{
	if (!event->logits) {
		run_complain("--logits: the daemon sent none");
		return RUN_REFUSED;
	}
	if (fwrite(event->logits, sizeof(float), vocab_size, file) == vocab_size &&
		fflush(file) == 0)
		return RUN_OK;
	run_complain("%s: %s", options->logits, strerror(errno));
	return RUN_DAEMON;
}

static int64_t main_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait for the next event until then (-1: without limit). RUN_OK, or RUN_DAEMON after a line. */
static int main_next_event(struct mimeo *m, int64_t until_ms, struct mimeo_event *ret)
{
	int64_t left = until_ms < 0 ? -1 : until_ms - main_now_ms();

	if (until_ms >= 0 && left < 0)
		left = 0;
	int rc = mimeo_event_wait(m, ret, left > INT_MAX ? INT_MAX : (int)left);
	if (rc > 0)
		return RUN_OK;
	run_complain("%s", rc < 0 ? mimeo_strerror(rc) : "the daemon does not answer");
	return RUN_DAEMON;
}

static int main_stream(struct mimeo *m, const struct run_options *options,
	const struct mimeo_model_info *model, FILE *logits)
{
	int64_t until_ms = options->timeout_ms > 0
		? main_now_ms() + options->timeout_ms + GRACE_MS : -1;
	struct run_output output;
	struct mimeo_event event;
	char text[256];

	run_output_init(&output, options, model);
	for (;;) {
		int rc = main_next_event(m, until_ms, &event);
		if (rc != RUN_OK)
			return rc;
		rc = run_output_event(&output, &event);
		if (rc != RUN_OK)
			return rc;
		if (event.kind == MIMEO_EVENT_FINAL)
			break;
		mimeo_event_seen(m, &event);
	}
	int rc = event.status == 0 || output.started ? run_output_end(&output) : RUN_OK;
	if (event.status < 0) {
		mimeo_event_message(&event, text, sizeof(text));
		run_complain("%s", text);
		return main_exit_status(event.status);
	}
	if (rc != RUN_OK || !logits)
		return rc;
	return main_write_logits(logits, options, &event, model->vocab_size);
}

/* Connected: check the options that depend on the model, submit, print. */
static int main_generate(struct mimeo *m, struct run_options *options, FILE *logits)
{
	int index = main_find_model(m, options->model), rc;
	if (index < 0)
		return RUN_REFUSED;
	const struct mimeo_model_info *model = mimeo_model_get(m, (uint32_t)index);

	if (options->prompt) {
		rc = main_prompt(options, model);
		if (rc != RUN_OK)
			return rc;
	}
	rc = main_check_stop(options, model);
	if (rc != RUN_OK)
		return rc;
	rc = main_resolve_limit(options, model);
	if (rc != RUN_OK)
		return rc;
	rc = main_check_mask(options, model);
	if (rc != RUN_OK)
		return rc;
	main_note_draft(options, model);
	rc = main_submit(m, (uint32_t)index, options);
	return rc == RUN_OK ? main_stream(m, options, model, logits) : rc;
}

static int main_connected(struct run_options *options, FILE *logits)
{
	struct mimeo *m;

	int rc = main_connect(&m, options);
	if (rc != RUN_OK)
		return rc;
	rc = main_generate(m, options, logits);
	mimeo_close(m);
	return rc;
}

static int main_run(struct run_options *options)
{
	if (!options->logits)
		return main_connected(options, NULL);
	FILE *logits = fopen(options->logits, "wb");
	if (!logits) {
		run_complain("%s: %s", options->logits, strerror(errno));
		return RUN_USAGE;
	}
	int rc = main_connected(options, logits);
	if (fclose(logits) != 0 && rc == RUN_OK) {
		run_complain("%s: %s", options->logits, strerror(errno));
		return RUN_DAEMON;
	}
	return rc;
}

int main(int argc, char **argv)
{
	struct run_options options;

	int rc = run_options_parse(&options, argc, argv);
	if (rc == RUN_OK && !options.done)
		rc = main_run(&options);
	run_options_deinit(&options);
	return rc;
}
