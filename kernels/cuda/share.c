/* SPDX-License-Identifier: MIT */
/*
 * Memory of several processes: VMM allocations named by a file descriptor, and cudaMalloc's named
 * by a CUDA IPC handle, which is 64 bytes and no descriptor (fd -1).
 *
 * Handles are untrusted. The driver refuses a size larger than the allocation when it maps a
 * descriptor's memory; for an IPC mapping import_ipc compares the two. An error that a bad handle
 * causes is never a fault of the device.
 */
#include "kernels/cuda/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC_BYTES 16
#define IPC_BLOCK_BYTES ((size_t)2 << 20) /* what the driver carves smaller allocations from */

static const uint8_t handle_magic[MAGIC_BYTES] = "mimeo cuda vmm";

enum shared_kind { SHARED_EXPORTED, SHARED_IMPORTED, SHARED_IPC, SHARED_IPC_EXPORTED };

struct shared {
	struct shared *next;
	enum shared_kind kind;
	CUdeviceptr address;
	size_t bytes; /* mapped */
};

static int share_add(
	struct cuda_device *device, enum shared_kind kind, CUdeviceptr address, size_t bytes)
{
	struct shared *shared = malloc(sizeof(*shared));

	if (shared == NULL)
		return -ENOMEM;
	*shared = (struct shared){.kind = kind, .address = address, .bytes = bytes};
	pthread_mutex_lock(&device->memory_lock);
	assert(address != 0 && bytes > 0);
	shared->next = device->shared;
	device->shared = shared;
	pthread_mutex_unlock(&device->memory_lock);
	return 0;
}

/* With the lock held: the link to the export or import at that address; to NULL if there is none. */
static struct shared **share_find(struct cuda_device *device, const void *memory,
	enum shared_kind kind, enum shared_kind other)
{
	struct shared **link = &device->shared;

	while (*link != NULL && ((*link)->address != (CUdeviceptr)(uintptr_t)memory ||
					((*link)->kind != kind && (*link)->kind != other)))
		link = &(*link)->next;
	return link;
}

static int share_round_up(const struct cuda_device *device, uint64_t bytes, size_t *ret)
{
	size_t rounded;

	if (bytes == 0 || __builtin_add_overflow(bytes, device->granularity - 1, &rounded))
		return DEVICE_E_INVALID;
	*ret = rounded - rounded % device->granularity;
	return 0;
}

/* Map physical memory at a new address. */
static int share_place(struct cuda_device *device, CUmemGenericAllocationHandle physical,
	size_t bytes, CUdeviceptr *ret)
{
	struct device *base = &device->base;
	CUdeviceptr address;
	int rc = CUDA_TRY_DRIVER(base, device->driver.address_reserve(&address, bytes, 0, 0, 0));

	if (rc)
		return rc;
	rc = cuda_range_attach(device, address, bytes, physical);
	if (rc) {
		CUDA_TRY_DRIVER(base, device->driver.address_free(address, bytes));
		return rc;
	}
	*ret = address;
	return 0;
}

static void share_displace(struct cuda_device *device, CUdeviceptr address, size_t bytes)
{
	CUDA_TRY_DRIVER(&device->base, device->driver.unmap(address, bytes));
	CUDA_TRY_DRIVER(&device->base, device->driver.address_free(address, bytes));
}

/* Remove it from the list and free it. An IPC mapping is released when the GPU has drained, a descriptor's at
 * once. */
static void share_free(struct cuda_device *device, void *memory, enum shared_kind kind,
	enum shared_kind other)
{
	struct shared **link, *shared;

	if (memory == NULL)
		return;
	pthread_mutex_lock(&device->memory_lock);
	link = share_find(device, memory, kind, other);
	shared = *link;
	assert(shared != NULL);
	*link = shared->next;
	pthread_mutex_unlock(&device->memory_lock);
	cuda_status(device);
	CUDA_RELAXED(device);
	if (shared->kind == SHARED_IPC)
		CUDA_TRY(&device->base, cudaIpcCloseMemHandle(memory));
	else if (shared->kind == SHARED_IPC_EXPORTED)
		CUDA_TRY(&device->base, cudaFree(memory));
	else
		share_displace(device, shared->address, shared->bytes);
	free(shared);
}

/* ---- export ---- */

static int share_zero(struct cuda_device *device, CUdeviceptr address, size_t bytes)
{
	struct device *base = &device->base;
	int rc = CUDA_TRY(
		base, cudaMemsetAsync((void *)(uintptr_t)address, 0, bytes, device->utility));

	return rc ? rc : CUDA_TRY(base, cudaStreamSynchronize(device->utility));
}

