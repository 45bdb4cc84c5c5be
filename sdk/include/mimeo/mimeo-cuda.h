/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_CUDA_H
#define MIMEO_CUDA_H

/*
 * CUDA memory and events from handles of <mimeo/mimeo.h>: all inline, for programs that use CUDA. The
 * library itself does not depend on CUDA. Needs the CUDA toolkit's headers, 12.0 or later, and its runtime
 * (-lcudart); the driver's functions are looked up at run time.
 *
 * ALLOCATED BY THE DAEMON: mimeo_buffer_alloc, mimeo_buffer_handle, mimeo_cuda_map: its results are
 * then at an address of this process. ALLOCATED HERE: mimeo_cuda_alloc (or cudaMalloc and
 * mimeo_cuda_export), mimeo_buffer_import.
 *
 * A STREAM WAITS for a request's fence: mimeo_request_fence for each request before it is submitted,
 * mimeo_cuda_fence_open once for each fence (one for each pointer), then after MIMEO_EVENT_RECORDED
 * cudaStreamWaitEvent(stream, event, 0); before that event it would not wait. If the daemon is killed before
 * the device reaches the fence, the stream waits without end, and so do host calls that wait for it or for the
 * whole device, such as cudaFree: take the final event first, and after MIMEO_E_GONE destroy the stream
 * (other streams work).
 *
 * RELEASE: destroy the events, unmap, then mimeo_buffer_close: the daemon must not free CUDA_IPC memory that
 * is still mapped here; for VMM_FD memory the order does not matter.
 *
 * Functions work on the calling thread's current device, which must be the daemon's
 * (cudaErrorInvalidDevice if it is not), and return a cudaError_t. Outputs are written on success
 * only. Unmapping CUDA_IPC memory waits for this process's work on the device; unmapping that of a
 * descriptor does not.
 */

#include <cuda.h>
#include <cuda_runtime.h>
#include <string.h>
#include <unistd.h>

#include <mimeo/mimeo.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory that was mapped or allocated here. */
struct mimeo_cuda_memory {
	void *address;     /* of the buffer */
	void *base;        /* of the mapping it lies in */
	size_t base_bytes;
	uint32_t kind;     /* enum mimeo_handle_kind */
};

/* Return the call's error, unless it succeeds. */
#define MIMEO_CUDA_TRY(call)                              \
	do {                                              \
		cudaError_t error_ = (cudaError_t)(call); \
		if (error_ != cudaSuccess)                \
			return error_;                    \
	} while (0)

/* ---- the driver's functions ---- */

static inline cudaError_t mimeo_cuda_symbol(const char *name, void *ret_function)
{
	enum cudaDriverEntryPointQueryResult found;
	void *function = NULL;

#if CUDART_VERSION >= 12050
	MIMEO_CUDA_TRY(cudaGetDriverEntryPointByVersion(
		name, &function, 12000, cudaEnableDefault, &found));
#else
	MIMEO_CUDA_TRY(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found));
#endif
	if (found != cudaDriverEntryPointSuccess || function == NULL)
		return cudaErrorNotSupported;
	memcpy(ret_function, &function, sizeof(function));
	return cudaSuccess;
}

/* The current device, with its primary context made current; its uuid. */
static inline cudaError_t mimeo_cuda_device(int *ret_device, uint8_t ret_uuid[16])
{
	struct cudaDeviceProp properties;

	MIMEO_CUDA_TRY(cudaFree(NULL));
	MIMEO_CUDA_TRY(cudaGetDevice(ret_device));
	MIMEO_CUDA_TRY(cudaGetDeviceProperties(&properties, *ret_device));
	memcpy(ret_uuid, &properties.uuid, 16);
	return cudaSuccess;
}

static inline cudaError_t mimeo_cuda_check_device(const struct mimeo_handle *handle, int *ret_device)
{
	uint8_t uuid[16];

	MIMEO_CUDA_TRY(mimeo_cuda_device(ret_device, uuid));
	return memcmp(uuid, handle->uuid, sizeof(uuid)) == 0 ? cudaSuccess
							     : cudaErrorInvalidDevice;
}

/* Memory of that device which a descriptor can name. */
static inline CUmemAllocationProp mimeo_cuda_properties(int device)
{
	CUmemAllocationProp properties;

	memset(&properties, 0, sizeof(properties));
	properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	properties.location.id = device;
	properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return properties;
}

