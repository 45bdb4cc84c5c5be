/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_request.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 1000    /* beyond the deadline, which the daemon keeps itself: its answer should come first */
#define SLICE_MS 100     /* of waiting, between looks at the signal and at the clock */
#define PATIENCE_MS 1000 /* before it says that it waits */
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

volatile sig_atomic_t run_interrupted;

/* ---- checks: the daemon would refuse these, too; the messages name the options ---- */

int run_request_limit(const struct run_session *session, uint32_t n_prompt, uint32_t most, uint32_t *ret_max_tokens)
{
	const struct run_options *options = session->options;
	const uint32_t room = n_prompt < session->model->max_seq_len ? session->model->max_seq_len - n_prompt : 0;
	uint32_t max_tokens = options->has_max_tokens ? options->max_tokens : room < most ? room : most;

	if (room > 0 && max_tokens <= room) {
		*ret_max_tokens = max_tokens;
		return RUN_OK;
	}
	run_complain("%u prompt token%s and %u to generate exceed the %u that model %s can hold", n_prompt,
		n_prompt == 1 ? "" : "s", max_tokens > 0 ? max_tokens : 1, session->model->max_seq_len,
		session->model->name);
	return RUN_REFUSED;
}

static int run_request_check_stop(const struct run_session *session)
{
	const struct mimeo_model_info *model = session->model;

	for (uint32_t i = 0; i < session->options->n_stop; i++) {
		if ((uint32_t)session->options->stop[i] < model->vocab_size)
			continue;
		run_complain("--stop: token %d is outside the vocabulary of %u of model %s", session->options->stop[i],
			model->vocab_size, model->name);
		return RUN_REFUSED;
	}
	return RUN_OK;
}

static int run_request_check_mask(const struct run_session *session, uint32_t n_prompt)
{
	const struct run_options *options = session->options;
	const struct mimeo_model_info *model = session->model;
	const struct mask_text *mask = &options->mask;

	if (!options->mask_text)
		return RUN_OK;
	if (!model->masks && (mask->window || mask->prefix)) {
		run_complain("--mask %s: the attention backend of model %s supports the causal mask only: "
			     "start mimeod with --attention flex, unless the attention is latent",
			options->mask_text, model->name);
		return RUN_REFUSED;
	}
	if (mask->prefix && n_prompt > model->max_batch_tokens) {
		run_complain("--mask %s: the prompt has %u tokens and must fit one step: mimeod's --max-batch-tokens is %u",
			options->mask_text, n_prompt, model->max_batch_tokens);
		return RUN_REFUSED;
	}
	return RUN_OK;
}

int run_request_check(const struct run_session *session, uint32_t n_prompt)
{
	const struct run_options *options = session->options;
	int rc = run_request_check_stop(session);

	if (rc == RUN_OK)
		rc = run_request_check_mask(session, n_prompt);
	/* A note and no error: the answer does not depend on draft tokens. */
	if (rc == RUN_OK && options->draft_tokens && options->draft_tokens != MIMEO_DRAFT_NONE &&
		!session->model->draft_tokens)
		run_complain("--draft-tokens is ignored: model %s has no draft model (mimeod --draft)",
			session->model->name);
	return rc;
}

/* ---- submission ---- */

/* Causal is the default mask if the model has no other, else a window of the longest sequence. */
static struct mimeo_mask run_request_mask(const struct run_session *session, uint32_t n_prompt)
{
	const struct mask_text *mask = &session->options->mask;
	const struct mimeo_model_info *model = session->model;

	if (!session->options->mask_text)
		return (struct mimeo_mask){.kind = MIMEO_MASK_DEFAULT};
	if (mask->window)
		return (struct mimeo_mask){.kind = MIMEO_MASK_WINDOW, .window = mask->window, .sinks = mask->sinks};
	if (mask->prefix)
		return (struct mimeo_mask){.kind = MIMEO_MASK_PREFIX, .prefix = n_prompt};
	return model->mask.kind == MIMEO_MASK_DEFAULT
		? (struct mimeo_mask){.kind = MIMEO_MASK_DEFAULT}
		: (struct mimeo_mask){.kind = MIMEO_MASK_WINDOW, .window = model->max_seq_len};
}

/* Statuses of one request are refusals; the others are the daemon's. */
static int run_request_exit_status(int status)
{
	if (status >= 0)
		return RUN_OK;
	return status <= MIMEO_E_GONE ? RUN_DAEMON : RUN_REFUSED;
}

