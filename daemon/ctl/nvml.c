/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Handles are opaque; each function returns 0 or an error. */
typedef void *nvml_handle;

struct nvml_memory {
	unsigned long long total, free, used;
};

#define NVML_CLOCK_SM 1

/* X(field, symbol, parameters) */
#define NVML_FUNCTIONS(X)                                                                          \
	X(init, "nvmlInit_v2", (void))                                                             \
	X(shutdown, "nvmlShutdown", (void))                                                        \
	X(driver_version, "nvmlSystemGetDriverVersion", (char *, unsigned))                        \
	X(cuda_version, "nvmlSystemGetCudaDriverVersion", (int *))                                 \
	X(count, "nvmlDeviceGetCount_v2", (unsigned *))                                            \
	X(handle, "nvmlDeviceGetHandleByIndex_v2", (unsigned, nvml_handle *))                      \
	X(name, "nvmlDeviceGetName", (nvml_handle, char *, unsigned))                              \
	X(capability, "nvmlDeviceGetCudaComputeCapability", (nvml_handle, int *, int *))           \
	X(memory, "nvmlDeviceGetMemoryInfo", (nvml_handle, struct nvml_memory *))                  \
	X(compute_mode, "nvmlDeviceGetComputeMode", (nvml_handle, int *))                          \
	X(persistence, "nvmlDeviceGetPersistenceMode", (nvml_handle, int *))                       \
	X(mig_mode, "nvmlDeviceGetMigMode", (nvml_handle, unsigned *, unsigned *))                 \
	X(clock, "nvmlDeviceGetClockInfo", (nvml_handle, int, unsigned *))                         \
	X(max_clock, "nvmlDeviceGetMaxClockInfo", (nvml_handle, int, unsigned *))                  \
	X(slow, "nvmlDeviceGetCurrentClocksThrottleReasons", (nvml_handle, unsigned long long *))

#define NVML_FIELD(field, symbol, parameters) int (*field) parameters;
#define NVML_LOAD(field, symbol, parameters) *(void **)&nvml->field = dlsym(nvml->library, symbol);

struct nvml {
	void *library;
	NVML_FUNCTIONS(NVML_FIELD)
};

int nvml_new(struct nvml **ret, char *why, unsigned size)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	struct nvml *nvml;
	int rc;

	if (!library)
		return -ENOENT;
	nvml = calloc(1, sizeof(*nvml));
	if (!nvml) {
		dlclose(library);
		return -ENOMEM;
	}
	nvml->library = library;
	NVML_FUNCTIONS(NVML_LOAD)
	rc = nvml->init && nvml->shutdown && nvml->count && nvml->handle ? nvml->init() : -1;
	if (rc == 0) {
		*ret = nvml;
		return 0;
	}
	if (rc < 0)
		snprintf(why, size, "libnvidia-ml.so.1 lacks functions that this version needs");
	else
		snprintf(why, size, "nvmlInit fails with %d", rc);
	dlclose(library);
	free(nvml);
	return -EIO;
}

void nvml_free(struct nvml *nvml)
{
	if (!nvml)
		return;
	nvml->shutdown();
	dlclose(nvml->library);
	free(nvml);
}

void nvml_versions(const struct nvml *nvml, char *ret_driver, unsigned size, int *ret_cuda)
{
	if (!nvml->driver_version || nvml->driver_version(ret_driver, size) != 0)
		ret_driver[0] = '\0';
	if (!nvml->cuda_version || nvml->cuda_version(ret_cuda) != 0)
		*ret_cuda = 0;
}

unsigned nvml_n_devices(const struct nvml *nvml)
{
	unsigned n;

	return nvml->count(&n) == 0 ? n : 0;
}

bool nvml_device(const struct nvml *nvml, unsigned index, struct nvml_device *ret)
{
	struct nvml_memory memory = {0};
	unsigned mig = 0, pending = 0;
	unsigned long long slow = 0;
	int persists = 1;
	nvml_handle handle;

	*ret = (struct nvml_device){.mode = -1};
	if (nvml->handle(index, &handle) != 0)
		return false;
	if (!nvml->name || nvml->name(handle, ret->name, sizeof(ret->name)) != 0)
		snprintf(ret->name, sizeof(ret->name), "GPU %u", index);
	if (!nvml->capability || nvml->capability(handle, &ret->major, &ret->minor) != 0)
		ret->major = ret->minor = 0;
	if (nvml->memory && nvml->memory(handle, &memory) == 0) {
		ret->total_bytes = memory.total;
		ret->free_bytes = memory.free;
	}
	if (!nvml->compute_mode || nvml->compute_mode(handle, &ret->mode) != 0)
		ret->mode = -1;
	ret->persists = !nvml->persistence || nvml->persistence(handle, &persists) != 0 || persists;
	ret->mig = nvml->mig_mode && nvml->mig_mode(handle, &mig, &pending) == 0 && mig;
	if (!nvml->clock || nvml->clock(handle, NVML_CLOCK_SM, &ret->clock_mhz) != 0)
		ret->clock_mhz = 0;
	if (!nvml->max_clock || nvml->max_clock(handle, NVML_CLOCK_SM, &ret->max_clock_mhz) != 0)
		ret->max_clock_mhz = 0;
	if (nvml->slow && nvml->slow(handle, &slow) == 0)
		ret->slow = slow;
	return true;
}
