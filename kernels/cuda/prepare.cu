/* SPDX-License-Identifier: MIT */

/*
 * Grid: 16 blocks; block: 512 threads; shared memory: 41 KB for a tile of 512 rows and one of 192
 * inits. Reads the record over the bus, in each block; writes 28 bytes for each of max_tokens, 20
 * for each of max_rows, and the block table rows in use. The time is a chain of reads over the bus:
 * the record, then its rows and inits, then ids and pages. Hence few blocks, which load whole tiles
 * side by side into shared memory.
 *
 * Measured on an H200, us: 128 decoding rows 7 with 4 or 16 blocks, 13 with one; with 9 inits 12; a
 * prompt of 8192 tokens 11 with 16 blocks, 14 with 4, 30 with one. The head of lane/step.c has its
 * part of a step, and what was not kept.
 *
 * Blocks do not wait for one another, so none reads what this launch writes. Each finds the rows'
 * token ranges by a scan of its own. Of a slot's block table the launch writes the entries that the
 * slot's row changes, or all if the slot is set up in this very step (the last init of the slot
 * counts): rows take these from the record, and read only the others from the slot. A row that
 * changes none reads no more over the bus than without such rows; a change is read once for the
 * slot's table and once for the row's, by different warps.
 *
 * With drafts a row may begin at its slot's length, which the same step advances: the kernel only reads lengths
 * and drafts, and a second one, `move_slots` (a thread for each of max_rows, blocks of 512, no shared memory),
 * writes them from the rows that the first has expanded. A slot has at most one row of a step. Drafts that an
 * init clears are the only ones that the first writes; rows see that in tile.fresh. If max_drafts is 0, there is
 * only the first kernel, compiled without drafts.
 *
 * Work is divided by its cost: tokens among threads, each finding its row by bisection; block table
 * rows among warps, in parts of 256 entries, so that many warps copy one long row.
 */

#include "kernels/cuda/kernel.cuh"

enum { BLOCKS = 16, THREADS = 512, TILE_ROWS = THREADS, TILE_INITS = 192, DEPTH = 8 };

static const uint32_t PART = WARP * DEPTH, N_WARPS = BLOCKS * THREADS / WARP;

/* Where a row's block table comes from: the entries [first, first + n_given) from the record, those
 * before and behind from `others`, which may be longer; NULL: they are the null page. */
struct page_source {
	const uint32_t *given;
	uint32_t first, n_given;
	const uint32_t *others;
};

struct row_tile {
	struct step_record record;
	struct step_row rows[TILE_ROWS];
	uint32_t first[TILE_ROWS + 1]; /* token of each row, and the end */
	uint64_t warp_sums[THREADS / WARP];
	struct slot_init inits[TILE_INITS];
	bool superseded[TILE_INITS];
	bool fresh[TILE_ROWS]; /* the row's slot is set up in this step */
};

struct grid_expansion {
	const struct op_prepare &args;
	const struct step_inputs &in;
	struct row_tile &tile;
	uint32_t max_drafts; /* a constant 0 in the kernel without drafts */
	uint32_t n_rows, padded_rows, max_tokens;
	uint32_t capacity; /* tokens that a row's pages can hold */
};

__device__ static uint32_t grid_thread(void)
{
	return blockIdx.x * THREADS + threadIdx.x;
}

/* Neighbours are in different blocks; inits are divided from the other end than rows, so that
 * their reads over the bus overlap. */
__device__ static uint32_t grid_warp(void)
{
	return threadIdx.x / WARP * BLOCKS + blockIdx.x;
}

/* 8 bytes a thread: 128 rows in one round trip. */
template <typename T> __device__ static void load_all(T *to, const T *from, uint32_t n)
{
	static_assert(sizeof(T) % 8 == 0 && alignof(T) == 8, "is copied in words of 8 bytes");
	for (uint32_t i = threadIdx.x; i < n * (sizeof(T) / 8); i += THREADS)
		((uint64_t *)to)[i] = ((const uint64_t *)from)[i];
}

