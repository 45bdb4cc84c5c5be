/* SPDX-License-Identifier: MIT */

/*
 * A plan is the kernel chosen for a shape class: the matrix, the kind of output, the alignment of
 * the addresses, and the number of rows, exact up to 16 and in steps beyond. The first use of a
 * class times our kernels and cuBLASLt's best-ranked (its heuristic ranks without timing) on the
 * operands at hand (an addend excepted), with a cold L2, because a decode step returns to a matrix after all
 * others. The choice stays for the life of the device, so that equal shapes give equal bits. After lock and in
 * a capture nothing can be timed: the plan of a new class is then our first kernel, or the
 * heuristic's first. Invariant products are one class for all numbers of rows, and are not timed.
 */

#include "kernels/cuda/gemm.h"
#include "kernels/rows_class.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* A way whose first two timings are beyond this multiple of the best is not timed again. */
#define NEAR_BEST 1.5f
/* About how much of its start a launch of ours overlaps. (Timing each way between two norms, without
 * this constant, chose no better for 1B's layer on an H100.) */
#define OVERLAP_GAIN_MS 2e-3f
/* A loaded device runs at its power limit, where broad.cu takes more time for the products of many rows than cuBLASLt's
 * kernels that are as fast in a timing: on an H200, 7 to 11 % for 8B's gate_up of 512 to 1280 rows. */
#define POWER_ROWS_MIN 257u
#define POWER_FACTOR 1.08f
/* How much faster a candidate must be than one that is ranked higher. At the power limit a small lead in a timing may be
 * lost: 8B's down projection of 2048 rows on an H200: first in rank 675 TFLOP/s timed, 661 under load; another kernel
 * 687 and 590. */
#define SPREAD 0.02f
#define POWER_SPREAD 0.05f

/* ---- choosing by time ---- */

/* The timings of one choice. `out`: a way that refuses the product, or is slow, is not timed any more. */
struct gemm_trials {
	struct gemm_product product;
	struct op_gemm args;
	const struct gemm_way *ways;
	int n;
	int refusal; /* of the last way that refused */
	bool out[GEMM_WAYS];
	float ms[GEMM_WAYS][GEMM_ROUNDS];
};

static int gemm_plan_compare(const void *left, const void *right)
{
	float a = *(const float *)left, b = *(const float *)right;

	return (a > b) - (a < b);
}

/* Put one timed run of way i on the stream. */
static int gemm_plan_queue(struct gemm_trials *t, int i, int round)
{
	cudaStream_t stream = t->product.stream->handle;
	struct gemm *gemm = t->product.stream->device->gemm;
	struct device *base = &t->product.stream->device->base;
	int rc;

	if (gemm->flush != NULL) {
		rc = CUDA_TRY(base, cudaMemsetAsync(gemm->flush, 0, gemm->flush_bytes, stream));
		if (rc)
			return rc;
	}
	rc = CUDA_TRY(base, cudaEventRecord(gemm->marks[i][round].start, stream));
	if (rc)
		return rc;
	rc = gemm_product_run(&t->product, &t->ways[i]);
	if (rc)
		return rc;
	return CUDA_TRY(base, cudaEventRecord(gemm->marks[i][round].end, stream));
}

/* Queue the rounds of every way that takes part, then wait once: other processes on the device may make each wait
 * take milliseconds. */
static int gemm_plan_time(struct gemm_trials *t, int first, int last)
{
	struct cuda_device *device = t->product.stream->device;
	int rc;

	for (int i = 0; i < t->n; i++)
		for (int round = first; round < last && !t->out[i]; round++) {
			rc = gemm_plan_queue(t, i, round);
			if (device_is_lost(rc))
				return rc;
			if (rc) {
				t->out[i] = true;
				t->refusal = rc;
			}
		}
	rc = CUDA_TRY(&device->base, cudaStreamSynchronize(t->product.stream->handle));
	for (int i = 0; i < t->n && !rc; i++)
		for (int round = first; round < last && !rc && !t->out[i]; round++)
			rc = CUDA_TRY(&device->base,
				cudaEventElapsedTime(&t->ms[i][round], device->gemm->marks[i][round].start,
					device->gemm->marks[i][round].end));
	return rc;
}

/* Leave those in that were near the best once: another process' time slice may fall into a timing. */
static void gemm_plan_drop_slow(struct gemm_trials *t)
{
	float best_ms = INFINITY;

	for (int i = 0; i < t->n; i++)
		if (!t->out[i])
			best_ms = fminf(best_ms, fminf(t->ms[i][0], t->ms[i][1]));
	for (int i = 0; i < t->n; i++)
		t->out[i] |= fminf(t->ms[i][0], t->ms[i][1]) > best_ms * NEAR_BEST;
}

/* A kernel replaces a better-ranked one only if it is faster by more than the spread of the timings. One of
 * cuBLASLt must also be faster than ours by the gain of overlap, which timing a single kernel does not show. */
