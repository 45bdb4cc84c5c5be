/* SPDX-License-Identifier: MIT */

/*
 * One product, and the kernels that can do it. cuBLASLt adds split sums in float32, in a fixed
 * order. Row-major y = x W^T is column-major y^T = W x^T, with W's memory read as its transpose.
 */

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launchers.h"

#include <assert.h>
#include <errno.h>

int gemm_condition(struct cuda_device *device, cublasStatus_t status)
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
		return rc ? rc : -EIO;
	}
}

static cublasStatus_t gemm_product_describe(struct gemm_product *p)
{
	const struct op_gemm *a = p->args;
	const cublasOperation_t transposed = CUBLAS_OP_T;
	const cublasLtEpilogue_t epilogue =
		a->bias.data != NULL ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
	const cudaDataType_t y_type = a->y_dtype == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
	const uint64_t n = a->w.rows, k = a->w.cols;
	const struct {
		cublasLtMatmulDescAttributes_t name;
		const void *value;
		size_t bytes;
	} attributes[] = {
		{CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)},
		{CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)},
		{CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias.data, sizeof(a->bias.data)},
	};
	cublasStatus_t status = cublasLtMatmulDescInit(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	for (int i = 0; i < (a->bias.data != NULL ? 3 : 2); i++) {
		status = cublasLtMatmulDescSetAttribute(
			&p->desc, attributes[i].name, attributes[i].value, attributes[i].bytes);
		if (status != CUBLAS_STATUS_SUCCESS)
			return status;
	}
	status = cublasLtMatrixLayoutInit(&p->w, CUDA_R_16BF, k, n, (int64_t)k);
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	status = cublasLtMatrixLayoutInit(&p->x, CUDA_R_16BF, k, a->n_rows, (int64_t)k);
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	return cublasLtMatrixLayoutInit(&p->y, y_type, n, a->n_rows, (int64_t)n);
}

int gemm_product_init(struct gemm_product *p)
{
	return gemm_condition(p->stream->device, gemm_product_describe(p));
}

static int gemm_product_launch_own(const struct gemm_product *p, const struct gemm_way *way)
{
#ifdef MIMEO_CUDA_SM90A
	if (way->kind == WAY_WIDE)
		return wide_launch(p->stream, p->args, gemm_is_gated(p), way->variant);
	if (way->kind == WAY_BROAD)
		return broad_launch(p->stream, p->args, gemm_is_gated(p), way->variant);
	if (way->kind == WAY_INVARIANT)
		return wide_launch_invariant(p->stream, p->args, gemm_is_gated(p), way->variant);
#endif
	return skinny_launch(p->stream, p->args, way->variant);
}

int gemm_invariant_way(const struct gemm_product *p, struct gemm_way *ret)
{
	uint8_t variant = 0;

#ifdef MIMEO_CUDA_SM90A
	variant = wide_invariant_variant(p->stream, p->args, gemm_is_gated(p));
#endif
	*ret = (struct gemm_way){.kind = WAY_INVARIANT, .variant = variant};
	return variant ? 0 : -ENOTSUP;
}

static int gemm_add_ways(
	struct gemm_way *ret, int kind, const uint8_t *variants, int n_variants, int n_max)
{
	assert(n_variants >= 0 && n_variants <= n_max);
	for (int i = 0; i < n_variants; i++)
		ret[i] = (struct gemm_way){.kind = kind, .variant = variants[i]};
	return n_variants;
}

int gemm_own_ways(const struct gemm_product *p, struct gemm_way ret[GEMM_OWN_WAYS])
{
	const bool gated = gemm_is_gated(p);
	uint8_t variants[GEMM_OWN_WAYS];
	int n = skinny_variants(p->stream, p->args, gated, variants);

	n = gemm_add_ways(ret, WAY_SKINNY, variants, n, SKINNY_VARIANTS_MAX);
#ifdef MIMEO_CUDA_SM90A
	int n_wide = wide_variants(p->stream, p->args, gated, variants);

	n += gemm_add_ways(ret + n, WAY_WIDE, variants, n_wide, WIDE_VARIANTS_MAX);
	int n_broad = broad_variants(p->stream, p->args, gated, variants);

	n += gemm_add_ways(ret + n, WAY_BROAD, variants, n_broad, BROAD_VARIANTS_MAX);
#endif
	return n;
}

static int gemm_product_run_library(struct gemm_product *p, const struct gemm_way *way)
{
	static const float one = 1.0f, zero = 0.0f;
	struct cuda_device *device = p->stream->device;
	const struct op_gemm *a = p->args;
	void *y = p->silu_mul ? (void *)(uintptr_t)p->silu_mul->gate_up : a->y;
	int rc = cuda_runs_dry(p->stream) ? 0 : gemm_condition(device,
		cublasLtMatmul(device->gemm->handle, &p->desc, &one, a->w.data, &p->w, a->x, &p->x,
			a->add ? &one : &zero, y, &p->y, y, &p->y, &way->algo, p->workspace, GEMM_WORKSPACE_BYTES,
			p->stream->handle));

	if (rc || !p->silu_mul)
		return rc;
	rc = cuda_launch_end(p->stream, "gemm");
	return rc ? rc : cuda_silu_mul(p->stream, p->silu_mul);
}

int gemm_product_run(struct gemm_product *p, const struct gemm_way *way)
{
	int rc;

	if (way->kind == WAY_LIBRARY)
		return gemm_product_run_library(p, way);
	rc = gemm_product_launch_own(p, way);
	/* clears the error, so that another way may be tried */
	return rc ? rc : cuda_condition(cudaGetLastError());
}

static cublasStatus_t gemm_product_rank(struct gemm_product *p, uint32_t alignment, int max,
	cublasLtMatmulHeuristicResult_t *ret, int *ret_n)
{
	const uint32_t reductions =
		CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	const size_t workspace = GEMM_WORKSPACE_BYTES;
	const struct {
		cublasLtMatmulPreferenceAttributes_t name;
		const void *value;
		size_t bytes;
	} attributes[] = {
		{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
		{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions)},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof(alignment)},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof(alignment)},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof(alignment)},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof(alignment)},
	};
	cublasLtMatmulPreferenceOpaque_t preference;
	cublasStatus_t status = cublasLtMatmulPreferenceInit(&preference);

	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++) {
		status = cublasLtMatmulPreferenceSetAttribute(&preference, attributes[i].name,
			attributes[i].value, attributes[i].bytes);
		if (status != CUBLAS_STATUS_SUCCESS)
			return status;
	}
	status = cublasLtMatmulAlgoGetHeuristic(p->stream->device->gemm->handle, &p->desc, &p->w,
		&p->x, &p->y, &p->y, &preference, max, ret, ret_n);
	if (status == CUBLAS_STATUS_SUCCESS && *ret_n == 0)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return status;
}

int gemm_library_ways(struct gemm_product *p, uint32_t alignment, int max, struct gemm_way *ret,
	int *ret_n)
{
	cublasLtMatmulHeuristicResult_t found[GEMM_LIBRARY_WAYS];
	cublasStatus_t status;
	int n = 0;

	assert(max > 0 && max <= GEMM_LIBRARY_WAYS);
	status = gemm_product_rank(p, alignment, max, found, &n);
	assert(n >= 0 && n <= max);
	for (int i = 0; i < n; i++)
		ret[i] = (struct gemm_way){.algo = found[i].algo};
	*ret_n = n;
	return gemm_condition(p->stream->device, status);
}
