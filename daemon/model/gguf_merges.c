/* SPDX-License-Identifier: MIT */

/*
 * Every split of every token is looked up. The hash of the rest of a text follows from those of the whole and the
 * beginning (gguf_hash.h), and texts are compared only where both parts are found, so that the work is proportional to
 * the bytes of all tokens and all merges.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"
#include "daemon/model/gguf_hash.h"
#include "daemon/model/gguf_vocabulary.h"
#include "ipc/cleanup.h"

#define NONE UINT32_MAX

struct gguf_merge {
	uint32_t piece, left, right; /* ids */
	uint32_t left_characters, right_characters;
	float score;
};

struct gguf_merging {
	const struct gguf_vocabulary *vocabulary;
	uint32_t *table; /* [mask + 1] ids by hash, NONE: free */
	uint32_t mask;
	struct gguf_hash_point point;
	uint64_t *hashes; /* of each token */
	struct gguf_merge *merges;
	size_t n, size;
	struct gguf_budget *budget;
	json_t **strings; /* of each token that a merge has had */
};

static void gguf_merging_deinit(struct gguf_merging *m)
{
	free(m->table);
	free(m->hashes);
	free(m->merges);
	for (uint32_t id = 0; m->strings && id < m->vocabulary->n; id++)
		json_decref(m->strings[id]);
	free(m->strings);
}

/* Text becomes added tokens before it is merged. */
static bool gguf_merging_takes(const struct gguf_token *token)
{
	return token->length && token->type == GGUF_TOKEN_NORMAL;
}

/* Hashes of texts that differ in the last byte are close to each other, slots are not. */
static uint32_t gguf_merging_slot(const struct gguf_merging *m, uint64_t hash)
{
	return (uint32_t)(hash * UINT64_C(0x9e3779b97f4a7c15) >> 32) & m->mask;
}

/* The slot that has the text, or would have it. text NULL: any text of that hash. */
static uint32_t *gguf_merging_probe(
	const struct gguf_merging *m, const char *text, size_t length, uint64_t hash)
{
	uint32_t at = gguf_merging_slot(m, hash);

	for (; m->table[at] != NONE; at = (at + 1) & m->mask) {
		const struct gguf_token *token = &m->vocabulary->tokens[m->table[at]];

		if (m->hashes[m->table[at]] == hash && token->length == length &&
			(!text || !memcmp(token->text, text, length)))
			break;
	}
	return &m->table[at];
}

/* NONE: the text is no token that merges take. */
static uint32_t gguf_merging_find(
	const struct gguf_merging *m, const char *text, size_t length, uint64_t hash)
{
	uint32_t id = *gguf_merging_probe(m, text, length, hash);

	return id != NONE && gguf_merging_takes(&m->vocabulary->tokens[id]) ? id : NONE;
}

static void gguf_merging_enter(struct gguf_merging *m, uint32_t id)
{
	const struct gguf_token *token = &m->vocabulary->tokens[id];
	uint64_t hash = 0;

	for (size_t i = 0; i < token->length; i++)
		hash = gguf_hash_append(&m->point, hash, (uint8_t)token->text[i]);
	m->hashes[id] = hash;
	*gguf_merging_probe(m, token->text, token->length, hash) = id;
}

static int gguf_merging_init(struct gguf_merging *m, const struct gguf_vocabulary *vocabulary)
{
	uint64_t size = 16;

	while (size < 2ull * vocabulary->n)
		size *= 2;
	assert(size <= UINT32_MAX);
	gguf_hash_choose(&m->point);
	m->vocabulary = vocabulary;
	m->mask = (uint32_t)size - 1;
	m->table = malloc(size * sizeof(*m->table));
	m->hashes = calloc(vocabulary->n + 1, sizeof(*m->hashes));
	if (!m->table || !m->hashes)
		return -ENOMEM;
	memset(m->table, 0xff, size * sizeof(*m->table));
	for (uint32_t id = 0; id < vocabulary->n; id++)
		gguf_merging_enter(m, id);
	return 0;
}

static int gguf_merging_add(struct gguf_merging *m, const struct gguf_merge *merge)
{
	const struct gguf_token *left = &m->vocabulary->tokens[merge->left];
	const struct gguf_token *right = &m->vocabulary->tokens[merge->right];
	int rc = gguf_budget_take(m->budget, gguf_budget_of_string(left->text, left->length) +
			gguf_budget_of_string(right->text, right->length) + strlen("[,],"));

	if (rc)
		return rc;
	if (m->n == GGUF_MERGES_MAX)
		return -E2BIG;
	if (m->n == m->size) {
		size_t size = m->size ? 2 * m->size : 4096;
		struct gguf_merge *merges = reallocarray(m->merges, size, sizeof(*merges));

		if (!merges)
			return -ENOMEM;
		m->merges = merges;
		m->size = size;
	}
	m->merges[m->n++] = *merge;
	return 0;
}

static bool gguf_is_continuation(char byte)
{
	return ((uint8_t)byte & 0xc0) == 0x80;
}

