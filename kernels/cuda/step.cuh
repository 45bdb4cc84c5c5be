/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_CUH
#define MIMEO_KERNELS_CUDA_STEP_CUH

/*
 * A whole decode step as one kernel: what its parts share. Each block has eight warps that multiply
 * (step_product.cuh, step_attention.cuh), one that fetches (step_feed.cuh) and three that finish
 * tiles (step_finish.cuh). All of them walk the same fixed schedule of the step:
 *
 *	half step 2 l:      qkv of norm(residual); attention; o, added to the residual
 *	half step 2 l + 1:  gate and up of norm(residual); down, added to the residual
 *	the last one:       the head of norm(residual)
 *
 * A product's rows are shared out in groups of 8, as evenly as they go, and what is over goes round the
 * blocks, on from product to product: a block that is late keeps all others waiting, so the grid
 * is chosen such that little is over (step.cu). A block's rows are cut into tiles of 16, a tile
 * into stages of 512 columns, 16 KiB.
 *
 * RING. Weights and history depend on nothing that the step computes, so the fetching warp runs ahead
 * of the others as far as the ring goes. It has at most STEP_IN_FLIGHT stages of weights in flight: more than memory's
 * latency needs would only queue, and the words between blocks would queue behind them; and fewer when
 * the ring is filling up, which is when somebody waits for words.
 *
 * WORDS BETWEEN BLOCKS are pairs of bf16 that are their own flags, in a region of memory for each
 * layer: EMPTY, until they are written. A reader loads until no word is EMPTY. There are two sets of
 * regions; steps take them in turn and empty the other one, so that a step needs no counter, fence or
 * reset. The step's number is in memory and advances with each launch.
 *
 * PIECES. A row's history is cut into pieces that blocks share. They are merged where they are read,
 * by the product of o: the product has eight columns of x, and a batch of fewer rows does not use all of
 * them. Each free column holds a weighted piece, and the warp that finishes a tile adds the columns. Where the
 * longest row's pieces would be long, a column merges two of them while it loads. Where they would still be so
 * long that most blocks wait for a few (few kv heads, or one long row among short ones), there are up to eight
 * a column, and blocks merge them before the product: one more exchange of words (step_gather.cuh). Each role
 * finds the division in the rows' lengths when the step runs, as a graph is captured without them.
 */

#include "kernels/cuda/step_ptx.cuh"

typedef uint16_t step_bf16; /* moved, never computed with */

#ifndef MIMEO_STEP_OWN_MAX /* the test of the schedule has fewer blocks */
#define MIMEO_STEP_OWN_MAX 2
#endif

enum {
	STEP_TILE = 16,         /* rows of W */
	STEP_GROUP = 8,         /* rows that blocks share out */
	STEP_COLS = 512,        /* of a stage */
	STEP_STAGE = 16384,
	STEP_PAGE = 16,         /* tokens */
	STEP_COLUMNS = 8,       /* of x in a product: rows of the batch, or pieces */
	STEP_WORKERS = 8,       /* warps that multiply */
	STEP_FEEDER = 8,        /* the warp that fetches */
	STEP_FINISHER = 9,      /* the first that finishes */
	STEP_FINISHERS = 3,
	STEP_THREADS = 384,
	STEP_READERS = (STEP_WORKERS + STEP_FINISHERS) * 32, /* threads that read the step's number */
	STEP_SUMS = 4,          /* buffers of sums, more than warps that finish */
	STEP_SUM_BYTES = STEP_WORKERS * STEP_TILE * STEP_COLUMNS * 4,
	STEP_STAGES_MAX = 13,
	STEP_IN_FLIGHT = 3,
	STEP_IN_FLIGHT_FULL = 2, /* while less than half of the ring is empty */
	STEP_IN_FLIGHT_PAGES = 5, /* of history, while a quarter of the ring is empty: no warp waits for words then */
	STEP_LAYERS_MAX = 64,
	STEP_OWN_MAX = MIMEO_STEP_OWN_MAX, /* tiles of o or down of a block */
	STEP_PIECES_SERIAL = 2, /* pieces that a column of x merges, at most */
	STEP_SERIAL_MAX = 8,    /* pieces a column at most; more than STEP_PIECES_SERIAL are gathered before o */
	/* pages by columns of a head: */
	STEP_PIECE_COLUMNS = 12 * 64, /* a column merges two pieces rather than one that is longer */
	STEP_PIECE_GAIN = 16 * 64,    /* what more pieces have to spare the block that is last */
};

