/* SPDX-License-Identifier: MIT */
#include "sdk/text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>

#include <mimeo/text.h>

#include "sdk/text/added.h"
#include "sdk/text/model.h"
#include "sdk/text/normalizer.h"
#include "sdk/text/postprocessor.h"
#include "sdk/text/pretokenizer.h"

/* Values of the JSON text, about 100 bytes each while it is read. Gemma's file has two million. */
#define TOKENIZER_VALUES_MAX 12000000u

struct tokenizer {
	struct normalizer normalizer;
	struct pretokenizer pretokenizer;
	struct model model;
	struct added added;
	struct postprocessor postprocessor;
	struct decoder decoder;
	bool normalized_special; /* special tokens are recognised behind the normalizer */
};

DEFINE_CLEANUP(tokenizer, struct tokenizer, tokenizer_free)

/* ---- opening ---- */

static json_t *tokenizer_parse(const char *text, size_t length, struct spec_file *file)
{
	uint32_t n_values = 0;
	json_error_t reason = {0};

	for (size_t i = 0; i < length; i++)
		n_values += text[i] == ',' || text[i] == '[' || text[i] == '{';
	if (length > TOKENIZER_FILE_MAX || n_values > TOKENIZER_VALUES_MAX) {
		file->rc = fault_set(file->fault, MIMEO_E_INVALID,
			"%zu bytes with %u values; the limits are %zu and %u", length, n_values,
			TOKENIZER_FILE_MAX, TOKENIZER_VALUES_MAX);
		return NULL;
	}
	json_t *json = json_loadb(text, length, JSON_ALLOW_NUL, &reason);
	if (json)
		return json;
	/* Jansson has no reason for most allocations that fail. */
	if (json_error_code(&reason) == json_error_out_of_memory || !reason.text[0])
		file->rc = fault_set(file->fault, MIMEO_E_NO_MEMORY, "out of memory");
	else if (json_error_code(&reason) == json_error_null_byte_in_key)
		file->rc = fault_set(file->fault, MIMEO_E_UNSUPPORTED,
			"line %d: U+0000 in a token of a vocabulary, or in another key, is not "
			"supported",
			reason.line);
	else
		file->rc = fault_set(file->fault, MIMEO_E_INVALID, "line %d: no valid JSON: %s",
			reason.line, reason.text);
	return NULL;
}

static void tokenizer_read(struct tokenizer *tokenizer, const struct spec *root)
{
	static const char *const known[] = {"version", "truncation", "padding", "added_tokens",
		"normalizer", "pre_tokenizer", "post_processor", "decoder", "model", NULL};
	bool is_byte_level, may_defer;
	size_t length;
	const char *version = spec_string_or_null(root, "version", &length);

	spec_allow(root, known);
	if (version && strcmp(version, "1.0") != 0)
		spec_refuse(root, "version");
	if (!normalizer_init(&tokenizer->normalizer, root) ||
		!pretokenizer_init(&tokenizer->pretokenizer, root))
		return;
	may_defer = pretokenizer_ends_in_bytes(&tokenizer->pretokenizer);
	if (!model_init(&tokenizer->model, root, may_defer, &is_byte_level))
		return;
	if (is_byte_level)
		pretokenizer_defer_bytes(&tokenizer->pretokenizer);
	if (added_init(&tokenizer->added, root, &tokenizer->model.vocabulary,
		    &tokenizer->normalizer) &&
		postprocessor_init(&tokenizer->postprocessor, root))
		decoder_init(&tokenizer->decoder, root);
	for (uint32_t i = 0; i < tokenizer->added.n; i++) {
		const struct added_token *token = &tokenizer->added.tokens[i];

		tokenizer->normalized_special |= token->special && token->normalized;
	}
}

