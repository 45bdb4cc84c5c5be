/* SPDX-License-Identifier: MIT */

/* How the kernels of wide.cuh and wide_packed.cuh divide a product among multiprocessors, and their launch. */

#include "kernels/cuda/wide.h"
#include "kernels/cuda/wide_packed.cuh"

struct wide_instance {
	void (*run)(wide_args);
	enum packed_kind kind; /* of W */
	bool gated;
	uint32_t n, units, stage_bytes, sum_bytes; /* units: of a stage, of packed weights */
};

#define KERNEL(N, GATED)                                                                           \
	{wide<N, GATED>, PACKED_NOT, GATED, N, 0, wide_shape<N>::stage_bytes, wide_shape<N>::sum_bytes}
/* Stages of one unit where two would leave room for only two stages. */
#define PACKED(KIND, N, UNITS, GATED)                                                              \
	{wide_packed<wide_packed_shape<KIND, N, UNITS>, GATED>, KIND, GATED, N, UNITS,             \
		wide_packed_shape<KIND, N, UNITS>::stage_bytes, wide_shape<N>::sum_bytes}
#define PACKED_KERNELS(KIND, UNITS_OF_64)                                                          \
	PACKED(KIND, 32, 2, false), PACKED(KIND, 64, UNITS_OF_64, false), PACKED(KIND, 32, 2, true), \
		PACKED(KIND, 64, UNITS_OF_64, true)

static const struct wide_instance kernels[] = {
	KERNEL(32, false), KERNEL(64, false), KERNEL(32, true), KERNEL(64, true),
	PACKED_KERNELS(PACKED_E4M3_ROWS, 1), PACKED_KERNELS(PACKED_E4M3_GROUPS, 1), PACKED_KERNELS(PACKED_U4, 2),
	PACKED_KERNELS(PACKED_U4_32, 2)};

enum { N_KERNELS = sizeof(kernels) / sizeof(kernels[0]) };

/* A variant's number is splits * 16 + height / 8. */
static uint32_t wide_splits_of(uint8_t variant)
{
	return variant / 16;
}

static uint32_t wide_height_of(uint8_t variant)
{
	return variant % 16 * 8;
}

/* Beyond its rows the largest, for several launches. */
static const struct wide_instance *wide_kernel_for(uint32_t n_rows, bool gated, enum packed_kind kind)
{
	n_rows = min(n_rows, WIDE_ROWS_MAX);
	for (uint32_t i = 0; i < N_KERNELS; i++)
		if (kernels[i].gated == gated && kernels[i].kind == kind && n_rows <= kernels[i].n)
			return &kernels[i];
	return NULL;
}

int wide_start(struct stream *stream)
{
	const void *all[N_KERNELS];
	int rc;

	if (!tiles_able(stream))
		return 0;
	for (uint32_t i = 0; i < N_KERNELS; i++)
		all[i] = (const void *)kernels[i].run;
	rc = cuda_launch_begin(stream, "wide gemm", all[0]);
	if (rc)
		return rc;
	return cuda_allow_shared(stream, "wide gemm's memory", all, N_KERNELS, BLOCK_BYTES);
}

/* Can this product be computed, for any number of rows? */
static bool wide_takes(struct stream *stream, const struct op_gemm *a, bool gated)
{
	if (!tiles_able(stream))
		return false;
	if (packed_is(a->w.dtype) && y_cols(a, gated) % PACKED_ROWS != 0)
		return false; /* ups begin within a unit */
	/* the copy engine needs rows of whole 16 bytes */
	if (a->w.cols % 8 != 0 || (gated && (a->w.rows % 2 != 0 || a->y_dtype != DTYPE_BF16)))
		return false;
	return aligned(a->x) && aligned(a->w.data);
}

bool wide_can(struct stream *stream, const struct op_gemm *a, bool gated)
{
	if (!packed_is(a->w.dtype) && (a->n_rows < WIDE_ROWS_MIN || a->n_rows > WIDE_ROWS_MAX))
		return false;
	return a->n_rows >= WIDE_PACKED_ROWS_MIN && wide_takes(stream, a, gated);
}

/* Columns of y for each row of a tile's height. */
static uint32_t wide_cols_of_height(bool gated)
{
	return gated ? 1 : 2;
}

/* The smallest height that needs no more waves than the largest; 0: this split is not useful. */
static uint32_t wide_height_for(
	struct stream *stream, const struct op_gemm *a, bool gated, uint32_t splits)
{
	const uint32_t n = y_cols(a, gated), cols = wide_cols_of_height(gated);
	const uint32_t at_once =
		cuda_clusters_at_once(stream,
			(const void *)wide_kernel_for(a->n_rows, gated, packed_kind_of(&a->w))->run, splits,
			THREADS, BLOCK_BYTES);
	uint32_t waves;

	if (at_once == 0 || (splits > 1 && a->w.cols < splits * 4 * COLS))
		return 0;
	waves = divided(divided(n, cols * GROUP_ROWS), at_once);
	if (splits > 1 && waves > 1)
		return 0;
	return divided(divided(n, cols * at_once * waves), 8) * 8;
}

