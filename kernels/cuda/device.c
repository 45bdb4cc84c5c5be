/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/skinny.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ASK_INTERVAL_NS 50000u
#define OLDEST_ARCH 80u /* bf16 and the instructions that the kernels use need it */
#define OVERLAP_ARCH 90u
#define SERIAL_ENV "MIMEO_CUDA_SERIAL" /* if set, kernels do not overlap, to find out whether that causes a fault */

int cuda_status(struct cuda_device *device)
{
	static _Thread_local int current; /* ordinal + 1 */
	int rc = cuda_lost(device);

	if (rc || current == device->ordinal + 1)
		return rc;
	assert(device->ordinal >= 0);
	rc = CUDA_TRY(&device->base, cudaSetDevice(device->ordinal));
	if (rc)
		return rc;
	current = device->ordinal + 1;
	return 0;
}

int cuda_refuse_capture(struct cuda_device *device, int condition)
{
	return captures_spoil_own(&device->captures) ? condition : 0;
}

int cuda_enter(struct cuda_device *device)
{
	int rc = cuda_status(device);

	return rc ? rc : cuda_refuse_capture(device, DEVICE_E_CAPTURE_UNSUPPORTED);
}

int cuda_enter_growth(struct cuda_device *device)
{
	int rc = cuda_enter(device);

	if (rc)
		return rc;
	return lock_refuses(&device->locked) ? DEVICE_E_LOCKED : 0;
}

struct cuda_relaxed cuda_relax(struct cuda_device *device)
{
	struct cuda_relaxed relaxed = {.device = device, .mode = cudaStreamCaptureModeRelaxed};

	CUDA_TRY(&device->base, cudaThreadExchangeStreamCaptureMode(&relaxed.mode));
	return relaxed;
}

void cuda_relax_end(const struct cuda_relaxed *relaxed)
{
	enum cudaStreamCaptureMode mode = relaxed->mode;

	CUDA_TRY(&relaxed->device->base, cudaThreadExchangeStreamCaptureMode(&mode));
}

/* ---- the table ---- */

static int cuda_device_info(struct device *base, struct device_info *ret)
{
	struct cuda_device *device = cuda_device(base);
	struct device_info info = {
		.kind = "cuda",
		.activation_dtype = DTYPE_BF16,
		.kv_dtype = DTYPE_BF16,
		.export_granularity = device->granularity,
#ifdef MIMEO_CUDA_SM90A
		.packs = device->limits.arch == 90,
		.invariant = device->limits.arch == 90,
#endif
	};
	size_t free_bytes = 0, total_bytes = 0;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	CUDA_RELAXED(device);
	rc = CUDA_TRY(base, cudaMemGetInfo(&free_bytes, &total_bytes));
	if (rc)
		return rc;
	snprintf(info.name, sizeof(info.name), "%s", device->name);
	memcpy(info.uuid, device->uuid, sizeof(info.uuid));
	info.total_bytes = total_bytes;
	info.free_bytes = free_bytes;
	*ret = info;
	return 0;
}

static int cuda_device_lock(struct device *base)
{
	struct cuda_device *device = cuda_device(base);
	int rc = cuda_status(device);

	if (rc)
		return rc;
	if (lock_set(&device->locked))
		cuda_gemm_lock(device);
	return 0;
}

static void cuda_device_lift_lock(struct device *base, bool lifted)
{
	lock_lift(&cuda_device(base)->locked, lifted);
}

static bool device_asked_lately(struct cuda_device *device)
{
	struct timespec now;
	uint64_t now_ns, due_ns = atomic_load_explicit(&device->ask_ns, memory_order_relaxed);

	clock_gettime(CLOCK_MONOTONIC, &now);
	now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (now_ns < due_ns)
		return true;
	atomic_store_explicit(&device->ask_ns, now_ns + ASK_INTERVAL_NS, memory_order_relaxed);
	return false;
}

/* A fault is reported by the next call that queries the context. Querying an idle stream is the cheapest, but
 * still too slow for callers that poll. */
static int cuda_device_status(struct device *base)
{
	struct cuda_device *device = cuda_device(base);
	int rc = cuda_status(device);

	if (rc || device_asked_lately(device))
		return rc;
	CUDA_RELAXED(device);
	CUDA_TRY(base, cudaStreamQuery(device->utility));
	return cuda_lost(device);
}

static void cuda_device_free(struct device *base)
{
	struct cuda_device *device;

	if (base == NULL)
		return;
	device = cuda_device(base);
	assert(device->ranges == NULL && device->shared == NULL);
	cuda_status(device);
	cuda_gemm_free(device);
	if (device->utility != NULL)
		cudaStreamDestroy(device->utility);
	pthread_mutex_destroy(&device->memory_lock);
	pthread_mutex_destroy(&device->lock);
	captures_deinit(&device->captures);
	free(device);
}

