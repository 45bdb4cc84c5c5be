/* SPDX-License-Identifier: MIT */

/* mimeo-run: one generate request from the command line, through the public header only. */

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/run/options.h"
#include "daemon/run/output.h"

#define MAX_TOKENS_DEFAULT 128u
#define ENTRIES 4u
#define CONNECT_MS 5000u
#define GRACE_MS 1000 /* the daemon keeps the deadline itself: its answer goes before our own */

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "the file of logits is little endian");

/* ---- prompt ---- */

/* Text becomes the begin token, if there is one, and a token a byte. */
static int prompt_from_text(struct run_options *options, const struct mimeo_model_info *model)
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

static int limit_resolve(struct run_options *options, const struct mimeo_model_info *model)
{
	uint32_t room = options->n_tokens < model->max_seq_len
	                        ? model->max_seq_len - options->n_tokens : 0;

	if (options->max_tokens == 0)
		options->max_tokens = room < MAX_TOKENS_DEFAULT ? room : MAX_TOKENS_DEFAULT;
	if (options->max_tokens > 0 && options->max_tokens <= room)
		return RUN_OK;
	run_complain("%u prompt tokens and %u to generate exceed the %u that model %s can hold",
		options->n_tokens, options->max_tokens > 0 ? options->max_tokens : 1,
		model->max_seq_len, model->name);
	return RUN_REFUSED;
}

static int stop_check(const struct run_options *options, const struct mimeo_model_info *model)
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

/* What the daemon would refuse, told in the words of the command line. */
static int mask_check(const struct run_options *options, const struct mimeo_model_info *model)
{
	const struct mask_text *mask = &options->mask;

	if (!options->mask_text)
		return RUN_OK;
	if (!model->masks && (mask->window || mask->prefix)) {
		run_complain("--mask %s: the attention of model %s has the causal mask alone: mimeod "
			     "gives it others by --attention flex, unless it is latent",
			options->mask_text, model->name);
		return RUN_REFUSED;
	}
	if (mask->prefix && options->n_tokens > model->max_batch_tokens) {
		run_complain("--mask %s: the prompt has %u tokens and has to fit one step, of which "
			     "mimeod's --max-batch-tokens is %u",
			options->mask_text, options->n_tokens, model->max_batch_tokens);
		return RUN_REFUSED;
	}
	return RUN_OK;
}

/* Causal goes as the default where that is what it means, else as a window that ends nowhere. */
static struct mimeo_mask mask_of(
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

/* Not a reason to refuse anything: the answer is the one that was asked for. */
static void draft_note(const struct run_options *options, const struct mimeo_model_info *model)
{
	if (options->draft_tokens && options->draft_tokens != MIMEO_DRAFT_NONE && !model->draft_tokens)
		run_complain("--draft-tokens: model %s has no draft, and the number means nothing: "
			     "mimeod gives it one by --draft", model->name);
}

/* ---- connection ---- */

static int connect_status(int status)
{
	return status == MIMEO_E_INVALID ? RUN_USAGE : RUN_DAEMON;
}

static int connect_to(struct mimeo **ret, const struct run_options *options)
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
	int r = mimeo_connect(ret, &config);
	if (r == 0)
		return RUN_OK;
	run_complain("%s%s", message[0] ? message : mimeo_strerror(r),
		strstr(message, "Permission denied")
			? ": be the daemon's user, or in its group"
			: "");
	return connect_status(r);
}

static int model_resolve(struct mimeo *m, const char *name)
{
	int index = mimeo_model_find(m, name);
	uint32_t n = mimeo_model_count(m);

	if (index >= 0)
		return index;
	fprintf(stderr, "mimeo-run: the daemon serves no model '%s', but", name);
	for (uint32_t i = 0; i < n; i++)
		fprintf(stderr, "%s %s", i > 0 ? "," : "", mimeo_model_get(m, i)->name);
	fputs(n > 0 ? "\n" : " none\n", stderr);
	return -1;
}

/* ---- the request ---- */

/* What is wrong with one request is a refusal; all else is the daemon's. */
static int exit_of(int status)
{
	if (status >= 0)
		return RUN_OK;
	return status <= MIMEO_E_GONE ? RUN_DAEMON : RUN_REFUSED;
}

static int submit(
	struct mimeo *m, uint32_t model, const struct run_options *options, int *ret_status)
{
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_request *request = mimeo_request_get(m);

