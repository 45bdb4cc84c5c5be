/* SPDX-License-Identifier: MIT */

/*
 * GEMM: bf16 in, float32 sums, bf16 or float32 out, by kernels of our own for few rows (skinny.cu)
 * and some more (wide.cu), and by cuBLASLt, which takes 32 MiB of the stream's scratch.
 *
 * There are dozens of kernels for one product, and cuBLASLt's heuristic ranks its own unseen. A PLAN
 * is the WAY chosen for a shape class: the matrix, the kind of output, what the addresses are
 * aligned to, and the number of rows, exact up to 16 and in steps beyond. The first use of a class
 * times ours and cuBLASLt's best-ranked on the operands at hand, with a cold L2 since a decode step
 * comes back to a matrix after all others; what it chose stays for the life of the device, so that
 * equal shapes give equal bits. After lock and in a capture nothing may be timed: there the plan of
 * a new class is the first of ours, or the heuristic's first. Split sums are added in float32, in a
 * fixed order.
 *
 * Row-major y = x W^T is column-major y^T = W x^T, with W's memory read as its transpose.
 */

#include "kernels/cuda/internal.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/skinny.h"
#include "kernels/cuda/wide.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdlib.h>

#define WORKSPACE_BYTES ((size_t)32 << 20)
#define PLANS_MAX 4096u /* a power of two */
#define LT_CANDIDATES 12
#define OWN_MAX (SKINNY_VARIANTS_MAX + WIDE_VARIANTS_MAX)
#define CANDIDATES (LT_CANDIDATES + OWN_MAX)
#define ROUNDS 5
#define OVERLAP_GAIN_MS 2e-3f   /* what a launch of ours hides of its start, about */
#define FLUSH_L2S 2 /* L2s of memory written between two timings */

struct plan_key {
	uint32_t rows, n, k;
	uint8_t alignment; /* bytes, of all operands: 2 ... 16 */
	bool f32, bias, gated;
	bool used;
};

/* A way to do a product: one of ours, or cuBLASLt's. */
struct way {
	enum { WAY_LIBRARY, WAY_SKINNY, WAY_WIDE } kind;
	uint8_t variant;
	cublasLtMatmulAlgo_t algo;
};

struct plan {
	struct plan_key key;
	struct way way;
};

struct gemm {
	cublasLtHandle_t handle;
	pthread_mutex_t lock; /* of what follows */
	cudaEvent_t start, end;
	enum cuda_gemm_choice choice;
	void *flush;
	size_t flush_bytes;
	uint32_t n_plans;
	struct plan plans[PLANS_MAX];
};

/* One product as cuBLASLt takes it; nothing of it is on the heap. */
struct product {
	cublasLtMatmulDescOpaque_t desc;
	cublasLtMatrixLayoutOpaque_t w, x, y;
	const struct op_gemm *args;
	bool gated; /* ours alone: cuBLASLt has no such product */
	struct stream *stream;
	void *workspace;
};

static int lt_condition(struct cuda_device *device, cublasStatus_t status)
{
	int rc;

	switch (status) {
	case CUBLAS_STATUS_SUCCESS:
		return 0;
	case CUBLAS_STATUS_ALLOC_FAILED:
		return DEVICE_E_MEMORY;
	case CUBLAS_STATUS_INVALID_VALUE:
		return DEVICE_E_INVALID;
	case CUBLAS_STATUS_NOT_SUPPORTED:
	case CUBLAS_STATUS_ARCH_MISMATCH:
		return -ENOTSUP;
	default:
		rc = CUDA_TRY(&device->base, cudaGetLastError());
		return rc != 0 ? rc : -EIO;
	}
}

/* ---- the product ---- */

static int product_init(struct cuda_device *device, struct product *p)
{
	const struct op_gemm *a = p->args;
	const cublasOperation_t transposed = CUBLAS_OP_T;
	const cublasLtEpilogue_t epilogue =
		a->bias.data != NULL ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
	const cudaDataType_t y_type = a->y_dtype == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
	const uint64_t n = a->w.rows, k = a->w.cols;
	cublasStatus_t s = cublasLtMatmulDescInit(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulDescSetAttribute(
			&p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulDescSetAttribute(
			&p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
	if (s == CUBLAS_STATUS_SUCCESS && a->bias.data != NULL)
		s = cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
			&a->bias.data, sizeof(a->bias.data));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&p->w, CUDA_R_16BF, k, n, (int64_t)k);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&p->x, CUDA_R_16BF, k, a->n_rows, (int64_t)k);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&p->y, y_type, n, a->n_rows, (int64_t)n);
	return lt_condition(device, s);
}

