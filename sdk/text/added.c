/* SPDX-License-Identifier: MIT */
#include "sdk/text/added.h"

#include <assert.h>
#include <stdlib.h>

#include "sdk/text/unichar.h"
#include "sdk/text/utf8.h"

/* ---- reading ---- */

static struct added_token *added_find_content(
	const struct added *added, const char *content, size_t length)
{
	int32_t id = vocabulary_find(&added->contents, content, length);

	return id < 0 ? NULL : (struct added_token *)added_token(added, id);
}

/* Ids are not the file's, but those of equal tokens of the model, or else the next free ones. */
static struct added_token *added_enter(struct added *added, const struct spec *spec,
	const struct vocabulary *model, const char *content, size_t length, int32_t *next_id)
{
	struct added_token *token = added_find_content(added, content, length);

	if (token)
		return token;
	int32_t id = vocabulary_find(model, content, length);
	bool in_model = id >= 0;
	if (!in_model)
		id = (*next_id)++;
	int rc = vocabulary_add(&added->contents, content, length, id);
	if (rc == MIMEO_E_NO_MEMORY) {
		spec_no_memory(spec);
		return NULL;
	}
	if (rc < 0) {
		spec_fail(spec, MIMEO_E_INVALID,
			"content: the id %d exceeds the limit of %u or has another token", id,
			VOCABULARY_IDS_MAX - 1);
		return NULL;
	}
	token = &added->tokens[added->n++];
	token->id = id;
	token->in_model = in_model;
	return token;
}

/* What decoding gives, which is also what is looked for behind the normalizer. */
static void added_normalize(struct added_token *token, const struct spec *spec,
	const struct normalizer *normalizer, const char *content, size_t length)
{
	struct matcher matcher;
	struct normalizer_work work = {.matcher = &matcher};
	struct span normal;

	matcher_init(&matcher, length);
	int rc = normalizer_run(normalizer, &work,
		(struct span){.bytes = content, .length = length, .at_origin = true}, &normal);
	if (rc < 0) {
		spec_fail(spec, rc, "content: it cannot be normalized");
	} else if (normal.length > ADDED_BYTES_MAX) {
		spec_fail(spec, MIMEO_E_INVALID,
			"content: %zu bytes when normalized; the limit is %u", normal.length,
			ADDED_BYTES_MAX);
	} else if (normal.length != length || memcmp(normal.bytes, content, length) != 0) {
		free(token->decoded);
		token->decoded = malloc(normal.length + 1);
		token->decoded_length = (uint32_t)normal.length;
		if (token->decoded)
			memcpy(token->decoded, normal.bytes, normal.length);
		else
			spec_no_memory(spec);
	}
	normalizer_work_deinit(&work);
	matcher_deinit(&matcher);
}

static void added_read(struct added *added, const struct spec *spec, const struct vocabulary *model,
	const struct normalizer *normalizer, int32_t *next_id)
{
	static const char *const known[] = {
		"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", NULL};
	size_t length;
	const char *content = spec_string(spec, "content", &length);

	spec_allow(spec, known);
	if (spec->file->rc < 0 || length == 0)
		return;
	if (length > ADDED_BYTES_MAX) {
		spec_fail(spec, MIMEO_E_INVALID, "content: %zu bytes; the limit is %u", length,
			ADDED_BYTES_MAX);
		return;
	}
	struct added_token *token = added_enter(added, spec, model, content, length, next_id);
	if (!token)
		return;
	token->single_word = spec_bool(spec, "single_word", false);
	token->lstrip = spec_bool(spec, "lstrip", false);
	token->rstrip = spec_bool(spec, "rstrip", false);
	token->normalized = spec_bool(spec, "normalized", true);
	/* A file may list a token twice: it is special if one of them is. */
	token->special |= spec_bool(spec, "special", false);
	if (token->normalized)
		added_normalize(token, spec, normalizer, content, length);
}

static bool added_make_trie(
	struct added *added, const struct spec *root, struct trie *trie, bool normalized)
{
	struct trie_key *keys = calloc(added->n + 1, sizeof(*keys));
	uint32_t n = 0;
	int rc = keys ? 0 : MIMEO_E_NO_MEMORY;

	for (uint32_t i = 0; rc == 0 && i < added->n; i++) {
		const struct added_token *token = &added->tokens[i];
		size_t length;
		const char *bytes = vocabulary_token(&added->contents, token->id, &length);

		if (token->normalized != normalized)
			continue;
		if (normalized && token->decoded) {
			bytes = token->decoded;
			length = token->decoded_length;
		}
		if (length > 0)
			keys[n++] = (struct trie_key){bytes, (uint32_t)length, (int32_t)i};
	}
	if (rc == 0)
		rc = trie_init(trie, keys, n);
	free(keys);
	if (rc < 0)
		spec_fail(root, rc, "added_tokens: %s",
			rc == MIMEO_E_NO_MEMORY ? "out of memory" : "too many bytes");
	return rc == 0;
}