/* Zero the mapping, make a descriptor of it and keep a record. */
static int share_export_name(struct cuda_device *device, CUmemGenericAllocationHandle physical,
	CUdeviceptr address, size_t bytes, int *ret_fd)
{
	int fd, rc = share_zero(device, address, bytes);

	if (rc)
		return rc;
	rc = CUDA_TRY_DRIVER(&device->base, device->driver.export_handle(&fd, physical,
						    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	if (rc)
		return rc;
	rc = share_add(device, SHARED_EXPORTED, address, bytes);
	if (rc) {
		close(fd);
		return rc;
	}
	*ret_fd = fd;
	return 0;
}

static int share_export_placed(struct cuda_device *device, CUmemGenericAllocationHandle physical,
	size_t rounded, CUdeviceptr *ret, int *ret_fd)
{
	CUdeviceptr address;
	int rc = share_place(device, physical, rounded, &address);

	if (rc)
		return rc;
	rc = share_export_name(device, physical, address, rounded, ret_fd);
	if (rc) {
		share_displace(device, address, rounded);
		return rc;
	}
	*ret = address;
	return 0;
}

static void share_handle_fill(
	const struct cuda_device *device, struct device_handle *handle, int fd, uint64_t size)
{
	*handle = (struct device_handle){.fd = fd, .size = size};
	memcpy(handle->bytes, handle_magic, sizeof(handle_magic));
	memcpy(handle->bytes + MAGIC_BYTES, device->uuid, sizeof(device->uuid));
}

/* The size of the allocation is known only when it is imported. */
int cuda_handle_of_fd(struct device *base, int fd, uint64_t bytes, struct device_handle *ret)
{
	struct cuda_device *device = cuda_device(base);
	int rc = cuda_status(device);

	if (rc)
		return rc;
	if (fd < 0 || bytes == 0)
		return DEVICE_E_INVALID;
	share_handle_fill(device, ret, fd, bytes);
	return 0;
}

int cuda_export_alloc(
	struct device *base, size_t bytes, void **ret, struct device_handle *ret_handle)
{
	struct cuda_device *device = cuda_device(base);
	const CUmemAllocationProp properties = cuda_range_properties(device, true);
	CUmemGenericAllocationHandle physical;
	CUdeviceptr address = 0;
	size_t rounded;
	int fd, rc = cuda_status(device);

	if (rc)
		return rc;
	rc = share_round_up(device, bytes, &rounded);
	if (rc)
		return rc;
	CUDA_RELAXED(device);
	rc = CUDA_TRY_DRIVER(base, device->driver.create(&physical, rounded, &properties, 0));
	if (rc)
		return rc;
	rc = share_export_placed(device, physical, rounded, &address, &fd);
	CUDA_TRY_DRIVER(base, device->driver.release(physical));
	if (rc)
		return rc;
	*ret = (void *)(uintptr_t)address;
	share_handle_fill(device, ret_handle, fd, bytes);
	return 0;
}

void cuda_export_free(struct device *device, void *memory)
{
	share_free(cuda_device(device), memory, SHARED_EXPORTED, SHARED_EXPORTED);
}

/* ---- export by CUDA IPC ---- */

static int share_zero_and_name(
	struct cuda_device *device, void *memory, size_t bytes, cudaIpcMemHandle_t *ret)
{
	int rc = share_zero(device, (CUdeviceptr)(uintptr_t)memory, bytes);

	if (rc)
		return rc;
	rc = CUDA_TRY(&device->base, cudaIpcGetMemHandle(ret, memory));
	if (rc)
		return rc;
	return share_add(device, SHARED_IPC_EXPORTED, (CUdeviceptr)(uintptr_t)memory, bytes);
}

/* A process that opens the handle sees the whole block that the driver took the memory from: so it
 * is as large as those blocks are. */
int cuda_export_ipc_alloc(
	struct device *base, size_t bytes, void **ret, struct device_handle *ret_handle)
{
	struct cuda_device *device = cuda_device(base);
	cudaIpcMemHandle_t ipc;
	size_t rounded;
	void *memory = NULL;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	if (bytes == 0 || __builtin_add_overflow(bytes, IPC_BLOCK_BYTES - 1, &rounded))
		return DEVICE_E_INVALID;
	rounded -= rounded % IPC_BLOCK_BYTES;
	CUDA_RELAXED(device);
	rc = CUDA_TRY(base, cudaMalloc(&memory, rounded));
	if (rc)
		return rc;
	rc = share_zero_and_name(device, memory, rounded, &ipc);
	if (rc) {
		CUDA_TRY(base, cudaFree(memory));
		return rc;
	}
	*ret = memory;
	*ret_handle = (struct device_handle){.fd = -1, .size = bytes};
	memcpy(ret_handle->bytes, &ipc, sizeof(ipc));
	return 0;
}

void cuda_export_ipc_free(struct device *device, void *memory)
{
	share_free(cuda_device(device), memory, SHARED_IPC_EXPORTED, SHARED_IPC_EXPORTED);
}

/* ---- import ---- */

/* The condition of a call on an untrusted handle: no error of it counts as a fault of the
 * device. */
static int share_untrusted(struct cuda_device *device, int error)
{
	if (error == 0)
		return 0;
	cudaGetLastError();
	if (cuda_lost(device) != 0)
		return cuda_lost(device);
	return error == cudaErrorMemoryAllocation ? DEVICE_E_MEMORY : DEVICE_E_INVALID;
}

static bool share_of_this_device(struct cuda_device *device, CUmemGenericAllocationHandle physical)
{
	CUmemAllocationProp properties;

	return device->driver.properties(&properties, physical) == CUDA_SUCCESS &&
	       properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       properties.location.id == device->ordinal;
}

static int share_import_fd(struct cuda_device *device, const struct device_handle *handle,
	CUdeviceptr *ret, size_t *ret_bytes)
{
	CUmemGenericAllocationHandle physical;
	int rc;

	if (memcmp(handle->bytes, handle_magic, sizeof(handle_magic)) != 0 ||
		memcmp(handle->bytes + MAGIC_BYTES, device->uuid, sizeof(device->uuid)) != 0)
		return DEVICE_E_INVALID;
	rc = share_round_up(device, handle->size, ret_bytes);
	if (rc)
		return rc;
	rc = share_untrusted(device,
		(int)device->driver.import_handle(&physical, (void *)(intptr_t)handle->fd,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	if (rc)
		return rc;
	rc = share_of_this_device(device, physical)
		     ? share_untrusted(device, share_place(device, physical, *ret_bytes, ret))
		     : DEVICE_E_INVALID;
	device->driver.release(physical);
	return rc;
}

/* The driver would map memory of another GPU as well. */
static bool share_is_ours(struct cuda_device *device, const void *memory)
{
	struct cudaPointerAttributes attributes;

	if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
		cudaGetLastError();
		return false;
	}
	return attributes.device == device->ordinal;
}

static void share_close_ipc(void *memory)
{
	if (cudaIpcCloseMemHandle(memory) != cudaSuccess)
		cudaGetLastError();
}

static int share_import_ipc(struct cuda_device *device, const struct device_handle *handle,
	CUdeviceptr *ret, size_t *ret_bytes)
{
	cudaIpcMemHandle_t ipc;
	CUdeviceptr base;
	void *memory;
	int rc;

	_Static_assert(sizeof(ipc) == DEVICE_HANDLE_BYTES, "a CUDA IPC handle fills a handle");
	memcpy(&ipc, handle->bytes, sizeof(ipc));
	rc = share_untrusted(
		device, (int)cudaIpcOpenMemHandle(&memory, ipc, cudaIpcMemLazyEnablePeerAccess));
	if (rc)
		return rc;
	*ret = (CUdeviceptr)(uintptr_t)memory;
	rc = share_untrusted(device, (int)device->driver.address_range(&base, ret_bytes, *ret));
	if (rc) {
		share_close_ipc(memory);
		return rc;
	}
	*ret_bytes -= *ret - base; /* a handle may name the middle of a block */
	if (handle->size == 0 || handle->size > *ret_bytes || !share_is_ours(device, memory)) {
		share_close_ipc(memory);
		return DEVICE_E_INVALID;
	}
	return 0;
}

int cuda_import(struct device *base, const struct device_handle *handle, void **ret)
{
	struct cuda_device *device = cuda_device(base);
	const enum shared_kind kind = handle->fd >= 0 ? SHARED_IMPORTED : SHARED_IPC;
	CUdeviceptr address;
	size_t bytes;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	CUDA_RELAXED(device);
	if (kind == SHARED_IMPORTED)
		rc = share_import_fd(device, handle, &address, &bytes);
	else
		rc = share_import_ipc(device, handle, &address, &bytes);
	if (rc)
		return rc;
	rc = share_add(device, kind, address, bytes);
	if (rc) {
		if (kind == SHARED_IMPORTED)
			share_displace(device, address, bytes);
		else
			share_close_ipc((void *)(uintptr_t)address);
		return rc;
	}
	*ret = (void *)(uintptr_t)address;
	return 0;
}

void cuda_import_free(struct device *device, void *memory)
{
	share_free(cuda_device(device), memory, SHARED_IMPORTED, SHARED_IPC);
}

uint64_t cuda_import_bytes(struct device *base, const void *memory)
{
	struct cuda_device *device = cuda_device(base);
	const struct shared *shared;
	uint64_t bytes;

	pthread_mutex_lock(&device->memory_lock);
	shared = *share_find(device, memory, SHARED_IMPORTED, SHARED_IPC);
	bytes = shared != NULL ? shared->bytes : 0;
	pthread_mutex_unlock(&device->memory_lock);
	return bytes;
}