__device__ static int32_t clamp_page(const struct grid_expansion &e, uint32_t page)
{
	return page < e.args.n_pages ? (int32_t)page : 0;
}

__device__ static bool slot_valid(const struct grid_expansion &e, int32_t slot)
{
	return slot >= 0 && (uint32_t)slot < e.in.max_slots;
}

/* Its other tokens are the slot's drafts. */
__device__ static bool verifies(const struct grid_expansion &e, const struct step_row &row)
{
	return e.max_drafts && (row.flags & ROW_VERIFY);
}

/* Its first token is the slot's last. */
__device__ static bool from_slot(const struct grid_expansion &e, const struct step_row &row)
{
	return (row.flags & ROW_FROM_SLOT) || verifies(e, row);
}

__device__ static uint32_t page_of(const struct page_source &source, uint32_t i)
{
	const uint32_t *page = source.others ? source.others + i : NULL;

	if (i - source.first < source.n_given)
		page = source.given + (i - source.first);
	return page ? *page : 0;
}

/* One part of a table of n entries, by a warp. */
__device__ static void copy_part(const struct grid_expansion &e, int32_t *to,
	const struct page_source &source, uint32_t n, uint32_t part)
{
	const uint32_t first = part * PART + threadIdx.x % WARP;
	uint32_t pages[DEPTH];

#pragma unroll
	for (uint32_t k = 0; k < DEPTH; k++)
		pages[k] = first + k * WARP < n ? page_of(source, first + k * WARP) : 0;
#pragma unroll
	for (uint32_t k = 0; k < DEPTH; k++)
		if (first + k * WARP < n)
			to[first + k * WARP] = clamp_page(e, pages[k]);
}

__device__ static uint32_t parts_of(uint32_t n)
{
	return (n + PART - 1) / PART;
}

/* ---- inits ---- */

__device__ static struct page_source init_source(
	const struct grid_expansion &e, const struct slot_init &init)
{
	return {e.tile.record.pages + init.page_offset, 0, min(init.n_pages, e.in.max_pages), NULL};
}

/* tile.superseded := a later init has the same slot. */
__device__ static void find_superseded(const struct grid_expansion &e, uint32_t base, uint32_t n)
{
	const struct step_record &record = e.tile.record;
	bool found = false;

	if (threadIdx.x >= n)
		return;
	for (uint32_t j = threadIdx.x + 1; j < n; j++)
		found |= e.tile.inits[j].slot == e.tile.inits[threadIdx.x].slot;
	for (uint32_t j = base + n; j < record.n_inits; j++)
		found |= record.inits[j].slot == e.tile.inits[threadIdx.x].slot;
	e.tile.superseded[threadIdx.x] = found;
}

__device__ static void apply_inits(const struct grid_expansion &e, uint32_t n)
{
	const uint32_t n_parts = parts_of(e.in.max_pages);

	for (uint32_t u = N_WARPS - 1 - grid_warp(); u < n * n_parts; u += N_WARPS) {
		const struct slot_init &init = e.tile.inits[u / n_parts];
		const size_t slot = (size_t)init.slot;

		if (!slot_valid(e, init.slot) || e.tile.superseded[u / n_parts])
			continue;
		copy_part(e, e.in.slot_block_table + slot * e.in.max_pages, init_source(e, init),
			e.in.max_pages, u % n_parts);
		if (u % n_parts == 0 && threadIdx.x % WARP == 0) {
			e.in.slot_sampling[slot] = init.sampling;
			if (e.in.slot_mask)
				e.in.slot_mask[slot] = init.mask;
			if (e.max_drafts)
				e.in.slot_n_drafts[slot] =
					(int32_t)min(init.n_drafts, e.max_drafts);
		}
		if (u % n_parts == 0)
			for (uint32_t i = threadIdx.x % WARP; i < e.max_drafts; i += WARP)
				e.in.slot_drafts[slot * e.max_drafts + i] = -1;
	}
}

