/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_FEED_CUH
#define MIMEO_KERNELS_CUDA_STEP_FEED_CUH

/*
 * The warp that fetches. It waits for empty stages, and for those in flight where there are enough: one lane asks for all boxes of
 * weights, two of 8 KiB a stage; the lanes look up a piece's pages together, and four of them ask for a stage's
 * boxes, of 4 KiB.
 */

#include "kernels/cuda/step_words.cuh"

struct step_feed {
	step_shared at;
	step_place to, landed; /* the next stage to fill; the oldest that may be in flight */
	uint32_t n_in_flight;
	uint64_t policy;
	uint32_t len;          /* of row `lane` */
	step_division division;
};

/* ---- which boxes ---- */

/* The two boxes of a stage of weights. */
struct step_boxes {
	const step_map *map;
	uint32_t row[2], group[2]; /* first row; first columns, in groups of 64 */
	uint32_t layer;
};

/* Stage s of a tile. */
STEP_INLINE step_boxes step_boxes_of(
	const step_args &a, const step_map *map, const step_tile &t, uint32_t s, uint32_t layer)
{
	const uint32_t row = t.group * STEP_GROUP, cols = STEP_COLS / 64;
	step_boxes b = {map, {row, row}, {s * cols, s * cols}, layer};

	if (t.half)
		b.group[0] = 2 * s * cols, b.group[1] = (2 * s + 1) * cols;
	else
		b.row[1] = t.n_groups == 2 ? row + STEP_GROUP : a.intermediate + row;
	return b;
}

STEP_INLINE uint32_t step_tile_stages(const step_tile &t, uint32_t n)
{
	return t.half ? (n + 1) / 2 : n;
}

/* ---- the ring ---- */

/* Are more than so many stages empty? */
STEP_INLINE bool step_feed_has_room(const step_args &a, const step_feed &f, uint32_t stages)
{
	const uint32_t there = f.to.index + stages;
	const bool wraps = there >= a.n_stages;

	return step_has_ended(f.at.empty + (wraps ? there - a.n_stages : there) * 8, f.to.parity ^ 1 ^ wraps);
}

/* Of one lane: the next stage may be filled, with so many bytes; at most `most` are in flight while more than `room`
 * stages are empty. Its barrier. */
STEP_INLINE uint32_t step_feed_begin(const step_args &a, step_feed &f, uint32_t bytes, uint32_t most, uint32_t room)
{
	const uint32_t barrier = f.at.full + f.to.index * 8;
	uint32_t limit;

	step_wait(f.at.empty + f.to.index * 8, f.to.parity ^ 1, 1);
	limit = step_feed_has_room(a, f, room) ? most : STEP_IN_FLIGHT_FULL;
#pragma unroll 1
	for (; f.n_in_flight >= limit; f.n_in_flight--) {
		step_wait(f.at.full + f.landed.index * 8, f.landed.parity, 2);
		step_next(f.landed, a.n_stages);
	}
	f.n_in_flight++;
	step_expect(barrier, bytes);
	return barrier;
}

/* Of one lane. */
STEP_INLINE void step_feed_stage(const step_args &a, step_feed &f, const step_boxes &b)
{
	const uint32_t to = f.at.ring + f.to.index * STEP_STAGE;
	const uint32_t barrier = step_feed_begin(a, f, STEP_STAGE, STEP_IN_FLIGHT, a.n_stages / 2);

	step_box_4(to, b.map, barrier, f.policy, 0, b.group[0], b.row[0], b.layer);
	step_box_4(to + STEP_STAGE / 2, b.map, barrier, f.policy, 0, b.group[1], b.row[1], b.layer);
	step_next(f.to, a.n_stages);
}

/* ---- products ---- */

/* Of one lane. The product of a norm: all columns of a tile, tile by tile. */
STEP_INLINE void step_feed_outer(
	const step_args &a, step_feed &f, uint32_t product, uint32_t layer, const step_range &r)
{
	const uint32_t stages = step_stages(a.hidden);
	const step_map *map = product == STEP_HEAD ? &a.head : product == STEP_GATE_UP ? &a.gate_up : &a.qkv;

#pragma unroll 1
	for (uint32_t j = 0; j < step_n_tiles(product, r); j++) {
		const step_tile t = step_tile_at(product, r, j);
		const uint32_t n = step_tile_stages(t, stages);

#pragma unroll 1
		for (uint32_t s = 0; s < n; s++)
			step_feed_stage(a, f, step_boxes_of(a, map, t, s, product == STEP_HEAD ? 0 : layer));
	}
}

