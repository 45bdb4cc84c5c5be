/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_chat.h"

#include <errno.h>
#include <jansson.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "build-config.h"
#include "daemon/run/run_request.h"

#if HAVE_LIBEDIT
#include <editline/readline.h>
#endif

#define PROMPT "> "
#define COMMANDS "/new: forget the chat; /quit, or Ctrl-D: leave; Ctrl-C: end the answer"

struct run_chat {
	const struct run_session *session;
	json_t *messages;
	uint32_t sequence; /* 0: the request's own */
	int32_t *tokens;   /* [max_seq_len] what the sequence begins with */
	uint32_t n_tokens; /* it may have more: run_chat_keep_common cuts it */
};

static int run_chat_fail(const char *what, int status)
{
	run_complain("%s: %s", what, mimeo_strerror(status));
	return status <= MIMEO_E_GONE ? RUN_DAEMON : RUN_REFUSED;
}

static int run_chat_add(struct run_chat *chat, const char *role, const char *content, size_t length)
{
	json_t *string = json_stringn(content, length);

	if (!string) {
		run_complain("--chat: the %s message of %zu bytes is not UTF-8", role, length);
		return RUN_REFUSED;
	}
	json_array_append_new(chat->messages, json_pack("{ss so}", "role", role, "content", string));
	return RUN_OK;
}

static int run_chat_forget(struct run_chat *chat)
{
	const char *system = chat->session->options->system;

	json_array_clear(chat->messages);
	return system ? run_chat_add(chat, "system", system, strlen(system)) : RUN_OK;
}

/* A history is only kept for further turns. */
static int run_chat_init(struct run_chat *ret, const struct run_session *session, bool history)
{
	*ret = (struct run_chat){.session = session, .messages = json_array()};
	int rc = run_chat_forget(ret);
	if (rc != RUN_OK || !history)
		return rc;
	ret->tokens = calloc(session->model->max_seq_len, sizeof(*ret->tokens));
	if (!ret->tokens) {
		run_complain("out of memory for %u tokens", session->model->max_seq_len);
		return RUN_REFUSED;
	}
	rc = mimeo_sequence_open(session->m, session->index, &ret->sequence);
	return rc < 0 ? run_chat_fail("opening a sequence", rc) : RUN_OK;
}

static void run_chat_deinit(struct run_chat *chat)
{
	json_decref(chat->messages);
	free(chat->tokens);
}

/* ---- a turn ---- */

static int run_chat_encode(struct run_chat *chat, struct run_ids *ret)
{
	json_t *object = json_pack("{sO}", "messages", chat->messages);
	char *json = json_dumps(object, JSON_COMPACT);
	int rc = RUN_REFUSED;

	*ret = (struct run_ids){0};
	if (json)
		rc = run_text_encode_chat(&chat->session->text, json, strlen(json), ret);
	else
		run_complain("out of memory for %zu messages", json_array_size(chat->messages));
	free(json);
	json_decref(object);
	return rc;
}

/* Truncate the sequence to its common prefix with the new prompt. The prompt keeps at least one token to compute. */
static int run_chat_keep_common(struct run_chat *chat, const struct run_ids *ids)
{
	uint32_t n = 0;

	if (!chat->sequence)
		return RUN_OK;
	while (n < chat->n_tokens && n + 1 < ids->n && chat->tokens[n] == ids->at[n])
		n++;
	chat->n_tokens = n;
	int rc = mimeo_sequence_truncate(chat->session->m, chat->sequence, n);
	return rc < 0 ? run_chat_fail("truncating the sequence", rc) : RUN_OK;
}

static int run_chat_send(struct run_chat *chat, const struct run_ids *ids, struct run_request *request,
	struct run_output *output)
{
	struct run_usage usage;

	request->sequence = chat->sequence;
	request->tokens = ids->at + chat->n_tokens;
	request->n_tokens = ids->n - chat->n_tokens;
	if (chat->tokens) {
		memcpy(chat->tokens, ids->at, ids->n * sizeof(*ids->at));
		request->generated = chat->tokens + ids->n;
		request->n_capacity = chat->session->model->max_seq_len - ids->n;
	}
	int rc = run_request(chat->session, request, output, &usage);
	/* The sequence may lack the last tokens, or all if the request failed. */
	uint32_t n = ids->n + request->n_generated;
	chat->n_tokens = n < usage.n_sequence ? n : usage.n_sequence;
	return rc;
}

