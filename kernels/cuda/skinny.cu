/* SPDX-License-Identifier: MIT */

/* The variants of skinny.cuh's kernel: which can do a product, with how much shared memory. */

#include "kernels/cuda/skinny.h"
#include "kernels/cuda/skinny_packed.cuh"

struct skinny_variant {
	void (*kernel)(skinny_args);
	enum packed_kind kind; /* of W */
	bool gated;
	uint32_t m, r, kc, w_bytes, x_pad, sum_bytes;
};

template <class W> static constexpr skinny_variant skinny_variant_of(enum packed_kind kind)
{
	return {skinny<W>, kind, W::gated, W::m, W::r, W::kc, W::w_bytes, W::x_pad,
		skinny_shape<W::m, W::r, W::kc>::sum_bytes};
}

#define VARIANT(M, R, KC, GATED) skinny_variant_of<plain_rows<M, R, KC, GATED>>(PACKED_NOT)
#define PACKED(KIND, M, R, GATED) skinny_variant_of<packed_rows<KIND, M, R, GATED>>(KIND)
#define PACKED_VARIANTS(KIND)                                                                      \
	PACKED(KIND, 8, 8, false), PACKED(KIND, 8, 16, false), PACKED(KIND, 16, 8, false),         \
		PACKED(KIND, 16, 16, false), PACKED(KIND, 8, 16, true), PACKED(KIND, 16, 16, true)

static const struct skinny_variant variants[] = {
	VARIANT(8, 8, 1024, false), VARIANT(8, 16, 1024, false), VARIANT(8, 8, 2048, false),
	VARIANT(8, 16, 2048, false), VARIANT(16, 8, 1024, false), VARIANT(16, 16, 1024, false),
	VARIANT(32, 8, 1024, false), VARIANT(32, 16, 1024, false),

	VARIANT(8, 16, 1024, true), VARIANT(8, 16, 2048, true), VARIANT(16, 8, 1024, true),
	VARIANT(16, 16, 1024, true),

	PACKED_VARIANTS(PACKED_E4M3_ROWS), PACKED_VARIANTS(PACKED_E4M3_GROUPS), PACKED_VARIANTS(PACKED_U4),
	PACKED_VARIANTS(PACKED_U4_32),
};

enum { N_VARIANTS = sizeof(variants) / sizeof(variants[0]) };

/*
 * Shared memory of a block: at least BLOCK_BYTES, so that two blocks do not fit on one
 * multiprocessor but one fits beside a block of paged attention. Otherwise early blocks fill
 * multiprocessors unevenly, and the fullest one sets the time: 16 us of gate_up became 23.
 * WHOLE_BYTES where x and a ring need more, and for LARGE matrices: they are bound by the bandwidth of W,
 * prefetching matters little, and a deeper ring with x in shared memory streams faster.
 */
static const uint32_t BLOCK_BYTES = 233 * 512, WHOLE_BYTES = 224 * 1024;
static const uint32_t RING_WANTED = 48 * 1024;
static const uint64_t LARGE_BYTES = 64u << 20;
static const uint32_t COLS_MAX = 1u << 20; /* the bytes of SKINNY_ROWS_MAX rows fit 32 bits */

static uint32_t skinny_x_bytes_of(const struct skinny_variant *v, const struct op_gemm *a, uint32_t n_rows)
{
	return (n_rows * (a->w.cols * 2 + v->x_pad) + 127) / 128 * 128;
}

static uint32_t skinny_stage_bytes(const struct skinny_variant *v, uint32_t n_rows, bool x_stays)
{
	return v->w_bytes + (x_stays ? 0 : n_rows * (v->kc * 2 + v->x_pad));
}

/* Stages that fit in so many bytes. */
static uint32_t skinny_stages_in(const struct skinny_variant *v, const struct op_gemm *a,
	uint32_t n_rows, bool x_stays, uint32_t bytes)
{
	const uint32_t taken = v->sum_bytes + (x_stays ? skinny_x_bytes_of(v, a, n_rows) : 0);
	const uint32_t n = taken < bytes ? (bytes - taken) / skinny_stage_bytes(v, n_rows, x_stays) : 0;

	return n < (uint32_t)STAGES_MAX ? n : (uint32_t)STAGES_MAX;
}

static uint64_t skinny_w_bytes_of(const struct op_gemm *a)
{
	if (packed_is(a->w.dtype))
		return packed_bytes(a->w.rows, a->w.cols, a->w.dtype, !a->w.factors);
	return (uint64_t)a->w.rows * a->w.cols * 2;
}

struct skinny_plan {
	uint32_t n_stages, x_bytes, bytes;
	bool cramped; /* a small matrix that needs more than BLOCK_BYTES */
};

