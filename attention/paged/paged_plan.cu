/* SPDX-License-Identifier: MIT */

/*
 * The planner: grid one block a window, block one warp, no shared memory. It reads query_start and
 * seq_lens of the padded rows, 8 bytes each, and writes 32 bytes a row and 64 a slot; nothing depends on
 * what the host knows of the batch. Wrong lengths are clamped here, once, as the cpu device does. One warp,
 * because a row's places depend on all rows before it: scans over 32 rows need no barrier.
 */

#include "attention/paged/paged_mma.cuh"
#include "attention/scan.cuh"
#include "kernels/cuda/overlap.cuh"

struct plan_scan {
	int32_t end;                        /* of the tokens so far */
	int32_t n_rows, n_long, n_zero;     /* found so far */
	int32_t n_tiles;                    /* of rows on the line */
	int32_t n_blocks;                   /* of long rows */
};

static __device__ int32_t scan_sum(int32_t x, int lane)
{
	return warp_scan(x, lane, [](int32_t a, int32_t b) { return a + b; });
}

/* Place of this lane among those that are `in`, after `count` before them, which grows. */
static __device__ int32_t rank(bool in, int lane, int32_t *count)
{
	uint32_t all = __ballot_sync(~0u, in);
	int32_t mine = *count + __popc(all & ((1u << lane) - 1));

	*count += __popc(all);
	return mine;
}

static __device__ void plan_32_rows(const paged_plan_args &a, const paged_plan &plan,
	uint32_t window, uint32_t base, int lane, plan_scan *s)
{
	uint32_t r = base + lane;
	bool valid = r < a.n_rows;
	int32_t end = valid ? min(max(a.query_start[r + 1], 0), (int32_t)a.n_tokens) : 0;
	int32_t seq_len = valid ? min(max(a.seq_lens[r], 0), (int32_t)a.capacity) : 0;
	int32_t begin, sum, blocks, at;
	paged_row row;

	end = warp_scan(end, lane, [](int32_t a, int32_t b) { return max(a, b); });
	end = max(end, s->end);
	begin = __shfl_up_sync(~0u, end, 1);
	if (lane == 0)
		begin = s->end;
	row.query_first = begin;
	row.n_query = end - begin;
	row.seq_len = seq_len;
	row.row = (int32_t)r;
	row.first = window_first(seq_len - row.n_query, window);
	row.tile_first = row.first / PAGED_TILE;
	row.n_tiles = seq_len ? (seq_len - 1) / PAGED_TILE + 1 - row.tile_first : 0;
	valid = valid && row.n_query > 0;

	bool is_zero = valid && seq_len == 0;
	bool is_long = valid && seq_len > 0 && row.n_query > (int32_t)PAGED_MAX_UNIFORM_QUERY;
	bool is_decode = valid && seq_len > 0 && !is_long;

	sum = scan_sum(is_decode ? row.n_tiles : 0, lane);
	row.tile_start = s->n_tiles + sum - row.n_tiles;
	s->n_tiles += __shfl_sync(~0u, sum, 31);
	blocks = is_long ? (row.n_query * (int32_t)a.group + (int32_t)a.block_rows - 1) /
				   (int32_t)a.block_rows
			 : 0;
	sum = scan_sum(blocks, lane);
	if (is_long)
		row.tile_start = s->n_blocks + sum - blocks;
	s->n_blocks += __shfl_sync(~0u, sum, 31);
	s->end = __shfl_sync(~0u, end, 31);
	at = rank(is_decode, lane, &s->n_rows);
	if (is_decode)
		plan.rows[at] = row;
	at = rank(is_long, lane, &s->n_long);
	if (is_long)
		plan.longs[at] = row;
	at = rank(is_zero, lane, &s->n_zero);
	if (is_zero) {
		plan.zeros[at][0] = begin;
		plan.zeros[at][1] = end;
	}
}

static __device__ void cut_line(
	const paged_plan_args &a, const paged_plan &plan, const plan_scan &s, int lane)
{
	int32_t n = max((s.n_tiles + (int32_t)a.n_slots - 1) / (int32_t)a.n_slots, 1);

	for (int32_t i = lane; i < (int32_t)a.n_slots; i += 32) {
		paged_slot slot = {};

		slot.tile_begin = (int32_t)min((int64_t)i * n, (int64_t)s.n_tiles);
		slot.tile_end = min(slot.tile_begin + n, s.n_tiles);
		slot.tiles_per_slot = n;
		slot.n_zero = s.n_zero;
		if (slot.tile_begin < slot.tile_end) {
			slot.index = last_begun(s.n_rows, [&](int32_t r) {
				return plan.rows[r].tile_start <= slot.tile_begin;
			});
			slot.row = plan.rows[slot.index];
		}
		plan.slots[i] = slot;
	}
}

static __global__ void plan_kernel(const __grid_constant__ paged_plan_args a)
{
	uint32_t window = a.windows[blockIdx.x];
	uint64_t offset = blockIdx.x * a.plan_bytes;
	int lane = threadIdx.x;
	plan_scan s = {};
	paged_plan plan = {
		(paged_plan_head *)((char *)a.plan.head + offset),
		(paged_slot *)((char *)a.plan.slots + offset),
		(paged_row *)((char *)a.plan.rows + offset),
		(paged_row *)((char *)a.plan.longs + offset),
		(int32_t(*)[2])((char *)a.plan.zeros + offset),
	};

	overlap_begin();
	for (uint32_t base = 0; base < a.n_rows; base += 32)
		plan_32_rows(a, plan, window, base, lane, &s);
	if (s.end < (int32_t)a.n_tokens) { /* padding */
		if (lane == 0) {
			plan.zeros[s.n_zero][0] = s.end;
			plan.zeros[s.n_zero][1] = (int32_t)a.n_tokens;
		}
		s.n_zero++;
	}
	if (lane == 0) {
		plan.head->n_long = s.n_long;
		plan.head->n_blocks = s.n_blocks;
		plan.head->n_zero = s.n_zero;
	}
	__syncwarp();
	cut_line(a, plan, s, lane);
}

void paged_plan_launch(struct stream *stream, const paged_plan_args *args)
{
	launch(stream, plan_kernel, dim3(args->n_windows), dim3(32), 0, *args);
}

const void *const paged_plan_kernel = (const void *)plan_kernel;
