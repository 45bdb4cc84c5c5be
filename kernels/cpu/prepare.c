/* SPDX-License-Identifier: MIT */

/*
 * Expands a step's record into the persistent inputs. Everything that a graph of any size may read is
 * rewritten in each step, the tails with values that have no effect, so that nothing of a larger earlier step
 * is read. The block table is an exception, because its readers are bounded: a row's entries past its used
 * pages, and rows past the padded count, are not rewritten.
 *
 * A row's new pages are written to its slot's block table first; the row and its tokens read them there.
 *
 * With draft tokens, a row whose token the slot has begins at the slot's length, which the host does not know;
 * the start in the record is ignored. A row that does not verify discards the slot's draft tokens: they were
 * drawn for other positions.
 */

#include <assert.h>
#include <string.h>

#include "kernels/cpu/launchers.h"
#include "kernels/cpu/slots.h"

struct expansion {
	const struct op_prepare *args;
	const struct step_record *record;
	const struct step_inputs *in;
	uint32_t n_rows, padded_rows;
	uint32_t n_tokens; /* written so far */
	uint32_t max_tokens;
	uint64_t capacity; /* tokens that a row's pages can hold */
};

static uint32_t prepare_min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static int32_t prepare_max_i32(int32_t a, int32_t b)
{
	return a > b ? a : b;
}

/* Its first token is the slot's last. */
static bool prepare_from_slot(const struct expansion *e, const struct step_row *row)
{
	return (row->flags & ROW_FROM_SLOT) || (e->in->max_drafts && (row->flags & ROW_VERIFY));
}

/* Its other tokens are the slot's drafts. */
static bool prepare_verifies(const struct expansion *e, const struct step_row *row)
{
	return e->in->max_drafts && (row->flags & ROW_VERIFY);
}

static int32_t *prepare_slot_pages(const struct expansion *e, int32_t slot)
{
	return e->in->slot_block_table + (size_t)slot * e->in->max_pages;
}

static int32_t *prepare_slot_drafts(const struct expansion *e, int32_t slot)
{
	return e->in->slot_drafts + (size_t)slot * e->in->max_drafts;
}

static void prepare_drop_drafts(const struct expansion *e, int32_t slot)
{
	for (uint32_t i = 0; i < e->in->max_drafts; i++)
		prepare_slot_drafts(e, slot)[i] = -1;
}

/* Pages that don't exist are the null page. */
static int32_t prepare_clamp_page(const struct expansion *e, uint32_t page)
{
	return page < e->args->n_pages ? (int32_t)page : 0;
}

/* Entries past the given ones are the null page. */
static void prepare_apply_init(const struct expansion *e, const struct slot_init *init)
{
	uint32_t n = prepare_min_u32(init->n_pages, e->in->max_pages);
	int32_t *pages;

	if (!slot_exists(e->in, init->slot))
		return;
	e->in->slot_sampling[init->slot] = init->sampling;
	if (e->in->slot_mask)
		e->in->slot_mask[init->slot] = init->mask;
	if (e->in->max_drafts)
		e->in->slot_n_drafts[init->slot] =
			(int32_t)prepare_min_u32(init->n_drafts, e->in->max_drafts);
	prepare_drop_drafts(e, init->slot);
	pages = prepare_slot_pages(e, init->slot);
	for (uint32_t i = 0; i < n; i++)
		pages[i] = prepare_clamp_page(e, e->record->pages[(size_t)init->page_offset + i]);
	memset(pages + n, 0, (e->in->max_pages - n) * sizeof(*pages));
}

/* Entries past the slot's block table are dropped. */
static void prepare_change_pages(const struct expansion *e, const struct step_row *row)
{
	uint32_t left = e->in->max_pages - prepare_min_u32(row->page_first, e->in->max_pages);
	uint32_t n = prepare_min_u32(row->n_pages, left);
	int32_t *pages = prepare_slot_pages(e, row->slot);

	for (uint32_t i = 0; i < n; i++)
		pages[row->page_first + i] =
			prepare_clamp_page(e, e->record->pages[(size_t)row->page_offset + i]);
}

/* Where the embedding of the row's token j is given, or NULL. */
static const void *prepare_given_embedding(
	const struct expansion *e, const struct step_row *row, uint32_t j)
{
	if (!row->embeddings || j < row->n_ids || prepare_from_slot(e, row))
		return NULL;
	return (const uint8_t *)row->embeddings + (size_t)(j - row->n_ids) * e->in->embedding_bytes;
}