/* The answer goes to the terminal and to `copy`. */
static int run_chat_request(struct run_chat *chat, const struct run_ids *ids, FILE *copy)
{
	struct run_request request = {0};
	struct run_output output = {0};
	int rc = run_request_limit(chat->session, ids->n, 0, &request.max_tokens);

	if (rc != RUN_OK && chat->sequence)
		run_complain("the chat is too long: /new forgets it");
	if (rc == RUN_OK)
		rc = run_request_check(chat->session, ids->n);
	if (rc == RUN_OK)
		rc = run_output_init(&output, chat->session, ids->at, ids->n);
	output.copy = copy;
	if (rc == RUN_OK)
		rc = run_chat_keep_common(chat, ids);
	if (rc == RUN_OK)
		rc = run_chat_send(chat, ids, &request, &output);
	run_output_deinit(&output);
	return rc;
}

static int run_chat_answer(struct run_chat *chat)
{
	struct run_ids ids;
	char *answer = NULL;
	size_t length = 0;
	int rc = run_chat_encode(chat, &ids);
	FILE *copy = rc == RUN_OK ? open_memstream(&answer, &length) : NULL;

	if (rc == RUN_OK)
		rc = run_chat_request(chat, &ids, copy);
	if (copy)
		fclose(copy);
	if (rc == RUN_OK)
		rc = run_chat_add(chat, "assistant", answer, length);
	free(answer);
	free(ids.at);
	return rc;
}

/* A turn that fails is not part of the chat. */
static int run_chat_turn(struct run_chat *chat, const char *message, size_t length)
{
	int rc = run_chat_add(chat, "user", message, length);

	if (rc != RUN_OK)
		return rc;
	rc = run_chat_answer(chat);
	if (rc != RUN_OK)
		json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
	return rc;
}

/* ---- the terminal ---- */

#if HAVE_LIBEDIT
/* libedit drops characters that the locale does not have. */
static void run_chat_use_utf8(void)
{
	if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
		setlocale(LC_CTYPE, "C.UTF-8");
}

static char *run_chat_line(void)
{
	char *line = readline(PROMPT);

	if (line && *line)
		add_history(line);
	return line;
}
#else
static void run_chat_use_utf8(void)
{
}

static char *run_chat_line(void)
{
	char *line = NULL;
	size_t capacity = 0;
	ssize_t length;

	fputs(PROMPT, stdout);
	fflush(stdout);
	length = getline(&line, &capacity, stdin);
	if (length < 0) {
		free(line);
		return NULL;
	}
	if (length > 0 && line[length - 1] == '\n')
		line[length - 1] = '\0';
	return line;
}
#endif

static void run_chat_on_interrupt(int signal)
{
	run_interrupted = signal;
}

/* The first SIGINT of a turn ends the answer; a second one, and one while a line is read, end the program. */
static int run_chat_interruptible_turn(struct run_chat *chat, const char *line)
{
	struct sigaction handler = {.sa_handler = run_chat_on_interrupt, .sa_flags = SA_RESETHAND | SA_RESTART}, before;
	int rc;

	run_interrupted = 0;
	sigaction(SIGINT, &handler, &before);
	rc = run_chat_turn(chat, line, strlen(line));
	sigaction(SIGINT, &before, NULL);
	return rc == RUN_REFUSED ? RUN_OK : rc;
}

static int run_chat_talk(struct run_chat *chat)
{
	char *line;
	int rc = RUN_OK;

	run_chat_use_utf8();
	fputs(COMMANDS "\n", stderr);
	while (rc == RUN_OK && (line = run_chat_line())) {
		if (strcmp(line, "/quit") == 0) {
			free(line);
			return RUN_OK;
		}
		if (strcmp(line, "/new") == 0)
			rc = run_chat_forget(chat);
		else if (*line == '/')
			fprintf(stderr, "no command %s: " COMMANDS "\n", line);
		else if (*line)
			rc = run_chat_interruptible_turn(chat, line);
		free(line);
	}
	if (rc == RUN_OK)
		putchar('\n');
	return rc;
}

/* A chat of one message. */
static int run_chat_once(struct run_chat *chat)
{
	const char *message = chat->session->options->prompt;
	char *input = NULL;
	size_t length = message ? strlen(message) : 0;
	int rc = message ? RUN_OK : run_text_read_input(&input, &length);

	if (rc == RUN_OK && length == 0) {
		run_complain("--chat: the message is empty");
		rc = RUN_USAGE;
	}
	if (rc == RUN_OK)
		rc = run_chat_turn(chat, message ? message : input, length);
	free(input);
	return rc;
}

int run_chat(const struct run_session *session)
{
	const struct run_options *options = session->options;
	bool talks = !options->prompt && isatty(STDIN_FILENO);
	struct run_chat chat;
	int rc = run_text_check_chat(&session->text);

	if (rc != RUN_OK)
		return rc;
	rc = run_chat_init(&chat, session, talks);
	if (rc == RUN_OK && talks)
		rc = run_chat_talk(&chat);
	else if (rc == RUN_OK)
		rc = run_chat_once(&chat);
	run_chat_deinit(&chat);
	return rc;
}