/* What is added to the residual: as many columns as x has registers, of all tiles, then the next. */
template <int N, int DIM>
STEP_INLINE void step_feed_inner(
	const step_args &a, step_feed &f, uint32_t product, uint32_t layer, const step_range &r)
{
	const uint32_t stages = step_stages(product == STEP_O ? a.n_heads * DIM : a.intermediate);
	const step_map *map = product == STEP_O ? &a.o : &a.down;

#pragma unroll 1
	for (uint32_t c = 0; c < stages; c += N)
#pragma unroll 1
		for (uint32_t j = 0; j < step_n_tiles(product, r); j++) {
			const step_tile t = step_tile_at(product, r, j);
			const uint32_t here = stages - c < N ? stages - c : N;
			const uint32_t n = step_tile_stages(t, here);

#pragma unroll 1
			for (uint32_t s = 0; s < n; s++) {
				step_boxes b = step_boxes_of(a, map, t, s, layer);

				b.group[0] += c * (STEP_COLS / 64);
				b.group[1] += c * (STEP_COLS / 64);
				step_feed_stage(a, f, b);
			}
		}
}

/* ---- attention ---- */

/* The table's entry for this lane of the 32 pages that begin at the piece's page `from`. */
STEP_INLINE int32_t step_feed_pages(const step_args &a, const step_unit &u, uint32_t from)
{
	const uint32_t p = from + threadIdx.x % 32;

	return p < u.n_pages ? a.block_table[u.row * a.max_pages + u.page + p] : 0;
}

STEP_INLINE uint32_t step_feed_page(const step_args &a, int32_t page)
{
	return page < 0 || (uint32_t)page >= a.n_pages ? 0 : (uint32_t)page;
}

/* Of the whole warp: the pages of a unit, a stage's worth after the other. `pages`: the first 32; the next 32 are
 * looked up while these are fetched. */
template <int DIM>
STEP_INLINE void step_feed_unit(
	const step_args &a, step_feed &f, const step_unit &u, uint32_t layer, int32_t pages)
{
	constexpr uint32_t BOX = 4096, GROUPS = DIM / 64, PAGES = STEP_STAGE / (BOX * GROUPS);
	const uint32_t lane = threadIdx.x % 32;
	int32_t next = 0;

	f.to.index = step_of_lane(f.to.index, 0); /* the others do not see weights */
#pragma unroll 1
	for (uint32_t p = 0; p < u.n_pages; p += PAGES) {
		const uint32_t n = u.n_pages - p < PAGES ? u.n_pages - p : PAGES;

		if (p % 32 == 0) {
			pages = p ? next : pages;
			next = step_feed_pages(a, u, p + 32);
		}
		const uint32_t page = step_feed_page(a, (int32_t)step_of_lane((uint32_t)pages, (p + lane / GROUPS) % 32));
		if (lane == 0)
			step_feed_begin(a, f, n * GROUPS * BOX, STEP_IN_FLIGHT_PAGES, a.n_stages / 4);
		step_meet_warp();
		if (lane < n * GROUPS)
			step_box_4(f.at.ring + f.to.index * STEP_STAGE + lane * BOX, &a.kv[layer],
				f.at.full + f.to.index * 8, f.policy, 0, u.head * GROUPS + lane % GROUPS, 0, page * 2);
		step_next(f.to, a.n_stages);
	}
	step_meet_warp();
}

STEP_INLINE step_unit step_feed_unit_of(const step_args &a, const step_feed &f, uint32_t index)
{
	const uint32_t row = step_row_of_unit(a, f.division.serial, index);

	return step_unit_of(a, f.division, index, step_of_lane(f.len, row));
}

/* `pages` are of the first unit. */
template <int DIM>
STEP_INLINE void step_feed_attention(
	const step_args &a, step_feed &f, uint32_t layer, const step_range &r, int32_t pages)
{
#pragma unroll 1
	for (uint32_t j = 0; j < step_n_of(r); j++) {
		const step_unit u = step_feed_unit_of(a, f, step_thing(r, j));

		step_feed_unit<DIM>(a, f, u, layer, j ? step_feed_pages(a, u, 0) : pages);
	}
}

STEP_INLINE void step_feed_maps(const step_args &a)
{
	step_prefetch_map(&a.qkv);
	step_prefetch_map(&a.kv[0]);
	step_prefetch_map(&a.o);
	step_prefetch_map(&a.gate_up);
	step_prefetch_map(&a.down);
	step_prefetch_map(&a.head);
}

/* ---- the head's input ---- */

