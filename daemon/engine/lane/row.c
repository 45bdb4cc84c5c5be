/* SPDX-License-Identifier: MIT */
/* What a row of a step's record has beside its tokens. Hot path: no allocation, no lock, no system call. */
#include "daemon/engine/lane/row.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/lane/speculation.h"
#include "daemon/engine/requests/request.h"

/* The address of the row's embeddings. Tokens of earlier requests that are still to be computed come
 * before the request's own: those have ids, and a chunk may have no others. */
void row_place_embeddings(
	const struct runner *runner, const struct sequence *s, struct step_row *row)
{
	const struct request *request = s->request;
	const struct request_row *own = &request->rows[s->row];
	uint32_t begin = sequence_request_start(s);
	uint32_t n_ids = row->start < begin ? begin - row->start : 0;

	if (row->n_tokens <= n_ids)
		return;
	uint64_t at = own->first + (uint64_t)(row->start + n_ids - begin);
	assert(at + row->n_tokens - n_ids <= (uint64_t)own->first + own->n_tokens);
	row->embeddings = request->embeddings.at + at * runner->inputs.persistent.embedding_bytes;
	row->n_ids = n_ids;
}

/* Evicted tokens before a request with its own mask were computed under the model's mask. They are computed
 * under it again, and the slot is initialised again where they end. Returns that position; 0: none. */
uint32_t row_history_end(const struct sequence *s)
{
	return s->request->own_mask && s->n_computed < s->n_history ? s->n_history : 0;
}

/* The row's mask, by positions of the sequence. */
static struct slot_mask row_mask_of(const struct sequence *s)
{
	const struct mimeo_mask *m =
		row_history_end(s) ? &s->runner->options.mask : &s->request->mask;
	uint32_t begin = sequence_request_start(s);
	struct slot_mask mask = {.kind = m->kind, .window = m->window, .begin = begin};

	mask.end = m->kind == MIMEO_MASK_WINDOW ? m->sinks : begin + sequence_prefix(s);
	return mask;
}

/* The word of own token i. The client's may be anything: only the token itself and those before it count. */
static uint64_t row_tree_word(const uint8_t *words, uint32_t i)
{
	uint64_t word;

	memcpy(&word, words + (size_t)i * sizeof(word), sizeof(word));
	return (word & (((uint64_t)1 << i) - 1)) | (uint64_t)1 << i;
}

/* Does another document begin with the own token i? */
static bool row_is_document_start(const uint8_t *words, uint32_t i)
{
	const uint8_t *at = words + (size_t)i * sizeof(uint64_t);

	return i == 0 || memcmp(at, at - sizeof(uint64_t), sizeof(uint64_t)) != 0;
}

/* The words of the row's mask. Tokens of earlier requests have none (0); those that are
 * generated belong to the last document. */
void row_place_words(
	struct sequence *s, const struct inputs_slot *slot, struct step_row *row)
{
	const struct request_row *own = &s->request->rows[s->row];
	const uint8_t *words = s->request->mask_words + (size_t)own->first * sizeof(uint64_t);
	bool tree = s->request->mask.kind == MIMEO_MASK_TREE;
	uint32_t begin = sequence_request_start(s);
	uint64_t *to = inputs_next_words(slot);

	for (uint32_t j = 0; j < row->n_tokens; j++) {
		uint32_t position = row->start + j, i = position - begin;

		if (position >= begin && i < own->n_tokens && !tree && row_is_document_start(words, i))
			s->document = position;
		to[j] = position < begin ? 0 : tree ? row_tree_word(words, i) : s->document;
	}
	row->words = to;
	row->tree = begin;
	row->flags |= tree ? ROW_TREE : 0;
}

/* The entries of a set's block table that the slot does not have. */
static struct kv_range row_unshown(const struct sequence *s, uint32_t set)
{
	struct kv_range range = kv_table_range(s->runner->kv, &s->table, set);
	const uint32_t shown = !s->slot_ready ? 0
		: set < s->runner->options.sets.n_full ? s->n_shown : s->n_shown_near;

	if (range.first < shown)
		range.first = shown;
	assert(range.first <= range.end);
	return range;
}

uint32_t row_n_unshown(const struct sequence *s)
{
	uint32_t n = 0;

	for (uint32_t set = 0; set < s->runner->options.sets.n; set++) {
		const struct kv_range range = row_unshown(s, set);

		/* An init has the first set's table from its beginning on. */
		n += set || s->slot_ready ? range.end - range.first : range.end;
	}
	return n;
}

/* Of sets other than the first. */
static void row_add_changes(struct inputs_slot *slot, const struct sequence *s)
{
	for (uint32_t set = 1; set < s->runner->options.sets.n; set++) {
		const struct kv_range range = row_unshown(s, set);

		if (range.first < range.end)
			inputs_add_change(slot, s->slot, set, range.first,
				kv_table_pages(&s->table, set) + range.first, range.end - range.first);
	}
}

static void row_add_init(struct inputs_slot *slot, struct sequence *s)
{
	const struct slot_mask mask = row_mask_of(s);

	inputs_add_init(slot, s->slot, &s->request->sampling, s->table.pages, row_unshown(s, 0).end);
	inputs_set_mask(slot, &mask);
	speculation_begin(s);
	inputs_set_drafts(slot, s->n_drafts);
}

/* The entries of the first set's block table that changed since the slot's last row. */
static void row_add_pages(struct inputs_slot *slot, const struct sequence *s, struct step_row *row)
{
	const struct kv_range range = row_unshown(s, 0);

	row->page_first = range.first;
	row->n_pages = range.end - range.first;
	if (row->n_pages)
		row->page_offset = inputs_add_pages(slot, s->table.pages + range.first, row->n_pages);
}

void row_show_pages(struct inputs_slot *slot, struct sequence *s, struct step_row *row)
{
	if (s->slot_ready)
		row_add_pages(slot, s, row);
	else
		row_add_init(slot, s);
	row_add_changes(slot, s);
	s->slot_ready = true;
	s->n_shown = s->table.n_pages;
	s->n_shown_near = s->table.end;
}
