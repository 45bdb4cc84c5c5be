/* SPDX-License-Identifier: MIT */

/* mimeo-run: a model of mimeod from the command line, through the public headers only. */

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/run/run_chat.h"
#include "daemon/run/run_request.h"
#include "daemon/run/run_score.h"

#define MAX_TOKENS_DEFAULT 128u
#define ENTRIES 4u
#define CONNECT_MS 5000u

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "the file of logits is little endian");

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

/* The model with that name; NULL: the only one. */
static int main_find_model(struct mimeo *m, const char *name)
{
	uint32_t n = mimeo_model_count(m);
	int index = name ? mimeo_model_find(m, name) : n == 1 ? 0 : -1;

	if (index >= 0)
		return index;
	if (name)
		fprintf(stderr, "mimeo-run: no model '%s'; the daemon serves:", name);
	else
		fputs("mimeo-run: name one of the models with --model:", stderr);
	for (uint32_t i = 0; i < n; i++)
		fprintf(stderr, "%s %s", i > 0 ? "," : "", mimeo_model_get(m, i)->name);
	fputs(n > 0 ? "\n" : " none\n", stderr);
	return -1;
}

/* ---- what is asked for ---- */

/* The prompt of the options or of standard input; free it. */
static int main_prompt(const struct run_session *session, struct run_ids *ret)
{
	const struct run_options *options = session->options;
	char *input = NULL;
	size_t length = 0;
	int rc = RUN_OK;

	if (options->tokens) {
		*ret = (struct run_ids){malloc(options->n_tokens * sizeof(*ret->at)), options->n_tokens};
		if (!ret->at) {
			run_complain("--tokens: out of memory");
			return RUN_USAGE;
		}
		memcpy(ret->at, options->tokens, options->n_tokens * sizeof(*ret->at));
		return RUN_OK;
	}
	if (options->prompt)
		return run_text_encode(&session->text, options->prompt, strlen(options->prompt), ret);
	rc = run_text_read_input(&input, &length);
	if (rc == RUN_OK)
		rc = run_text_encode(&session->text, input, length, ret);
	free(input);
	return rc;
}

static int main_write_logits(const struct run_session *session, const struct mimeo_event *event, void *data)
{
	const uint32_t n = session->model->vocab_size;
	FILE *file = data;

	if (!event->logits) {
		run_complain("--logits: the daemon sent none");
		return RUN_REFUSED;
	}
	if (fwrite(event->logits, sizeof(float), n, file) == n && fflush(file) == 0)
		return RUN_OK;
	run_complain("%s: %s", session->options->logits, strerror(errno));
	return RUN_DAEMON;
}

static int main_generate(const struct run_session *session, const struct run_ids *prompt, FILE *logits)
{
	struct run_request request = {.tokens = prompt->at, .n_tokens = prompt->n,
		.final = logits ? main_write_logits : NULL, .data = logits};
	struct run_output output = {0};
	struct run_usage usage;
	int rc = run_request_limit(session, prompt->n, MAX_TOKENS_DEFAULT, &request.max_tokens);

	if (rc == RUN_OK)
		rc = run_request_check(session, prompt->n);
	if (rc == RUN_OK)
		rc = run_output_init(&output, session, prompt->at, prompt->n);
	if (rc == RUN_OK)
		rc = run_request(session, &request, &output, &usage);
	run_output_deinit(&output);
	return rc;
}

static int main_tokenize(const struct run_ids *prompt)
{
	for (uint32_t i = 0; i < prompt->n; i++)
		printf("%d\n", prompt->at[i]);
	if (fflush(stdout) == 0 && !ferror(stdout))
		return RUN_OK;
	run_complain("standard output: %s", strerror(errno));
	return RUN_DAEMON;
}

static int main_do(const struct run_session *session, FILE *logits)
{
	struct run_ids prompt = {0};
	int rc;

	if (session->options->mode == RUN_MODE_CHAT)
		return run_chat(session);
	rc = main_prompt(session, &prompt);
	if (rc == RUN_OK && session->options->mode == RUN_MODE_TOKENIZE)
		rc = main_tokenize(&prompt);
	else if (rc == RUN_OK && session->options->mode == RUN_MODE_SCORE)
		rc = run_score(session, &prompt);
	else if (rc == RUN_OK)
		rc = main_generate(session, &prompt, logits);
	free(prompt.at);
	return rc;
}

static int main_connected(const struct run_options *options, struct mimeo *m, FILE *logits)
{
	struct run_session session = {.options = options, .m = m};
	int index = main_find_model(m, options->model), rc;

	if (index < 0)
		return RUN_REFUSED;
	session.index = (uint32_t)index;
	session.model = mimeo_model_get(m, session.index);
	rc = run_text_open(&session.text, m, session.index);
	if (rc == RUN_OK)
		rc = main_do(&session, logits);
	run_text_close(&session.text);
	return rc;
}

static int main_connect_and_do(const struct run_options *options, FILE *logits)
{
	struct mimeo *m;
	int rc = main_connect(&m, options);

	if (rc != RUN_OK)
		return rc;
	rc = main_connected(options, m, logits);
	mimeo_close(m);
	return rc;
}

static int main_run(const struct run_options *options)
{
	if (!options->logits)
		return main_connect_and_do(options, NULL);
	FILE *logits = fopen(options->logits, "wb");
	if (!logits) {
		run_complain("%s: %s", options->logits, strerror(errno));
		return RUN_USAGE;
	}
	int rc = main_connect_and_do(options, logits);
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
