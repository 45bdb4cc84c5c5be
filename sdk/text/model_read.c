/* SPDX-License-Identifier: MIT */

/* The model's part of tokenizer.json. */

#include <stdlib.h>
#include <string.h>

#include "sdk/text/model.h"
#include "sdk/text/score.h"

#define MODEL_TOKEN_MAX 65536u /* bytes of a token */
#define MODEL_SEARCHED_TOKEN_MAX                                                                   \
	1024u /* of a unigram or WordPiece model: the steps of a search per byte of text */
#define MODEL_CHARACTERS_MAX 1000000u

/* ---- vocabulary ---- */

static void model_add_token(struct model *model, const struct spec *spec, const char *token,
	size_t length, json_int_t id)
{
	size_t most = model->kind == MODEL_BPE || model->kind == MODEL_WORDLEVEL
			      ? MODEL_TOKEN_MAX
			      : MODEL_SEARCHED_TOKEN_MAX;

	if (length > most) {
		spec_fail(spec, MIMEO_E_INVALID, "vocab: a token of %zu bytes; the limit is %zu",
			length, most);
		return;
	}
	if (id < 0 || id >= VOCABULARY_IDS_MAX) {
		spec_fail(spec, MIMEO_E_INVALID,
			"vocab: token %.40s has the id %lld; the range is 0 to %u", token,
			(long long)id, VOCABULARY_IDS_MAX - 1);
		return;
	}
	int rc = vocabulary_add(&model->vocabulary, token, length, (int32_t)id);
	if (rc == MIMEO_E_INVALID)
		spec_fail(spec, rc, "vocab: the id %lld has two tokens", (long long)id);
	else if (rc < 0)
		spec_no_memory(spec);
}

/* Of BPE, WordPiece and WordLevel: an object. */
static bool model_read_vocabulary(struct model *model, const struct spec *spec)
{
	const json_t *vocabulary = spec_field(spec, "vocab");
	size_t n = json_object_size(vocabulary);

	if (!json_is_object(vocabulary))
		spec_fail(spec, MIMEO_E_INVALID, "vocab is not an object");
	else if (n > VOCABULARY_TOKENS_MAX)
		spec_fail(spec, MIMEO_E_INVALID, "vocab has %zu tokens; the limit is %u", n,
			VOCABULARY_TOKENS_MAX);
	else if (vocabulary_init(&model->vocabulary, (uint32_t)n) < 0)
		spec_no_memory(spec);
	if (spec->file->rc < 0)
		return false;
	void *at = json_object_iter((json_t *)vocabulary);
	for (; at && spec->file->rc == 0; at = json_object_iter_next((json_t *)vocabulary, at)) {
		const char *token = json_object_iter_key(at);
		const json_t *id = json_object_iter_value(at);

		if (json_is_integer(id))
			model_add_token(model, spec, token, strlen(token), json_integer_value(id));
		else
			spec_fail(spec, MIMEO_E_INVALID, "vocab: the id of %.40s is not an integer",
				token);
	}
	return spec->file->rc == 0;
}

/* Of Unigram: a list of [token, score]. */
static bool model_read_scores(struct model *model, const struct spec *spec)
{
	const json_t *vocabulary = spec_field(spec, "vocab");
	size_t n = spec_count(spec, "vocab", VOCABULARY_TOKENS_MAX);

	model->unigram.scores = calloc(n + 1, sizeof(*model->unigram.scores));
	if (!model->unigram.scores || vocabulary_init(&model->vocabulary, (uint32_t)n) < 0) {
		spec_no_memory(spec);
		return false;
	}
	for (size_t i = 0; i < n && spec->file->rc == 0; i++) {
		const json_t *pair = json_array_get(vocabulary, i);
		const json_t *token = json_array_get(pair, 0), *score = json_array_get(pair, 1);

		if (json_array_size(pair) != 2 || !json_is_string(token) ||
			!json_is_number(score)) {
			spec_fail(spec, MIMEO_E_INVALID, "vocab[%zu] is not a token and its score",
				i);
			break;
		}
		model->unigram.scores[i] = score_read(json_number_value(score));
		model_add_token(model, spec, json_string_value(token), json_string_length(token),
			(json_int_t)i);
	}
	return spec->file->rc == 0;
}

/* The id of a member that names a token; -1: the vocabulary lacks it, or there is no such member.
 */
static int32_t model_find_named(const struct model *model, const struct spec *spec, const char *key)
{
	size_t length;
	const char *token = spec_string_or_null(spec, key, &length);

	return token ? vocabulary_find(&model->vocabulary, token, length) : -1;
}