#define CUDA_ENTRY(name) .name = cuda_##name,
static const struct device_ops cuda_device_ops = {
	.free = cuda_device_free,
	.info = cuda_device_info,
	.lock = cuda_device_lock,
	.lift_lock = cuda_device_lift_lock,
	.status = cuda_device_status,
	.last_fault = cuda_last_fault,
	DEVICE_OPS(CUDA_ENTRY)
};

/* ---- opening ---- */

static int device_parse_ordinal(const char *name, int *ret)
{
	char *end;
	long ordinal;

	if (strcmp(name, "cuda") == 0) {
		*ret = 0;
		return 0;
	}
	if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9')
		return -EINVAL;
	errno = 0;
	ordinal = strtol(name + 5, &end, 10);
	if (*end != '\0')
		return -EINVAL;
	if (errno != 0 || ordinal > INT32_MAX)
		return -ENODEV;
	*ret = (int)ordinal;
	return 0;
}

/* -ENODEV: no driver, one too old for this build, or fewer devices. */
static int device_find(int ordinal)
{
	int n = 0;
	cudaError_t error = cudaGetDeviceCount(&n);

	if (error != cudaSuccess) {
		cudaGetLastError();
		return -ENODEV;
	}
	return ordinal < n ? 0 : -ENODEV;
}

/* The value of __CUDA_ARCH__ of the code that the driver chooses: a newer device may run PTX of an older
 * architecture, which lacks the code for newer ones. */
static int device_find_code(struct cuda_device *device, uint32_t *ret_arch)
{
	struct cudaFuncAttributes code;
	cudaError_t error = cudaFuncGetAttributes(&code, skinny_kernel());

	if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorUnsupportedPtxVersion) {
		cudaGetLastError();
		return -ENOTSUP;
	}
	*ret_arch = (uint32_t)code.ptxVersion;
	return CUDA_TRY(&device->base, error);
}

static int device_describe(struct cuda_device *device)
{
	struct cudaDeviceProp properties;
	uint32_t code_arch = 0;
	int rc = CUDA_TRY(&device->base, cudaGetDeviceProperties(&properties, device->ordinal));

	if (rc)
		return rc;
	rc = device_find_code(device, &code_arch);
	if (rc)
		return rc;
	snprintf(device->name, sizeof(device->name), "%.63s", properties.name);
	memcpy(device->uuid, properties.uuid.bytes, sizeof(device->uuid));
	device->limits = (struct cuda_limits){
		.n_sms = (uint32_t)properties.multiProcessorCount,
		.arch = (uint32_t)(properties.major * 10 + properties.minor),
		.code_arch = code_arch,
		.shared_bytes_optin = (uint32_t)properties.sharedMemPerBlockOptin,
		.l2_bytes = (uint32_t)properties.l2CacheSize,
	};
	device->overlap = code_arch >= OVERLAP_ARCH && getenv(SERIAL_ENV) == NULL;
	if (device->limits.arch < OLDEST_ARCH || !properties.unifiedAddressing ||
		!properties.canMapHostMemory)
		return -ENOTSUP;
	return 0;
}

static int device_start(struct cuda_device *device)
{
	CUmemAllocationProp properties;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	rc = device_describe(device);
	if (rc)
		return rc;
	rc = cuda_driver_load(&device->driver);
	if (rc)
		return rc;
	properties = cuda_range_properties(device, true);
	rc = CUDA_TRY_DRIVER(
		&device->base, device->driver.granularity(&device->granularity, &properties,
				       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	if (rc)
		return rc;
	assert(device->granularity > 0);
	rc = CUDA_TRY(
		&device->base, cudaStreamCreateWithFlags(&device->utility, cudaStreamNonBlocking));
	return rc ? rc : cuda_forced_fault_open(device);
}

int cuda_device_new(const char *name, const struct device_options *options, struct device **ret)
{
	struct cuda_device *device;
	int ordinal, rc = device_parse_ordinal(name, &ordinal);

	if (rc)
		return rc;
	rc = device_find(ordinal);
	if (rc)
		return rc;
	device = calloc(1, sizeof(*device));
	if (device == NULL)
		return -ENOMEM;
	device->base.ops = &cuda_device_ops;
	device->base.kernels = &cuda_kernel_ops;
	device->ordinal = ordinal;
	captures_init(&device->captures, EVENT_RECORDED);
	pthread_mutex_init(&device->lock, NULL);
	pthread_mutex_init(&device->memory_lock, NULL);
	rc = device_start(device);
	if (rc) {
		cuda_device_free(&device->base);
		return rc;
	}
	*ret = &device->base;
	return 0;
}