/* Add the merge of the first n bytes and the rest, if both are tokens. */
static int gguf_merging_cut(
	struct gguf_merging *m, struct gguf_merge *merge, size_t n, uint64_t left, uint64_t right)
{
	const struct gguf_token *token = &m->vocabulary->tokens[merge->piece];
	const char *rest = token->text + n;
	size_t length = token->length - n;

	if (*gguf_merging_probe(m, NULL, n, left) == NONE ||
		*gguf_merging_probe(m, NULL, length, right) == NONE)
		return 0;
	merge->left = gguf_merging_find(m, token->text, n, left);
	merge->right = gguf_merging_find(m, rest, length, right);
	return merge->left == NONE || merge->right == NONE ? 0 : gguf_merging_add(m, merge);
}

static int gguf_merging_split(struct gguf_merging *m, uint32_t id)
{
	const struct gguf_token *token = &m->vocabulary->tokens[id];
	struct gguf_merge merge = {.piece = id, .score = token->score};
	uint64_t rest = m->hashes[id], power = 1, left = 0;
	int rc = 0;

	if (gguf_merging_find(m, token->text, token->length, rest) != id)
		return 0;
	for (size_t i = 0; i < token->length; i++) {
		merge.right_characters += !gguf_is_continuation(token->text[i]);
		power = i ? gguf_hash_multiply(power, m->point.base) : 1;
	}
	/* in the loop: the base to the number of bytes behind byte i */
	for (size_t i = 0; i + 1 < token->length && !rc; i++) {
		uint8_t byte = (uint8_t)token->text[i];
		uint32_t begins = !gguf_is_continuation(token->text[i]);

		left = gguf_hash_append(&m->point, left, byte);
		rest = gguf_hash_subtract(
			rest, gguf_hash_multiply(byte + UINT64_C(1), power));
		power = gguf_hash_multiply(power, m->point.inverse);
		merge.left_characters += begins;
		merge.right_characters -= begins;
		rc = gguf_merging_cut(m, &merge, i + 1, left, rest);
	}
	return rc;
}

static int gguf_merge_compare(const void *a, const void *b)
{
	const struct gguf_merge *x = a, *y = b;

	if (x->score != y->score)
		return x->score > y->score ? -1 : 1;
	if (x->left_characters != y->left_characters)
		return x->left_characters > y->left_characters ? -1 : 1;
	if (x->right_characters != y->right_characters)
		return x->right_characters > y->right_characters ? -1 : 1;
	if (x->piece != y->piece)
		return x->piece < y->piece ? -1 : 1;
	return x->left < y->left ? -1 : x->left > y->left;
}

/* Merges share strings: a token is in many of them. */
static json_t *gguf_merging_string(const struct gguf_merging *m, uint32_t id)
{
	const struct gguf_token *token = &m->vocabulary->tokens[id];

	if (!m->strings[id])
		m->strings[id] = json_stringn(token->text, token->length);
	return m->strings[id];
}

static int gguf_merging_write(struct gguf_merging *m, json_t *list)
{
	m->strings = calloc(m->vocabulary->n + 1, sizeof(*m->strings));
	if (!m->strings)
		return -ENOMEM;
	for (size_t i = 0; i < m->n; i++) {
		json_t *pair = json_array();

		if (json_array_append(pair, gguf_merging_string(m, m->merges[i].left)) ||
			json_array_append(pair, gguf_merging_string(m, m->merges[i].right)) ||
			json_array_append(list, pair)) {
			json_decref(pair);
			return -ENOMEM;
		}
		json_decref(pair);
	}
	return 0;
}

static int gguf_merging_run(
	struct gguf_merging *m, const struct gguf_vocabulary *vocabulary, json_t *list)
{
	int rc = list ? gguf_merging_init(m, vocabulary) : -ENOMEM;

	for (uint32_t id = 0; id < vocabulary->n && !rc; id++)
		rc = gguf_merging_split(m, id);
	if (rc)
		return rc;
	if (m->n)
		qsort(m->merges, m->n, sizeof(*m->merges), gguf_merge_compare);
	return gguf_merging_write(m, list);
}

int gguf_merges_of_scores(const struct gguf_vocabulary *vocabulary, const char *path,
	struct gguf_budget *budget, json_t **ret, struct model_error *error)
{
	CLEANUP(gguf_merging_deinit) struct gguf_merging m = {.budget = budget};
	CLEANUP(cleanup_json) json_t *list = json_array();
	int rc = gguf_merging_run(&m, vocabulary, list);

	if (rc == -E2BIG)
		return model_fail(error, rc, "%s: its tokens make more than %u merges", path,
			GGUF_MERGES_MAX);
	if (rc == -EFBIG)
		return model_fail(error, rc, "%s: " GGUF_BUDGET_EXCEEDED, path, budget->name,
			budget->limit);
	if (rc)
		return model_fail(error, rc, "%s: no memory for its merges", path);
	*ret = STEAL(list);
	return 0;
}