/* A tree's tokens are adjacent in the cache, but their positions are their depths in the tree. */
static uint64_t prepare_rotary_position(const struct step_row *row, uint32_t j)
{
	uint64_t position = (uint64_t)row->start + j;

	if (!(row->flags & ROW_TREE) || !row->words || !row->words[j] || position < row->tree)
		return position;
	return row->tree + (uint64_t)__builtin_popcountll(row->words[j]) - 1;
}

static int32_t prepare_token_id(const struct expansion *e, const struct step_row *row, uint32_t j)
{
	if (j == 0 && prepare_from_slot(e, row))
		return e->in->slot_last_token[row->slot];
	if (prepare_verifies(e, row))
		return prepare_slot_drafts(e, row->slot)[j - 1];
	return e->record->ids[e->n_tokens + j];
}

/*
 * Where the token of a position is written in the cache. A row that begins at its slot's length may extend
 * past the slot's pages, and then writes nothing: all slots share the null page. The host gives every other
 * row the pages that it needs.
 */
static int32_t prepare_cache_slot(const struct expansion *e, const struct step_row *row,
	const int32_t *table, uint64_t position)
{
	int32_t page = table[position / e->in->page_tokens];

	if (e->in->max_drafts && prepare_from_slot(e, row) && page == 0)
		return -1;
	return place_in_page(e->in, page, position);
}

/* `table`: the row's pages, in batch order. */
static void prepare_expand_token(
	const struct expansion *e, const struct step_row *row, const int32_t *table, uint32_t j)
{
	uint32_t t = e->n_tokens + j;
	uint64_t position = (uint64_t)row->start + j;

	e->in->input_ids[t] = clamp_id(e->in, prepare_token_id(e, row, j));
	e->in->embedding_from[t] = prepare_given_embedding(e, row, j);
	if (e->in->mask_words)
		e->in->mask_words[t] = row->words ? row->words[j] : 0;
	if (position >= e->capacity) {
		e->in->positions[t] = (int32_t)(e->capacity - 1);
		e->in->slot_mapping[t] = -1;
		return;
	}
	e->in->slot_mapping[t] = prepare_cache_slot(e, row, table, position);
	position = prepare_rotary_position(row, j);
	e->in->positions[t] = (int32_t)(position < e->capacity ? position : e->capacity - 1);
}

static void prepare_empty_tokens(const struct expansion *e, uint32_t first, uint32_t end)
{
	for (uint32_t t = first; t < end; t++) {
		e->in->input_ids[t] = 0;
		e->in->embedding_from[t] = NULL;
		e->in->positions[t] = 0;
		e->in->slot_mapping[t] = -1;
		if (e->in->mask_words)
			e->in->mask_words[t] = 0;
	}
}

static void prepare_empty_row(const struct expansion *e, uint32_t r)
{
	e->in->seq_lens[r] = 0;
	e->in->row_slot[r] = -1;
	e->in->row_flags[r] = 0;
	if (e->in->max_drafts)
		e->in->next_ids[r] = -1;
}

/* The draft model's decodes need pages for up to K tokens more than the step. */
static void prepare_copy_pages(
	const struct expansion *e, int32_t slot, uint64_t length, int32_t *table)
{
	uint64_t n = (length + e->in->max_drafts + e->in->page_tokens - 1) / e->in->page_tokens;

	for (uint64_t i = 0; i < n && i < e->in->max_pages; i++)
		table[i] = prepare_clamp_page(e, (uint32_t)prepare_slot_pages(e, slot)[i]);
}

/* A row of a slot, of n tokens. */
static void prepare_expand_slot_row(
	const struct expansion *e, uint32_t r, const struct step_row *row, uint32_t n)
{
	int32_t *table = e->in->block_table + (size_t)r * e->in->max_pages;
	uint64_t length = (uint64_t)row->start + n;

	length = length < e->capacity ? length : e->capacity;
	e->in->seq_lens[r] = (int32_t)length;
	e->in->row_slot[r] = row->slot;
	e->in->row_flags[r] = (int32_t)row->flags;
	prepare_change_pages(e, row);
	prepare_copy_pages(e, row->slot, length, table);
	for (uint32_t j = 0; j < n; j++)
		prepare_expand_token(e, row, table, j);
	if (!e->in->max_drafts)
		return;
	e->in->next_ids[r] = row->next_id;
	if (!prepare_verifies(e, row)) {
		e->in->slot_length[row->slot] = (int32_t)length;
		prepare_drop_drafts(e, row->slot);
	}
}

