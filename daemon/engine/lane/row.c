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

void row_add_init(struct inputs_slot *slot, struct sequence *s)
{
	const struct slot_mask mask = row_mask_of(s);

	inputs_add_init(slot, s->slot, &s->request->sampling, s->table.pages, s->table.n_pages);
	inputs_set_mask(slot, &mask);
	speculation_begin(s);
	inputs_set_drafts(slot, s->n_drafts);
}

/* The entries of the block table that changed since the slot's last row. */
void row_add_pages(struct inputs_slot *slot, const struct sequence *s, struct step_row *row)
{
	row->page_first = s->n_shown;
	row->n_pages = s->table.n_pages - s->n_shown;
	if (row->n_pages)
		row->page_offset = inputs_add_pages(slot, s->table.pages + s->n_shown, row->n_pages);
}