static int run_request_submit(const struct run_session *session, const struct run_request *asked, uint64_t *ret_id)
{
	const struct run_options *options = session->options;
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_request *request = mimeo_request_get(session->m);

	generate.model = session->index;
	generate.sequence = asked->sequence;
	generate.tokens = asked->tokens;
	generate.n_tokens = asked->n_tokens;
	generate.max_tokens = asked->max_tokens;
	generate.mask = run_request_mask(session, asked->n_tokens);
	generate.sampling = options->sampling;
	generate.stop = options->stop;
	generate.n_stop = options->n_stop;
	generate.flags = asked->flags | (options->ignore_eos ? MIMEO_GENERATE_IGNORE_EOS : 0) |
		(options->logits ? MIMEO_GENERATE_PROMPT_LOGITS : 0) |
		(options->logprobs ? MIMEO_GENERATE_LOGPROBS : 0) |
		(options->deterministic ? MIMEO_GENERATE_DETERMINISTIC : 0);
	generate.deadline_ms = options->timeout_ms;
	generate.first_token_ms = options->first_token_ms;
	generate.draft_tokens = options->draft_tokens;
	generate.request_class = options->request_class;
	generate.repetition_penalty = options->repetition_penalty;
	generate.presence_penalty = options->presence_penalty;
	generate.frequency_penalty = options->frequency_penalty;
	generate.top_logprobs = options->top_logprobs;
	if (!request) {
		run_complain("%s", mimeo_strerror(MIMEO_E_FULL));
		return RUN_REFUSED;
	}
	*ret_id = mimeo_request_id(request);
	int rc = mimeo_request_prep_generate(request, &generate);
	if (rc == 0)
		rc = mimeo_submit(session->m);
	if (rc < 0) {
		const char *message = mimeo_request_message(request);

		run_complain("%s", message[0] ? message : mimeo_strerror(rc));
		mimeo_request_put(request);
	}
	return run_request_exit_status(rc);
}

/* ---- the answer ---- */

struct run_wait {
	int64_t start_ns, until_ns; /* until_ns -1: without limit */
	bool shown, tokens;         /* the line on the terminal; a token has come */
	bool cancelled;
};

static int64_t run_request_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void run_request_show(struct run_wait *wait, int64_t now_ns)
{
	if (wait->tokens || now_ns - wait->start_ns < PATIENCE_MS * NS_PER_MS || !isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "\rwaiting for the first token: %lld s", (long long)((now_ns - wait->start_ns) / NS_PER_S));
	wait->shown = true;
}

static void run_request_hide(struct run_wait *wait)
{
	if (wait->shown)
		fputs("\r\033[K", stderr);
	wait->shown = false;
}

static void run_request_cancel(const struct run_session *session, struct run_wait *wait, uint64_t id)
{
	if (!wait->cancelled)
		wait->cancelled = mimeo_cancel(session->m, id) == 0;
}

/* Wait for the next event. As of mimeo_event_wait; 0: the daemon does not answer. */
static int run_request_next(const struct run_session *session, struct run_wait *wait, uint64_t id,
	struct mimeo_event *ret)
{
	int rc;

	for (;;) {
		int64_t now = run_request_now_ns();
		int64_t left_ms = wait->until_ns < 0 ? SLICE_MS : (wait->until_ns - now) / NS_PER_MS;

		if (run_interrupted)
			run_request_cancel(session, wait, id);
		rc = mimeo_event_wait(session->m, ret, left_ms < 0 ? 0 : left_ms < SLICE_MS ? (int)left_ms : SLICE_MS);
		if (rc > 0 && ret->kind == MIMEO_EVENT_SEQUENCE) {
			/* A call for the sequence was refused; so is the request, with the same reason. */
			mimeo_event_seen(session->m, ret);
			continue;
		}
		if (rc != 0 || left_ms <= 0)
			break;
		run_request_show(wait, now);
	}
	run_request_hide(wait);
	return rc;
}

static void run_request_keep(struct run_request *request, const struct mimeo_event *event)
{
	if (!request->generated || !event->n_tokens)
		return;
	assert(request->n_generated + event->n_tokens <= request->n_capacity);
	memcpy(request->generated + request->n_generated, event->tokens, event->n_tokens * sizeof(*event->tokens));
	request->n_generated += event->n_tokens;
}