static int gemm_plan_best(struct gemm_trials *t)
{
	const float gain_ms = t->product.stream->device->overlap ? OVERLAP_GAIN_MS : 0;
	float best_ms = 0;
	int best = -1;

	for (int i = 0; i < t->n; i++) {
		if (t->out[i])
			continue;
		qsort(t->ms[i], GEMM_ROUNDS, sizeof(t->ms[i][0]), gemm_plan_compare);
		float ms = t->ms[i][GEMM_ROUNDS / 2];
		const float spread_ms = ms * (t->args.n_rows >= POWER_ROWS_MIN ? POWER_SPREAD : SPREAD);
		if (t->ways[i].kind != WAY_LIBRARY)
			ms -= gain_ms;
		if (t->ways[i].kind == WAY_BROAD && t->args.n_rows >= POWER_ROWS_MIN)
			ms *= POWER_FACTOR;
		if (best < 0 || ms + spread_ms < best_ms) {
			best = i;
			best_ms = ms;
		}
	}
	return best;
}

/* Each way runs once to load its kernel and twice for time; those near the best then run three times more. */
static int gemm_plan_choose(
	struct gemm_product *p, const struct gemm_way *candidates, int n, int *ret_best)
{
	struct gemm_trials trials = {.product = *p, .args = *p->args, .ways = candidates, .n = n};
	int rc;

	trials.product.args = &trials.args;
	if (trials.args.add)
		trials.args.y = p->stream->device->gemm->flush;
	rc = gemm_plan_time(&trials, 0, 1);
	if (rc)
		return rc;
	rc = gemm_plan_time(&trials, 0, 2);
	if (rc)
		return rc;
	gemm_plan_drop_slow(&trials);
	rc = gemm_plan_time(&trials, 2, GEMM_ROUNDS);
	if (rc)
		return rc;
	*ret_best = gemm_plan_best(&trials);
	return *ret_best < 0 ? trials.refusal : 0;
}

/* ---- plans ---- */

/* Classes are as fine as the default ladder up to ROWS_CLASS_WIDE rows. */
static uint32_t gemm_plan_rows_class(uint32_t rows)
{
	uint32_t step = 1;

	if (rows > ROWS_CLASS_WIDE)
		step = rows_class_step(rows);
	else if (rows > 256)
		step = 16;
	else if (rows > 16)
		step = 8;
	return rows > UINT32_MAX - step ? rows : (rows + step - 1) / step * step;
}

static uint8_t gemm_plan_alignment(const struct gemm_product *p)
{
	const struct op_gemm *a = p->args;
	uintptr_t bits = (uintptr_t)a->x | (uintptr_t)a->w.data | (uintptr_t)a->y |
			 (uintptr_t)a->bias.data | 16u;

	if (p->silu_mul)
		bits |= (uintptr_t)p->silu_mul->gate_up;
	return (uint8_t)(bits & -bits);
}

struct gemm_key gemm_key_of(const struct gemm_product *p)
{
	const struct op_gemm *a = p->args;

	return (struct gemm_key){
		.rows = a->invariant ? 0 : gemm_plan_rows_class(a->n_rows),
		.n = a->w.rows,
		.k = a->w.cols,
		.alignment = gemm_plan_alignment(p),
		.packed = (uint8_t)packed_kind_of(&a->w),
		.f32 = a->y_dtype == DTYPE_F32,
		.bias = a->bias.data != NULL,
		.gated = gemm_is_gated(p),
		.invariant = a->invariant,
		.add = a->add,
		.used = true,
	};
}

static struct gemm_plan *gemm_plan_find(struct gemm *gemm, const struct gemm_key *key)
{
	uint64_t hash =
		(((uint64_t)key->rows * 0x9e3779b97f4a7c15ULL) ^ key->n) * 0xbf58476d1ce4e5b9ULL;
	uint32_t place = (uint32_t)((hash ^ key->k) * 0x94d049bb133111ebULL >> 40);

	assert(gemm->n_plans < GEMM_PLANS_MAX); /* one entry stays free and ends the search */
	for (uint32_t i = 0;; i++) {
		struct gemm_plan *plan = &gemm->plans[(place + i) % GEMM_PLANS_MAX];

		assert(i < GEMM_PLANS_MAX);
		if (!plan->key.used ||
			(plan->key.rows == key->rows && plan->key.n == key->n &&
				plan->key.k == key->k && plan->key.alignment == key->alignment &&
				plan->key.packed == key->packed && plan->key.f32 == key->f32 && plan->key.bias == key->bias &&
				plan->key.gated == key->gated &&
				plan->key.invariant == key->invariant && plan->key.add == key->add))
			return plan;
	}
}

