/* SPDX-License-Identifier: MIT */

/*
 * Grid: a team of 1 to 8 blocks a row (sample_team.cuh); block: 1024 threads; shared memory: 46 KB.
 * A row is verified token by token and ends with the first draft that does not hold: of the row's
 * logits, 1 + K times the vocabulary, only those that count are read. Greedy: one pass a token, for
 * its arg-max. Sampled: passes for both tops, both filters and both sums, and behind the first
 * draft that does not hold one for the draw; a filter runs in one block, p's and q's in two blocks
 * at once where a team has two. A row without drafts is as in sample.cu. Bytes: 4 vocab for each token that
 * is sampled, and if the row is not greedy 4 vocab for each draft that is judged; later passes over the same
 * logits read the L2.
 *
 * The cpu device's verify.c says why the result follows the target's law. Noise and scores are
 * those of sample_draw.cuh; weights, sums and probabilities are double precision, as there. A
 * greedy row reads no draft's logits.
 */

#include "kernels/cuda/adjust.cuh"
#include "kernels/cuda/sample_team.cuh"

struct team_verification {
	const struct op_verify &a;
	const struct team &team;
	struct block_filter &filter;
	struct slot_sampling sampling;
	const float *logits;       /* [1 + n_drafts, vocab] */
	const float *draft_logits; /* [n_drafts, vocab] */
	const int32_t *drafts;     /* [n_drafts] */
	uint32_t n_drafts;
	uint32_t position;         /* of the token that token 0's logits give */
};

/* What the sampling leaves of a row: places up to and with `last`, and of those what min-p does. */
struct team_distribution {
	struct sample_row row; /* first -1: it is not finite, and nothing is drawn */
	uint64_t last;
	double total;          /* of the weights */
};

__device__ static uint64_t key_of(
	const struct team_verification &v, uint32_t i, enum sample_purpose purpose)
{
	return noise_key(v.sampling.seed, v.position + i, purpose);
}

/* ---- distributions ---- */

__device__ static double scaled_exactly(const struct sample_row &row, float logit)
{
	return ((double)logit - (double)row.top) / row.temperature;
}

/* Of a finite logit. */
__device__ static bool keeps(const struct team_distribution &d, float logit, uint32_t id)
{
	if (place_of(logit, id) > d.last)
		return false;
	return (int32_t)id == d.row.first || scaled_exactly(d.row, logit) >= d.row.least;
}

__device__ static double probability_of(const struct team_distribution &d, int32_t id)
{
	float logit;

	if (d.row.first < 0)
		return 0;
	logit = d.row.logits[id];
	if (!isfinite(logit) || !keeps(d, logit, (uint32_t)id))
		return 0;
	return exp(scaled_exactly(d.row, logit)) / d.total;
}

/* In thread 0, in an order that depends on the block's size alone; a barrier between two uses. */
__device__ static double block_total(double v)
{
	__shared__ double warps[SAMPLE_THREADS / WARP];

	v = warp_sum(v);
	if (threadIdx.x % WARP == 0)
		warps[threadIdx.x / WARP] = v;
	__syncthreads();
	return warp_sum(warps[threadIdx.x % WARP]);
}

/* This block's parts of the sum of the weights. */
__device__ static void sum_parts(const struct team_verification &v, uint32_t parity, enum side side,
	const struct team_distribution &d)
{
	const uint32_t n = TEAM_PARTS / v.team.size, vocab = d.row.vocab;
	const float least = d.last == UINT64_MAX ? -FLT_MAX : place_logit(d.last);

	if (d.row.first < 0)
		return;
	for (uint32_t part = v.team.rank * n; part < (v.team.rank + 1) * n; part++) {
		double sum = 0;

		for_each_logit(
			d.row.logits, part_begin(vocab, part), part_begin(vocab, part + 1), least,
			[&](float logit, uint32_t id) {
				if (keeps(d, logit, id))
					sum += exp(scaled_exactly(d.row, logit));
			},
			[] {});
		__syncthreads();
		sum = block_total(sum);
		if (threadIdx.x == 0)
			v.team.exchange->sums[parity][side][part] = sum;
	}
}

