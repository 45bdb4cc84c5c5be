/* SPDX-License-Identifier: MIT */
/* libnvidia-ml.so.1 of a machine with one GPU, or of none; FAKE_NVML names what is wrong with it. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static bool is(const char *what)
{
	const char *says = getenv("FAKE_NVML");

	return says && strcmp(says, what) == 0;
}

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlSystemGetDriverVersion(char *ret, unsigned size);
EXPORT int nvmlSystemGetCudaDriverVersion(int *ret);
EXPORT int nvmlDeviceGetCount_v2(unsigned *ret);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret);
EXPORT int nvmlDeviceGetName(void *device, char *ret, unsigned size);
EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *ret_major, int *ret_minor);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *ret);
EXPORT int nvmlDeviceGetComputeMode(void *device, int *ret);
EXPORT int nvmlDeviceGetPersistenceMode(void *device, int *ret);
EXPORT int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *ret);
EXPORT int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *ret);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *ret);

int nvmlInit_v2(void)
{
	return is("mismatch") ? 18 : 0;
}

int nvmlShutdown(void)
{
	return 0;
}

int nvmlSystemGetDriverVersion(char *ret, unsigned size)
{
	snprintf(ret, size, "550.54.15");
	return 0;
}

int nvmlSystemGetCudaDriverVersion(int *ret)
{
	*ret = is("old") ? 11080 : 12040;
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *ret)
{
	*ret = 1;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret)
{
	static int device;

	*ret = &device;
	return is("lost") ? 15 : 0;
}

int nvmlDeviceGetName(void *device, char *ret, unsigned size)
{
	snprintf(ret, size, "NVIDIA H100 80GB HBM3");
	return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *ret_major, int *ret_minor)
{
	*ret_major = 9;
	*ret_minor = 0;
	return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *ret)
{
	ret[0] = 80ull << 30;
	ret[1] = 79ull << 30;
	ret[2] = 1ull << 30;
	return 0;
}

int nvmlDeviceGetComputeMode(void *device, int *ret)
{
	*ret = is("exclusive") ? 3 : 0;
	return 0;
}

int nvmlDeviceGetPersistenceMode(void *device, int *ret)
{
	*ret = !is("transient");
	return 0;
}

int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *ret)
{
	*ret = 1980;
	return 0;
}

int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *ret)
{
	*ret = 1980;
	return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *ret)
{
	*ret = is("hot") ? 0x40 : is("power") ? 0x4 : 0;
	return 0;
}
