/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/run/run_options.h"

#define MESSAGE_MAX 320

int run_text_open(struct run_text *ret, struct mimeo *m, uint32_t index)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	char message[MESSAGE_MAX];

	*ret = (struct run_text){.model = mimeo_model_get(m, index)};
	int rc = mimeo_model_files(m, index, &files);
	if (rc < 0) {
		run_complain("the tokenizer of model %s: %s", ret->model->name, mimeo_strerror(rc));
		return rc <= MIMEO_E_GONE ? RUN_DAEMON : RUN_REFUSED;
	}
	if (files.tokenizer >= 0) {
		rc = mimeo_text_open_files(&ret->tokenizer, &files, message, sizeof(message));
		if (rc < 0)
			run_complain("the tokenizer of model %s cannot be used: %s", ret->model->name, message);
	}
	for (int i = 0; i < 3; i++) {
		const int fd = i == 0 ? files.tokenizer : i == 1 ? files.config : files.chat_template;

		if (fd >= 0)
			close(fd);
	}
	ret->bytes = !ret->tokenizer && ret->model->vocab_size == 256;
	return RUN_OK;
}

void run_text_close(struct run_text *text)
{
	mimeo_text_close(text->tokenizer);
	text->tokenizer = NULL;
}

/* The begin token, if the model has one, and a token a byte. */
static int run_text_encode_bytes(const struct run_text *text, const char *utf8, size_t length, struct run_ids *ret)
{
	int32_t *ids = calloc(length + 1, sizeof(*ids));
	uint32_t n = 0;

	if (!ids) {
		run_complain("out of memory for a prompt of %zu bytes", length);
		return RUN_USAGE;
	}
	if (text->model->bos >= 0)
		ids[n++] = text->model->bos;
	for (size_t i = 0; i < length; i++)
		ids[n++] = (uint8_t)utf8[i];
	*ret = (struct run_ids){ids, n};
	return RUN_OK;
}

static int run_text_encode_text(const struct run_text *text, const char *utf8, size_t length, struct run_ids *ret)
{
	int32_t *ids;
	size_t n;
	int rc = mimeo_text_encode(text->tokenizer, utf8, length, MIMEO_TEXT_SPECIAL, &ids, &n);

	if (rc < 0) {
		run_complain("the prompt cannot be encoded: %s", mimeo_strerror(rc));
		return RUN_REFUSED;
	}
	*ret = (struct run_ids){ids, (uint32_t)n};
	return RUN_OK;
}

int run_text_encode(const struct run_text *text, const char *utf8, size_t length, struct run_ids *ret)
{
	int rc;

	*ret = (struct run_ids){0};
	if (length > MIMEO_TEXT_MAX) {
		run_complain("the prompt has %zu bytes, more than %u", length, MIMEO_TEXT_MAX);
		return RUN_REFUSED;
	}
	if (!text->tokenizer && !text->bytes) {
		run_complain("model %s has no tokenizer, and a vocabulary of %u, not of 256 bytes: use --tokens",
			text->model->name, text->model->vocab_size);
		return RUN_USAGE;
	}
	rc = text->tokenizer ? run_text_encode_text(text, utf8, length, ret)
			     : run_text_encode_bytes(text, utf8, length, ret);
	if (rc != RUN_OK || ret->n > 0)
		return rc;
	run_complain("the prompt is empty, and model %s has no begin token", text->model->name);
	return RUN_USAGE;
}

int run_text_check_chat(const struct run_text *text)
{
	static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}";
	char message[MESSAGE_MAX], *rendered;
	size_t length;
	int rc;

	if (!text->tokenizer) {
		run_complain("--chat: model %s has no tokenizer", text->model->name);
		return RUN_USAGE;
	}
	rc = mimeo_text_chat_render(text->tokenizer, chat, strlen(chat), &rendered, &length, message, sizeof(message));
	if (rc == 0)
		free(rendered);
	if (rc != MIMEO_E_UNSUPPORTED)
		return RUN_OK;
	run_complain("--chat: %s; use --prompt without --chat", message);
	return RUN_USAGE;
}

int run_text_encode_chat(const struct run_text *text, const char *json, size_t length, struct run_ids *ret)
{
	char message[MESSAGE_MAX];
	int32_t *ids;
	size_t n;
	int rc;

	*ret = (struct run_ids){0};
	rc = mimeo_text_chat(text->tokenizer, json, length, &ids, &n, message, sizeof(message));
	if (rc < 0) {
		run_complain("%s", message);
		return RUN_REFUSED;
	}
	*ret = (struct run_ids){ids, (uint32_t)n};
	return RUN_OK;
}

int run_text_read_input(char **ret, size_t *ret_length)
{
	char *input = NULL, part[65536];
	size_t length = 0, n;
	FILE *copy = open_memstream(&input, &length);

	while (copy && ftello(copy) <= (off_t)MIMEO_TEXT_MAX && (n = fread(part, 1, sizeof(part), stdin)) > 0)
		fwrite(part, 1, n, copy);
	if (!copy || fclose(copy) != 0 || ferror(stdin)) {
		run_complain("standard input: %s", strerror(errno));
		free(input);
		return RUN_USAGE;
	}
	if (length > 0 && input[length - 1] == '\n')
		input[--length] = '\0';
	*ret = input;
	*ret_length = length;
	return RUN_OK;
}