int tokenizer_new(struct tokenizer **ret_tokenizer, const char *json, size_t length, char *message,
	size_t size)
{
	struct fault fault = {.message = message, .size = size};
	struct spec_file file = {.fault = &fault};
	CLEANUP(cleanup_tokenizer) struct tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));

	if (!tokenizer)
		return fault_set(&fault, MIMEO_E_NO_MEMORY, "out of memory");
	CLEANUP(cleanup_json) json_t *root = tokenizer_parse(json, length, &file);
	if (!root)
		return file.rc;
	if (!json_is_object(root))
		return fault_set(&fault, MIMEO_E_INVALID, "the file is not a JSON object");
	struct spec spec = {.json = root, .file = &file};
	tokenizer_read(tokenizer, &spec);
	if (file.rc < 0)
		return file.rc;
	*ret_tokenizer = STEAL(tokenizer);
	return 0;
}

void tokenizer_free(struct tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	decoder_deinit(&tokenizer->decoder);
	postprocessor_deinit(&tokenizer->postprocessor);
	added_deinit(&tokenizer->added);
	model_deinit(&tokenizer->model);
	pretokenizer_deinit(&tokenizer->pretokenizer);
	normalizer_deinit(&tokenizer->normalizer);
	free(tokenizer);
}

/* ---- ids ---- */

int32_t tokenizer_id(const struct tokenizer *tokenizer, const char *token)
{
	size_t length = strlen(token);
	int32_t id = vocabulary_find(&tokenizer->added.contents, token, length);

	return id >= 0 ? id : vocabulary_find(&tokenizer->model.vocabulary, token, length);
}

uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
	uint32_t added = tokenizer->added.contents.n_ids, model = tokenizer->model.vocabulary.n_ids;

	return added > model ? added : model;
}

/* ---- encoding ---- */

struct tokenizer_encoding {
	const struct tokenizer *tokenizer;
	bool literal;
	struct ids ids; /* of the text */
	struct matcher matcher;
	struct normalizer_work normal;
	struct pretokenizer_work pieces;
	struct model_work model;
};

static int tokenizer_encode_word(void *data, const char *word, size_t length)
{
	struct tokenizer_encoding *encoding = data;

	return model_encode(
		&encoding->tokenizer->model, &encoding->model, word, length, &encoding->ids);
}

static int tokenizer_encode_normal(void *data, struct span part, const struct added_token *token)
{
	struct tokenizer_encoding *encoding = data;

	if (!token)
		return pretokenizer_run(
			&encoding->tokenizer->pretokenizer, &encoding->pieces, part);
	ids_add(&encoding->ids, token->id);
	return encoding->ids.rc;
}

static int tokenizer_encode_raw(void *data, struct span part, const struct added_token *token)
{
	struct tokenizer_encoding *encoding = data;
	const struct tokenizer *tokenizer = encoding->tokenizer;
	struct span normal;

	if (token) {
		ids_add(&encoding->ids, token->id);
		return encoding->ids.rc;
	}
	if (!tokenizer->normalized_special)
		part.foreign = NULL;
	int rc = normalizer_run(&tokenizer->normalizer, &encoding->normal, part, &normal);
	if (rc < 0)
		return rc;
	return added_split(&tokenizer->added, &tokenizer->added.normalized, normal,
		encoding->literal, tokenizer_encode_normal, encoding);
}

static void tokenizer_encoding_init(struct tokenizer_encoding *encoding,
	const struct tokenizer *tokenizer, size_t length, bool literal)
{
	*encoding = (struct tokenizer_encoding){.tokenizer = tokenizer, .literal = literal};
	matcher_init(&encoding->matcher, length);
	encoding->normal.matcher = &encoding->matcher;
	encoding->pieces.matcher = &encoding->matcher;
	encoding->pieces.word = tokenizer_encode_word;
	encoding->pieces.data = encoding;
	word_cache_init(&encoding->model.cache, length);
}

static void tokenizer_encoding_deinit(struct tokenizer_encoding *encoding)
{
	model_work_deinit(&encoding->model);
	pretokenizer_work_deinit(&encoding->pieces);
	normalizer_work_deinit(&encoding->normal);
	matcher_deinit(&encoding->matcher);
	ids_deinit(&encoding->ids);
}