/* Of two deadlines the daemon names the earlier one, and the first token ends its own. */
static void run_request_complain_of_deadline(const struct run_options *options, const struct mimeo_event *event)
{
	bool first = options->first_token_ms && event->n_generated == 0 &&
		(!options->timeout_ms || options->first_token_ms < options->timeout_ms);

	if (first)
		run_complain("--first-token: no token came in %g s", options->first_token_ms / 1000.0);
	else
		run_complain("--timeout: the answer had not ended after %g s", options->timeout_ms / 1000.0);
}

/* What is left to do with the final event. */
static int run_request_end(const struct run_session *session, const struct run_request *request,
	struct run_output *output, const struct mimeo_event *event, const struct run_usage *usage)
{
	bool stopped = (output && output->stopped) || (run_interrupted && event->status == MIMEO_E_CANCELLED);
	char text[256];
	int rc = output ? run_output_end(output, event, usage) : RUN_OK;

	if (event->status < 0 && !stopped) {
		mimeo_event_message(event, text, sizeof(text));
		if (event->status == MIMEO_E_DEADLINE)
			run_request_complain_of_deadline(session->options, event);
		else
			run_complain("%s", text);
		return run_request_exit_status(event->status);
	}
	return rc == RUN_OK && request->final ? request->final(session, event, request->data) : rc;
}

static int run_request_stream(const struct run_session *session, struct run_request *request, uint64_t id,
	struct run_output *output, struct run_usage *usage)
{
	struct run_wait wait = {.start_ns = run_request_now_ns(), .until_ns = -1};
	struct mimeo_event event;
	int rc;

	if (session->options->timeout_ms > 0)
		wait.until_ns = wait.start_ns + (session->options->timeout_ms + GRACE_MS) * NS_PER_MS;
	for (;;) {
		rc = run_request_next(session, &wait, id, &event);
		if (rc <= 0) {
			if (output)
				run_output_break(output);
			run_complain("%s", rc < 0 ? mimeo_strerror(rc) : "the daemon does not answer");
			return RUN_DAEMON;
		}
		usage->seconds = 1e-9 * (double)(run_request_now_ns() - wait.start_ns);
		if (!wait.tokens && event.n_tokens > 0)
			usage->first_s = usage->seconds;
		wait.tokens |= event.n_tokens > 0;
		run_request_keep(request, &event);
		rc = output ? run_output_event(output, &event) : RUN_OK;
		if (rc != RUN_OK)
			return rc;
		if (event.kind == MIMEO_EVENT_FINAL)
			break;
		if (output && output->stopped)
			run_request_cancel(session, &wait, id);
		mimeo_event_seen(session->m, &event);
	}
	/* An event that the library made for a lost daemon, or a refusal, has no counts of the prompt. */
	usage->counted = event.n_prompt > 0;
	usage->n_prompt = usage->counted ? event.n_prompt : request->n_tokens;
	usage->n_cached = event.n_cached;
	usage->n_generated = event.n_generated;
	usage->n_sequence = event.n_sequence;
	rc = run_request_end(session, request, output, &event, usage);
	mimeo_event_seen(session->m, &event);
	return rc;
}

/* On a terminal only: a program that reads standard error expects messages there. */
static void run_request_print_usage(const struct run_usage *usage)
{
	double decoding = usage->seconds - usage->first_s;

	if (!isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "%u prompt tokens", usage->n_prompt);
	if (usage->n_cached)
		fprintf(stderr, " (%u from the cache)", usage->n_cached);
	fprintf(stderr, ", first token after %.3f s, %u tokens", usage->first_s, usage->n_generated);
	if (usage->n_generated > 1 && decoding > 0)
		fprintf(stderr, ", %.1f tokens/s", (usage->n_generated - 1) / decoding);
	fputc('\n', stderr);
}

int run_request(const struct run_session *session, struct run_request *request, struct run_output *output,
	struct run_usage *ret_usage)
{
	uint64_t id;
	int rc = run_request_submit(session, request, &id);

	*ret_usage = (struct run_usage){0};
	if (rc == RUN_OK)
		rc = run_request_stream(session, request, id, output, ret_usage);
	if (rc == RUN_OK && output && !output->json)
		run_request_print_usage(ret_usage);
	return rc;
}
