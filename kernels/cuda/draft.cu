/* SPDX-License-Identifier: MIT */

/*
 * draft_begin. Grid: a block a row, and TAIL_BLOCKS for what lies behind the rows; block: 256
 * threads; no shared memory. Moves 16 bytes a token. A block a row, because all its tokens need the row's
 * last one.
 *
 * draft_advance, two kernels. `draft_tokens`: a team of 1 to 8 blocks a row (sample_team.cuh); block: 1024
 * threads; shared memory: 46 KB. A greedy row is one pass over the draft's logits. A row that samples first
 * writes them by the target's ids, 4 bytes each, and draws from those: without d2t a copy; with it -infinity
 * everywhere and, behind a barrier of the team, the draft's own. Bytes: 4 draft_vocab for a greedy row; else 4
 * (draft_vocab + vocab), with d2t 8 draft_vocab more, and two passes or more over the 4 vocab that it wrote.
 * `decode_inputs`: one block, a thread a row, and the only one to write the count of drafts, which every block
 * of the first reads: blocks of a launch do not wait for one another.
 *
 * rope_and_cache and attention may read what both leave ahead of their wait (cuda.h), so both
 * report that the inputs are written. In the engine this delays no kernel: draft_begin is launched
 * ahead of the draft's graphs, and draft_advance ends each. A forward behind one of them in the
 * same graph waits.
 */

#include "kernels/cuda/sample_team.cuh"

enum { THREADS = 256, TAIL_BLOCKS = 16 };

__device__ static bool slot_exists(const struct step_inputs &in, int32_t slot)
{
	return slot >= 0 && (uint32_t)slot < in.max_slots;
}

__device__ static int32_t wanted_drafts(const struct step_inputs &in, int32_t slot)
{
	return min(in.slot_n_drafts[slot], (int32_t)in.max_drafts);
}

/* ---- the first forward ---- */

__device__ static uint32_t token_bound(const struct step_inputs &in, int32_t token)
{
	return (uint32_t)min(max(token, 0), (int32_t)in.max_tokens);
}

/* The token of [first, end) behind which the drafts begin. */
__device__ static uint32_t last_held(
	const struct op_draft_begin &a, uint32_t r, uint32_t first, uint32_t end)
{
	const uint32_t width = 1 + a.inputs.max_drafts;
	const int32_t *sampled = a.sampled + (size_t)r * width;
	uint32_t n = 0;

	if (!((uint32_t)a.inputs.row_flags[r] & ROW_VERIFY))
		return end - 1;
	while (n < width && n < end - first && sampled[n] >= 0)
		n++;
	return n ? first + n - 1 : first;
}

__device__ static void empty_token(const struct draft_inputs &d, uint32_t t)
{
	d.input_ids[t] = 0;
	d.slot_mapping[t] = -1;
}

__device__ static void begin_row(const struct op_draft_begin &a, uint32_t r)
{
	const struct step_inputs &in = a.inputs;
	const uint32_t first = token_bound(in, in.query_start[r]);
	const uint32_t end = max(first, token_bound(in, in.query_start[r + 1]));
	const int32_t slot = in.row_slot[r];
	const bool real = slot_exists(in, slot) && first != end;
	uint32_t last = 0;
	int32_t behind = 0;
	bool writes = false;

	if (real) {
		last = last_held(a, r, first, end);
		writes = wanted_drafts(in, slot) > 0;
		behind = sampled_slot(in, r) >= 0 ? in.slot_last_token[slot] : in.next_ids[r];
	}
	if (threadIdx.x == 0)
		a.draft.last_index[r] = (int32_t)last;
	for (uint32_t t = first + threadIdx.x; t < end; t += THREADS) {
		const bool known = t != last && t + 1 < end;

		if (!real) {
			empty_token(a.draft, t);
			continue;
		}
		a.draft.input_ids[t] = (int32_t)clamp_index(
			known ? in.input_ids[t + 1] : behind, in.vocab_size);
		a.draft.slot_mapping[t] = writes ? in.slot_mapping[t] : -1;
	}
}