int wide_variants(struct stream *stream, const struct op_gemm *a, bool gated, uint8_t *ret)
{
	static const uint8_t splits[] = {1, 2, 4, 3, 5, 6, 8};
	uint32_t heights[sizeof(splits)];
	int n = 0;

	if (!wide_can(stream, a, gated))
		return 0;
	for (uint32_t i = 0; i < sizeof(splits); i++)
		heights[i] = wide_height_for(stream, a, gated, splits[i]);
	/* first those that keep at least 3/4 of the multiprocessors busy */
	for (int busy = 1; busy >= 0; busy--)
		for (uint32_t i = 0; i < sizeof(splits); i++) {
			const uint32_t cols = heights[i] * wide_cols_of_height(gated);

			if (heights[i] == 0)
				continue;
			if ((divided(y_cols(a, gated), cols) * splits[i] * 4 >=
				    cuda_limits(stream)->n_sms * 3) == busy)
				ret[n++] = (uint8_t)(splits[i] * 16 + heights[i] / 8);
		}
	return n;
}

static int wide_launch_kernel(struct stream *stream, const struct wide_instance *kernel, const struct op_gemm *a,
	uint8_t variant)
{
	const uint32_t splits = wide_splits_of(variant), height = wide_height_of(variant);
	const bool gated = kernel->gated;
	const uint32_t n_sms = cuda_limits(stream)->n_sms;
	const uint32_t n_tiles =
		divided(y_cols(a, gated), height * wide_cols_of_height(gated));
	struct wide_args args = {};
	void *params[] = {&args};
	uint32_t n_stages;
	int rc;

	if (kernel->kind == PACKED_NOT)
		rc = cuda_tensor_map(stream, a->w.data, a->w.rows, a->w.cols, height, &args.w);
	else
		rc = cuda_tensor_map_packed(stream, &a->w, height, kernel->units, &args.w);
	if (rc)
		return rc;
	rc = cuda_tensor_map(stream, a->x, a->n_rows, a->w.cols, kernel->n, &args.x);
	if (rc)
		return rc;
	n_stages = (BLOCK_BYTES - 1024 - kernel->sum_bytes) / kernel->stage_bytes;
	args.factors = a->w.factors;
	args.bias = a->bias.data;
	args.y = a->y;
	args.n = y_cols(a, gated);
	args.k = a->w.cols;
	args.n_rows = a->n_rows;
	args.n_stages = n_stages < (uint32_t)STAGES_MAX ? n_stages : (uint32_t)STAGES_MAX;
	args.splits = splits;
	args.height = height;
	args.f32 = a->y_dtype == DTYPE_F32;
	args.add = a->add;
	args.packed = args.n % 4 == 0 && aligned(a->y);
	cuda_launch_clusters(stream, (const void *)kernel->run,
		splits > 1 || n_tiles < n_sms ? n_tiles * splits : n_sms, THREADS, splits,
		BLOCK_BYTES, params);
	return 0;
}

/* By as many launches as the rows need. */
static int wide_launch_all(struct stream *stream, const struct wide_instance *kernel, const struct op_gemm *args,
	uint8_t variant)
{
	const size_t y_bytes = y_cols(args, kernel->gated) * dtype_bytes(args->y_dtype);
	int rc = 0;

	for (uint32_t row = 0; !rc && row < args->n_rows; row += WIDE_ROWS_MAX) {
		struct op_gemm a = *args;

		a.x = (const uint8_t *)args->x + (size_t)row * args->w.cols * sizeof(uint16_t);
		a.y = (uint8_t *)args->y + row * y_bytes;
		a.n_rows = min(args->n_rows - row, WIDE_ROWS_MAX);
		rc = wide_launch_kernel(stream, kernel, &a, variant);
	}
	return rc;
}

int wide_launch(struct stream *stream, const struct op_gemm *a, bool gated, uint8_t variant)
{
	/* other operands of the class of gemm_plan.c may have a different alignment */
	if (!wide_can(stream, a, gated))
		return -ENOTSUP;
	return wide_launch_all(stream, wide_kernel_for(a->n_rows, gated, packed_kind_of(&a->w)), a, variant);
}

uint8_t wide_invariant_variant(struct stream *stream, const struct op_gemm *args, bool gated)
{
	uint8_t variants[WIDE_VARIANTS_MAX];
	struct op_gemm a = *args;

	a.n_rows = WIDE_ROWS_MAX;
	return wide_variants(stream, &a, gated, variants) ? variants[0] : 0;
}

int wide_launch_invariant(struct stream *stream, const struct op_gemm *args, bool gated, uint8_t variant)
{
	if (!wide_takes(stream, args, gated))
		return -ENOTSUP;
	return wide_launch_all(stream, wide_kernel_for(WIDE_ROWS_MAX, gated, packed_kind_of(&args->w)), args,
		variant);
}