/* The step's set, which another warp writes (step_kernel.cuh). */
STEP_INLINE uint32_t step_set_of(const step_shared &at)
{
	uint32_t set = step_lds_4(at.set), n = 0;
	uint64_t since = 0;

	while (set == STEP_NO_SET) {
		step_spin(n, since, 61);
		set = step_lds_4(at.set);
	}
	return set;
}

/* Of one row, for whoever reads hidden states: this warp has nothing else to do by then. */
template <int DIM>
STEP_INLINE void step_hidden(const step_args &a, uint32_t serial, const uint32_t *regions, uint32_t row)
{
	const uint32_t *x = step_residual<DIM>(a, serial, regions, 2 * a.n_layers, row);
	const uint32_t lane = threadIdx.x % 32, n = a.hidden / 8;
	float squares = 0;

#pragma unroll 1
	for (uint32_t i = lane; i < n; i += 32) {
		const uint4 v = step_get_16(x + i * 4, 60);

#pragma unroll
		for (int j = 0; j < 4; j++)
			squares += step_low(step_word(v, j)) * step_low(step_word(v, j)) +
				   step_high(step_word(v, j)) * step_high(step_word(v, j));
	}
	step_meet_warp();
#pragma unroll
	for (int o = 16; o; o /= 2)
		squares += step_xor(squares, o);
	squares = step_rsqrt(squares / a.hidden + a.eps);
#pragma unroll 1
	for (uint32_t i = lane; i < n; i += 32) {
		const uint4 g = step_ldc_16(a.final_norm + i * 8);
		uint4 v = step_ldx_16(x + i * 4);

#pragma unroll
		for (int j = 0; j < 4; j++)
			step_set_word(v, j,
				step_pack(step_low(step_word(v, j)) * squares * step_low(step_word(g, j)),
					step_high(step_word(v, j)) * squares * step_high(step_word(g, j))));
		for (int e = 0; e < 2; e++)
			if (a.outputs[e])
				*(uint4 *)(a.outputs[e] + (size_t)row * a.hidden + i * 8) = v;
	}
}

/* Whoever wrote lengths, pages and the last token's keys has done so by then. */
template <int DIM> STEP_INLINE void step_feed_inputs(const step_args &a, step_feed &f)
{
	step_lengths lengths = {};

	step_before_is_done();
	step_boxes_see_memory();
	f.len = threadIdx.x % 32 < a.rows ? step_len_of(a, threadIdx.x % 32) : 0;
#pragma unroll 1
	for (uint32_t row = 0; row < a.rows; row++)
		step_lengths_add(lengths, step_of_lane(f.len, row));
	f.division = step_division_of<DIM>(a, gridDim.x, lengths);
}

template <int N, int DIM> STEP_INLINE void step_fetch(const step_args &a, const step_shared &at)
{
	const bool one = threadIdx.x % 32 == 0;
	step_turn turn = {blockIdx.x, gridDim.x, 0};
	step_feed f = {at, {0, 0}, {0, 0}, 0, step_evict_first(), 0, {}};

	if (one)
		step_feed_maps(a);
#pragma unroll 1
	for (uint32_t i = 0;; i++) {
		const uint32_t outer = step_outer(a, i);
		const step_range r = step_share_out(turn, step_n_groups<DIM>(a, outer));
		step_range units = {}, inner;
		int32_t pages = 0;

		if (i && outer == STEP_QKV)
			units = step_share_out(turn, step_n_units(a, f.division.serial));
		if (step_n_of(units)) /* their numbers come while the weights before are fetched */
			pages = step_feed_pages(a, step_feed_unit_of(a, f, step_thing(units, 0)), 0);
		if (one && outer == STEP_QKV && i / 2 + 1 < a.n_layers)
			step_prefetch_map(&a.kv[i / 2 + 1]);
		if (one)
			step_feed_outer(a, f, outer, i / 2, r);
		step_meet_warp();
		if (outer == STEP_HEAD)
			break;
		if (i == 0) {
			step_feed_inputs<DIM>(a, f);
			units = step_share_out(turn, step_n_units(a, f.division.serial));
			if (step_n_of(units))
				pages = step_feed_pages(a, step_feed_unit_of(a, f, step_thing(units, 0)), 0);
		}
		step_feed_attention<DIM>(a, f, i / 2, units, pages);
		inner = step_share_out(turn, step_n_groups<DIM>(a, step_inner(i)));
		if (one)
			step_feed_inner<N, DIM>(a, f, step_inner(i), i / 2, inner);
		step_meet_warp();
	}
	for (uint32_t row = blockIdx.x; row < a.rows; row += gridDim.x)
		step_hidden<DIM>(a, f.division.serial, a.exchange[step_set_of(at)], row);
}

#endif