static bool skinny_plan_make(const struct skinny_variant *v, const struct op_gemm *a,
	uint32_t n_rows, struct skinny_plan *ret)
{
	const bool large = skinny_w_bytes_of(a) >= LARGE_BYTES;
	bool x_stays = true;
	uint32_t n = skinny_stages_in(v, a, n_rows, true, large ? WHOLE_BYTES : BLOCK_BYTES);

	if (n < 2 || n * v->w_bytes < RING_WANTED)
		n = skinny_stages_in(v, a, n_rows, true, WHOLE_BYTES);
	if (n < 2 && v->m <= 16 && (!v->gated || v->kind != PACKED_NOT)) {
		x_stays = false;
		n = skinny_stages_in(v, a, n_rows, false, WHOLE_BYTES);
	}
	if (n < 2)
		return false;
	ret->n_stages = n;
	ret->x_bytes = x_stays ? skinny_x_bytes_of(v, a, n_rows) : 0;
	ret->bytes = ret->x_bytes + v->sum_bytes + n * skinny_stage_bytes(v, n_rows, x_stays);
	if (ret->bytes < BLOCK_BYTES)
		ret->bytes = BLOCK_BYTES;
	ret->cramped = !large && ret->bytes > BLOCK_BYTES;
	return true;
}

const void *skinny_kernel(void)
{
	return (const void *)variants[0].kernel;
}

/* True if the device has the instructions and the shared memory of the variants. */
static bool skinny_able(struct stream *stream)
{
	const struct cuda_limits *limits = cuda_limits(stream);

	return limits->code_arch >= 90 && limits->shared_bytes_optin >= WHOLE_BYTES + 1024;
}

int skinny_start(struct stream *stream)
{
	const void *all[N_VARIANTS];

	if (!skinny_able(stream))
		return 0;
	for (uint32_t i = 0; i < N_VARIANTS; i++)
		all[i] = (const void *)variants[i].kernel;
	return cuda_allow_shared(stream, "skinny gemm's memory", all, N_VARIANTS, WHOLE_BYTES);
}

static bool skinny_can(struct stream *stream, const struct op_gemm *a, bool gated)
{
	if (!skinny_able(stream) || a->n_rows > SKINNY_ROWS_MAX)
		return false;
	/* beyond 16 rows cuBLASLt and a silu_mul are as fast */
	if (gated && (a->n_rows > 16 || a->w.rows % 16 != 0 || a->y_dtype != DTYPE_BF16))
		return false;
	if (a->w.cols % STEP != 0 || a->w.cols > COLS_MAX)
		return false;
	if (packed_is(a->w.dtype) && (a->n_rows > 16 || y_cols(a, gated) % PACKED_ROWS != 0))
		return false;
	return aligned(a->x) && aligned(a->w.data);
}

int skinny_variants(struct stream *stream, const struct op_gemm *a, bool gated, uint8_t *ret)
{
	const uint32_t m = a->n_rows <= 8 ? 8 : a->n_rows <= 16 ? 16 : 32;
	/* the largest number of rows of a class of gemm_plan.c decides for the class */
	const uint32_t n_rows = a->n_rows <= 16 ? a->n_rows : (a->n_rows + 7) / 8 * 8;
	bool cramped = true;
	struct skinny_plan plan;
	int n = 0;

	if (!skinny_can(stream, a, gated))
		return 0;
	for (uint32_t i = 0; i < N_VARIANTS && n < SKINNY_VARIANTS_MAX; i++) {
		if (variants[i].m != m || variants[i].gated != gated ||
			variants[i].kind != packed_kind_of(&a->w) || !skinny_plan_make(&variants[i], a, n_rows, &plan))
			continue;
		/* timing one kernel does not show the gain by free memory in a chain of launches */
		if (cramped && !plan.cramped)
			n = 0;
		if (cramped || !plan.cramped)
			ret[n++] = (uint8_t)i;
		cramped = cramped && plan.cramped;
	}
	return n;
}

/* Can a block do the norm of x? */
static bool skinny_can_norm(
	const struct skinny_variant *v, const struct op_gemm *a, const struct skinny_plan *plan, const struct weight *norm)
{
	return v->m == NORM_ROWS && plan->x_bytes && a->w.cols <= NORM_PACKS * WARPS * WARP * PACK &&
	       norm->dtype == DTYPE_BF16 && aligned(norm->data);
}

int skinny_launch(struct stream *stream, const struct op_gemm *a, uint8_t variant)
{
	return skinny_launch_normed(stream, a, NULL, 0, variant);
}

int skinny_launch_normed(
	struct stream *stream, const struct op_gemm *a, const struct weight *norm, float eps, uint8_t variant)
{
	const struct skinny_variant *v = &variants[variant];
	const uint32_t n_tiles = (a->w.rows + v->r - 1) / v->r, n_sms = cuda_limits(stream)->n_sms;
	struct skinny_args args = {};
	struct skinny_plan plan;

	/* other operands of the class of gemm_plan.c may have a different alignment */
	if (v->kind != packed_kind_of(&a->w) || !skinny_can(stream, a, v->gated) ||
		!skinny_plan_make(v, a, a->n_rows, &plan) || (norm && !skinny_can_norm(v, a, &plan, norm)))
		return -ENOTSUP;
	args.w = a->w.data;
	args.factors = a->w.factors;
	args.x = (const bf16 *)a->x;
	args.bias = a->bias.data;
	args.y = a->y;
	args.n = y_cols(a, v->gated);
	args.k = a->w.cols;
	args.n_rows = a->n_rows;
	args.n_stages = plan.n_stages;
	args.x_bytes = plan.x_bytes;
	args.f32 = a->y_dtype == DTYPE_F32;
	args.add = a->add;
	args.norm = norm ? (const bf16 *)norm->data : NULL;
	args.eps = eps;
	launch(stream, v->kernel, n_tiles < n_sms ? n_tiles : n_sms, THREADS, plan.bytes, args);
	return 0;
}