/* ---- rows ---- */

/* Completes this thread's row: where it begins, which the slot says, that a row to verify has at
 * most 1 + max_drafts tokens, and that its pages are within the block table. */
__device__ static void complete_row(const struct grid_expansion &e)
{
	struct step_row &row = e.tile.rows[threadIdx.x];

	row.n_pages = min(row.n_pages, e.in.max_pages - min(row.page_first, e.in.max_pages));
	if (verifies(e, row))
		row.n_tokens = min(row.n_tokens, 1 + e.max_drafts);
	if (e.max_drafts && from_slot(e, row) && slot_valid(e, row.slot))
		row.start = (uint32_t)max(e.in.slot_length[row.slot], 0);
}

/* tile.first of the tile's n rows, of which the first begins at token `before`; returns the end,
 * which is not clamped to max_tokens. */
__device__ static uint64_t scan_rows(const struct grid_expansion &e, uint32_t n, uint64_t before)
{
	const uint32_t i = threadIdx.x, lane = i % WARP, warp = i / WARP;
	uint64_t sum = i < n ? min(e.tile.rows[i].n_tokens, e.max_tokens) : 0;
	uint64_t total = before, own = before;

	sum = warp_prefix(sum);
	if (lane == WARP - 1)
		e.tile.warp_sums[warp] = sum;
	__syncthreads();
	for (uint32_t w = 0; w < THREADS / WARP; w++) {
		own += w < warp ? e.tile.warp_sums[w] : 0;
		total += e.tile.warp_sums[w];
	}
	e.tile.first[i + 1] = (uint32_t)min(own + sum, (uint64_t)e.max_tokens);
	if (i == 0)
		e.tile.first[0] = (uint32_t)min(before, (uint64_t)e.max_tokens);
	return total;
}

/* Where the tile of inits sets up the slot of this thread's row, the init's pages are the row's. */
__device__ static void find_init(const struct grid_expansion &e, uint32_t n_inits, bool first_tile)
{
	struct step_row &row = e.tile.rows[threadIdx.x];
	bool fresh = !first_tile && e.tile.fresh[threadIdx.x];

	for (uint32_t j = 0; j < n_inits; j++)
		if (e.tile.inits[j].slot == row.slot) {
			row.page_first = 0;
			row.n_pages = min(e.tile.inits[j].n_pages, e.in.max_pages);
			row.page_offset = e.tile.inits[j].page_offset;
			fresh = true;
		}
	e.tile.fresh[threadIdx.x] = fresh;
}

/* Of the tile's row i. */
__device__ static struct page_source row_source(const struct grid_expansion &e, uint32_t i)
{
	const struct step_row &row = e.tile.rows[i];
	const uint32_t *others = NULL;

	if (!slot_valid(e, row.slot))
		return {};
	if (!e.tile.fresh[i])
		others = (const uint32_t *)e.in.slot_block_table +
			 (size_t)row.slot * e.in.max_pages;
	return {e.tile.record.pages + row.page_offset, row.page_first, row.n_pages, others};
}

__device__ static uint32_t row_length(const struct grid_expansion &e, uint32_t i)
{
	const uint64_t n = e.tile.first[i + 1] - e.tile.first[i];

	return (uint32_t)min(e.tile.rows[i].start + n, (uint64_t)e.capacity);
}

__device__ static void empty_row(const struct grid_expansion &e, uint32_t r)
{
	e.in.seq_lens[r] = 0;
	e.in.row_slot[r] = -1;
	e.in.row_flags[r] = 0;
	if (e.max_drafts)
		e.in.next_ids[r] = -1;
}

__device__ static uint32_t logits_of_row(const struct grid_expansion &e)
{
	return e.tile.record.last_only ? 1 : 1 + e.max_drafts;
}