static int own_launch(const struct product *p, const struct way *way)
{
#ifdef MIMEO_CUDA_SM90A
	if (way->kind == WAY_WIDE)
		return wide_launch(p->stream, p->args, p->gated, way->variant);
#endif
	return skinny_launch(p->stream, p->args, way->variant);
}

/* Our ways to do a product, the likeliest first. */
static int own_ways(
	struct stream *stream, const struct op_gemm *a, bool gated, struct way ret[OWN_MAX])
{
	uint8_t variants[OWN_MAX];
	int n = skinny_variants(stream, a, gated, variants), n_wide = 0;

	for (int i = 0; i < n; i++)
		ret[i] = (struct way){.kind = WAY_SKINNY, .variant = variants[i]};
#ifdef MIMEO_CUDA_SM90A
	n_wide = wide_variants(stream, a, gated, variants);
#endif
	for (int i = 0; i < n_wide; i++)
		ret[n + i] = (struct way){.kind = WAY_WIDE, .variant = variants[i]};
	return n + n_wide;
}

static int product_run(struct cuda_device *device, struct product *p, const struct way *way)
{
	static const float one = 1.0f, zero = 0.0f;
	const struct op_gemm *a = p->args;

	if (way->kind != WAY_LIBRARY) {
		int rc = own_launch(p, way);

		/* taken, so that another way may be tried */
		return rc != 0 ? rc : cuda_condition(cudaGetLastError());
	}
	return lt_condition(device,
		cublasLtMatmul(device->gemm->handle, &p->desc, &one, a->w.data, &p->w, a->x, &p->x,
			&zero, a->y, &p->y, a->y, &p->y, &way->algo, p->workspace, WORKSPACE_BYTES,
			p->stream->handle));
}

/* The heuristic's ranking; *ret_n at least 1. */
static int lt_candidates(struct cuda_device *device, struct product *p, uint32_t alignment,
	int max, cublasLtMatmulHeuristicResult_t *ret, int *ret_n)
{
	static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	};
	const uint32_t reductions =
		CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	const size_t workspace = WORKSPACE_BYTES;
	cublasLtMatmulPreferenceOpaque_t preference;
	cublasStatus_t s = cublasLtMatmulPreferenceInit(&preference);
	int n = 0;

	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulPreferenceSetAttribute(&preference,
			CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulPreferenceSetAttribute(&preference,
			CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
			sizeof(reductions));
	for (size_t i = 0; s == CUBLAS_STATUS_SUCCESS && i < sizeof(aligned) / sizeof(*aligned);
		i++)
		s = cublasLtMatmulPreferenceSetAttribute(
			&preference, aligned[i], &alignment, sizeof(alignment));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulAlgoGetHeuristic(device->gemm->handle, &p->desc, &p->w, &p->x,
			&p->y, &p->y, &preference, max, ret, &n);
	if (s == CUBLAS_STATUS_SUCCESS && n == 0)
		s = CUBLAS_STATUS_NOT_SUPPORTED;
	*ret_n = n;
	return lt_condition(device, s);
}

/* ---- choosing by time ---- */

static int compare_floats(const void *left, const void *right)
{
	float a = *(const float *)left, b = *(const float *)right;

	return (a > b) - (a < b);
}

static int time_once(
	struct cuda_device *device, struct product *p, const struct way *way, float *ret_ms)
{
	cudaStream_t stream = p->stream->handle;
	struct gemm *gemm = device->gemm;
	struct device *base = &device->base;
	int rc = 0;

	if (gemm->flush != NULL)
		rc = CUDA_TRY(base, cudaMemsetAsync(gemm->flush, 0, gemm->flush_bytes, stream));
	if (rc == 0)
		rc = CUDA_TRY(base, cudaEventRecord(gemm->start, stream));
	if (rc == 0)
		rc = product_run(device, p, way);
	if (rc == 0)
		rc = CUDA_TRY(base, cudaEventRecord(gemm->end, stream));
	if (rc == 0)
		rc = CUDA_TRY(base, cudaEventSynchronize(gemm->end));
	if (rc == 0)
		rc = CUDA_TRY(base, cudaEventElapsedTime(ret_ms, gemm->start, gemm->end));
	return rc;
}