/* Are our ways candidates? Not untimed ones where cuBLASLt's are often faster. */
static bool gemm_plan_has_own(const struct gemm_product *p, bool timed)
{
	const enum cuda_gemm_choice choice = p->stream->device->gemm->choice;

	if (packed_is(p->args->w.dtype))
		return true;
	if (choice != CUDA_GEMM_ANY)
		return choice != CUDA_GEMM_LIBRARY;
	return timed || gemm_is_gated(p) || p->args->n_rows <= WIDE_ROWS_MAX;
}

/* Are cuBLASLt's ways candidates beside ours? For gated products only above WIDE_ROWS_MAX rows. */
static bool gemm_plan_has_library(const struct gemm_product *p, bool timed)
{
	if (p->stream->device->gemm->choice != CUDA_GEMM_ANY || packed_is(p->args->w.dtype))
		return false;
	if (gemm_is_gated(p))
		return timed && p->args->n_rows > WIDE_ROWS_MAX;
	return timed;
}

/* Our ways, then cuBLASLt's; without timing the first is chosen. */
static int gemm_plan_candidates(struct gemm_product *p, const struct gemm_key *key, bool timed,
	struct gemm_way ret[GEMM_WAYS], int *ret_n)
{
	const enum cuda_gemm_choice choice = p->stream->device->gemm->choice;
	int n = 0, n_library = 0, rc = 0;

	if (gemm_plan_has_own(p, timed))
		n = gemm_own_ways(p, ret);
	if (choice > CUDA_GEMM_OWN && n > 0) {
		ret[0] = ret[(int)(choice - CUDA_GEMM_OWN - 1) % n];
		n = 1;
	}
	if (n == 0 && packed_is(p->args->w.dtype))
		return -ENOTSUP;
	if (n == 0 || gemm_plan_has_library(p, timed))
		rc = gemm_library_ways(
			p, key->alignment, timed ? GEMM_LIBRARY_WAYS : 1, ret + n, &n_library);
	assert(n >= 0 && n + n_library <= GEMM_WAYS);
	*ret_n = n + n_library;
	return rc;
}

/* Trials must not add to y: theirs is the memory that is written to flush the L2, if it is large enough. */
static bool gemm_plan_may_time(const struct gemm_product *p)
{
	struct cuda_device *device = p->stream->device;
	const struct op_gemm *a = p->args;

	if (lock_is_set(&device->locked) || captures_any(&device->captures))
		return false;
	return !a->add || (device->gemm->flush &&
				  (uint64_t)a->n_rows * a->w.rows * sizeof(uint16_t) <= device->gemm->flush_bytes);
}

static int gemm_plan_make(struct gemm_product *p, const struct gemm_key *key, bool timed, struct gemm_way *ret)
{
	struct gemm_way candidates[GEMM_WAYS];
	int n, best = 0, rc;

	if (key->invariant)
		return gemm_invariant_way(p, ret);
	rc = gemm_plan_candidates(p, key, timed, candidates, &n);
	if (rc)
		return rc;
	assert(n > 0);
	if (timed)
		rc = gemm_plan_choose(p, candidates, n, &best);
	if (rc)
		return rc;
	assert(best < n);
	*ret = candidates[best];
	return 0;
}

/* True if there is a plan. */
static bool gemm_plan_look_up(struct gemm *gemm, const struct gemm_key *key, struct gemm_way *ret)
{
	const struct gemm_plan *plan = gemm_plan_find(gemm, key);

	if (plan->key.used)
		*ret = plan->way;
	return plan->key.used;
}

/* Another thread may have stored one meanwhile: that one stays, and is *way then. If the table is full, after thousands
 * of shapes, new plans are not stored. */
static void gemm_plan_store(struct gemm *gemm, const struct gemm_key *key, struct gemm_way *way)
{
	if (gemm_plan_look_up(gemm, key, way) || gemm->n_plans == GEMM_PLANS_MAX - 1)
		return;
	*gemm_plan_find(gemm, key) = (struct gemm_plan){.key = *key, .way = *way};
	gemm->n_plans++;
}

/* Timings use the device's marks and memory, and so the lock. Without timing it is not held meanwhile: cuBLASLt's
 * heuristic may take long, and the engine must not wait for a model that is being loaded. */
int gemm_plan_get(struct gemm_product *p, const struct gemm_key *key, struct gemm_way *ret)
{
	struct gemm *gemm = p->stream->device->gemm;
	const bool timed = gemm_plan_may_time(p);
	bool found;
	int rc = 0;

	pthread_mutex_lock(&gemm->lock);
	found = gemm_plan_look_up(gemm, key, ret);
	if (!found && timed) {
		rc = gemm_plan_make(p, key, true, ret);
		if (!rc)
			gemm_plan_store(gemm, key, ret);
	}
	pthread_mutex_unlock(&gemm->lock);
	if (found || timed)
		return rc;
	rc = gemm_plan_make(p, key, false, ret);
	if (rc)
		return rc;
	pthread_mutex_lock(&gemm->lock);
	gemm_plan_store(gemm, key, ret);
	pthread_mutex_unlock(&gemm->lock);
	return 0;
}