/* Of a row's tokens, of which all are wanted or the last. */
__device__ static void index_logits(
	const struct grid_expansion &e, uint32_t r, uint32_t first, uint32_t end, bool all)
{
	const uint32_t width = logits_of_row(e);
	int32_t *index = e.in.logit_index + (size_t)r * width;
	const uint32_t from = end > first && !all ? end - 1 : first;

	for (uint32_t i = 0; i < width; i++)
		index[i] = i < end - from ? (int32_t)(from + i) : 0;
}

/* r: the row that this thread's tile.rows[threadIdx.x] is. */
__device__ static void write_row(const struct grid_expansion &e, uint32_t r)
{
	const uint32_t i = threadIdx.x, first = e.tile.first[i], end = e.tile.first[i + 1];
	const struct step_row &row = e.tile.rows[i];

	e.in.query_start[r] = (int32_t)first;
	index_logits(e, r, first, end, verifies(e, row));
	if (!slot_valid(e, row.slot)) {
		empty_row(e, r);
		return;
	}
	e.in.seq_lens[r] = (int32_t)row_length(e, i);
	e.in.row_slot[r] = row.slot;
	e.in.row_flags[r] = (int32_t)row.flags;
	if (e.max_drafts)
		e.in.next_ids[r] = row.next_id;
}

__device__ static uint32_t pages_of(uint32_t length, uint32_t page_tokens)
{
	return length ? (length - 1) / page_tokens + 1 : 0;
}

/* Entries past the used pages keep what they had, except in an empty row. The drafts' decodes go up
 * to max_drafts tokens further than the step. */
__device__ static void write_tables(const struct grid_expansion &e, uint32_t base, uint32_t n)
{
	const uint32_t n_parts = parts_of(e.in.max_pages);

	for (uint32_t u = grid_warp(); u < n * n_parts; u += N_WARPS) {
		const uint32_t i = u / n_parts;
		uint32_t used = e.in.max_pages;

		if (slot_valid(e, e.tile.rows[i].slot))
			used = pages_of(row_length(e, i) + e.max_drafts, e.in.page_tokens);
		if (e.max_drafts)
			used = min(used, e.in.max_pages);
		if (u % n_parts * PART < used)
			copy_part(e, e.in.block_table + (size_t)(base + i) * e.in.max_pages,
				row_source(e, i), used, u % n_parts);
	}
}

/* The pages of the tile's rows that are new to their slots, a row a warp, from the other end than
 * the tables. */
__device__ static void change_slots(const struct grid_expansion &e, uint32_t n)
{
	for (uint32_t i = N_WARPS - 1 - grid_warp(); i < n; i += N_WARPS) {
		const struct step_row &row = e.tile.rows[i];

		if (!slot_valid(e, row.slot) || e.tile.fresh[i])
			continue;
		for (uint32_t k = threadIdx.x % WARP; k < row.n_pages; k += WARP)
			e.in.slot_block_table[(size_t)row.slot * e.in.max_pages + row.page_first +
				k] = clamp_page(e, e.tile.record.pages[row.page_offset + k]);
	}
}

/* ---- tokens ---- */

__device__ static void empty_token(const struct grid_expansion &e, uint32_t t)
{
	e.in.input_ids[t] = 0;
	e.in.embedding_from[t] = NULL;
	e.in.positions[t] = 0;
	e.in.slot_mapping[t] = -1;
	if (e.in.mask_words)
		e.in.mask_words[t] = 0;
}

