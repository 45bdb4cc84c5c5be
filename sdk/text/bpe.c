/* SPDX-License-Identifier: MIT */
#include "sdk/text/bpe.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "sdk/text/byte_level.h"
#include "sdk/text/utf8.h"

#define BPE_JOINS_BITS 20u /* 128 KiB; more would leave fewer places uncut by accident */
#define BPE_CHARACTERS 0x110000u

/* ---- preparation ---- */

static int32_t bpe_find_character(const struct bpe *bpe, uint32_t character)
{
	char text[UTF8_MAX];

	return vocabulary_find(bpe->vocabulary, text, utf8_encode(text, character));
}

static bool bpe_bit(const uint64_t *bits, size_t at)
{
	return bits[at / 64] >> at % 64 & 1;
}

static void bpe_set_bit(uint64_t *bits, size_t at)
{
	bits[at / 64] |= (uint64_t)1 << at % 64;
}

static size_t bpe_joins_slot(uint32_t left, uint32_t right)
{
	uint64_t pair = (uint64_t)left << 32 | right;

	return pair * 0x9e3779b97f4a7c15u >> (64 - BPE_JOINS_BITS);
}

/* The last character of a token, or the first. */
static uint32_t bpe_edge(const struct bpe *bpe, int32_t id, bool last)
{
	size_t length, at = 0;
	unsigned size;
	const char *token = vocabulary_token(bpe->vocabulary, id, &length);

	assert(token && length > 0);
	if (last) {
		at = length - 1;
		while (at > 0 && utf8_is_continuation(token[at]))
			at--;
	}
	return utf8_decode(token + at, &size);
}

static void bpe_note_join(struct bpe *bpe, uint32_t left, uint32_t right)
{
	bpe_set_bit(bpe->joins, bpe_joins_slot(left, right));
	if (left < 128 && right < 128)
		bpe_set_bit(bpe->ascii_joins[left], right);
}

static int bpe_prepare_cuts(struct bpe *bpe)
{
	const struct vocabulary *vocabulary = bpe->vocabulary;

	/* Where a whole word may be a token, or its ends are special, its parts are not words. */
	if (bpe->is_byte_level || bpe->ignore_merges || bpe->prefix_length > 0 ||
		bpe->suffix_length > 0)
		return 0;
	bpe->known = calloc(BPE_CHARACTERS / 64, sizeof(uint64_t));
	bpe->joins = calloc(((size_t)1 << BPE_JOINS_BITS) / 64, sizeof(uint64_t));
	if (!bpe->known || !bpe->joins)
		return MIMEO_E_NO_MEMORY;
	for (uint32_t i = 0; i < vocabulary->n; i++) {
		const struct vocabulary_entry *entry = &vocabulary->entries[i];
		const char *token = vocabulary->text.data + entry->start;
		unsigned size;

		if (entry->length > 0 && utf8_size(token[0]) == entry->length)
			bpe_set_bit(bpe->known, utf8_decode(token, &size));
	}
	for (size_t i = 0; i < bpe->merges.n_slots; i++) {
		const struct merge *merge = &bpe->merges.slots[i];

		if (merge->rank != MERGES_NONE)
			bpe_note_join(bpe, bpe_edge(bpe, (int32_t)(merge->pair >> 32), true),
				bpe_edge(bpe, (int32_t)(uint32_t)merge->pair, false));
	}
	return 0;
}

int bpe_prepare(struct bpe *bpe)
{
	char token[8];

	for (unsigned i = 0; i < 256; i++) {
		snprintf(token, sizeof(token), "<0x%02X>", i);
		bpe->fallback[i] = vocabulary_find(bpe->vocabulary, token, strlen(token));
		bpe->byte_ids[i] = bpe_find_character(bpe, byte_level_character((uint8_t)i));
	}
	for (uint32_t i = 0; i < bpe->vocabulary->n; i++) {
		if (bpe->vocabulary->entries[i].length > bpe->longest)
			bpe->longest = bpe->vocabulary->entries[i].length;
	}
	return bpe_prepare_cuts(bpe);
}

void bpe_deinit(struct bpe *bpe)
{
	merges_deinit(&bpe->merges);
	free(bpe->known);
	free(bpe->joins);
	*bpe = (struct bpe){0};
}

void bpe_work_deinit(struct bpe_work *work)
{
	ids_deinit(&work->symbols);
	bytes_deinit(&work->text);
	free(work->links);
	free(work->heap);
	*work = (struct bpe_work){0};
}

/* ---- characters to ids ---- */

/* What has been seen of a word. */
struct bpe_symbols {
	const struct bpe *bpe;
	struct ids *ids;
	bool has_unknown; /* an unknown token waits for unknown characters that it is fused with */
};

static void bpe_flush_unknown(struct bpe_symbols *symbols)
{
	if (symbols->has_unknown)
		ids_add(symbols->ids, symbols->bpe->unknown);
	symbols->has_unknown = false;
}

/* False: a byte has no token. */
static bool bpe_add_fallback(struct bpe_symbols *symbols, const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (symbols->bpe->fallback[(unsigned char)text[i]] < 0)
			return false;
	}
	/* The waiting unknown token stays behind these, as `tokenizers` has it. */
	for (size_t i = 0; i < length; i++)
		ids_add(symbols->ids, symbols->bpe->fallback[(unsigned char)text[i]]);
	return true;
}

