/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/field.h"
#include "ipc/cleanup.h"

static bool gguf_tokens_is_special(const struct gguf_token *token)
{
	return token->type == GGUF_TOKEN_CONTROL || token->type == GGUF_TOKEN_UNKNOWN;
}

bool gguf_tokens_is_added(const struct gguf_token *token)
{
	return token->type == GGUF_TOKEN_USER_DEFINED || gguf_tokens_is_special(token);
}

uint32_t gguf_tokens_first_added(const struct gguf_vocabulary *vocabulary)
{
	const struct gguf_token *tokens = vocabulary->tokens;
	uint32_t end = vocabulary->n, first;

	while (end && tokens[end - 1].type == GGUF_TOKEN_UNUSED)
		end--;
	for (first = end; first && tokens[first - 1].length; first--) {
		if (tokens[first - 1].type != GGUF_TOKEN_CONTROL &&
			tokens[first - 1].type != GGUF_TOKEN_USER_DEFINED)
			break;
	}
	return first < end ? first : vocabulary->n;
}

static void gguf_tokens_pass(const json_t *vocab, const char *text, uint32_t *first)
{
	const json_t *id = json_object_get(vocab, text);

	if (id && json_integer_value(id) >= *first)
		*first = (uint32_t)json_integer_value(id) + 1;
}

/* Move *first behind all tokens of the merges, which the vocabulary must have. False: no memory. */
static bool gguf_tokens_pass_merges(
	const struct gguf_array *merges, const json_t *vocab, uint32_t *first)
{
	const uint8_t *at = merges->data;

	for (uint64_t i = 0; merges->type == GGUF_STRING && i < merges->n; i++) {
		size_t length;
		const char *merge = gguf_next_string(&at, &length);
		CLEANUP(cleanup_free) char *text = strndup(merge, length);
		char *space = text ? strchr(text, ' ') : NULL;

		if (!text)
			return false;
		if (!space)
			continue;
		*space = 0;
		gguf_tokens_pass(vocab, text, first);
		gguf_tokens_pass(vocab, space + 1, first);
		memmove(space, space + 1, strlen(space + 1) + 1);
		gguf_tokens_pass(vocab, text, first);
	}
	return true;
}

static json_t *gguf_tokens_all(const struct gguf_vocabulary *vocabulary)
{
	CLEANUP(cleanup_json) json_t *vocab = json_object();

	for (uint32_t id = 0; id < vocabulary->n; id++) {
		const struct gguf_token *token = &vocabulary->tokens[id];
		CLEANUP(cleanup_free) char *text = strndup(token->text, token->length);

		if (!text || json_object_set_new(vocab, text, json_integer(id)))
			return NULL;
	}
	return STEAL(vocab);
}

/*
 * Added tokens at the end are left out: libmimeo-text keeps those that the vocabulary has in users' text, and gives the
 * others the ids behind it, which are the same. They would not be if two tokens had the same text.
 */
json_t *gguf_tokens_vocab(
	const struct gguf_vocabulary *vocabulary, const struct gguf_array *merges)
{
	CLEANUP(cleanup_json) json_t *vocab = gguf_tokens_all(vocabulary);
	uint32_t first = gguf_tokens_first_added(vocabulary);

	if (!vocab || json_object_size(vocab) < vocabulary->n)
		return STEAL(vocab);
	if (merges && !gguf_tokens_pass_merges(merges, vocab, &first))
		return NULL;
	for (uint32_t id = first; id < vocabulary->n; id++) {
		const struct gguf_token *token = &vocabulary->tokens[id];
		CLEANUP(cleanup_free) char *text = strndup(token->text, token->length);

		if (!text || json_object_del(vocab, text))
			return NULL;
	}
	return STEAL(vocab);
}

json_t *gguf_tokens_added(const struct gguf_vocabulary *vocabulary)
{
	CLEANUP(cleanup_json) json_t *added = json_array();

	for (uint32_t id = 0; id < vocabulary->n; id++) {
		const struct gguf_token *token = &vocabulary->tokens[id];

		if (!gguf_tokens_is_added(token))
			continue;
		if (json_array_append_new(added,
			    json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (int)id,
				    "content", token->text, token->length, "single_word", 0,
				    "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
				    gguf_tokens_is_special(token))))
			return NULL;
	}
	return STEAL(added);
}