__device__ static void begin_tails(const struct op_draft_begin &a, uint32_t block)
{
	const uint32_t i = block * THREADS + threadIdx.x, n = TAIL_BLOCKS * THREADS;
	const uint32_t end = a.n_rows ? token_bound(a.inputs, a.inputs.query_start[a.n_rows]) : 0;

	for (uint32_t t = end + i; t < a.inputs.max_tokens; t += n)
		empty_token(a.draft, t);
	for (uint32_t r = a.n_rows + i; r < a.inputs.max_rows; r += n)
		a.draft.last_index[r] = 0;
	if (i == 0) {
		*a.draft.step = 0;
		if (a.began)
			*a.began = device_clock_ns();
	}
}

static __global__ void __launch_bounds__(THREADS) draft_begin(const struct op_draft_begin a)
{
	overlap_begin();
	if (blockIdx.x < TAIL_BLOCKS)
		begin_tails(a, blockIdx.x);
	else
		begin_row(a, blockIdx.x - TAIL_BLOCKS);
}

static int draft_begin_launch(struct stream *stream, const struct op_draft_begin *a)
{
	cuda_inputs_written(stream);
	launch(stream, draft_begin, TAIL_BLOCKS + a->n_rows, THREADS, 0, *a);
	return 0;
}

CUDA_OP(draft_begin, draft_begin)

/* ---- a draft ---- */

/* Where a slot's token of that position goes in the cache; -1: past its pages. */
__device__ static int32_t cache_slot(
	const struct step_inputs &in, int32_t slot, uint64_t position)
{
	const int32_t *pages = in.slot_block_table + (size_t)slot * in.max_pages;
	const uint64_t page = position / in.page_tokens;
	uint64_t mapped;

	if (page >= in.max_pages || pages[page] <= 0)
		return -1;
	mapped = (uint64_t)pages[page] * in.page_tokens + position % in.page_tokens;
	return mapped <= INT32_MAX ? (int32_t)mapped : -1;
}

/* The target's id of a draft's; -1: it has none. */
__device__ static int32_t target_id(const struct op_draft_advance &a, uint32_t id)
{
	const int64_t target = (int64_t)id + (a.d2t ? a.d2t[id] : 0);

	return target >= 0 && target < (int64_t)a.inputs.vocab_size ? (int32_t)target : -1;
}

__device__ static uint32_t drafts_so_far(const struct op_draft_advance &a)
{
	return (uint32_t)max(*a.draft.step, 0);
}

/* out[vocab] := the row's logits in the target's order. */
__device__ static void place_logits(const struct op_draft_advance &a, const struct team &team,
	const float *logits, float *out)
{
	const uint32_t first = team.rank * SAMPLE_THREADS + threadIdx.x;
	const uint32_t step = team.size * SAMPLE_THREADS, vocab = a.inputs.vocab_size;

	for (uint32_t i = first; i < vocab; i += step)
		out[i] = !a.d2t && i < a.draft_vocab ? logits[i] : -INFINITY;
	team_sync(team);
	if (!a.d2t)
		return;
	for (uint32_t i = first; i < a.draft_vocab; i += step) {
		const int32_t id = target_id(a, i);

		if (id >= 0)
			out[id] = logits[i];
	}
	team_sync(team);
}

/* The row's draft, or -1: the logits are not finite. In the first block's warp 0. */
__device__ static int32_t draft_token(const struct op_draft_advance &a, const struct team &team,
	struct block_filter &filter, int32_t slot, uint32_t i, uint64_t position)
{
	const struct step_inputs &in = a.inputs;
	const struct slot_sampling s = in.slot_sampling[slot];
	const float *logits = a.logits + (size_t)team.row * a.draft_vocab;
	float *own = in.slot_draft_logits + ((size_t)slot * in.max_drafts + i) * in.vocab_size;
	const bool greedy = is_greedy(s);
	uint64_t top;

	if (!greedy)
		place_logits(a, team, logits, own);
	find_top(team, 0, SIDE_Q, greedy ? logits : own, greedy ? a.draft_vocab : in.vocab_size);
	team_sync(team);
	top = team_top(team, 0, SIDE_Q);
	if (top == 0)
		return -1;
	if (greedy)
		return target_id(a, ~(uint32_t)top);
	return team_draw(team,
		sample_row_of(own, in.vocab_size, top, s,
			noise_key(s.seed, (uint32_t)position, SAMPLE_DRAFT)),
		filter, s);
}