__device__ static double team_sum(const struct team &team, uint32_t parity, enum side side)
{
	double sum = 0;

	for (uint32_t part = 0; part < TEAM_PARTS; part++)
		sum += __ldcg(&team.exchange->sums[parity][side][part]);
	return sum;
}

/* The last place that top-k and top-p keep, by one block. */
__device__ static void find_last(const struct team_verification &v, uint32_t parity, enum side side,
	const struct team_distribution &d)
{
	uint64_t last = UINT64_MAX;

	if (d.row.first >= 0)
		last = keep_places(d.row, v.filter, v.sampling.top_k, v.sampling.top_p).last;
	if (threadIdx.x == 0)
		v.team.exchange->last[parity][side] = last;
	__syncthreads();
}

/* Both, from rows whose tops are known. */
__device__ static void find_distributions(const struct team_verification &v, uint32_t parity,
	struct team_distribution &p, struct team_distribution &q)
{
	const uint32_t rank = v.team.rank;

	if (is_filtered(p.row, v.sampling)) {
		if (rank == 0)
			find_last(v, parity, SIDE_Q, q);
		if (rank == (v.team.size > 1))
			find_last(v, parity, SIDE_P, p);
		team_sync(v.team);
		p.last = __ldcg((const unsigned long long *)&v.team.exchange->last[parity][SIDE_P]);
		q.last = __ldcg((const unsigned long long *)&v.team.exchange->last[parity][SIDE_Q]);
	}
	sum_parts(v, parity, SIDE_P, p);
	sum_parts(v, parity, SIDE_Q, q);
	team_sync(v.team);
	p.total = team_sum(v.team, parity, SIDE_P);
	q.total = team_sum(v.team, parity, SIDE_Q);
}

__device__ static struct team_distribution distribution_begin(
	const struct team_verification &v, const float *logits, uint64_t top)
{
	struct team_distribution d = {{logits, v.a.vocab}, UINT64_MAX, 0};

	d.row.first = -1;
	if (top)
		d.row = sample_row_of(logits, v.a.vocab, top, v.sampling, 0);
	return d;
}

/* ---- draws ---- */

/* The target's own; in the first block's warp 0. */
__device__ static int32_t draw_target(
	const struct team_verification &v, uint32_t i, uint64_t top, enum sample_purpose purpose)
{
	return team_draw(v.team,
		sample_row_of(v.logits + (size_t)i * v.a.vocab, v.a.vocab, top, v.sampling,
			key_of(v, i, purpose)),
		v.filter, v.sampling);
}

/*
 * As draw_consider, of the weight that q leaves of p, which is at most p: p alone and the leading
 * bits of the noise exclude most tokens.
 */
__device__ static void consider_rest(struct thread_draw &draw, const struct team_distribution &p,
	const struct team_distribution &q, float log_total, float logit, int32_t id)
{
	const uint64_t hash = token_hash(p.row, id);
	const float rest = __uint_as_float(0x3f800000u | (uint32_t)(~hash >> 41)) - 1.0f;
	double left, score;

	if (rest > __expf(scaled_logit(p.row, logit) - log_total - draw.bound) * 1.001f)
		return;
	left = probability_of(p, id) - probability_of(q, id);
	if (!(left > 0))
		return;
	score = score_of(log(left), hash);
	if (!beats(score, id, draw.best))
		return;
	draw.best = {score, id, 0};
	draw.bound = fmaxf(draw.bound, (float)score);
}

