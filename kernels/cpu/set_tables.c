/* SPDX-License-Identifier: MIT */

/* Block tables and slot mappings of sets of layers that have pages of their own, after prepare. */

#include <string.h>

#include "kernels/cpu/launchers.h"
#include "kernels/cpu/slots.h"

static int32_t *set_tables_of_slot(const struct step_inputs *in, uint32_t set, int32_t slot)
{
	return in->slot_block_table + ((size_t)set * in->max_slots + (uint32_t)slot) * in->max_pages;
}

static void set_tables_change(const struct op_set_tables *a, const struct set_change *change)
{
	const struct step_inputs *in = &a->inputs;
	int32_t *pages;

	if (!slot_exists(in, change->slot) || change->set >= in->n_sets)
		return;
	pages = set_tables_of_slot(in, change->set, change->slot);
	for (uint32_t i = 0; i < change->n_pages && (uint64_t)change->first + i < in->max_pages; i++) {
		const uint32_t page = a->pages[(size_t)change->page_offset + i];

		pages[change->first + i] = page < a->n_pages ? (int32_t)page : 0;
	}
}

/* The first page of the row that its first token sees. */
static uint32_t set_tables_first(const struct op_set_tables *a, uint32_t set, uint32_t start)
{
	if (set < a->n_full_sets || start < a->window)
		return 0;
	return (start + 1 - a->window) / a->inputs.page_tokens;
}

static void set_tables_expand_row(const struct op_set_tables *a, uint32_t set, uint32_t r)
{
	const struct step_inputs *in = &a->inputs;
	const uint32_t begin = (uint32_t)in->query_start[r], end = (uint32_t)in->query_start[r + 1];
	const uint32_t length = (uint32_t)in->seq_lens[r], start = length - (end - begin);
	const uint32_t first = set_tables_first(a, set, start);
	const uint32_t n_pages = (length + in->page_tokens - 1) / in->page_tokens;
	int32_t *table = in->block_table + ((size_t)set * in->max_rows + r) * in->max_pages;
	int32_t *mapping = in->slot_mapping + (size_t)set * in->max_tokens;
	const int32_t *pages;

	if (!slot_exists(in, in->row_slot[r])) {
		memset(table, 0, in->max_pages * sizeof(*table));
		for (uint32_t t = begin; t < end; t++)
			mapping[t] = -1;
		return;
	}
	pages = set_tables_of_slot(in, set, in->row_slot[r]);
	for (uint32_t i = 0; i < n_pages && i < in->max_pages; i++)
		table[i] = i < first ? 0 : pages[i];
	for (uint32_t t = begin; t < end; t++) {
		const uint32_t position = start + (t - begin);

		mapping[t] = in->slot_mapping[t] < 0 ? -1
			: place_in_page(in, pages[position / in->page_tokens], position);
	}
}

static void set_tables_run(const void *args, void *workspace)
{
	const struct op_set_tables *a = args;
	const struct step_inputs *in = &a->inputs;
	const uint32_t n_rows = a->n_rows < in->max_rows ? a->n_rows : in->max_rows;

	for (uint32_t i = 0; i < a->n_changes; i++)
		set_tables_change(a, &a->changes[i]);
	for (uint32_t set = a->n_full_sets ? 1 : 0; set < in->n_sets; set++) {
		int32_t *mapping = in->slot_mapping + (size_t)set * in->max_tokens;

		for (uint32_t r = 0; r < n_rows; r++)
			set_tables_expand_row(a, set, r);
		for (uint32_t t = (uint32_t)in->query_start[in->max_rows]; t < in->max_tokens; t++)
			mapping[t] = -1;
	}
}

CPU_OP(set_tables, 0)
