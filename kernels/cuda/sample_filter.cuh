/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SAMPLE_FILTER_CUH
#define MIMEO_KERNELS_CUDA_SAMPLE_FILTER_CUH

/*
 * top-k and top-p of a row by one block. Both keep a prefix of the tokens in falling order, so each
 * is a search for its last token: the last one before which there are fewer than k tokens, or less
 * than p of the mass. Tokens are 64-bit places, ascending in that order (the logit's, inverted,
 * then the id), and the last place is found by histograms:
 *
 *   1. over all logits, by their distance below the top in steps of 1/32: the bin it is in;
 *   2. the places up to and with that bin are collected in shared memory, if they fit, and are from
 *      then on all there is; else those of that bin alone; else none;
 *   3. over those, by 10 bits of the place at a time, until a bin holds one place only.
 *
 * Each of the first two is a read of the row from the L2 by one multiprocessor: 5 us at 128256
 * tokens, and as much again for the instructions. For small k an additional read first finds a
 * bound that spares the two nearly all their work: 34 us instead of 50 on an H200. top-p alone,
 * without a bound, takes about 100. Masses are integers, of weights relative to the top's of
 * 2^mass_bits: their sums do not depend on the order of atomics.
 */

#include "kernels/cuda/sample_draw.cuh"

enum { FILTER_DIGIT = 10, FILTER_BINS = 1 << FILTER_DIGIT, FILTER_LIST = 4096 };
static_assert((int)FILTER_BINS == (int)SAMPLE_THREADS, "a thread for each bin");

static const float FILTER_STEP = 32; /* bins for a difference of 1 between logits */

struct block_filter {
	uint64_t list[FILTER_LIST];
	uint32_t count[FILTER_BINS], low[FILTER_BINS], high[FILTER_BINS];
	uint64_t warp_sums[SAMPLE_THREADS / WARP];
	uint32_t warp_counts[SAMPLE_THREADS / WARP];
	int32_t boundary; /* bin of the last one kept */
	uint32_t boundary_count, boundary_end; /* places in it; and up to and with it */
	uint64_t boundary_before;
	uint64_t found;
	uint32_t n_list;
};

/* The search's goal: the last place before which there is less than `limit`. */
struct filter_target {
	uint64_t limit;  /* 0: `fraction` of the total, which is not known */
	double fraction;
};

/* Places to search: the list's, or all of the row's. Those past `last` do not count; in the row no
 * logit below `least` needs to be looked at. */
struct filter_places {
	bool listed;
	float least;
	uint64_t last;
};

__device__ static inline uint64_t place_of(float logit, uint32_t id)
{
	return (uint64_t)~order_of(logit) << 32 | id;
}

__device__ static inline float place_logit(uint64_t place)
{
	return logit_of(~(uint32_t)(place >> 32));
}

/* Calls f(logit, id). */
template <typename F, typename G>
__device__ static inline void for_each_place(const struct sample_row &row,
	const struct block_filter &f, const struct filter_places &places, F call, G after)
{
	if (places.listed) {
		for (uint32_t i = threadIdx.x; i < f.n_list; i += SAMPLE_THREADS)
			if (f.list[i] <= places.last)
				call(place_logit(f.list[i]), (uint32_t)f.list[i]);
		return;
	}
	for_each_logit(
		row.logits, 0, row.vocab, places.least,
		[&](float logit, uint32_t id) {
			if (places.last == UINT64_MAX || place_of(logit, id) <= places.last)
				call(logit, id);
		},
		after);
}

template <typename F>
__device__ static inline void for_each_place(const struct sample_row &row,
	const struct block_filter &f, const struct filter_places &places, F call)
{
	for_each_place(row, f, places, call, [] {});
}

/* exp(scaled) * 2^mass_bits by the float's own mantissa. */
__device__ static inline uint64_t mass_of(const struct sample_row &row, float logit, int mass_bits)
{
	const uint32_t bits = __float_as_uint(__expf(scaled_logit(row, logit)));
	const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
	const int shift = (int)(bits >> 23) - 150 + mass_bits;

	return shift >= 0 ? mantissa << shift : mantissa >> min(-shift, 31);
}

/* 2^mass_bits for every token of the vocabulary fit into 64 bits. */
__device__ static inline int mass_bits_of(const struct sample_row &row)
{
	return min(44, 31 + __clz(row.vocab));
}

