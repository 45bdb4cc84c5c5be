/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <assert.h>

#define HOST_FLAGS (cudaHostAllocPortable | cudaHostAllocMapped)

static int cuda_memory_alloc(struct device *base, size_t bytes, bool host, void **ret)
{
	void *memory;
	int rc = cuda_enter_growth(cuda_device(base));

	if (rc)
		return rc;
	if (bytes == 0)
		return DEVICE_E_INVALID;
	rc = host ? CUDA_TRY(base, cudaHostAlloc(&memory, bytes, HOST_FLAGS))
		  : CUDA_TRY(base, cudaMalloc(&memory, bytes));
	if (rc)
		return rc;
	assert(host || (uintptr_t)memory % 256 == 0);
	*ret = memory;
	return 0;
}

/* Freeing while capturing cannot be refused here, but it invalidates the capture. */
static void cuda_memory_free(struct device *base, bool host, void *memory)
{
	struct cuda_device *device = cuda_device(base);

	if (memory == NULL)
		return;
	cuda_status(device);
	cuda_refuse_capture(device, DEVICE_E_CAPTURE_UNSUPPORTED);
	CUDA_RELAXED(device);
	if (host)
		CUDA_TRY(base, cudaFreeHost(memory));
	else
		CUDA_TRY(base, cudaFree(memory));
}

int cuda_mem_alloc(struct device *base, size_t bytes, void **ret)
{
	return cuda_memory_alloc(base, bytes, false, ret);
}

void cuda_mem_free(struct device *base, void *memory)
{
	cuda_memory_free(base, false, memory);
}

int cuda_host_alloc(struct device *base, size_t bytes, void **ret)
{
	return cuda_memory_alloc(base, bytes, true, ret);
}

void cuda_host_free(struct device *base, void *memory)
{
	cuda_memory_free(base, true, memory);
}