bool added_init(struct added *added, const struct spec *root, const struct vocabulary *model,
	const struct normalizer *normalizer)
{
	size_t n = spec_field(root, "added_tokens")
			   ? spec_count(root, "added_tokens", ADDED_TOKENS_MAX)
			   : 0;
	int32_t next_id = (int32_t)model->n;
	struct spec spec;

	*added = (struct added){0};
	added->tokens = calloc(n + 1, sizeof(*added->tokens));
	if (!added->tokens || vocabulary_init(&added->contents, (uint32_t)n) < 0) {
		spec_no_memory(root);
		return false;
	}
	for (size_t i = 0; i < n && root->file->rc == 0; i++) {
		if (spec_element(root, "added_tokens", i, &spec))
			added_read(added, &spec, model, normalizer, &next_id);
	}
	return root->file->rc == 0 && added_make_trie(added, root, &added->raw, false) &&
	       added_make_trie(added, root, &added->normalized, true);
}

void added_deinit(struct added *added)
{
	for (uint32_t i = 0; i < added->n; i++)
		free(added->tokens[i].decoded);
	free(added->tokens);
	vocabulary_deinit(&added->contents);
	trie_deinit(&added->raw);
	trie_deinit(&added->normalized);
	*added = (struct added){0};
}

const struct added_token *added_token(const struct added *added, int32_t id)
{
	const struct vocabulary *contents = &added->contents;

	if (id < 0 || (uint32_t)id >= contents->n_ids || contents->by_id[id] == 0)
		return NULL;
	/* tokens and entries of the vocabulary are added together */
	return &added->tokens[contents->by_id[id] - 1];
}

/* ---- searching ---- */

struct added_search {
	struct span text;
	size_t white_start, white_end; /* white space that was looked at last */
};

static bool added_is_word_before(struct span text, size_t at)
{
	unsigned size;

	if (at == 0)
		return false;
	do
		at--;
	while (utf8_is_continuation(text.bytes[at]));
	return unichar_is_word(utf8_decode(text.bytes + at, &size));
}

static bool added_is_word_behind(struct span text, size_t at)
{
	unsigned size;

	return at < text.length && unichar_is_word(utf8_decode(text.bytes + at, &size));
}

/* The start of the white space that ends at `at`, but not before `least`. */
static size_t added_strip_left(struct span text, size_t at, size_t least)
{
	unsigned size;

	while (at > least) {
		size_t before = at - 1;

		while (before > least && utf8_is_continuation(text.bytes[before]))
			before--;
		if (utf8_is_continuation(text.bytes[before]) ||
			!unichar_is_white_space(utf8_decode(text.bytes + before, &size)))
			break;
		at = before;
	}
	return at;
}

static size_t added_strip_right(struct added_search *search, size_t at)
{
	unsigned size;

	/* Tokens of spaces may be found in a run that was looked at already. */
	if (at >= search->white_start && at <= search->white_end)
		return search->white_end;
	search->white_start = at;
	while (at < search->text.length &&
		unichar_is_white_space(utf8_decode(search->text.bytes + at, &size)))
		at += size;
	search->white_end = at;
	return at;
}

/*
 * Marks of chats such as <|User|> are not special in some files, but no text gives their ids: they
 * are kept out of text of users like special tokens.
 */
static bool added_is_mark(const struct added_token *token)
{
	return token->special || (!token->normalized && !token->in_model);
}

static bool added_counts(
	const struct added_token *token, struct span text, size_t start, size_t end, bool literal)
{
	if (literal && added_is_mark(token))
		return false;
	if (text.foreign && memchr(text.foreign + start, 1, end - start) && added_is_mark(token))
		return false;
	return !token->single_word ||
	       (!added_is_word_before(text, start) && !added_is_word_behind(text, end));
}

/* The next position where a token begins, and the longest one there; false: none does. */
static bool added_next(const struct trie *trie, struct span text, size_t *at, size_t *ret_length,
	int32_t *ret_index)
{
	for (; *at < text.length; (*at)++) {
		if (trie->children_of_root[(unsigned char)text.bytes[*at]] == 0)
			continue;
		*ret_index = trie_longest(trie, 0, text.bytes + *at, text.length - *at, ret_length);
		if (*ret_index >= 0)
			return true;
	}
	return false;
}

/*
 * As `tokenizers` does it: a match that does not count is text as a whole, and no other token is
 * looked for within it; the search goes on behind the token itself, not behind the white space that
 * it takes with it.
 */
int added_split(const struct added *added, const struct trie *trie, struct span text, bool literal,
	int (*segment)(void *data, struct span part, const struct added_token *token), void *data)
{
	struct added_search search = {.text = text, .white_start = SIZE_MAX};
	size_t done = 0, at = 0, length = 0;
	int32_t index;
	int rc;

	while (trie->nodes[0].n_children > 0 && added_next(trie, text, &at, &length, &index)) {
		const struct added_token *token = &added->tokens[index];
		size_t start = at, end = at + length;

		at = end;
		if (!added_counts(token, text, start, end, literal))
			continue;
		if (token->lstrip && start > done)
			start = added_strip_left(text, start, done);
		else if (token->lstrip)
			start = done;
		if (token->rstrip)
			end = added_strip_right(&search, end);
		if (end < start)
			end = start;
		rc = done < start ? segment(data, span_slice(text, done, start), NULL) : 0;
		if (rc == 0)
			rc = segment(data, span_slice(text, start, end), token);
		if (rc != 0)
			return rc;
		done = end;
	}
	return done < text.length ? segment(data, span_slice(text, done, text.length), NULL) : 0;
}