static __global__ void __launch_bounds__(SAMPLE_THREADS) draft_tokens(
	const __grid_constant__ struct op_draft_advance a, struct exchange *exchanges,
	uint32_t team_size)
{
	__shared__ struct block_filter filter;
	const struct team team = team_of(exchanges, team_size);
	const struct step_inputs &in = a.inputs;
	int32_t slot, wanted, token = -1;
	int32_t *drafts;
	uint64_t length;
	uint32_t i;

	overlap_begin();
	if (team.row >= a.n_rows)
		return;
	slot = in.row_slot[team.row];
	i = drafts_so_far(a);
	if (!slot_exists(in, slot) || i >= in.max_drafts)
		return;
	drafts = in.slot_drafts + (size_t)slot * in.max_drafts;
	length = (uint64_t)max(in.slot_length[slot], 0);
	wanted = sampled_slot(in, team.row) >= 0 ? wanted_drafts(in, slot) : 0;
	if ((int64_t)i < wanted && (i == 0 || drafts[i - 1] >= 0) &&
		cache_slot(in, slot, length + 1 + i) >= 0)
		token = draft_token(a, team, filter, slot, i, length + 1 + i);
	if (team.rank == 0 && threadIdx.x == 0)
		drafts[i] = token;
}

/* ---- the decode behind it ---- */

__device__ static void decode_row(const struct op_draft_advance &a, uint32_t r, uint32_t i)
{
	const struct step_inputs &in = a.inputs;
	const struct draft_inputs &d = a.draft;
	const int32_t slot = in.row_slot[r];
	int32_t token = -1;
	uint64_t position = 0;

	/* Behind a draft of a row that wants one more. */
	if (slot_exists(in, slot) && i < in.max_drafts && sampled_slot(in, r) >= 0 &&
		(int64_t)i + 1 < wanted_drafts(in, slot)) {
		token = in.slot_drafts[(size_t)slot * in.max_drafts + i];
		position = (uint64_t)max(in.slot_length[slot], 0) + i;
	}
	d.hidden_index[r] = i ? (int32_t)r : d.last_index[r];
	d.decode_ids[r] = token >= 0 ? token : 0;
	d.positions[r] = token >= 0 ? (int32_t)position : 0;
	d.decode_slot_mapping[r] = token >= 0 ? cache_slot(in, slot, position) : -1;
	d.seq_lens[r] = token >= 0 ? (int32_t)(position + 1) : 0;
}

/* One block: its barrier is between those that read the count and the one that writes it. */
static __global__ void __launch_bounds__(SAMPLE_THREADS)
	decode_inputs(const struct op_draft_advance a)
{
	const struct draft_inputs &d = a.draft;
	uint32_t i;

	overlap_begin();
	i = drafts_so_far(a);
	for (uint32_t r = threadIdx.x; r < a.inputs.max_rows; r += SAMPLE_THREADS) {
		if (r < a.n_rows) {
			decode_row(a, r, i);
			continue;
		}
		d.decode_ids[r] = 0;
		d.positions[r] = 0;
		d.decode_slot_mapping[r] = -1;
		d.seq_lens[r] = 0;
		d.hidden_index[r] = 0;
	}
	for (uint32_t r = threadIdx.x; r <= a.inputs.max_rows; r += SAMPLE_THREADS)
		d.query_start[r] = (int32_t)min(r, a.n_rows);
	__syncthreads();
	if (threadIdx.x == 0)
		*d.step = (int32_t)min(i + 1, a.inputs.max_drafts);
}

static int draft_advance_launch(struct stream *stream, const struct op_draft_advance *a)
{
	int rc;

	cuda_inputs_written(stream);
	rc = teams_launch(
		stream, draft_tokens, a->n_rows, a->inputs.max_rows, a->inputs.vocab_size, *a);
	if (rc)
		return rc;
	launch(stream, decode_inputs, 1, SAMPLE_THREADS, 0, *a);
	return 0;
}

CUDA_OP(draft_advance, draft_tokens)
