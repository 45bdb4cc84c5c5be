/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf_vocabulary.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"
#include "ipc/cleanup.h"

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES "tokenizer.ggml.token_type"
#define SCORES "tokenizer.ggml.scores"

/* Of the list in llama.cpp (src/llama-vocab.cpp), those of the architectures that are served. Where </s> ends an answer, a
 * field says so. */
bool gguf_is_end(const char *text, size_t length)
{
	static const char *const ends[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",
		"<|endoftext|>", "<|eom_id|>", "<|end_of_text|>"};

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		if (length == strlen(ends[i]) && !memcmp(text, ends[i], length))
			return true;
	}
	return false;
}

static uint32_t gguf_vocabulary_u32(const uint8_t *data, uint64_t index)
{
	uint32_t value;

	memcpy(&value, data + index * sizeof(value), sizeof(value));
	return le32toh(value);
}

/* An array with an element for each token; *ret stays as it is if there is none. */
static int gguf_vocabulary_find(const struct gguf *gguf, const char *key, uint32_t n,
	enum gguf_value type, enum gguf_value other, const struct gguf_array **ret,
	struct model_error *error)
{
	const struct gguf_array *array = gguf_find_array(gguf, key);

	if (!array)
		return 0;
	if (array->type != type && array->type != other)
		return model_fail(error, -EINVAL, "%s: %s has elements of type %d, not %d",
			gguf->path, key, (int)array->type, (int)type);
	if (array->n != n)
		return model_fail(error, -EINVAL, "%s: %s has %" PRIu64 " elements for %u tokens",
			gguf->path, key, array->n, n);
	*ret = array;
	return 0;
}

/* Clients could send the ids of tokens that the model does not have. */
static int gguf_vocabulary_fits(
	const struct gguf *gguf, const struct gguf_array *texts, struct model_error *error)
{
	const struct safetensors_tensor *embedding = gguf_find_tensor(gguf, "token_embd.weight");

	if (!embedding || texts->n <= embedding->shape[0])
		return 0;
	return model_fail(error, -EINVAL,
		"%s: " TOKENS " has %" PRIu64 " elements for %" PRIu64
		" rows of tensor \"token_embd.weight\"",
		gguf->path, texts->n, embedding->shape[0]);
}

static int gguf_vocabulary_read_texts(const struct gguf *gguf, const struct gguf_array *texts,
	struct gguf_vocabulary *vocabulary, struct model_error *error)
{
	const uint8_t *at = texts->data;

	for (uint32_t i = 0; i < vocabulary->n; i++) {
		struct gguf_token *token = &vocabulary->tokens[i];

		token->text = gguf_next_string(&at, &token->length);
		CLEANUP(cleanup_json) json_t *valid = json_stringn(token->text, token->length);
		if (!valid || memchr(token->text, 0, token->length))
			return model_fail(error, -EINVAL,
				"%s: " TOKENS "[%u] is not UTF-8 or has a NUL", gguf->path, i);
	}
	return 0;
}

static int gguf_vocabulary_read_numbers(const struct gguf *gguf, const struct gguf_array *types,
	const struct gguf_array *scores, struct gguf_vocabulary *vocabulary, struct model_error *error)
{
	for (uint32_t i = 0; i < vocabulary->n; i++) {
		struct gguf_token *token = &vocabulary->tokens[i];
		uint32_t bits = scores ? gguf_vocabulary_u32(scores->data, i) : 0;

		token->type = types ? gguf_vocabulary_u32(types->data, i) : GGUF_TOKEN_NORMAL;
		memcpy(&token->score, &bits, sizeof(bits));
		if (!isfinite(token->score))
			return model_fail(error, -EINVAL, "%s: " SCORES "[%u] is not finite",
				gguf->path, i);
	}
	return 0;
}

static void gguf_vocabulary_mark(struct gguf_token *token, enum gguf_token_type type)
{
	if (token->type != GGUF_TOKEN_UNKNOWN && token->type != GGUF_TOKEN_BYTE)
		token->type = type;
}

static int gguf_vocabulary_mark_special(
	const struct gguf *gguf, struct gguf_vocabulary *vocabulary, struct model_error *error)
{
	static const char *const keys[] = {"tokenizer.ggml.unknown_token_id",
		"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
		"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
		"tokenizer.ggml.padding_token_id"};
	struct field_file file = {.path = gguf->path, .error = error};
	const struct field_object root = {.json = gguf->fields, .prefix = "", .file = &file};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		uint32_t id = field_u32(&root, keys[i], 0, UINT32_MAX, UINT32_MAX);

		if (id < vocabulary->n)
			gguf_vocabulary_mark(&vocabulary->tokens[id],
				i ? GGUF_TOKEN_CONTROL : GGUF_TOKEN_UNKNOWN);
	}
	for (uint32_t id = 0; id < vocabulary->n; id++) {
		struct gguf_token *token = &vocabulary->tokens[id];

		if (gguf_is_end(token->text, token->length))
			gguf_vocabulary_mark(token, GGUF_TOKEN_CONTROL);
	}
	return file.rc;
}

int gguf_vocabulary_init(
	const struct gguf *gguf, struct gguf_vocabulary *ret, struct model_error *error)
{
	CLEANUP(gguf_vocabulary_deinit) struct gguf_vocabulary vocabulary = {0};
	const struct gguf_array *texts = gguf_find_array(gguf, TOKENS);
	const struct gguf_array *types = NULL, *scores = NULL;
	int rc;

	if (!texts || texts->type != GGUF_STRING)
		return model_fail(
			error, -EINVAL, "%s: " TOKENS " is missing or not of strings", gguf->path);
	if (texts->n > GGUF_TOKENS_MAX)
		return model_fail(error, -EINVAL,
			"%s: " TOKENS " has %" PRIu64 " elements; the limit is %u", gguf->path,
			texts->n, GGUF_TOKENS_MAX);
	rc = gguf_vocabulary_fits(gguf, texts, error);
	if (rc)
		return rc;
	vocabulary.n = (uint32_t)texts->n;
	rc = gguf_vocabulary_find(gguf, TYPES, vocabulary.n, GGUF_I32, GGUF_U32, &types, error);
	if (rc)
		return rc;
	rc = gguf_vocabulary_find(gguf, SCORES, vocabulary.n, GGUF_F32, GGUF_F32, &scores, error);
	if (rc)
		return rc;
	vocabulary.tokens = calloc(vocabulary.n + 1, sizeof(*vocabulary.tokens));
	if (!vocabulary.tokens)
		return model_fail(error, -ENOMEM, "%s: no memory for its tokens", gguf->path);
	vocabulary.has_scores = scores != NULL;
	rc = gguf_vocabulary_read_texts(gguf, texts, &vocabulary, error);
	if (rc)
		return rc;
	rc = gguf_vocabulary_read_numbers(gguf, types, scores, &vocabulary, error);
	if (rc)
		return rc;
	rc = gguf_vocabulary_mark_special(gguf, &vocabulary, error);
	if (rc)
		return rc;
	*ret = vocabulary;
	vocabulary = (struct gguf_vocabulary){0};
	return 0;
}

void gguf_vocabulary_deinit(struct gguf_vocabulary *vocabulary)
{
	free(vocabulary->tokens);
	*vocabulary = (struct gguf_vocabulary){0};
}
