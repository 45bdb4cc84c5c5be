/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_output.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int run_output_init(struct run_output *ret, const struct run_session *session, const int32_t *before, uint32_t n_before)
{
	const struct run_options *options = session->options;
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;

	*ret = (struct run_output){
		.form = options->ids ? RUN_OUTPUT_IDS
			: session->text.tokenizer ? RUN_OUTPUT_TEXT
			: session->text.bytes ? RUN_OUTPUT_BYTES : RUN_OUTPUT_IDS,
		.json = options->json_events,
		.ends = {session->model->eos, options->stop},
		.n_ends = {options->ignore_eos ? 0 : session->model->n_eos, options->n_stop},
		.held = -1,
	};
	if (options->n_stop_texts && ret->form != RUN_OUTPUT_TEXT) {
		run_complain("--stop-text: model %s has no tokenizer", session->model->name);
		return RUN_USAGE;
	}
	if (ret->form != RUN_OUTPUT_TEXT)
		return RUN_OK;
	config.flags = options->ignore_eos ? 0 : MIMEO_TEXT_SKIP_SPECIAL;
	config.stop = options->stop_texts;
	config.n_stop = options->n_stop_texts;
	config.before = before;
	config.n_before = n_before;
	int rc = mimeo_text_stream_new(&ret->stream, session->text.tokenizer, &config);
	if (rc == 0)
		return RUN_OK;
	run_complain("--stop-text: %s", rc == MIMEO_E_INVALID ? "it is not UTF-8" : mimeo_strerror(rc));
	return RUN_USAGE;
}

void run_output_deinit(struct run_output *output)
{
	mimeo_text_stream_free(output->stream);
	output->stream = NULL;
}

static int run_output_flush(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return RUN_OK;
	run_complain("standard output: %s", strerror(errno));
	return RUN_DAEMON;
}

/* ---- text ---- */

static void run_output_write(struct run_output *output, const char *utf8, size_t length)
{
	if (length == 0)
		return;
	if (output->copy)
		fwrite(utf8, 1, length, output->copy);
	if (output->json)
		return;
	fwrite(utf8, 1, length, stdout);
	output->started = true;
}

/* The text that the tokens complete; "" with another form. */
static const char *run_output_push(struct run_output *output, const int32_t *tokens, uint32_t n)
{
	const char *utf8 = "";
	size_t length = 0;
	int rc;

	if (!output->stream || output->stopped)
		return "";
	rc = mimeo_text_stream_push(output->stream, tokens, n, &utf8, &length);
	if (rc < 0)
		return "";
	output->stopped = rc == 1;
	run_output_write(output, utf8, length);
	return utf8;
}

static void run_output_print(struct run_output *output, int32_t token)
{
	char byte = (char)token;

	if (output->form == RUN_OUTPUT_TEXT) {
		run_output_push(output, &token, 1);
	} else if (output->form == RUN_OUTPUT_BYTES) {
		run_output_write(output, &byte, 1);
	} else {
		printf(output->started ? ",%d" : "%d", token);
		output->started = true;
	}
}

static bool run_output_may_end(const struct run_output *output, int32_t token)
{
	for (int list = 0; list < 2; list++) {
		for (uint32_t i = 0; i < output->n_ends[list]; i++) {
			if (output->ends[list][i] == token)
				return true;
		}
	}
	return false;
}

static void run_output_tokens(struct run_output *output, const struct mimeo_event *event)
{
	bool final = event->kind == MIMEO_EVENT_FINAL;

	for (uint32_t i = 0; i < event->n_tokens; i++) {
		if (output->held >= 0)
			run_output_print(output, output->held);
		output->held = event->tokens[i];
	}
	/* The last token waits only if it may be the end token of the answer. */
	if (output->held < 0 || (!final && run_output_may_end(output, output->held)))
		return;
	if (!final || event->finish != MIMEO_FINISH_STOP)
		run_output_print(output, output->held);
	output->held = -1;
}