	generate.mask = mask_of(options, mimeo_model_get(m, model));
	generate.model = model;
	generate.tokens = options->tokens;
	generate.n_tokens = options->n_tokens;
	generate.max_tokens = options->max_tokens;
	generate.sampling = options->sampling;
	generate.stop = options->stop;
	generate.n_stop = options->n_stop;
	generate.flags = (options->ignore_eos ? MIMEO_GENERATE_IGNORE_EOS : 0) |
	                 (options->logits ? MIMEO_GENERATE_PROMPT_LOGITS : 0);
	generate.deadline_ms = options->timeout_ms;
	generate.draft_tokens = options->draft_tokens;
	*ret_status = mimeo_request_prep_generate(request, &generate);
	if (*ret_status == 0) {
		int r = mimeo_submit(m);
		*ret_status = r < 0 ? r : 0;
	}
	return exit_of(*ret_status);
}

static int write_logits(FILE *file, const struct run_options *options,
	const struct mimeo_event *event, uint32_t vocab_size)
{
	if (!event->logits) {
		run_complain("--logits: the daemon gave none");
		return RUN_REFUSED;
	}
	if (fwrite(event->logits, sizeof(float), vocab_size, file) == vocab_size &&
		fflush(file) == 0)
		return RUN_OK;
	run_complain("%s: %s", options->logits, strerror(errno));
	return RUN_DAEMON;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The next event, awaited until then (-1: without limit). RUN_OK, or RUN_DAEMON after a line. */
static int next_event(struct mimeo *m, int64_t until_ms, struct mimeo_event *ret)
{
	int64_t left = until_ms < 0 ? -1 : until_ms - now_ms();

	if (until_ms >= 0 && left < 0)
		left = 0;
	int r = mimeo_event_wait(m, ret, left > INT_MAX ? INT_MAX : (int)left);
	if (r > 0)
		return RUN_OK;
	run_complain("%s", r < 0 ? mimeo_strerror(r) : "the daemon does not answer");
	return RUN_DAEMON;
}

static int stream(struct mimeo *m, const struct run_options *options,
	const struct mimeo_model_info *model, FILE *logits)
{
	struct run_output output;
	struct mimeo_event event;
	char text[256];
	int r;

	int64_t until_ms = options->timeout_ms > 0
		? now_ms() + options->timeout_ms + GRACE_MS : -1;
	run_output_init(&output, options, model);
	do {
		r = next_event(m, until_ms, &event);
		if (r == RUN_OK)
			r = run_output_event(&output, &event);
		if (r != RUN_OK)
			return r;
		if (event.kind != MIMEO_EVENT_FINAL)
			mimeo_event_seen(m, &event);
	} while (event.kind != MIMEO_EVENT_FINAL);

	if (event.status == 0 || output.started)
		r = run_output_end(&output);
	if (event.status < 0) {
		mimeo_event_message(&event, text, sizeof(text));
		run_complain("%s", text);
		return exit_of(event.status);
	}
	return r == RUN_OK && logits ? write_logits(logits, options, &event, model->vocab_size) : r;
}

/* Connected: check what depends on the model, submit, print. */
static int run(struct mimeo *m, struct run_options *options, FILE *logits)
{
	int index = model_resolve(m, options->model);
	if (index < 0)
		return RUN_REFUSED;
	const struct mimeo_model_info *model = mimeo_model_get(m, (uint32_t)index);
	int r = options->prompt ? prompt_from_text(options, model) : RUN_OK;
	if (r == RUN_OK)
		r = stop_check(options, model);
	if (r == RUN_OK)
		r = limit_resolve(options, model);
	if (r == RUN_OK)
		r = mask_check(options, model);
	if (r != RUN_OK)
		return r;
	draft_note(options, model);

	int status;
	r = submit(m, (uint32_t)index, options, &status);
	if (r != RUN_OK) {
		run_complain("%s", mimeo_strerror(status));
		return r;
	}
	return stream(m, options, model, logits);
}

int main(int argc, char **argv)
{
	struct run_options options;
	struct mimeo *m = NULL;
	FILE *logits = NULL;

	int r = run_options_parse(&options, argc, argv);
	if (r == RUN_OK && !options.done && options.logits) {
		logits = fopen(options.logits, "wb");
		if (!logits) {
			run_complain("%s: %s", options.logits, strerror(errno));
			r = RUN_USAGE;
		}
	}
	if (r == RUN_OK && !options.done)
		r = connect_to(&m, &options);
	if (r == RUN_OK && !options.done)
		r = run(m, &options, logits);
	mimeo_close(m);
	if (logits && fclose(logits) != 0 && r == RUN_OK) {
		run_complain("%s: %s", options.logits, strerror(errno));
		r = RUN_DAEMON;
	}
	run_options_deinit(&options);
	return r;
}