/* The median; the first run, which loads the kernel, does not count. */
static int time_way(
	struct cuda_device *device, struct product *p, const struct way *way, float *ret_ms)
{
	float ms[ROUNDS], first;
	int rc = time_once(device, p, way, &first);

	for (int i = 0; rc == 0 && i < ROUNDS; i++)
		rc = time_once(device, p, way, &ms[i]);
	if (rc != 0)
		return rc;
	qsort(ms, ROUNDS, sizeof(*ms), compare_floats);
	*ret_ms = ms[ROUNDS / 2];
	return 0;
}

/* What is not faster by more than the spread does not displace a better-ranked one, nor does
 * cuBLASLt displace us for what our overlap is worth, which a kernel alone does not show. */
static int choose(struct cuda_device *device, struct product *p, const struct way *candidates, int n,
	int *ret_best)
{
	const float gain_ms = device->overlap ? OVERLAP_GAIN_MS : 0;
	float best_ms = 0, ms;
	int best = -1, rc = 0;

	for (int i = 0; i < n; i++) {
		rc = time_way(device, p, &candidates[i], &ms);
		if (device_is_lost(rc))
			return rc;
		if (rc != 0)
			continue;
		const float spread_ms = ms * 0.02f;
		if (candidates[i].kind != WAY_LIBRARY)
			ms -= gain_ms;
		if (best < 0 || ms + spread_ms < best_ms) {
			best = i;
			best_ms = ms;
		}
	}
	if (best < 0)
		return rc;
	*ret_best = best;
	return 0;
}

/* ---- plans ---- */

/* The classes are at least as fine as the sizes that graphs are captured for. */
static uint32_t rows_class(uint32_t rows)
{
	uint32_t step = 1;

	if (rows > 512)
		step = (0x80000000u >> __builtin_clz(rows)) / 4;
	else if (rows > 256)
		step = 16;
	else if (rows > 16)
		step = 8;
	return rows > UINT32_MAX - step ? rows : (rows + step - 1) / step * step;
}

static uint8_t alignment_of(const struct op_gemm *a)
{
	uintptr_t bits = (uintptr_t)a->x | (uintptr_t)a->w.data | (uintptr_t)a->y |
			 (uintptr_t)a->bias.data | 16u;

	return (uint8_t)(bits & -bits);
}

static struct plan *plan_find(struct gemm *gemm, const struct plan_key *key)
{
	uint64_t hash =
		(((uint64_t)key->rows * 0x9e3779b97f4a7c15ULL) ^ key->n) * 0xbf58476d1ce4e5b9ULL;
	uint32_t place = (uint32_t)((hash ^ key->k) * 0x94d049bb133111ebULL >> 40);

	for (;; place++) {
		struct plan *plan = &gemm->plans[place % PLANS_MAX];

		if (!plan->key.used ||
			(plan->key.rows == key->rows && plan->key.n == key->n &&
				plan->key.k == key->k && plan->key.alignment == key->alignment &&
				plan->key.f32 == key->f32 && plan->key.bias == key->bias &&
				plan->key.gated == key->gated))
			return plan;
	}
}

/* Ours, then cuBLASLt's; without timing the first of them is taken. */
static int candidates_find(struct cuda_device *device, struct product *p,
	const struct plan_key *key, bool timed, struct way *ret, int *ret_n)
{
	cublasLtMatmulHeuristicResult_t lt[LT_CANDIDATES];
	int n = 0, n_lt = 0, rc = 0;

	if (device->gemm->choice != CUDA_GEMM_LIBRARY)
		n = own_ways(p->stream, p->args, p->gated, ret);
	if (device->gemm->choice > CUDA_GEMM_OWN && n > 0) {
		ret[0] = ret[(int)(device->gemm->choice - CUDA_GEMM_OWN - 1) % n];
		n = 1;
	}
	if (!p->gated && (n == 0 || (timed && device->gemm->choice == CUDA_GEMM_ANY)))
		rc = lt_candidates(device, p, key->alignment, timed ? LT_CANDIDATES : 1, lt, &n_lt);
	for (int i = 0; rc == 0 && i < n_lt; i++)
		ret[n + i] = (struct way){.algo = lt[i].algo};
	*ret_n = n + n_lt;
	return rc;
}

