/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <assert.h>

#define HOST_FLAGS (cudaHostAllocPortable | cudaHostAllocMapped)

int cuda_mem_alloc(struct device *base, size_t bytes, void **ret)
{
	void *memory;
	int rc = cuda_enter_growth(cuda_device(base));

	if (rc)
		return rc;
	if (bytes == 0)
		return DEVICE_E_INVALID;
	rc = CUDA_TRY(base, cudaMalloc(&memory, bytes));
	if (rc)
		return rc;
	assert((uintptr_t)memory % 256 == 0);
	*ret = memory;
	return 0;
}

/* Freeing while capturing cannot be refused here, but it spoils the capture all the same. */
static void memory_free_enter(struct cuda_device *device)
{
	cuda_status(device);
	cuda_refuse_capture(device, DEVICE_E_CAPTURE_UNSUPPORTED);
}

void cuda_mem_free(struct device *base, void *memory)
{

	if (memory == NULL)
		return;
	memory_free_enter(cuda_device(base));
	CUDA_RELAXED(cuda_device(base));
	CUDA_TRY(base, cudaFree(memory));
}

int cuda_host_alloc(struct device *base, size_t bytes, void **ret)
{
	void *memory;
	int rc = cuda_enter_growth(cuda_device(base));

	if (rc)
		return rc;
	if (bytes == 0)
		return DEVICE_E_INVALID;
	rc = CUDA_TRY(base, cudaHostAlloc(&memory, bytes, HOST_FLAGS));
	if (rc)
		return rc;
	*ret = memory;
	return 0;
}

void cuda_host_free(struct device *base, void *memory)
{

	if (memory == NULL)
		return;
	memory_free_enter(cuda_device(base));
	CUDA_RELAXED(cuda_device(base));
	CUDA_TRY(base, cudaFreeHost(memory));
}