#define STEP_EMPTY 0xffffffffu
#define STEP_NO_SET 2u /* the step's number has not been read */

struct alignas(64) step_map {
	uint64_t opaque[16];
};

/* A vector of bf16 of every layer; data NULL: none. */
struct step_vector {
	const step_bf16 *data;
	uint64_t stride;
};

/* In device memory; zero at first. */
struct step_state {
	uint32_t number;   /* of the step; its last bit chooses the set of regions */
	uint32_t begun;    /* blocks that have read the number */
	uint32_t words[2]; /* that the last step of each set wrote to, or 0 */
};

struct step_args {
	/* [n_layers] of {64 columns, columns / 64, rows}; boxes {64, 8, 8} */
	struct step_map qkv, o, gate_up, down, head;
	/* [n_pages * 2] of {64 columns, columns of a token / 64, 16 tokens}; boxes {64, 1, 16, 2} */
	struct step_map kv[STEP_LAYERS_MAX];
	step_bf16 *cache[STEP_LAYERS_MAX]; /* the same, for writing */
	struct step_vector input_norm, post_norm, qkv_bias, q_norm, k_norm;
	const step_bf16 *final_norm, *embedding;
	const void *const *from; /* [n_rows] as op_embed's, or NULL */
	const int32_t *ids, *positions, *slot_mapping, *seq_lens, *block_table;
	const float *cos_sin;
	float *logits;
	step_bf16 *outputs[2]; /* [rows, hidden] := the head's input, in both places; NULL: not wanted */
	uint32_t *exchange[2];
	struct step_state *state;
	uint32_t n_layers, hidden, intermediate, vocab, n_heads, n_kv_heads;
	uint32_t rows; /* 1, 2, 4 or 8 */
	uint32_t max_pages, max_positions, n_pages;
	uint32_t n_stages;
	float eps, scale_log2;
};

/* ---- the regions ---- */

#define STEP_STATE_BYTES 256u /* ahead of the two sets */
static_assert(sizeof(struct step_state) <= STEP_STATE_BYTES, "the state is ahead of the sets");

/* The state and the two sets in memory of so many bytes. Where the second set begins depends on the memory alone:
 * a step empties what a step of another model wrote. */
static inline void step_divide(step_args *a, void *memory, size_t bytes)
{
	const size_t words = (bytes - STEP_STATE_BYTES) / (2 * sizeof(uint32_t)) / 64 * 64;

	a->state = (struct step_state *)memory;
	a->exchange[0] = (uint32_t *)((char *)memory + STEP_STATE_BYTES);
	a->exchange[1] = a->exchange[0] + words;
}

/* Of a layer, in words; gathered: nothing where columns merge their pieces. */
struct step_region {
	uint32_t qkv, pieces, lse, gathered, after_o, after_down, activated, words;
};

/* The number of pieces of each row; each column of x holds `serial` of them. */
STEP_INLINE uint32_t step_n_pieces(const step_args &a, uint32_t serial)
{
	return STEP_COLUMNS / a.rows * serial;
}

STEP_INLINE bool step_gathers(uint32_t serial)
{
	return serial > STEP_PIECES_SERIAL;
}

template <int DIM> STEP_INLINE step_region step_region_of(const step_args &a, uint32_t serial)
{
	const uint32_t width = a.n_heads * DIM / 2, pieces = step_n_pieces(a, serial);
	step_region r;

	r.qkv = 0;
	r.pieces = r.qkv + a.rows * (width + a.n_kv_heads * DIM);
	r.lse = r.pieces + pieces * a.rows * width;
	r.gathered = r.lse + (pieces * a.rows * a.n_heads + 3) / 4 * 4;
	r.after_o = r.gathered + (step_gathers(serial) ? a.rows * width : 0);
	r.after_down = r.after_o + a.rows * a.hidden / 2;
	r.activated = r.after_down + a.rows * a.hidden / 2;
	r.words = r.activated + a.rows * a.intermediate / 2;
	return r;
}

/* ---- the schedule ---- */

/* Whose turn it is, carried on from product to product. */
struct step_turn {
	uint32_t block, n_blocks, offset;
};

/* This block's of n things, things i, i + n_blocks, ...: `each` of them, or one more. */
struct step_range {
	uint32_t i, n_blocks, each, rest;
};