static inline cudaError_t mimeo_cuda_round(int device, uint64_t bytes, size_t *ret)
{
	const CUmemAllocationProp properties = mimeo_cuda_properties(device);
	__typeof__(&cuMemGetAllocationGranularity) granularity_of;
	size_t granularity = 0;

	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemGetAllocationGranularity", &granularity_of));
	MIMEO_CUDA_TRY(
		granularity_of(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	if (bytes == 0 || bytes > SIZE_MAX - granularity)
		return cudaErrorInvalidValue;
	*ret = ((size_t)bytes + granularity - 1) / granularity * granularity;
	return cudaSuccess;
}

static inline cudaError_t mimeo_cuda_unplace(void *base, size_t bytes, int is_mapped)
{
	__typeof__(&cuMemUnmap) unmap;
	__typeof__(&cuMemAddressFree) address_free;

	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemUnmap", &unmap));
	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemAddressFree", &address_free));
	if (is_mapped)
		MIMEO_CUDA_TRY(unmap((CUdeviceptr)(uintptr_t)base, bytes));
	return (cudaError_t)address_free((CUdeviceptr)(uintptr_t)base, bytes);
}

/* Map physical memory at a new address; the handle may be released afterwards. */
static inline cudaError_t mimeo_cuda_place(
	int device, CUmemGenericAllocationHandle physical, size_t bytes, void **ret_base)
{
	__typeof__(&cuMemAddressReserve) reserve;
	__typeof__(&cuMemMap) map;
	__typeof__(&cuMemSetAccess) set_access;
	CUmemAccessDesc access;
	CUdeviceptr base = 0;
	int is_mapped = 0;
	cudaError_t error;

	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemAddressReserve", &reserve));
	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemMap", &map));
	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemSetAccess", &set_access));
	MIMEO_CUDA_TRY(reserve(&base, bytes, 0, 0, 0));
	memset(&access, 0, sizeof(access));
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = device;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	error = (cudaError_t)map(base, bytes, 0, physical, 0);
	is_mapped = error == cudaSuccess;
	if (is_mapped)
		error = (cudaError_t)set_access(base, bytes, &access, 1);
	if (error != cudaSuccess) {
		mimeo_cuda_unplace((void *)(uintptr_t)base, bytes, is_mapped);
		return error;
	}
	*ret_base = (void *)(uintptr_t)base;
	return cudaSuccess;
}

/* ---- memory that the daemon allocated ---- */

static inline cudaError_t mimeo_cuda_map_fd(
	int device, const struct mimeo_handle *handle, struct mimeo_cuda_memory *ret)
{
	__typeof__(&cuMemImportFromShareableHandle) import_handle;
	__typeof__(&cuMemRelease) release;
	CUmemGenericAllocationHandle physical;
	cudaError_t error;

	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemImportFromShareableHandle", &import_handle));
	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemRelease", &release));
	MIMEO_CUDA_TRY(
		mimeo_cuda_round(device, handle->offset + handle->bytes, &ret->base_bytes));
	MIMEO_CUDA_TRY(import_handle(&physical, (void *)(intptr_t)handle->fd,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	error = mimeo_cuda_place(device, physical, ret->base_bytes, &ret->base);
	release(physical);
	return error;
}

/*
 * Map the handle's buffer into this process. The handle stays the caller's; pass *ret_memory to
 * mimeo_cuda_unmap once no work of this process uses it.
 * cudaErrorInvalidDevice: the memory is another device's; cudaErrorNotSupported: of another kind.
 */
static inline cudaError_t mimeo_cuda_map(
	const struct mimeo_handle *handle, struct mimeo_cuda_memory *ret_memory)
{
	struct mimeo_cuda_memory memory;
	cudaIpcMemHandle_t ipc;
	int device;

	if (handle->kind != MIMEO_HANDLE_VMM_FD && handle->kind != MIMEO_HANDLE_CUDA_IPC)
		return cudaErrorNotSupported;
	memset(&memory, 0, sizeof(memory));
	memory.kind = handle->kind;
	MIMEO_CUDA_TRY(mimeo_cuda_check_device(handle, &device));
	if (handle->kind == MIMEO_HANDLE_VMM_FD) {
		MIMEO_CUDA_TRY(mimeo_cuda_map_fd(device, handle, &memory));
	} else {
		memcpy(&ipc, handle->opaque, sizeof(ipc));
		MIMEO_CUDA_TRY(cudaIpcOpenMemHandle(
			&memory.base, ipc, cudaIpcMemLazyEnablePeerAccess));
	}
	memory.address = (char *)memory.base + handle->offset;
	*ret_memory = memory;
	return cudaSuccess;
}

/* Undo mimeo_cuda_map or mimeo_cuda_alloc. */
static inline cudaError_t mimeo_cuda_unmap(const struct mimeo_cuda_memory *memory)
{
	if (memory->kind == MIMEO_HANDLE_CUDA_IPC)
		return cudaIpcCloseMemHandle(memory->base);
	return mimeo_cuda_unplace(memory->base, memory->base_bytes, 1);
}

/* ---- memory of this process ---- */

static inline cudaError_t mimeo_cuda_export_fd(
	CUmemGenericAllocationHandle physical, struct mimeo_handle *handle)
{
	__typeof__(&cuMemExportToShareableHandle) export_handle;
	int fd = -1;

	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemExportToShareableHandle", &export_handle));
	MIMEO_CUDA_TRY(export_handle(
		&fd, physical, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	handle->fd = fd;
	return cudaSuccess;
}

/*
 * Allocate `bytes` (contents undefined) that mimeo_buffer_import takes: a VMM allocation, which stays
 * alive as long as a process maps it. The handle's fd is the caller's to close, which may be done once
 * it is imported.
 */
static inline cudaError_t mimeo_cuda_alloc(
	uint64_t bytes, struct mimeo_cuda_memory *ret_memory, struct mimeo_handle *ret_handle)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	struct mimeo_cuda_memory memory;
	__typeof__(&cuMemCreate) create;
	__typeof__(&cuMemRelease) release;
	CUmemGenericAllocationHandle physical;
	CUmemAllocationProp properties;
	int device;
	cudaError_t error;

	memset(&memory, 0, sizeof(memory));
	memory.kind = handle.kind = MIMEO_HANDLE_VMM_FD;
	handle.bytes = bytes;
	MIMEO_CUDA_TRY(mimeo_cuda_device(&device, handle.uuid));
	MIMEO_CUDA_TRY(mimeo_cuda_round(device, bytes, &memory.base_bytes));
	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemCreate", &create));
	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemRelease", &release));
	properties = mimeo_cuda_properties(device);
	MIMEO_CUDA_TRY(create(&physical, memory.base_bytes, &properties, 0));
	error = mimeo_cuda_export_fd(physical, &handle);
	if (error == cudaSuccess)
		error = mimeo_cuda_place(device, physical, memory.base_bytes, &memory.base);
	release(physical);
	if (error != cudaSuccess) {
		if (handle.fd >= 0)
			close(handle.fd);
		return error;
	}
	memory.address = memory.base;
	*ret_memory = memory;
	*ret_handle = handle;
	return cudaSuccess;
}

/*
 * The handle of `bytes` at `address`, anywhere in memory from cudaMalloc on a multiple of
 * MIMEO_PLACE_ALIGN in its allocation (else cudaErrorInvalidValue), for mimeo_buffer_import.
 * It gives the daemon access to the driver's WHOLE block that the address lies in, and freeing that memory
 * while the daemon has it mapped is undefined; neither is true of mimeo_cuda_alloc.
 */
static inline cudaError_t mimeo_cuda_export(
	const void *address, uint64_t bytes, struct mimeo_handle *ret_handle)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	__typeof__(&cuMemGetAddressRange) address_range;
	cudaIpcMemHandle_t ipc;
	CUdeviceptr base = 0;
	size_t base_bytes = 0;
	int device;

	MIMEO_CUDA_TRY(mimeo_cuda_device(&device, handle.uuid));
	MIMEO_CUDA_TRY(mimeo_cuda_symbol("cuMemGetAddressRange", &address_range));
	MIMEO_CUDA_TRY(address_range(&base, &base_bytes, (CUdeviceptr)(uintptr_t)address));
	MIMEO_CUDA_TRY(cudaIpcGetMemHandle(&ipc, (void *)(uintptr_t)base));
	handle.kind = MIMEO_HANDLE_CUDA_IPC;
	handle.bytes = bytes;
	handle.offset = (uint64_t)((uintptr_t)address - (uintptr_t)base);
	if (bytes == 0 || handle.offset > base_bytes || bytes > base_bytes - handle.offset ||
		handle.offset % MIMEO_PLACE_ALIGN != 0)
		return cudaErrorInvalidValue;
	memcpy(handle.opaque, &ipc, sizeof(ipc));
	*ret_handle = handle;
	return cudaSuccess;
}

/* ---- fences ---- */

/* The event of a request's fence in this process: once for each fence, to be destroyed by
 * cudaEventDestroy. */
static inline cudaError_t mimeo_cuda_fence_open(
	const struct mimeo_handle *fence, cudaEvent_t *ret_event)
{
	cudaIpcEventHandle_t ipc;
	int device;

	if (fence->kind != MIMEO_HANDLE_CUDA_IPC)
		return cudaErrorNotSupported;
	MIMEO_CUDA_TRY(mimeo_cuda_check_device(fence, &device));
	memcpy(&ipc, fence->opaque, sizeof(ipc));
	return cudaIpcOpenEventHandle(ret_event, ipc);
}

#undef MIMEO_CUDA_TRY

#ifdef __cplusplus
}
#endif

#endif
