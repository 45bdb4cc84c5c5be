/* SPDX-License-Identifier: MIT */
#include <cuda.h>

#include "attention/paged/paged_map.h"

typedef CUresult tiled_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
	const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
	CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
	CUtensorMapFloatOOBfill);

_Static_assert(sizeof(CUtensorMap) == sizeof(struct paged_tensor_map), "an opaque CUtensorMap");

paged_encode_fn *paged_map_encode(void)
{
	enum cudaDriverEntryPointQueryResult found;
	union {
		void *symbol;
		paged_encode_fn *function;
	} encode = { .symbol = NULL };

#if CUDART_VERSION >= 12050
	if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode.symbol, 12000,
		    cudaEnableDefault, &found) != cudaSuccess)
#else
	if (cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode.symbol, cudaEnableDefault,
		    &found) != cudaSuccess)
#endif
	{
		cudaGetLastError();
		return NULL;
	}
	return found == cudaDriverEntryPointSuccess ? encode.function : NULL;
}

int paged_map_make(struct device *device, paged_encode_fn *encode,
	const struct attention_config *c, const void *kv, uint32_t n_keys,
	struct paged_tensor_map *ret)
{
	uint32_t cols = c->head_dim % 64 ? 32 : 64;
	uint64_t token = (uint64_t)c->n_kv_heads * c->head_dim * 2;
	uint64_t n_eights = (uint64_t)c->n_kv_pages * 2 * c->page_tokens / 8;
	cuuint64_t dims[] = { cols, 8, (uint64_t)c->n_kv_heads * c->head_dim / cols,
		n_eights && n_eights < INT32_MAX ? n_eights : INT32_MAX };
	cuuint64_t strides[] = { token, cols * 2, 8 * token };
	cuuint32_t box[] = { cols, 8, c->head_dim / cols,
		(c->page_tokens < n_keys ? c->page_tokens : n_keys) / 8 };
	cuuint32_t steps[] = { 1, 1, 1, 1 };

	/* the driver's codes are the runtime's */
	return CUDA_TRY(device, (cudaError_t)((tiled_fn *)encode)((CUtensorMap *)ret,
		CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)(uintptr_t)kv, dims, strides, box,
		steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
		cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
		CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}