static int plan_make(struct cuda_device *device, struct product *p, const struct plan_key *key,
	struct way *ret)
{
	const bool timed = !atomic_load_explicit(&device->locked, memory_order_acquire) &&
			   atomic_load(&device->n_captures) == 0;
	struct way candidates[CANDIDATES];
	int n, best = 0, rc = candidates_find(device, p, key, timed, candidates, &n);

	if (rc == 0 && timed)
		rc = choose(device, p, candidates, n, &best);
	if (rc == 0)
		*ret = candidates[best];
	return rc;
}

/* The class's way. A full table, which takes thousands of shapes, keeps no more. */
static int plan_get(struct cuda_device *device, struct product *p, const struct plan_key *key,
	struct way *ret)
{
	struct gemm *gemm = device->gemm;
	struct plan *plan;
	int rc = 0;

	pthread_mutex_lock(&gemm->lock);
	plan = plan_find(gemm, key);
	if (plan->key.used) {
		*ret = plan->way;
	} else {
		rc = plan_make(device, p, key, ret);
		if (rc == 0 && gemm->n_plans < PLANS_MAX - 1) {
			plan->key = *key;
			plan->way = *ret;
			gemm->n_plans++;
		}
	}
	pthread_mutex_unlock(&gemm->lock);
	return rc;
}

/* ---- the device's part ---- */

static int gemm_start(struct cuda_device *device)
{
	struct device *base = &device->base;
	struct gemm *gemm = calloc(1, sizeof(*gemm));
	int rc;

	if (gemm == NULL)
		return -ENOMEM;
	rc = lt_condition(device, cublasLtCreate(&gemm->handle));
	if (rc == 0)
		rc = CUDA_TRY(base, cudaEventCreate(&gemm->start));
	if (rc == 0)
		rc = CUDA_TRY(base, cudaEventCreate(&gemm->end));
	pthread_mutex_init(&gemm->lock, NULL);
	gemm->choice = device->gemm_choice;
	device->gemm = gemm;
	if (rc != 0) {
		cuda_gemm_free(device);
		return rc;
	}
	gemm->flush_bytes = (size_t)device->limits.l2_bytes * FLUSH_L2S;
	/* without it timings are of a warm L2, which is no reason to fail */
	if (CUDA_TRY(base, cudaMalloc(&gemm->flush, gemm->flush_bytes)) != 0)
		gemm->flush = NULL;
	return cuda_lost(device);
}

/* The first gated_gemm of many rows may come after lock, which is too late for a first use. */
static int load_silu_mul(struct stream *stream)
{
	void *const unused = stream;
	const struct op_silu_mul none = {.gate_up = unused, .out = unused, .cols = 8};

	return cuda_silu_mul(stream, &none);
}

/* Once for the device, before lock: cuda_launch_begin has seen to it. */
static int gemm_ready(struct stream *stream)
{
	struct cuda_device *device = stream->device;
	static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
	int rc = 0;

	pthread_mutex_lock(&starting);
	if (device->gemm == NULL)
		rc = cuda_enter_growth(device);
	if (rc == 0 && device->gemm == NULL)
		rc = skinny_start(stream);
#ifdef MIMEO_CUDA_SM90A
	if (rc == 0 && device->gemm == NULL)
		rc = wide_start(stream);
#endif
	if (rc == 0 && device->gemm == NULL)
		rc = load_silu_mul(stream);
	if (rc == 0 && device->gemm == NULL)
		rc = gemm_start(device);
	pthread_mutex_unlock(&starting);
	return rc;
}

void cuda_gemm_choose(struct device *device, enum cuda_gemm_choice choice)
{
	cuda_device(device)->gemm_choice = choice;
}

void cuda_gemm_lock(struct cuda_device *device)
{
	struct gemm *gemm = device->gemm;

	if (gemm == NULL)
		return;
	pthread_mutex_lock(&gemm->lock);
	if (gemm->flush != NULL)
		CUDA_TRY(&device->base, cudaFree(gemm->flush));
	gemm->flush = NULL;
	pthread_mutex_unlock(&gemm->lock);
}

void cuda_gemm_free(struct cuda_device *device)
{
	struct gemm *gemm = device->gemm;

	if (gemm == NULL)
		return;
	device->gemm = NULL;
	if (gemm->flush != NULL)
		cudaFree(gemm->flush);
	if (gemm->end != NULL)
		cudaEventDestroy(gemm->end);
	if (gemm->start != NULL)
		cudaEventDestroy(gemm->start);
	if (gemm->handle != NULL)
		cublasLtDestroy(gemm->handle);
	pthread_mutex_destroy(&gemm->lock);
	free(gemm);
}

