/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_GGUF_TEXTS_H
#define MIMEO_TESTS_MODEL_GGUF_TEXTS_H

/* Tokenizers in GGUF files: those of tokenizers.json (tests/data/make_gguf_tokenizers.py), and others of given tokens. */

#include "tests/model/gguf_file.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <mimeo/text.h>

#include "daemon/model/field.h"
#include "daemon/model/gguf_hash.h"
#include "daemon/model/gguf_tokenizer.h"
#include "daemon/model/gguf_vocabulary.h"
#include "daemon/model/text_files.h"

static json_t *data;

static inline int read_data(void **state)
{
	char path[512];

	source_path("tests/data/gguf/tokenizers.json", path);
	data = json_load_file(path, 0, NULL);
	return data ? 0 : -1;
}

static inline int free_data(void **state)
{
	json_decref(data);
	return 0;
}

/* ---- files ---- */

static inline void put_strings(struct gguf_file *file, const char *key, const json_t *list)
{
	struct gguf_bytes *to = put_array(file, key, GGUF_STRING, json_array_size(list));

	for (size_t i = 0; i < json_array_size(list); i++)
		put_string(to, json_string_value(json_array_get(list, i)));
}

static inline void put_numbers(struct gguf_file *file, const char *key, enum gguf_value type, const json_t *list)
{
	struct gguf_bytes *to = put_array(file, key, type, json_array_size(list));

	for (size_t i = 0; i < json_array_size(list); i++) {
		double value = json_number_value(json_array_get(list, i));

		if (type == GGUF_F32)
			put_bytes(to, &(float){(float)value}, 4);
		else
			put_uint(to, (uint64_t)(int64_t)value, 4);
	}
}

/* A file's tokenizer, but for one field and its pre-tokenizer's name. */
static inline void put_tokenizer(struct gguf_file *file, const char *model, const char *without)
{
	const json_t *v = json_object_get(json_object_get(data, "vocabularies"), model);

	if (strcmp(without, "tokenizer.ggml.model"))
		put_text(file, "tokenizer.ggml.model", model);
	if (strcmp(without, "tokenizer.ggml.tokens"))
		put_strings(file, "tokenizer.ggml.tokens", json_object_get(v, "tokens"));
	if (strcmp(without, "tokenizer.ggml.token_type"))
		put_numbers(file, "tokenizer.ggml.token_type", GGUF_I32, json_object_get(v, "types"));
	if (json_object_get(v, "scores") && strcmp(without, "tokenizer.ggml.scores"))
		put_numbers(file, "tokenizer.ggml.scores", GGUF_F32, json_object_get(v, "scores"));
	if (json_object_get(v, "merges") && strcmp(without, "tokenizer.ggml.merges"))
		put_strings(file, "tokenizer.ggml.merges", json_object_get(v, "merges"));
	put_u32(file, "tokenizer.ggml.bos_token_id",
		(uint32_t)json_integer_value(json_object_get(v, "bos")));
	put_u32(file, "tokenizer.ggml.eos_token_id",
		(uint32_t)json_integer_value(json_object_get(v, "eos")));
	if (!strcmp(model, "llama"))
		put_u32(file, "tokenizer.ggml.unknown_token_id", 0);
}

struct token {
	const char *text;
	enum gguf_token_type type;
};

/* A tokenizer of these tokens, without merges and with scores of 0; no types if the first one is 0. */
static inline void put_tokens(
	struct gguf_file *file, const char *model, const struct token *tokens, size_t n)
{
	struct gguf_bytes *to;

	put_text(file, "tokenizer.ggml.model", model);
	to = put_array(file, "tokenizer.ggml.tokens", GGUF_STRING, n);
	for (size_t i = 0; i < n; i++)
		put_string(to, tokens[i].text);
	if (tokens[0].type)
		to = put_array(file, "tokenizer.ggml.token_type", GGUF_I32, n);
	for (size_t i = 0; i < n && tokens[0].type; i++)
		put_uint(to, tokens[i].type, 4);
	to = put_array(file, "tokenizer.ggml.scores", GGUF_F32, n);
	for (size_t i = 0; i < n; i++)
		put_uint(to, 0, 4);
}

static inline int load(struct gguf_file *file, const struct scratch *scratch, struct mimeo_model_files **ret,
	struct model_error *error)
{
	struct gguf_bytes bytes = gguf_file_finish(file);
	char path[256];

	scratch_write(scratch, "m.gguf", bytes.data, bytes.n);
	free(bytes.data);
	scratch_path(scratch, "m.gguf", path);
	return text_files_load(path, ret, error);
}

static inline struct mimeo_text *open_text(struct gguf_file *file, const struct scratch *scratch)
{
	struct model_error error = {""};
	struct mimeo_model_files *files;
	struct mimeo_text *text;
	char message[256];

	if (load(file, scratch, &files, &error))
		fail_msg("%s", error.text);
	if (mimeo_text_open_files(&text, files, message, sizeof(message)))
		fail_msg("%s", message);
	text_files_free(files);
	return text;
}

static const struct token marks[] = {{"<", GGUF_TOKEN_NORMAL}, {"t", GGUF_TOKEN_NORMAL},
	{">", GGUF_TOKEN_NORMAL}, {"<t>", GGUF_TOKEN_USER_DEFINED}, {"<end>", GGUF_TOKEN_CONTROL},
	{"t>", GGUF_TOKEN_USER_DEFINED}, {"[PAD6]", GGUF_TOKEN_UNUSED}, {"[PAD7]", GGUF_TOKEN_UNUSED}};

#endif