__device__ static inline uint32_t linear_bin(const struct sample_row &row, float logit)
{
	const float steps = fminf((row.top - logit) * FILTER_STEP, (float)(FILTER_BINS - 1));

	return __float_as_uint(steps + 0x1p23f) & (FILTER_BINS - 1);
}

/* Below all logits of that bin and of those before it. */
__device__ static inline float bin_floor(const struct sample_row &row, uint32_t bin)
{
	return bin == FILTER_BINS - 1 ? -FLT_MAX : row.top - (float)(bin + 2) / FILTER_STEP;
}

__device__ static inline void bin_add(
	struct block_filter &f, uint32_t bin, uint32_t n, uint64_t mass)
{
	uint32_t carry, low = (uint32_t)mass;

	atomicAdd(&f.count[bin], n);
	if (mass == 0)
		return;
	carry = atomicAdd(&f.low[bin], low) > ~low;
	if ((mass >> 32) + carry)
		atomicAdd(&f.high[bin], (uint32_t)(mass >> 32) + carry);
}

/* The first barrier: all threads have read what the last search found. */
__device__ static inline void bins_clear(struct block_filter &f)
{
	__syncthreads();
	f.count[threadIdx.x] = f.low[threadIdx.x] = f.high[threadIdx.x] = 0;
	if (threadIdx.x == 0)
		f.boundary = -1;
	__syncthreads();
}

/* Sums over the warps before this one, and over all. */
template <typename T>
__device__ static inline T scan_bins(T *warps, T own, T *ret_total)
{
	const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	T sum = warp_prefix(own), others;

	if (lane == WARP - 1)
		warps[warp] = sum;
	__syncthreads();
	others = warp_prefix(warps[lane]);
	*ret_total = __shfl_sync(~0u, others, WARP - 1);
	others = __shfl_sync(~0u, others, warp ? warp - 1 : 0);
	return sum - own + (warp ? others : 0);
}

/* f.boundary and what belongs to it, from full bins, before which lies `base`. MASS: by mass. */
template <bool MASS>
__device__ static void find_boundary(
	struct block_filter &f, struct filter_target &target, uint64_t base)
{
	const uint32_t i = threadIdx.x, count = f.count[i];
	const uint64_t own = MASS ? (uint64_t)f.high[i] << 32 | f.low[i] : count;
	uint64_t total, before;
	uint32_t n_total, n_before;

	before = base + scan_bins<uint64_t>(f.warp_sums, own, &total);
	n_before = scan_bins<uint32_t>(f.warp_counts, count, &n_total);
	if (target.limit == 0)
		target.limit = max((uint64_t)1,
			(uint64_t)__double2ull_ru(fmax(0.0, target.fraction * (double)total)));
	if (count && before < target.limit)
		atomicMax(&f.boundary, (int32_t)i);
	__syncthreads();
	if ((int32_t)i == f.boundary) {
		f.boundary_count = count;
		f.boundary_end = n_before + count;
		f.boundary_before = before;
	}
	__syncthreads();
}

/* Step 1. The last bin has many tokens or none, so it is counted in registers. */
template <bool MASS>
__device__ static void find_linear(const struct sample_row &row, struct block_filter &f,
	const struct filter_places &places, struct filter_target &target)
{
	const int mass_bits = mass_bits_of(row);
	uint32_t n_far = 0;
	uint64_t far = 0;

	bins_clear(f);
	for_each_place(row, f, places, [&](float logit, uint32_t) {
		const uint32_t bin = linear_bin(row, logit);
		const uint64_t mass = MASS ? mass_of(row, logit, mass_bits) : 0;

		if (bin == FILTER_BINS - 1) {
			n_far++;
			far += mass;
		} else {
			bin_add(f, bin, 1, mass);
		}
	});
	if (n_far)
		bin_add(f, FILTER_BINS - 1, n_far, far);
	__syncthreads();
	find_boundary<MASS>(f, target, 0);
}

/* Step 2: the places of the bins from first to end, which fit. */
__device__ static void collect(const struct sample_row &row, struct block_filter &f,
	const struct filter_places &places, uint32_t first, uint32_t end)
{
	if (threadIdx.x == 0)
		f.n_list = 0;
	__syncthreads();
	for_each_place(row, f, places, [&](float logit, uint32_t id) {
		const uint32_t bin = linear_bin(row, logit);

		if (bin >= first && bin <= end)
			f.list[atomicAdd(&f.n_list, 1u)] = place_of(logit, id);
	});
	__syncthreads();
}