/* ---- JSON ---- */

static json_t *run_output_ids(const int32_t *ids, uint32_t n)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(array, json_integer(ids[i]));
	return array;
}

static json_t *run_output_logprobs(const struct mimeo_logprob *entries, uint32_t n_tokens, uint32_t n)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < n_tokens; i++) {
		json_t *token = json_array();

		for (uint32_t k = 0; k < n && entries[i * n + k].token >= 0; k++)
			json_array_append_new(token, json_pack("{si sf}", "token", entries[i * n + k].token,
				"logprob", (double)entries[i * n + k].logprob));
		json_array_append_new(array, token);
	}
	return array;
}

static void run_output_object(struct run_output *output, json_t *object)
{
	json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
	putchar('\n');
	json_decref(object);
	output->started = true;
}

/* A vocabulary of bytes need not give UTF-8: its text is left out. */
static void run_output_json_tokens(struct run_output *output, const struct mimeo_event *event)
{
	if (event->n_tokens == 0)
		return;
	json_t *object = json_pack("{ss so}", "event", "tokens", "tokens", run_output_ids(event->tokens, event->n_tokens));
	if (output->form == RUN_OUTPUT_TEXT)
		json_object_set_new(object, "text", json_string(run_output_push(output, event->tokens, event->n_tokens)));
	if (event->logprobs)
		json_object_set_new(object, "logprobs",
			run_output_logprobs(event->logprobs, event->n_tokens, event->n_logprobs));
	run_output_object(output, object);
}

static const char *run_output_finish(const struct run_output *output, const struct mimeo_event *event)
{
	static const char *const names[] = {
		[MIMEO_FINISH_NONE] = "none",
		[MIMEO_FINISH_STOP] = "stop",
		[MIMEO_FINISH_LENGTH] = "length",
		[MIMEO_FINISH_CANCELLED] = "cancelled",
		[MIMEO_FINISH_ERROR] = "error",
	};

	return output->stopped ? "stop" : names[event->finish <= MIMEO_FINISH_ERROR ? event->finish : 0];
}

static void run_output_json_end(struct run_output *output, const struct mimeo_event *event, const char *rest,
	const struct run_usage *usage)
{
	json_t *object = json_pack("{ss ss si si sf sf}", "event", "final", "finish", run_output_finish(output, event),
		"prompt_tokens", (int)usage->n_prompt, "generated_tokens", (int)usage->n_generated, "first_token_s",
		usage->first_s, "seconds", usage->seconds);

	if (usage->counted)
		json_object_set_new(object, "cached_tokens", json_integer(usage->n_cached));
	if (output->form == RUN_OUTPUT_TEXT)
		json_object_set_new(object, "text", json_string(rest));
	if (event->status < 0 && !output->stopped)
		json_object_set_new(object, "status", json_string(mimeo_status_name(event->status)));
	run_output_object(output, object);
}

/* ---- both ---- */

int run_output_event(struct run_output *output, const struct mimeo_event *event)
{
	if (output->json)
		run_output_json_tokens(output, event);
	else
		run_output_tokens(output, event);
	return run_output_flush();
}

void run_output_break(const struct run_output *output)
{
	if (output->started && !output->json)
		putchar('\n');
	fflush(stdout);
}

int run_output_end(struct run_output *output, const struct mimeo_event *event, const struct run_usage *usage)
{
	const char *rest = "";
	size_t length = 0;

	if (output->stream && mimeo_text_stream_end(output->stream, &rest, &length) == 0)
		run_output_write(output, rest, length);
	if (output->json)
		run_output_json_end(output, event, rest, usage);
	/* Text is the answer's characters and nothing else, except on a terminal and before the reason of a failure. */
	else if (output->form == RUN_OUTPUT_IDS
			 ? event->status == 0 || output->started
			 : output->started && (isatty(STDOUT_FILENO) || (event->status < 0 && !output->stopped)))
		putchar('\n');
	return run_output_flush();
}
