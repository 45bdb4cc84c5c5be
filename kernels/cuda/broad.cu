/* SPDX-License-Identifier: MIT */

/* How broad.cuh's kernel divides a product among multiprocessors, and its launch. */

#include <assert.h>

#include "kernels/cuda/broad.h"
#include "kernels/cuda/broad_end.cuh"

struct broad_instance {
	void (*run)(broad_args);
	bool gated;
	uint32_t n, sum_bytes;
};

#define KERNEL(N, GATED)                                                                           \
	{                                                                                          \
		broad<N, GATED>, GATED, N, broad_shape<N>::sum_bytes                               \
	}

static const struct broad_instance kernels[] = {KERNEL(64, false), KERNEL(96, false),
	KERNEL(128, false), KERNEL(192, false), KERNEL(256, false), KERNEL(64, true),
	KERNEL(96, true), KERNEL(128, true), KERNEL(192, true), KERNEL(256, true)};

enum { N_KERNELS = sizeof(kernels) / sizeof(kernels[0]) };
/* Rows of x: one tile holds so many; of one of several tiles, at least. */
enum { ONE_TILE_MAX = 256, SEVERAL_MIN = 128 };

#ifdef MIMEO_RACECHECK
enum { SHARERS_MAX = 1 }; /* it does not follow boxes that go to several blocks */
#else
enum { SHARERS_MAX = 2 };
#endif

/* How a product is divided. A variant's number has splits - 1 in bits 4 to 6, sharers - 1 in bit 3,
 * and height / 8 - 1 below. */
struct broad_division {
	uint32_t splits, sharers, height;
};

static uint8_t broad_variant_of(const struct broad_division *d)
{
	return (uint8_t)((d->splits - 1) << 4 | (d->sharers - 1) << 3 | (d->height / 8 - 1));
}

static struct broad_division broad_division_of(uint8_t variant)
{
	return {variant / 16u + 1, variant / 8u % 2 + 1, (variant % 8u + 1) * 8};
}

/* Columns of y of a tile. */
static uint32_t broad_tile_cols(uint32_t height, bool gated)
{
	return gated ? height : 2 * height;
}

/* Cost of many rows by tiles of `kernel`: rounds of all multiprocessors x (rows of a tile + 32, which is about what
 * fetching W costs). */
static uint64_t broad_cost(struct stream *stream, const struct op_gemm *a, const struct broad_instance *kernel)
{
	const uint64_t w_tiles = divided(y_cols(a, kernel->gated), broad_tile_cols(PIECE, kernel->gated));
	const uint64_t tiles = w_tiles * divided(a->n_rows, kernel->n), n_sms = cuda_limits(stream)->n_sms;

	return (tiles + n_sms - 1) / n_sms * (kernel->n + 32);
}

/* One tile holds all rows if it can. */
static const struct broad_instance *broad_kernel_for(struct stream *stream, const struct op_gemm *a, bool gated)
{
	const struct broad_instance *best = NULL;

	for (uint32_t i = 0; i < N_KERNELS; i++) {
		if (kernels[i].gated != gated)
			continue;
		if (a->n_rows <= kernels[i].n)
			return &kernels[i];
		if (kernels[i].n >= SEVERAL_MIN &&
			(!best || broad_cost(stream, a, &kernels[i]) <= broad_cost(stream, a, best)))
			best = &kernels[i];
	}
	return best;
}

int broad_start(struct stream *stream)
{
	const void *all[N_KERNELS];
	int rc;

	if (!tiles_able(stream))
		return 0;
	for (uint32_t i = 0; i < N_KERNELS; i++)
		all[i] = (const void *)kernels[i].run;
	rc = cuda_launch_begin(stream, "broad gemm", all[0]);
	if (rc)
		return rc;
	return cuda_allow_shared(stream, "broad gemm's memory", all, N_KERNELS, BLOCK_BYTES);
}

static bool broad_can(struct stream *stream, const struct op_gemm *a, bool gated)
{
	if (!tiles_able(stream) || a->n_rows < BROAD_ROWS_MIN)
		return false;
	if (a->w.dtype != DTYPE_BF16)
		return false;
	/* the copy engine needs rows of whole 16 bytes; gates and ups alternate by eights */
	if (a->w.cols % 8 != 0 || (gated && (a->w.rows % 16 != 0 || a->y_dtype != DTYPE_BF16)))
		return false;
	return aligned(a->x) && aligned(a->w.data);
}

/* The smallest height that needs no more waves than the largest; 0: this division is not useful. */
static uint32_t broad_height_for(struct stream *stream, const struct op_gemm *a, bool gated,
	uint32_t splits, uint32_t sharers)
{
	const struct broad_instance *kernel = broad_kernel_for(stream, a, gated);
	const uint32_t n = y_cols(a, gated), unit = gated ? 16 : 8, row_tiles = divided(a->n_rows, kernel->n);
	uint32_t at_once, waves;

	if (sharers > SHARERS_MAX || (splits > 1 && (row_tiles > 1 || a->w.cols < splits * 4 * COLS)))
		return 0;
	at_once = cuda_clusters_at_once(
		stream, (const void *)kernel->run, splits * sharers, THREADS, BLOCK_BYTES);
	/* broad_launch has blocks for all multiprocessors; they must run at once */
	if (at_once == 0 || (splits == 1 && at_once < cuda_limits(stream)->n_sms / sharers))
		return 0;
	at_once *= sharers; /* tiles */
	waves = divided(divided(n, broad_tile_cols(PIECE, gated)) * row_tiles, at_once);
	if (splits > 1 && waves > 1)
		return 0;
	return divided(divided(n, at_once * waves / row_tiles), broad_tile_cols(unit, gated)) * unit;
}