STEP_INLINE step_range step_share_out(step_turn &turn, uint32_t n)
{
	const uint32_t each = n / turn.n_blocks, rest = n % turn.n_blocks;
	const uint32_t i = turn.block >= turn.offset ? turn.block - turn.offset
						     : turn.block + turn.n_blocks - turn.offset;

	turn.offset += rest;
	if (turn.offset >= turn.n_blocks)
		turn.offset -= turn.n_blocks;
	return step_range{i, turn.n_blocks, each, rest};
}

STEP_INLINE uint32_t step_n_of(const step_range &r)
{
	return r.each + (r.i < r.rest);
}

STEP_INLINE uint32_t step_thing(const step_range &r, uint32_t j)
{
	return j * r.n_blocks + r.i;
}

STEP_INLINE uint32_t step_stages(uint32_t cols)
{
	return (cols + STEP_COLS - 1) / STEP_COLS;
}

enum step_product { STEP_QKV, STEP_O, STEP_GATE_UP, STEP_DOWN, STEP_HEAD };

/* Of half step i: the product of the norm, and the one that is added to the residual. */
STEP_INLINE uint32_t step_outer(const step_args &a, uint32_t i)
{
	return i / 2 == a.n_layers ? STEP_HEAD : i % 2 ? STEP_GATE_UP : STEP_QKV;
}

STEP_INLINE uint32_t step_inner(uint32_t i)
{
	return i % 2 ? STEP_DOWN : STEP_O;
}

/* What blocks share: groups of 8 rows, of gate and up as many of each. */
template <int DIM> STEP_INLINE uint32_t step_n_groups(const step_args &a, uint32_t product)
{
	switch (product) {
	case STEP_QKV:
		return (a.n_heads + 2 * a.n_kv_heads) * DIM / STEP_GROUP;
	case STEP_GATE_UP:
		return a.intermediate / STEP_GROUP;
	case STEP_HEAD:
		return (a.vocab + STEP_GROUP - 1) / STEP_GROUP;
	default:
		return a.hidden / STEP_GROUP;
	}
}

/*
 * A tile: two groups of rows, the stage's two halves, by 512 columns; of gate and up one group of each. A
 * block's last group may be alone: a half tile, whose stages are 8 rows by 1024 columns.
 */
struct step_tile {
	uint32_t group, n_groups;
	bool half;
};

STEP_INLINE uint32_t step_n_tiles(uint32_t product, const step_range &r)
{
	return product == STEP_GATE_UP ? step_n_of(r) : (step_n_of(r) + 1) / 2;
}

/*
 * The block's j-th tile. All blocks' j-th are neighbours, so that the first columns of a result are there
 * first; what is not in whole tiles of all blocks is behind them.
 */
STEP_INLINE step_tile step_tile_at(uint32_t product, const step_range &r, uint32_t j)
{
	const uint32_t whole = r.each / 2, behind = 2 * whole * r.n_blocks;
	const uint32_t n = step_n_of(r) - 2 * whole; /* groups of this block behind the whole tiles */

	if (product == STEP_GATE_UP)
		return step_tile{step_thing(r, j), 1, false};
	if (j < whole)
		return step_tile{2 * step_thing(r, j), 2, false};
	return step_tile{behind + (r.each % 2 ? r.i + (r.i < r.rest ? r.i : r.rest) : r.i), n, n == 1};
}

/* How rows are cut into pieces. */
struct step_division {
	uint32_t serial; /* pieces a column of x */
	uint32_t pages;  /* of a piece; a row's last one may have less */
};

/* Of the rows' histories, in pages. */
struct step_lengths {
	uint32_t longest, total;
};

STEP_INLINE uint32_t step_pages_of(uint32_t len)
{
	return len ? (len - 1 + STEP_PAGE - 1) / STEP_PAGE : 0;
}

STEP_INLINE void step_lengths_add(step_lengths &l, uint32_t len)
{
	const uint32_t n = step_pages_of(len);

	l.longest = n > l.longest ? n : l.longest;
	l.total += n;
}

STEP_INLINE step_division step_divide_rows(const step_args &a, uint32_t serial, uint32_t longest)
{
	const uint32_t pieces = step_n_pieces(a, serial), pages = (longest + pieces - 1) / pieces;

	return step_division{serial, pages ? pages : 1};
}