/* The token that replaces a draft. -1: the residual is empty. In every thread. */
__device__ static int32_t draw_residual(const struct team_verification &v,
	const struct team_distribution &p, const struct team_distribution &q)
{
	const float least = p.last == UINT64_MAX ? -FLT_MAX : place_logit(p.last);
	const float log_total = (float)log(p.total);
	struct thread_draw draw = {{-INFINITY, -1, 0}, -INFINITY};

	for_each_logit(
		p.row.logits, share_begin(v.team, p.row.vocab, v.team.rank),
		share_begin(v.team, p.row.vocab, v.team.rank + 1), least,
		[&](float logit, uint32_t id) {
			consider_rest(draw, p, q, log_total, logit, (int32_t)id);
		},
		[&] { draw_share(draw); });
	return team_best(v.team, block_best(draw.best)).id;
}

/* A draw from the residual; if rounding leaves it empty, p and q are practically equal: from p. */
__device__ static int32_t replace_draft(const struct team_verification &v, uint32_t i, uint64_t top,
	struct team_distribution &p, const struct team_distribution &q)
{
	int32_t token;

	p.row.key = key_of(v, i, SAMPLE_RESIDUAL);
	token = draw_residual(v, p, q);
	if (token >= 0)
		return token;
	team_sync(v.team); /* the draws are exchanged once more */
	return draw_target(v, i, top, SAMPLE_RESIDUAL);
}

/* ---- tokens ---- */

/* A draft of a row that is not greedy. True: it holds; else *ret_token is in the first block's
 * warp 0. */
__device__ static bool judge(const struct team_verification &v, uint32_t i, int32_t draft,
	uint64_t top, uint64_t draft_top, int32_t *ret_token)
{
	const size_t at = (size_t)i * v.a.vocab;
	struct team_distribution p = distribution_begin(v, v.logits + at, top);
	struct team_distribution q = distribution_begin(v, v.draft_logits + at, draft_top);
	double chance, uniform;

	find_distributions(v, i % 2, p, q);
	chance = probability_of(q, draft);
	if (!(chance > 0)) { /* the draft's logits cannot have given it */
		*ret_token = draw_target(v, i, top, SAMPLE_TARGET);
		return false;
	}
	p.row.key = key_of(v, i, SAMPLE_ACCEPT);
	uniform = ((double)(token_hash(p.row, draft) >> 12) + 0.5) * 0x1p-52;
	*ret_token = draft;
	if (uniform * chance < probability_of(p, draft))
		return true;
	*ret_token = replace_draft(v, i, top, p, q);
	return false;
}

/* The token behind token i, or -1: the target's logits are not finite; in the first block's warp 0, and
 * everywhere whether it is its draft. */
__device__ static bool token_behind(
	const struct team_verification &v, uint32_t i, int32_t *ret_token)
{
	const int32_t draft = i < v.n_drafts ? v.drafts[i] : -1;
	const bool greedy = is_greedy(v.sampling);
	const bool judged = !greedy && draft >= 0 && (uint32_t)draft < v.a.vocab;
	const size_t at = (size_t)i * v.a.vocab;
	uint64_t top;

	if (judged) {
		find_top(v.team, i % 2, SIDE_Q, v.draft_logits + at, v.a.vocab);
		__syncthreads();
	}
	find_top(v.team, i % 2, SIDE_P, v.logits + at, v.a.vocab);
	team_sync(v.team);
	top = team_top(v.team, i % 2, SIDE_P);
	if (top == 0) {
		*ret_token = -1;
		return false;
	}
	if (judged)
		return judge(v, i, draft, top, team_top(v.team, i % 2, SIDE_Q), ret_token);
	if (greedy) {
		*ret_token = (int32_t)~(uint32_t)top;
		return *ret_token == draft;
	}
	*ret_token = draw_target(v, i, top, SAMPLE_TARGET);
	return false;
}

/* Writes the tokens; returns how many held. All reads of the slot come before the last barrier, and
 * the first block's thread 0 may write there behind it. */