/* Step 3. */
template <bool MASS>
__device__ static uint64_t search(const struct sample_row &row, struct block_filter &f,
	const struct filter_places &places, struct filter_target &target, uint64_t base)
{
	const int mass_bits = mass_bits_of(row);
	uint64_t prefix = 0;
	uint32_t shift = 64;

	do {
		const uint32_t next = shift > FILTER_DIGIT ? shift - FILTER_DIGIT : 0;
		const uint32_t mask = (1u << (shift - next)) - 1;

		bins_clear(f);
		for_each_place(row, f, places, [&](float logit, uint32_t id) {
			const uint64_t place = place_of(logit, id);

			if (shift < 64 && place >> shift != prefix)
				return;
			bin_add(f, (uint32_t)(place >> next) & mask, 1,
				MASS ? mass_of(row, logit, mass_bits) : 0);
		});
		__syncthreads();
		find_boundary<MASS>(f, target, base);
		base = f.boundary_before;
		prefix = prefix << (shift - next) | (uint32_t)f.boundary;
		shift = next;
	} while (shift && f.boundary_count > 1);
	/* One place is left with this prefix; the thread that holds it knows its other bits. */
	for_each_place(row, f, places, [&](float logit, uint32_t id) {
		if (place_of(logit, id) >> shift == prefix)
			f.found = place_of(logit, id);
	});
	__syncthreads();
	return f.found;
}

/*
 * A lower bound of the k-th logit, k at most the number of threads: of the threads' greatest ones
 * the k-th. It spares the histogram nearly all of the row.
 */
__device__ static void narrow(const struct sample_row &row, struct block_filter &f,
	struct filter_places &places, uint32_t k)
{
	struct filter_target target = {k, 0};
	float greatest = -INFINITY;

	for_each_place(row, f, places, [&](float logit, uint32_t) {
		greatest = fmaxf(greatest, logit);
	});
	bins_clear(f);
	bin_add(f, linear_bin(row, greatest), 1, 0);
	__syncthreads();
	find_boundary<false>(f, target, 0);
	places.least = bin_floor(row, (uint32_t)f.boundary);
}

/* places.last := the last place kept; they become the list's if all that are kept fit. */
template <bool MASS>
__device__ static void keep(const struct sample_row &row, struct block_filter &f,
	struct filter_places &places, struct filter_target target)
{
	struct filter_places searched;
	uint64_t base = 0;
	uint32_t bin;

	if (places.listed) {
		places.last = search<MASS>(row, f, places, target, 0);
		return;
	}
	if (!MASS && target.limit <= SAMPLE_THREADS)
		narrow(row, f, places, (uint32_t)target.limit);
	find_linear<MASS>(row, f, places, target);
	bin = (uint32_t)f.boundary;
	places.least = bin_floor(row, bin);
	searched = places;
	if (f.boundary_end <= FILTER_LIST) {
		collect(row, f, places, 0, bin);
		places.listed = searched.listed = true;
	} else if (f.boundary_count <= FILTER_LIST) {
		base = f.boundary_before;
		collect(row, f, places, bin, bin);
		searched.listed = true;
	}
	places.last = search<MASS>(row, f, searched, target, base);
}

/* True if top-k or top-p removes any token. */
__device__ static inline bool is_filtered(
	const struct sample_row &row, const struct slot_sampling &s)
{
	return (s.top_k && s.top_k < row.vocab) || s.top_p < 1.0f;
}

/* What top-k (0: none) and top-p (1 or more: none) leave. */
__device__ static struct filter_places keep_places(
	const struct sample_row &row, struct block_filter &f, uint32_t top_k, float top_p)
{
	struct filter_places places = {false, -FLT_MAX, UINT64_MAX};

	if (top_k && top_k < row.vocab)
		keep<false>(row, f, places, {top_k, 0});
	if (top_p < 1.0f)
		keep<true>(row, f, places, {0, (double)top_p});
	return places;
}

/* The draw of a row with top-k or top-p; in warp 0. */
__device__ static struct choice draw_filtered(
	const struct sample_row &row, struct block_filter &f, uint32_t top_k, float top_p)
{
	const struct filter_places places = keep_places(row, f, top_k, top_p);
	struct thread_draw draw = draw_begin(row);

	for_each_place(
		row, f, places,
		[&](float logit, uint32_t id) { draw_consider(draw, row, logit, (int32_t)id); },
		[&] { draw_share(draw); });
	return block_best(draw.best);
}

#endif