/* A character with its prefix and suffix that has no id. 0 or INVALID. */
static int bpe_add_unknown(struct bpe_symbols *symbols, const char *text, size_t length)
{
	const struct bpe *bpe = symbols->bpe;

	if (bpe->byte_fallback && bpe_add_fallback(symbols, text, length))
		return 0;
	if (!bpe->has_unknown)
		return 0;
	if (bpe->unknown < 0)
		return MIMEO_E_INVALID;
	if (!bpe->fuse_unknown)
		bpe_flush_unknown(symbols);
	symbols->has_unknown = true;
	return 0;
}

static int bpe_add_character(
	struct bpe_symbols *symbols, int32_t id, const char *text, size_t length)
{
	if (id < 0)
		return bpe_add_unknown(symbols, text, length);
	bpe_flush_unknown(symbols);
	ids_add(symbols->ids, id);
	return 0;
}

static int bpe_read_bytes(struct bpe_symbols *symbols, const char *word, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		uint8_t byte = (uint8_t)word[i];
		char text[UTF8_MAX];
		unsigned size = utf8_encode(text, byte_level_character(byte));
		int rc = bpe_add_character(symbols, symbols->bpe->byte_ids[byte], text, size);

		if (rc < 0)
			return rc;
	}
	return 0;
}

static int bpe_read_characters(struct bpe_symbols *symbols, const char *word, size_t length)
{
	for (size_t i = 0; i < length;) {
		unsigned size = utf8_size(word[i]);
		int32_t id = vocabulary_find(symbols->bpe->vocabulary, word + i, size);
		int rc = bpe_add_character(symbols, id, word + i, size);

		if (rc < 0)
			return rc;
		i += size;
	}
	return 0;
}

static int bpe_read_affixed(struct bpe_symbols *symbols, const char *word, size_t length)
{
	const struct bpe *bpe = symbols->bpe;
	char text[2 * BPE_AFFIX_MAX + UTF8_MAX];

	for (size_t i = 0; i < length;) {
		size_t size = utf8_size(word[i]), n = 0;

		if (i > 0) {
			memcpy(text, bpe->prefix, bpe->prefix_length);
			n = bpe->prefix_length;
		}
		memcpy(text + n, word + i, size);
		n += size;
		i += size;
		if (i == length) {
			memcpy(text + n, bpe->suffix, bpe->suffix_length);
			n += bpe->suffix_length;
		}
		int rc = bpe_add_character(
			symbols, vocabulary_find(bpe->vocabulary, text, n), text, n);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int bpe_read(const struct bpe *bpe, struct ids *ids, const char *word, size_t length)
{
	struct bpe_symbols symbols = {.bpe = bpe, .ids = ids};

	int rc = bpe->is_byte_level ? bpe_read_bytes(&symbols, word, length)
		 : bpe->prefix_length > 0 || bpe->suffix_length > 0
			 ? bpe_read_affixed(&symbols, word, length)
			 : bpe_read_characters(&symbols, word, length);
	bpe_flush_unknown(&symbols);
	return rc < 0 ? rc : ids->rc;
}

/* ---- words ---- */

static int bpe_grow(struct bpe_work *work, size_t n)
{
	if (n <= work->capacity)
		return 0;
	free(work->links);
	free(work->heap);
	work->links = malloc(n * 4 * sizeof(*work->links));
	work->heap = malloc(n * 2 * sizeof(*work->heap));
	work->capacity = work->links && work->heap ? n : 0;
	return work->capacity > 0 ? 0 : MIMEO_E_NO_MEMORY;
}

/* The id of a word that is a token, or -1. */
static int32_t bpe_find_word(
	const struct bpe *bpe, struct bpe_work *work, const char *word, size_t length)
{
	/* A byte becomes one or two. */
	if (length > bpe->longest)
		return -1;
	if (!bpe->is_byte_level)
		return vocabulary_find(bpe->vocabulary, word, length);
	bytes_clear(&work->text);
	byte_level_add(&work->text, word, length);
	return work->text.rc < 0
		       ? -1
		       : vocabulary_find(bpe->vocabulary, work->text.data, work->text.length);
}

int bpe_encode(const struct bpe *bpe, struct bpe_work *work, const char *word, size_t length,
	struct ids *out)
{
	struct ids *symbols = &work->symbols;

	if (bpe->ignore_merges) {
		int32_t id = bpe_find_word(bpe, work, word, length);

		if (id >= 0) {
			ids_add(out, id);
			return out->rc;
		}
	}
	symbols->n = 0;
	symbols->rc = 0;
	int rc = bpe_read(bpe, symbols, word, length);
	if (rc < 0)
		return rc;
	if (symbols->n <= MERGES_SHORT) {
		symbols->n = merges_apply(&bpe->merges, symbols->data, symbols->n);
	} else {
		rc = bpe_grow(work, symbols->n);
		if (rc < 0)
			return rc;
		symbols->n = merges_apply_long(
			&bpe->merges, symbols->data, symbols->n, work->links, work->heap);
	}
	for (size_t i = 0; i < symbols->n; i++)
		ids_add(out, symbols->data[i]);
	return out->rc;
}

static bool bpe_may_join(const struct bpe *bpe, uint32_t left, uint32_t right)
{
	bool joins = left < 128 && right < 128 ? bpe_bit(bpe->ascii_joins[left], right)
					       : bpe_bit(bpe->joins, bpe_joins_slot(left, right));

	return joins || !bpe_bit(bpe->known, left) || !bpe_bit(bpe->known, right);
}

size_t bpe_cut(const struct bpe *bpe, const char *word, size_t length)
{
	unsigned size;
	uint32_t left = utf8_decode(word, &size);
	size_t at = size;

	while (at < length) {
		uint32_t right = utf8_decode(word + at, &size);

		if (!bpe_may_join(bpe, left, right))
			break;
		left = right;
		at += size;
	}
	return at;
}