/* ---- launcher ---- */

static int check(const struct op_gemm *a)
{
	if (!a->x || !a->y || !a->w.data || !a->w.rows || !a->w.cols)
		return -EINVAL;
	if (a->w.rows > INT32_MAX || a->w.cols > INT32_MAX || a->n_rows > INT32_MAX)
		return -EINVAL;
	if (a->y_dtype != DTYPE_BF16 && a->y_dtype != DTYPE_F32)
		return -EINVAL;
	if (a->bias.data && (a->bias.rows != 1 || a->bias.cols != a->w.rows))
		return -EINVAL;
	/* cuBLASLt adds a bias of the output's type */
	if (a->w.dtype != DTYPE_BF16 || (a->bias.data && a->bias.dtype != a->y_dtype))
		return -ENOTSUP;
	return 0;
}

static int run(struct cuda_device *device, struct product *p)
{
	const struct op_gemm *a = p->args;
	const struct plan_key key = {
		.rows = rows_class(a->n_rows),
		.n = a->w.rows,
		.k = a->w.cols,
		.alignment = alignment_of(a),
		.f32 = a->y_dtype == DTYPE_F32,
		.bias = a->bias.data != NULL,
		.gated = p->gated,
		.used = true,
	};
	cublasLtMatmulHeuristicResult_t fallback;
	struct way way;
	int n, rc = product_init(device, p);

	if (rc == 0)
		rc = plan_get(device, p, &key, &way);
	if (rc == 0)
		rc = product_run(device, p, &way);
	if (p->gated || (rc != -ENOTSUP && rc != DEVICE_E_INVALID))
		return rc;
	/* a kernel need not stand every number of rows of its class */
	rc = lt_candidates(device, p, key.alignment, 1, &fallback, &n);
	way = (struct way){.algo = fallback.algo};
	return rc != 0 ? rc : product_run(device, p, &way);
}

static int begin(struct stream *stream, const struct op_gemm *a, void **ret_workspace)
{
	int rc = check(a);

	if (rc == 0)
		rc = cuda_launch_begin(stream, "gemm", skinny_kernel());
	if (rc == 0)
		rc = gemm_ready(stream);
	return rc != 0 ? rc : cuda_workspace(stream, WORKSPACE_BYTES, ret_workspace);
}

static int queue(struct product *product)
{
	struct stream *stream = product->stream;
	int rc = 0;

	if (product->args->n_rows != 0)
		rc = run(stream->device, product);
	if (rc != 0 && stream_capturing(stream))
		stream_spoil(stream);
	return rc != 0 ? rc : cuda_launch_end(stream, "gemm");
}

int cuda_gemm(struct stream *stream, const struct op_gemm *a)
{
	struct product product = {.args = a, .stream = stream};
	int rc = begin(stream, a, &product.workspace);

	return rc != 0 ? rc : queue(&product);
}

static bool gated_in_one(struct stream *stream, const struct op_gemm *a)
{
	uint8_t skinny[SKINNY_VARIANTS_MAX];

#ifdef MIMEO_CUDA_SM90A
	if (wide_can(stream, a, true))
		return true;
#endif
	return skinny_variants(stream, a, true, skinny) > 0;
}

/* By our kernels as one launch; what they don't take, as two. */
int cuda_gated_gemm(struct stream *stream, const struct op_gated_gemm *a)
{
	struct op_gemm gemm = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->y,
		.y_dtype = DTYPE_BF16, .n_rows = a->n_rows};
	const struct op_silu_mul silu_mul = {.gate_up = a->gate_up, .out = a->y,
		.n_rows = a->n_rows, .cols = a->w.rows / 2};
	struct product product = {.args = &gemm, .gated = true, .stream = stream};
	int rc;

	if (!a->gate_up || !a->y || a->w.rows % 2 != 0)
		return -EINVAL;
	rc = begin(stream, &gemm, &product.workspace);
	if (rc != 0)
		return rc;
	if (stream->device->gemm->choice != CUDA_GEMM_LIBRARY &&
		gated_in_one(stream, &gemm))
		return queue(&product);
	gemm.y = a->gate_up;
	product.gated = false;
	rc = queue(&product);
	return rc != 0 ? rc : cuda_silu_mul(stream, &silu_mul);
}