/* ---- BPE ---- */

/* A merge is "left right" or [left, right]. */
static bool model_read_pair(const json_t *merge, const char **ret_left, size_t *ret_left_length,
	const char **ret_right, size_t *ret_right_length)
{
	const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
	const char *text = json_string_value(merge), *space;
	size_t length = json_string_length(merge);

	if (json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right)) {
		*ret_left = json_string_value(left);
		*ret_left_length = json_string_length(left);
		*ret_right = json_string_value(right);
		*ret_right_length = json_string_length(right);
		return true;
	}
	if (!text || !(space = memchr(text, ' ', length)))
		return false;
	*ret_left = text;
	*ret_left_length = (size_t)(space - text);
	*ret_right = space + 1;
	*ret_right_length = length - *ret_left_length - 1;
	return !memchr(*ret_right, ' ', *ret_right_length);
}

static void model_read_merge(struct model *model, const struct spec *spec, const json_t *merge,
	size_t index, uint32_t rank, struct bytes *joined)
{
	const char *left, *right;
	size_t left_length, right_length, prefix = model->bpe.prefix_length;

	if (!model_read_pair(merge, &left, &left_length, &right, &right_length)) {
		spec_fail(spec, MIMEO_E_INVALID, "merges[%zu] is not a pair of tokens", index);
		return;
	}
	int32_t left_id = vocabulary_find(&model->vocabulary, left, left_length);
	int32_t right_id = vocabulary_find(&model->vocabulary, right, right_length);
	bytes_clear(joined);
	bytes_add(joined, left, left_length);
	if (right_length >= prefix)
		bytes_add(joined, right + prefix, right_length - prefix);
	if (joined->rc < 0) {
		spec_no_memory(spec);
		return;
	}
	int32_t id = vocabulary_find(
		&model->vocabulary, joined->data ? joined->data : "", joined->length);
	if (left_length == 0 || right_length == 0 || left_id < 0 || right_id < 0 || id < 0 ||
		right_length < prefix) {
		spec_fail(spec, MIMEO_E_INVALID,
			"merges[%zu]: %.40s and %.40s or what they make are not in vocab", index,
			left, right);
		return;
	}
	merges_add(&model->bpe.merges, left_id, right_id, rank, id);
}

static void model_read_merges(struct model *model, const struct spec *spec)
{
	size_t n = spec_count(spec, "merges", MERGES_MAX);
	const json_t *list = spec_field(spec, "merges");
	struct bytes joined = {0};
	uint32_t rank = 0;

	if (spec->file->rc < 0)
		return;
	if (merges_init(&model->bpe.merges, n) < 0) {
		spec_no_memory(spec);
		return;
	}
	for (size_t i = 0; i < n && spec->file->rc == 0; i++) {
		const json_t *merge = json_array_get(list, i);
		const char *text = json_string_value(merge);

		/* the first line of a merges.txt */
		if (text && strncmp(text, "#version", 8) == 0)
			continue;
		model_read_merge(model, spec, merge, i, rank++, &joined);
	}
	bytes_deinit(&joined);
}

static void model_read_affix(
	const struct spec *spec, const char *key, char *affix, size_t *ret_length)
{
	size_t length;
	const char *text = spec_string_or_null(spec, key, &length);

	if (length > BPE_AFFIX_MAX) {
		spec_fail(spec, MIMEO_E_INVALID, "%s: %zu bytes; the limit is %u", key, length,
			BPE_AFFIX_MAX);
		return;
	}
	if (text)
		memcpy(affix, text, length);
	*ret_length = length;
}

static void model_read_bpe(struct model *model, const struct spec *spec, bool bytes_deferred)
{
	static const char *const known[] = {"dropout", "unk_token", "continuing_subword_prefix",
		"end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
		"merges", NULL};
	const json_t *dropout = spec_field(spec, "dropout");
	struct bpe *bpe = &model->bpe;

	spec_allow(spec, known);
	if (dropout && !(json_is_number(dropout) && json_number_value(dropout) == 0))
		spec_refuse(spec, "dropout");
	bpe->vocabulary = &model->vocabulary;
	bpe->fuse_unknown = spec_bool(spec, "fuse_unk", false);
	bpe->byte_fallback = spec_bool(spec, "byte_fallback", false);
	bpe->ignore_merges = spec_bool(spec, "ignore_merges", false);
	model_read_affix(spec, "continuing_subword_prefix", bpe->prefix, &bpe->prefix_length);
	model_read_affix(spec, "end_of_word_suffix", bpe->suffix, &bpe->suffix_length);
	bpe->is_byte_level = bytes_deferred && bpe->prefix_length == 0 && bpe->suffix_length == 0;
	if (!model_read_vocabulary(model, spec))
		return;
	bpe->has_unknown = spec_field(spec, "unk_token") != NULL;
	bpe->unknown = model_find_named(model, spec, "unk_token");
	model_read_merges(model, spec);
	if (spec->file->rc == 0 && bpe_prepare(bpe) < 0)
		spec_no_memory(spec);
}