static uint32_t prepare_logits_of_row(const struct expansion *e)
{
	return e->record->last_only ? 1 : 1 + e->in->max_drafts;
}

/* Set which of the row's n tokens have logits: all or the last. */
static void prepare_index_logits(const struct expansion *e, uint32_t r, uint32_t n, bool all)
{
	const uint32_t width = prepare_logits_of_row(e);
	int32_t *index = e->in->logit_index + (size_t)r * width;
	uint32_t first = n && !all ? n - 1 : 0;

	for (uint32_t i = 0; i < width; i++)
		index[i] = first + i < n ? (int32_t)(e->n_tokens + first + i) : 0;
}

static void prepare_expand_row(struct expansion *e, uint32_t r)
{
	struct step_row row = e->record->rows[r];
	uint32_t n = prepare_min_u32(row.n_tokens, e->max_tokens - e->n_tokens);
	bool verify = prepare_verifies(e, &row);

	if (verify)
		n = prepare_min_u32(n, 1 + e->in->max_drafts);
	e->in->query_start[r] = (int32_t)e->n_tokens;
	prepare_index_logits(e, r, n, verify);
	if (slot_exists(e->in, row.slot)) {
		if (e->in->max_drafts && prepare_from_slot(e, &row))
			row.start = (uint32_t)prepare_max_i32(e->in->slot_length[row.slot], 0);
		prepare_expand_slot_row(e, r, &row, n);
	} else {
		prepare_empty_row(e, r);
		prepare_empty_tokens(e, e->n_tokens, e->n_tokens + n);
		memset(e->in->block_table + (size_t)r * e->in->max_pages, 0,
			e->in->max_pages * sizeof(*e->in->block_table));
	}
	e->n_tokens += n;
	assert(e->n_tokens <= e->max_tokens);
}

static void prepare_write_tails(const struct expansion *e)
{
	const struct step_inputs *in = e->in;
	const size_t n_logits = (size_t)in->max_rows * prepare_logits_of_row(e);

	assert(e->n_rows <= in->max_rows && e->n_tokens <= in->max_tokens);

	for (uint32_t r = e->n_rows; r < in->max_rows; r++) {
		prepare_empty_row(e, r);
		prepare_index_logits(e, r, 0, false);
	}
	memset(in->logit_index + n_logits, 0,
		((size_t)in->max_rows * (1 + in->max_drafts) - n_logits) *
			sizeof(*in->logit_index));
	for (uint32_t r = e->n_rows; r <= in->max_rows; r++)
		in->query_start[r] = (int32_t)e->n_tokens;
	if (e->padded_rows > e->n_rows)
		memset(in->block_table + (size_t)e->n_rows * in->max_pages, 0,
			(size_t)(e->padded_rows - e->n_rows) * in->max_pages *
				sizeof(*in->block_table));
	prepare_empty_tokens(e, e->n_tokens, in->max_tokens);
}

static void prepare_run(const void *args, void *workspace)
{
	const struct op_prepare *a = args;
	const struct step_record *record = a->record;
	struct expansion e = {
		.args = a,
		.record = record,
		.in = &a->inputs,
		.n_rows = prepare_min_u32(record->n_rows, a->inputs.max_rows),
		.padded_rows = prepare_min_u32(record->padded_rows, a->inputs.max_rows),
		.max_tokens = prepare_min_u32(record->n_tokens, a->inputs.max_tokens),
		.capacity = (uint64_t)a->inputs.max_pages * a->inputs.page_tokens,
	};

	if (a->began)
		*a->began = cpu_clock_ns();
	if (e.capacity > INT32_MAX)
		e.capacity = INT32_MAX;
	for (uint32_t i = 0; i < record->n_inits; i++)
		prepare_apply_init(&e, &record->inits[i]);
	for (uint32_t r = 0; r < e.n_rows; r++)
		prepare_expand_row(&e, r);
	prepare_write_tails(&e);
}

CPU_OP(prepare, 0)