/* The tile's row that token t is of: the last that begins at t or before. */
__device__ static uint32_t row_of(const struct grid_expansion &e, uint32_t n, uint32_t t)
{
	uint32_t low = 0, high = n;

	while (high - low > 1) {
		const uint32_t middle = (low + high) / 2;

		if (e.tile.first[middle] <= t)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Where the embedding of the row's token j is given, or NULL. */
__device__ static const void *given_embedding(
	const struct grid_expansion &e, const struct step_row &row, uint32_t j)
{
	if (!row.embeddings || j < row.n_ids || from_slot(e, row))
		return NULL;
	return (const uint8_t *)row.embeddings + (size_t)(j - row.n_ids) * e.in.embedding_bytes;
}

/* Of the row's token j, which is the step's t. */
__device__ static int32_t token_id(
	const struct grid_expansion &e, uint32_t i, uint32_t j, uint32_t t)
{
	const struct step_row &row = e.tile.rows[i];

	if (j == 0 && from_slot(e, row))
		return e.in.slot_last_token[row.slot];
	if (!verifies(e, row))
		return e.tile.record.ids[t];
	return e.tile.fresh[i] ? -1
			       : e.in.slot_drafts[(size_t)row.slot * e.max_drafts + (j - 1)];
}

/* A row that begins at its slot's length may run past its pages, and writes nothing there: all
 * slots share the null page. The host gives every other row the pages that it needs. */
__device__ static bool page_missing(
	const struct grid_expansion &e, const struct step_row &row, int32_t page)
{
	return e.max_drafts && from_slot(e, row) && page == 0;
}

__device__ static void write_token(const struct grid_expansion &e, uint32_t n, uint32_t t)
{
	const uint32_t i = row_of(e, n, t), page_tokens = e.in.page_tokens;
	const struct step_row &row = e.tile.rows[i];
	const uint64_t position = (uint64_t)row.start + (t - e.tile.first[i]);
	const bool fits = position < e.capacity;
	const bool tree = (row.flags & ROW_TREE) && position >= row.tree;
	uint32_t page;
	uint64_t mapped, word = 0, rotary = position;
	int32_t id;

	if (!slot_valid(e, row.slot)) {
		empty_token(e, t);
		return;
	}
	/* Both reads come before any write: one round trip over the bus. */
	id = token_id(e, i, t - e.tile.first[i], t);
	page = fits ? page_of(row_source(e, i), (uint32_t)position / page_tokens) : 0;
	if (row.words)
		word = row.words[t - e.tile.first[i]];
	/* a tree's tokens are rotated by their depth */
	if (tree && word)
		rotary = row.tree + (uint64_t)__popcll(word) - 1;
	if (e.in.mask_words)
		e.in.mask_words[t] = word;
	e.in.input_ids[t] = (int32_t)clamp_index(id, e.in.vocab_size);
	e.in.embedding_from[t] = given_embedding(e, row, t - e.tile.first[i]);
	mapped = (uint64_t)clamp_page(e, page) * page_tokens +
		 (uint32_t)position % page_tokens;
	if (page_missing(e, row, clamp_page(e, page)))
		mapped = UINT64_MAX;
	e.in.positions[t] =
		(int32_t)(fits && rotary < e.capacity ? rotary : e.capacity - 1);
	e.in.slot_mapping[t] = fits && mapped <= INT32_MAX ? (int32_t)mapped : -1;
}

__device__ static void write_tails(const struct grid_expansion &e, uint32_t n_tokens)
{
	const uint32_t n_parts = parts_of(e.in.max_pages);
	const uint32_t n_pad = e.padded_rows > e.n_rows ? e.padded_rows - e.n_rows : 0;

	for (uint32_t t = n_tokens + grid_thread(); t < e.in.max_tokens; t += BLOCKS * THREADS)
		empty_token(e, t);
	for (uint32_t r = e.n_rows + grid_thread(); r <= e.in.max_rows; r += BLOCKS * THREADS) {
		e.in.query_start[r] = (int32_t)n_tokens;
		if (r == e.in.max_rows)
			break;
		empty_row(e, r);
		index_logits(e, r, 0, 0, false);
	}
	for (size_t i = (size_t)e.in.max_rows * logits_of_row(e) + grid_thread();
		i < (size_t)e.in.max_rows * (1 + e.max_drafts); i += BLOCKS * THREADS)
		e.in.logit_index[i] = 0;
	for (uint32_t u = grid_warp(); u < n_pad * n_parts; u += N_WARPS)
		copy_part(e,
			e.in.block_table + (size_t)(e.n_rows + u / n_parts) * e.in.max_pages, {},
			e.in.max_pages, u % n_parts);
}

/* The tile of rows from `base`, and with the first one all inits; returns where its tokens end. */
__device__ static uint64_t expand_tile(
	const struct grid_expansion &e, uint32_t base, uint64_t before)
{
	const struct step_record &record = e.tile.record;
	const uint32_t n = min(e.n_rows - base, (uint32_t)TILE_ROWS);
	uint64_t end = before;
	uint32_t init = 0;

	load_all(e.tile.rows, record.rows + base, n);
	do {
		const uint32_t n_inits = min(record.n_inits - init, (uint32_t)TILE_INITS);

		if (init)
			__syncthreads();
		load_all(e.tile.inits, record.inits + init, n_inits);
		__syncthreads();
		if (init == 0 && threadIdx.x < n)
			complete_row(e);
		if (init == 0)
			end = scan_rows(e, n, before);
		if (threadIdx.x < n)
			find_init(e, n_inits, init == 0);
		if (base == 0)
			find_superseded(e, init, n_inits);
		__syncthreads();
		if (base == 0)
			apply_inits(e, n_inits);
		init += n_inits;
	} while (init < record.n_inits);
	if (blockIdx.x == BLOCKS - 1 && threadIdx.x < n)
		write_row(e, base + threadIdx.x);
	for (uint32_t t = e.tile.first[0] + grid_thread(); t < e.tile.first[n];
		t += BLOCKS * THREADS)
		write_token(e, n, t);
	write_tables(e, base, n);
	change_slots(e, n);
	__syncthreads();
	return end;
}

template <bool DRAFTS>
static __global__ void __launch_bounds__(THREADS) prepare(const struct op_prepare a)
{
	__shared__ struct row_tile tile;
	struct grid_expansion e = {a, a.inputs, tile, DRAFTS ? a.inputs.max_drafts : 0};
	uint64_t end = 0, capacity = (uint64_t)a.inputs.max_pages * a.inputs.page_tokens;
	uint32_t base = 0;

	overlap_begin();
	if (a.began && grid_thread() == 0)
		*a.began = device_clock_ns();
	load_all(&tile.record, a.record, 1);
	__syncthreads();
	e.n_rows = min(tile.record.n_rows, a.inputs.max_rows);
	e.padded_rows = min(tile.record.padded_rows, a.inputs.max_rows);
	e.max_tokens = min(tile.record.n_tokens, a.inputs.max_tokens);
	e.capacity = (uint32_t)min(capacity, (uint64_t)INT32_MAX);
	do {
		end = expand_tile(e, base, end);
		base += TILE_ROWS;
	} while (base < e.n_rows);
	write_tails(e, (uint32_t)min(end, (uint64_t)e.max_tokens));
}

/* Moves the slots of the rows that the preceding kernel has expanded. */
static __global__ void __launch_bounds__(THREADS) move_slots(const struct step_inputs in)
{
	overlap_begin();
	for (uint32_t r = grid_thread(); r < in.max_rows; r += gridDim.x * THREADS) {
		const int32_t slot = in.row_slot[r];

		if (slot < 0 || ((uint32_t)in.row_flags[r] & ROW_VERIFY))
			continue;
		in.slot_length[slot] = in.seq_lens[r];
		for (uint32_t i = 0; i < in.max_drafts; i++)
			in.slot_drafts[(size_t)slot * in.max_drafts + i] = -1;
	}
}

static int prepare_launch(struct stream *stream, const struct op_prepare *a)
{
	const struct step_inputs *in = &a->inputs;

	cuda_inputs_written(stream);
	launch(stream, in->max_drafts ? prepare<true> : prepare<false>, BLOCKS, THREADS, 0, *a);
	if (in->max_drafts)
		launch(stream, move_slots, blocks_for(in->max_rows, THREADS), THREADS, 0, *in);
	return 0;
}

CUDA_OP(prepare, prepare<false>)
