/* SPDX-License-Identifier: MIT */

/*
 * Two kernels; a step without changes launches only the second. change_sets: a block for each change; block: 128
 * threads; no shared memory; reads the changes and their pages over the bus. set_tables: a block for each row and set,
 * and one a set for the mapping's tail; block: 128 threads; no shared memory; moves 8 bytes for each page of a row,
 * and 4 for each of max_tokens, a set. A row's table is at most a few thousand entries, so one block copies it.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 128 };

__device__ static int32_t *slot_pages(const struct step_inputs &in, uint32_t set, int32_t slot)
{
	return in.slot_block_table + ((size_t)set * in.max_slots + (uint32_t)slot) * in.max_pages;
}

__device__ static bool slot_valid(const struct step_inputs &in, int32_t slot)
{
	return slot >= 0 && (uint32_t)slot < in.max_slots;
}

static __global__ void __launch_bounds__(THREADS) change_sets(const struct op_set_tables a)
{
	overlap_begin();
	const struct set_change change = a.changes[blockIdx.x];

	if (!slot_valid(a.inputs, change.slot) || change.set >= a.inputs.n_sets)
		return;
	for (uint32_t i = threadIdx.x; i < change.n_pages && (uint64_t)change.first + i < a.inputs.max_pages;
		i += THREADS) {
		const uint32_t page = a.pages[(size_t)change.page_offset + i];

		slot_pages(a.inputs, change.set, change.slot)[change.first + i] = page < a.n_pages ? (int32_t)page : 0;
	}
}

/* The place of a token in its page; -1: none. */
__device__ static int32_t place_of(const struct step_inputs &in, int32_t page, uint32_t position)
{
	const uint64_t place = (uint64_t)page * in.page_tokens + position % in.page_tokens;

	return place <= INT32_MAX ? (int32_t)place : -1;
}

/* The first set's mapping, which says which tokens are written, is read before its own entry is. */
__device__ static void map_tokens(const struct step_inputs &in, int32_t *mapping, const int32_t *pages,
	uint32_t begin, uint32_t end, uint32_t start)
{
	for (uint32_t t = begin + threadIdx.x; t < end; t += THREADS) {
		const uint32_t position = start + (t - begin);
		const bool written = pages && in.slot_mapping[t] >= 0;

		mapping[t] = written ? place_of(in, pages[position / in.page_tokens], position) : -1;
	}
}

static __global__ void __launch_bounds__(THREADS) set_tables(const struct op_set_tables a, uint32_t n_rows)
{
	const struct step_inputs &in = a.inputs;
	const uint32_t r = blockIdx.x, set = blockIdx.y + (a.n_full_sets ? 1 : 0);
	int32_t *mapping = in.slot_mapping + (size_t)set * in.max_tokens;

	overlap_begin();
	if (r == n_rows) {
		map_tokens(in, mapping, NULL, (uint32_t)in.query_start[in.max_rows], in.max_tokens, 0);
		return;
	}
	const uint32_t begin = (uint32_t)in.query_start[r], end = (uint32_t)in.query_start[r + 1];
	const uint32_t length = (uint32_t)in.seq_lens[r], start = length - (end - begin);
	const bool sees_all = set < a.n_full_sets || start < a.window;
	const uint32_t first = sees_all ? 0 : (start + 1 - a.window) / in.page_tokens;
	const bool valid = slot_valid(in, in.row_slot[r]);
	const uint32_t n_used = min((length + in.page_tokens - 1) / in.page_tokens, in.max_pages);
	const uint32_t n = valid ? n_used : in.max_pages;
	const int32_t *pages = valid ? slot_pages(in, set, in.row_slot[r]) : NULL;
	int32_t *table = in.block_table + ((size_t)set * in.max_rows + r) * in.max_pages;

	for (uint32_t i = threadIdx.x; i < n; i += THREADS)
		table[i] = !valid || i < first ? 0 : pages[i];
	map_tokens(in, mapping, pages, begin, end, start);
}

static int set_tables_launch(struct stream *stream, const struct op_set_tables *a)
{
	const uint32_t n_rows = a->n_rows < a->inputs.max_rows ? a->n_rows : a->inputs.max_rows;
	const uint32_t n_sets = a->inputs.n_sets - (a->n_full_sets ? 1 : 0);

	cuda_inputs_written(stream);
	if (a->n_changes)
		launch(stream, change_sets, a->n_changes, THREADS, 0, *a);
	launch(stream, set_tables, dim3(n_rows + 1, n_sets), THREADS, 0, *a, n_rows);
	return 0;
}

CUDA_OP(set_tables, set_tables)