/* Does this division keep at least 2/3 of the multiprocessors busy? */
static bool broad_is_busy(
	struct stream *stream, const struct op_gemm *a, bool gated, const struct broad_division *d)
{
	const uint32_t tiles = divided(y_cols(a, gated), broad_tile_cols(d->height, gated)) *
			       divided(a->n_rows, broad_kernel_for(stream, a, gated)->n);

	return tiles * d->splits * 3 >= cuda_limits(stream)->n_sms * 2;
}

/* Few splits first: what they exchange grows with their number. Sharers first for many rows: they are as fast and take
 * less power, which limits long prompts. */
int broad_variants(struct stream *stream, const struct op_gemm *a, bool gated, uint8_t *ret)
{
	const bool many = a->n_rows > ONE_TILE_MAX;
	struct broad_division divisions[] = {{1, many ? 2u : 1u, 0}, {1, many ? 1u : 2u, 0}, {2, 1, 0}, {3, 1, 0}, {4, 1, 0},
		{5, 1, 0}, {6, 1, 0}};
	int n = 0;

	if (!broad_can(stream, a, gated))
		return 0;
	for (struct broad_division &d : divisions)
		d.height = broad_height_for(stream, a, gated, d.splits, d.sharers);
	for (int busy = 1; busy >= 0; busy--)
		for (const struct broad_division &d : divisions)
			if (d.height && broad_is_busy(stream, a, gated, &d) == busy &&
				n < BROAD_VARIANTS_MAX && (busy || n == 0))
				ret[n++] = broad_variant_of(&d);
	return n;
}

/* Of a gated product: W's rows as {columns, 8, gates or ups, n / 8}. */
static int broad_map_w(struct stream *stream, const struct op_gemm *a, bool gated,
	uint32_t tile_rows, struct cuda_tensor_map *ret)
{
	const uint64_t row = (uint64_t)a->w.cols * 2, n = a->w.rows / 2;
	const uint64_t dims[] = {a->w.cols, 8, 2, n / 8}, strides[] = {row, n * row, 8 * row};
	const uint32_t box[] = {COLS, 8, 2, tile_rows / 16};

	if (gated)
		return cuda_tensor_map_of(stream, a->w.data, 4, dims, strides, box, ret);
	return cuda_tensor_map(stream, a->w.data, a->w.rows, a->w.cols, tile_rows, ret);
}

static void broad_args_make(const struct op_gemm *a, const struct broad_instance *kernel,
	const struct broad_division *d, struct broad_args *ret)
{
	const uint32_t stage_bytes = (2 * d->height + kernel->n) * ROW_BYTES;
	const uint32_t n_stages = (BLOCK_BYTES - ALIGN - 2 * SLAB_BYTES) / stage_bytes;

	assert(n_stages * stage_bytes >= kernel->sum_bytes);
	ret->bias = a->bias.data;
	ret->y = a->y;
	ret->n = y_cols(a, kernel->gated);
	ret->k = a->w.cols;
	ret->n_rows = a->n_rows;
	ret->row_tiles = divided(a->n_rows, kernel->n);
	ret->height = d->height;
	ret->stage_bytes = stage_bytes;
	ret->n_stages = min(n_stages, (uint32_t)STAGES_MAX);
	ret->splits = d->splits;
	ret->sharers = d->sharers;
	ret->f32 = a->y_dtype == DTYPE_F32;
	ret->add = a->add;
	ret->packed = ret->n % PACK == 0 && aligned(a->y);
}

int broad_launch(struct stream *stream, const struct op_gemm *a, bool gated, uint8_t variant)
{
	const struct broad_division d = broad_division_of(variant);
	const uint32_t cluster = d.splits * d.sharers;
	const struct broad_instance *kernel;
	struct broad_args args = {};
	void *params[] = {&args};
	uint32_t n_clusters;
	int rc;

	/* other operands of the class of gemm_plan.c may have a different alignment */
	if (!broad_can(stream, a, gated) || d.sharers > SHARERS_MAX)
		return -ENOTSUP;
	kernel = broad_kernel_for(stream, a, gated);
	rc = broad_map_w(stream, a, gated, 2 * d.height, &args.w);
	if (rc)
		return rc;
	rc = cuda_tensor_map(stream, a->x, a->n_rows, a->w.cols, kernel->n / d.sharers, &args.x);
	if (rc)
		return rc;
	broad_args_make(a, kernel, &d, &args);
	n_clusters = divided(args.n, broad_tile_cols(d.height, gated) * d.sharers) * args.row_tiles;
	if (d.splits == 1)
		n_clusters = min(n_clusters, cuda_limits(stream)->n_sms / d.sharers);
	cuda_launch_clusters(stream, (const void *)kernel->run, n_clusters * cluster, THREADS,
		cluster, BLOCK_BYTES, params);
	return 0;
}