/* Encode a text that is valid UTF-8. */
static int tokenizer_encode_valid(
	const struct tokenizer *tokenizer, struct span text, uint32_t flags, struct ids *out)
{
	struct tokenizer_encoding encoding;

	tokenizer_encoding_init(
		&encoding, tokenizer, text.length, (flags & MIMEO_TEXT_LITERAL) != 0);
	/* English text has about four bytes for each token. */
	ids_reserve(&encoding.ids, text.length / 4 + 1);
	int rc = added_split(&tokenizer->added, &tokenizer->added.raw, text, encoding.literal,
		tokenizer_encode_raw, &encoding);
	if (rc == 0)
		rc = encoding.ids.rc;
	if (rc == 0)
		rc = postprocessor_run(&tokenizer->postprocessor, &encoding.ids,
			(flags & MIMEO_TEXT_SPECIAL) != 0, out);
	tokenizer_encoding_deinit(&encoding);
	return rc;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
	const uint8_t *foreign, uint32_t flags, int32_t **ret_ids, size_t *ret_n)
{
	struct span span = {.bytes = text, .length = length, .foreign = foreign, .at_origin = true};
	struct bytes repaired = {0}, repaired_foreign = {0};
	struct ids ids = {0};

	if (length > MIMEO_TEXT_MAX)
		return MIMEO_E_TOO_LONG;
	if (utf8_valid(text, length) < length) {
		utf8_repair(text, length, foreign, &repaired, &repaired_foreign);
		span.bytes = repaired.data;
		span.length = repaired.length;
		span.foreign = foreign ? (const uint8_t *)repaired_foreign.data : NULL;
	}
	int rc = repaired.rc < 0 ? repaired.rc : repaired_foreign.rc;
	if (rc == 0)
		rc = ids_reserve(&ids, 1);
	if (rc == 0)
		rc = tokenizer_encode_valid(tokenizer, span, flags, &ids);
	bytes_deinit(&repaired);
	bytes_deinit(&repaired_foreign);
	if (rc < 0) {
		ids_deinit(&ids);
		return rc;
	}
	*ret_ids = ids.data;
	*ret_n = ids.n;
	return 0;
}

/* ---- decoding ---- */

const struct decoder *tokenizer_decoder(const struct tokenizer *tokenizer)
{
	return &tokenizer->decoder;
}

/* Special tokens are known by what decoding gives for them, so that a normalized one may not be
 * known any more. */
static bool tokenizer_is_special(
	const struct tokenizer *tokenizer, const char *token, size_t length)
{
	const struct added *added = &tokenizer->added;
	int32_t id = vocabulary_find(&added->contents, token, length);

	return id >= 0 && added_token(added, id)->special;
}

const char *tokenizer_decoded(
	const struct tokenizer *tokenizer, int32_t id, bool skip_special, size_t *ret_length)
{
	const struct added_token *added = added_token(&tokenizer->added, id);
	const char *token;

	if (added && added->decoded) {
		token = added->decoded;
		*ret_length = added->decoded_length;
	} else if (added) {
		token = vocabulary_token(&tokenizer->added.contents, id, ret_length);
	} else {
		token = vocabulary_token(&tokenizer->model.vocabulary, id, ret_length);
	}
	if (token && skip_special && added && tokenizer_is_special(tokenizer, token, *ret_length))
		return NULL;
	return token;
}

int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
	uint32_t flags, char **ret_text, size_t *ret_length)
{
	struct bytes text = {0};
	struct decoder_run run;
	int rc = 0;

	decoder_run_init(&run, &tokenizer->decoder, &text);
	for (size_t i = 0; i < n && rc == 0; i++) {
		size_t length;
		const char *token = tokenizer_decoded(
			tokenizer, ids[i], (flags & MIMEO_TEXT_SKIP_SPECIAL) != 0, &length);

		if (token)
			rc = decoder_run_push(&run, token, length);
	}
	if (rc == 0)
		rc = decoder_run_end(&run);
	if (rc == 0)
		rc = bytes_terminate(&text);
	decoder_run_deinit(&run);
	if (rc < 0) {
		bytes_deinit(&text);
		return rc;
	}
	*ret_text = text.data;
	*ret_length = text.length;
	return 0;
}