template <int DIM>
STEP_INLINE step_division step_division_of(const step_args &a, uint32_t n_blocks, const step_lengths &l)
{
	const uint32_t fair = l.total * a.n_kv_heads / n_blocks; /* pages of a block, if all had as many */
	step_division d = step_divide_rows(a, 1, l.longest);

	if (d.pages * DIM > STEP_PIECE_COLUMNS)
		d = step_divide_rows(a, STEP_PIECES_SERIAL, l.longest);
	while (d.serial >= STEP_PIECES_SERIAL && d.serial < STEP_SERIAL_MAX) {
		const step_division more = step_divide_rows(a, 2 * d.serial, l.longest);
		const uint32_t last = more.pages > fair ? more.pages : fair;
		const uint32_t gain = d.pages > last ? d.pages - last : 0;

		if (gain * DIM <= STEP_PIECE_GAIN || gain * 8 <= d.pages)
			break;
		d = more;
	}
	return d;
}

/* Of a row: those that have tokens. */
STEP_INLINE uint32_t step_used_pieces(const step_division &d, uint32_t len)
{
	const uint32_t n = step_pages_of(len);

	return len ? n ? (n - 1) / d.pages + 1 : 1 : 0;
}

/* A unit of attention: one kv head's queries over a piece of a row's history. */
struct step_unit {
	uint32_t row, head, piece;
	uint32_t page, n_pages; /* the piece's of the row */
	uint32_t history;       /* tokens of the row in the cache */
	bool newest;            /* it has the step's token too */
};

STEP_INLINE uint32_t step_n_units(const step_args &a, uint32_t serial)
{
	return a.rows * a.n_kv_heads * step_n_pieces(a, serial);
}

/* A row's units are neighbours: one long row is for all blocks. */
STEP_INLINE uint32_t step_row_of_unit(const step_args &a, uint32_t serial, uint32_t index)
{
	return index / (a.n_kv_heads * step_n_pieces(a, serial));
}

STEP_INLINE uint32_t step_len_of(const step_args &a, uint32_t row)
{
	const uint32_t limit = a.max_pages * STEP_PAGE;
	const int32_t given = a.seq_lens[row];

	return given < 0 ? 0 : (uint32_t)given < limit ? (uint32_t)given : limit;
}

/* len: of the unit's row. */
STEP_INLINE step_unit step_unit_of(const step_args &a, const step_division &d, uint32_t index, uint32_t len)
{
	const uint32_t pieces = step_n_pieces(a, d.serial), n = step_pages_of(len);
	step_unit u;

	u.row = step_row_of_unit(a, d.serial, index);
	u.head = index % a.n_kv_heads;
	u.piece = index / a.n_kv_heads % pieces;
	u.history = len ? len - 1 : 0;
	u.page = u.piece * d.pages < n ? u.piece * d.pages : n;
	u.n_pages = n - u.page < d.pages ? n - u.page : d.pages;
	u.newest = u.piece + 1 == step_used_pieces(d, len);
	return u;
}

/* ---- shared memory ---- */

/* What attention needs of a row in each layer: its length and slot, 16 bytes, and its cosines and sines. */
#define STEP_ROW_BYTES(dim) (16 + (dim) * 4)

/* The ring begins at a multiple of 1024; behind it what follows, in this order. */
struct step_shared {
	uint32_t ring, sums, squares, full, empty, sums_full, sums_empty, set, rows, merge;
};

STEP_INLINE step_shared step_shared_at(uint32_t base, uint32_t n_stages, uint32_t dim)
{
	step_shared s;

	s.ring = base;
	s.sums = s.ring + n_stages * STEP_STAGE;
	s.squares = s.sums + STEP_SUMS * STEP_SUM_BYTES;
	s.full = s.squares + 2 * STEP_WORKERS * STEP_COLUMNS * 4;
	s.empty = s.full + 128;
	s.sums_full = s.empty + 128;
	s.sums_empty = s.sums_full + 64;
	s.set = s.sums_empty + 32;
	s.rows = s.sums_empty + 64;
	s.merge = s.rows + STEP_COLUMNS * STEP_ROW_BYTES(dim);
	return s;
}

/* Bytes behind the ring; of `merge` what step_attention.cuh needs. */
#define STEP_SHARED_FIXED(group, dim)                                                              \
	(STEP_SUMS * STEP_SUM_BYTES + 2 * STEP_WORKERS * STEP_COLUMNS * 4 + 384 +                  \
		STEP_COLUMNS * STEP_ROW_BYTES(dim) +                                               \
		(STEP_WORKERS + 1) * ((group) * ((dim) + 4) * 4 + STEP_COLUMNS * 8))

/* A place in a ring, and the phase it is in. */
struct step_place {
	uint32_t index, parity;
};

STEP_INLINE void step_next(step_place &p, uint32_t n)
{
	if (++p.index == n) {
		p.index = 0;
		p.parity ^= 1;
	}
}

#endif