__device__ static uint32_t verify_tokens(
	const struct team_verification &v, bool writes, int32_t *sampled, int32_t *ret_last)
{
	uint32_t i = 0;

	while (token_behind(v, i, ret_last)) {
		if (writes)
			sampled[i] = *ret_last;
		i++;
	}
	if (writes)
		sampled[i] = *ret_last;
	return i;
}

/* ---- rows ---- */

/* Set the slot's length after n new tokens; `last` is the last one, or -1 if the row has no token. */
__device__ static void move_slot(
	const struct step_inputs &in, int32_t slot, uint64_t length, uint32_t n, int32_t last)
{
	const uint64_t capacity = (uint64_t)in.max_pages * in.page_tokens;

	in.slot_last_token[slot] = max(last, 0);
	in.slot_length[slot] = (int32_t)min(min(length + n, capacity), (uint64_t)INT32_MAX);
	for (uint32_t i = 0; i < in.max_drafts; i++)
		in.slot_drafts[(size_t)slot * in.max_drafts + i] = -1;
}

/* Returns how many tokens were sampled: none of a row that is not finite. */
__device__ static uint32_t verify_row(const struct op_verify &a, const struct team &team,
	struct block_filter &filter, int32_t slot, int32_t *sampled)
{
	const struct step_inputs &in = a.inputs;
	const uint32_t r = team.row, k = in.max_drafts;
	const bool verifies = !a.last_only && ((uint32_t)in.row_flags[r] & ROW_VERIFY);
	const bool writes = team.rank == 0 && threadIdx.x == 0;
	const int64_t n_tokens = (int64_t)in.query_start[r + 1] - in.query_start[r];
	const uint64_t length = (uint64_t)max(in.slot_length[slot], 0);
	struct team_verification v = {a, team, filter, in.slot_sampling[slot]};
	uint32_t n_held, n;
	int32_t last;

	if (verifies && n_tokens < 1)
		return 0;
	v.logits = a.logits + (size_t)r * (a.last_only ? 1 : 1 + k) * a.vocab;
	v.draft_logits = in.slot_draft_logits + (size_t)slot * k * a.vocab;
	v.drafts = in.slot_drafts + (size_t)slot * k;
	v.n_drafts = verifies ? (uint32_t)min(n_tokens - 1, (int64_t)k) : 0;
	v.position = verifies ? (uint32_t)length + 1 : (uint32_t)in.seq_lens[r];
	n_held = verify_tokens(v, writes, sampled, &last);
	if (!writes)
		return 0;
	n = last < 0 ? 1 : 1 + n_held;
	for (uint32_t i = 0; i < n; i++)
		settle(in, r, i, v.logits + (size_t)i * a.vocab, last < 0 ? -1 : sampled[i]);
	if (verifies)
		move_slot(in, slot, length, n, last);
	else
		in.slot_last_token[slot] = max(last, 0);
	return last < 0 ? 0 : n;
}

static __global__ void __launch_bounds__(SAMPLE_THREADS)
	verify(const __grid_constant__ struct op_verify a, struct exchange *exchanges,
		uint32_t team_size)
{
	__shared__ struct block_filter filter;
	const struct team team = team_of(exchanges, team_size);
	const uint32_t width = 1 + a.inputs.max_drafts;
	int32_t *sampled = a.sampled + (size_t)team.row * width;
	uint32_t n = 0;
	int32_t slot;

	overlap_begin();
	if (team.row >= a.n_rows)
		return;
	slot = sampled_slot(a.inputs, team.row);
	if (slot >= 0)
		n = verify_row(a, team, filter, slot, sampled);
	if (team.rank == 0 && threadIdx.x == 0)
		for (uint32_t i = n; i < width; i++)
			sampled[i] = -1;
}

static int verify_launch(struct stream *stream, const struct op_verify *a)
{
	return teams_launch(stream, verify, a->n_rows, a->inputs.max_rows, a->vocab, *a);
}

CUDA_OP(verify, verify)
