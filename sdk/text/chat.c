/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include <mimeo/text.h>

#include "ipc/cleanup.h"
#include "sdk/text/chat_context.h"
#include "sdk/text/text_internal.h"

static int chat_render(const struct mimeo_text *text, const char *json, size_t length,
	char **ret_utf8, uint8_t **ret_foreign, size_t *ret_length, char *message, size_t size)
{
	if (length > MIMEO_TEXT_MAX) {
		chat_message(message, size, "the request exceeds %u bytes", MIMEO_TEXT_MAX);
		return MIMEO_E_TOO_LONG;
	}
	return chat_set_render(
		text->chat, json, length, ret_utf8, ret_foreign, ret_length, message, size);
}

int mimeo_text_chat_render(const struct mimeo_text *text, const char *json, size_t length,
	char **ret_utf8, size_t *ret_length, char *message, size_t message_size)
{
	CLEANUP(cleanup_free) uint8_t *foreign = NULL;

	return chat_render(
		text, json, length, ret_utf8, &foreign, ret_length, message, message_size);
}

int mimeo_text_chat(const struct mimeo_text *text, const char *json, size_t length,
	int32_t **ret_ids, size_t *ret_n, char *message, size_t message_size)
{
	CLEANUP(cleanup_free) uint8_t *foreign = NULL;
	CLEANUP(cleanup_free) char *utf8 = NULL;
	size_t n_bytes;
	int rc = chat_render(text, json, length, &utf8, &foreign, &n_bytes, message, message_size);

	if (rc)
		return rc;
	rc = tokenizer_encode(text->tokenizer, utf8, n_bytes, foreign, 0, ret_ids, ret_n);
	if (rc)
		chat_message(message, message_size, "the rendered chat cannot be encoded");
	return rc;
}
