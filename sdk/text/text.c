/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include <mimeo/text.h>

#include "ipc/cleanup.h"
#include "sdk/text/text_files.h"
#include "sdk/text/text_internal.h"
#include "sdk/versioned.h"

#define TEXT_SENTENCE_MAX 320u

DEFINE_CLEANUP(text, struct mimeo_text, mimeo_text_close)

/* ---- opening ---- */

static int text_read_tokenizer(
	struct mimeo_text *text, const struct mimeo_model_files *files, const struct fault *fault)
{
	struct bytes json = {0};
	int rc = files->tokenizer < 0
			 ? fault_set(fault, MIMEO_E_INVALID, "there is no tokenizer.json")
			 : text_files_read(files->tokenizer, TEXT_FILES_TOKENIZER,
				   TOKENIZER_FILE_MAX, &json, fault);

	if (rc == 0)
		rc = tokenizer_new(
			&text->tokenizer, json.data, json.length, fault->message, fault->size);
	bytes_deinit(&json);
	return rc;
}

static int text_read_chat(
	struct mimeo_text *text, const struct mimeo_model_files *files, const struct fault *fault)
{
	struct bytes config = {0}, chat_template = {0};
	int rc = 0;

	if (files->config >= 0)
		rc = text_files_read(
			files->config, TEXT_FILES_CONFIG, TEXT_FILES_CONFIG_MAX, &config, fault);
	if (rc == 0 && files->chat_template >= 0)
		rc = text_files_read(files->chat_template, TEXT_FILES_CHAT_TEMPLATE,
			TEXT_FILES_CHAT_TEMPLATE_MAX, &chat_template, fault);
	/* an empty file has been read, too: its data is not NULL */
	if (rc == 0)
		rc = chat_set_new(&text->chat, config.data, config.length, chat_template.data,
			chat_template.length, fault->message, fault->size);
	bytes_deinit(&config);
	bytes_deinit(&chat_template);
	return rc;
}

int mimeo_text_open_files(struct mimeo_text **ret_text, const struct mimeo_model_files *files,
	char *message, size_t message_size)
{
	struct fault fault = {.message = message, .size = message_size};
	struct mimeo_model_files known;

	if (!files || !versioned_read(&known, sizeof(known), files, sizeof(known)) ||
		known.reserved != -1)
		return fault_set(&fault, MIMEO_E_INVALID,
			"struct mimeo_model_files is not set by MIMEO_MODEL_FILES_INIT");
	CLEANUP(cleanup_text) struct mimeo_text *text = calloc(1, sizeof(*text));
	if (!text)
		return fault_set(&fault, MIMEO_E_NO_MEMORY, "out of memory");
	int rc = text_read_tokenizer(text, &known, &fault);
	if (rc == 0)
		rc = text_read_chat(text, &known, &fault);
	if (rc < 0)
		return rc;
	*ret_text = STEAL(text);
	return 0;
}

int mimeo_text_open(
	struct mimeo_text **ret_text, const char *path, char *message, size_t message_size)
{
	struct fault fault = {.message = message, .size = message_size};
	struct mimeo_model_files files;

	char sentence[TEXT_SENTENCE_MAX] = "";

	int rc = text_files_open(&files, path, &fault);
	if (rc == 0) {
		rc = mimeo_text_open_files(ret_text, &files, sentence, sizeof(sentence));
		if (rc < 0)
			fault_set(&fault, rc, "%s: %s", path, sentence);
	}
	text_files_close(&files);
	return rc;
}

void mimeo_text_close(struct mimeo_text *text)
{
	if (!text)
		return;
	chat_set_free(text->chat);
	tokenizer_free(text->tokenizer);
	free(text);
}

/* ---- ids, encoding, decoding ---- */

int32_t mimeo_text_id(const struct mimeo_text *text, const char *token)
{
	return tokenizer_id(text->tokenizer, token);
}

uint32_t mimeo_text_vocab_size(const struct mimeo_text *text)
{
	return tokenizer_vocab_size(text->tokenizer);
}

int mimeo_text_encode(const struct mimeo_text *text, const char *utf8, size_t length,
	uint32_t flags, int32_t **ret_ids, size_t *ret_n)
{
	if (flags & ~(MIMEO_TEXT_SPECIAL | MIMEO_TEXT_LITERAL))
		return MIMEO_E_INVALID;
	return tokenizer_encode(text->tokenizer, utf8, length, NULL, flags, ret_ids, ret_n);
}

int mimeo_text_decode(const struct mimeo_text *text, const int32_t *ids, size_t n, uint32_t flags,
	char **ret_utf8, size_t *ret_length)
{
	if (flags & ~MIMEO_TEXT_SKIP_SPECIAL)
		return MIMEO_E_INVALID;
	return tokenizer_decode(text->tokenizer, ids, n, flags, ret_utf8, ret_length);
}