/* ---- the others ---- */

static void model_read_unigram(struct model *model, const struct spec *spec)
{
	static const char *const known[] = {"unk_id", "vocab", "byte_fallback", NULL};
	struct unigram *unigram = &model->unigram;

	spec_allow(spec, known);
	unigram->vocabulary = &model->vocabulary;
	unigram->byte_fallback = spec_bool(spec, "byte_fallback", false);
	unigram->unknown = -1;
	if (!model_read_scores(model, spec))
		return;
	if (spec_field(spec, "unk_id")) {
		unigram->unknown = (int32_t)spec_u32(spec, "unk_id", VOCABULARY_IDS_MAX, 0);
		if ((uint32_t)unigram->unknown >= model->vocabulary.n)
			spec_fail(spec, MIMEO_E_INVALID,
				"unk_id %d is not in vocab, which has %u tokens", unigram->unknown,
				model->vocabulary.n);
	}
	int rc = spec->file->rc < 0 ? 0 : unigram_prepare(unigram);
	if (rc < 0)
		spec_fail(spec, rc, "vocab: %s",
			rc == MIMEO_E_NO_MEMORY ? "out of memory" : "too many bytes");
}

static void model_read_wordpiece(struct model *model, const struct spec *spec)
{
	static const char *const known[] = {"unk_token", "continuing_subword_prefix",
		"max_input_chars_per_word", "vocab", NULL};
	struct wordpiece *wordpiece = &model->wordpiece;
	size_t length;
	const char *prefix = spec_string(spec, "continuing_subword_prefix", &length);

	spec_allow(spec, known);
	wordpiece->vocabulary = &model->vocabulary;
	wordpiece->max_characters =
		spec_u32(spec, "max_input_chars_per_word", MODEL_CHARACTERS_MAX, 100);
	if (!model_read_vocabulary(model, spec))
		return;
	wordpiece->unknown = model_find_named(model, spec, "unk_token");
	int rc = wordpiece_prepare(wordpiece, prefix, length);
	if (rc < 0)
		spec_fail(spec, rc, "vocab: %s",
			rc == MIMEO_E_NO_MEMORY ? "out of memory" : "too many bytes");
}

static void model_read_wordlevel(struct model *model, const struct spec *spec)
{
	static const char *const known[] = {"unk_token", "vocab", NULL};

	spec_allow(spec, known);
	if (model_read_vocabulary(model, spec))
		model->unknown = model_find_named(model, spec, "unk_token");
}

/* Files of before 2021 have no type; the members tell. */
static const char *model_type(const struct spec *spec)
{
	if (spec_field(spec, "type"))
		return spec_type(spec);
	if (spec_field(spec, "merges"))
		return "BPE";
	if (json_is_array(spec_field(spec, "vocab")))
		return "Unigram";
	return spec_field(spec, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

bool model_init(
	struct model *model, const struct spec *root, bool bytes_deferred, bool *ret_is_byte_level)
{
	struct spec spec;

	*model = (struct model){0};
	*ret_is_byte_level = false;
	if (!spec_member(root, "model", &spec))
		return false;
	const char *type = model_type(&spec);
	if (strcmp(type, "BPE") == 0) {
		model->kind = MODEL_BPE;
		model_read_bpe(model, &spec, bytes_deferred);
		*ret_is_byte_level = model->bpe.is_byte_level;
	} else if (strcmp(type, "Unigram") == 0) {
		model->kind = MODEL_UNIGRAM;
		model_read_unigram(model, &spec);
	} else if (strcmp(type, "WordPiece") == 0) {
		model->kind = MODEL_WORDPIECE;
		model_read_wordpiece(model, &spec);
	} else if (strcmp(type, "WordLevel") == 0) {
		model->kind = MODEL_WORDLEVEL;
		model_read_wordlevel(model, &spec);
	} else {
		spec_refuse(&spec, "type");
	}
	return root->file->rc == 0;
}
