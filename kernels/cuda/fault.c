/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <stdio.h>
#include <string.h>

/*
 * After these the context answers nothing else. The runtime's numbers from 700 to 799 hold some
 * that say no more than that one call was wrong; those must not look like a lost device.
 */
int cuda_condition(cudaError_t error)
{
	switch ((int)error) {
	case cudaErrorLaunchOutOfResources:
	case cudaErrorLaunchIncompatibleTexturing:
	case cudaErrorPeerAccessAlreadyEnabled:
	case cudaErrorPeerAccessNotEnabled:
	case cudaErrorSetOnActiveProcess:
	case cudaErrorTooManyPeers:
	case cudaErrorHostMemoryAlreadyRegistered:
	case cudaErrorHostMemoryNotRegistered:
	case cudaErrorCooperativeLaunchTooLarge:
		return DEVICE_E_INVALID;
	case cudaErrorCudartUnloading:
	case cudaErrorDeviceUninitialized:
	case cudaErrorECCUncorrectable:
	case cudaErrorNvlinkUncorrectable:
	case cudaErrorUnknown:
		return DEVICE_E_LOST;
	}
	return (int)error;
}

const char *cuda_error_name(int condition)
{
	const char *name = cudaGetErrorName((cudaError_t)condition);

	return strcmp(name, "unrecognized error code") != 0 ? name : NULL;
}

/* The first one counts: what comes after it is its echo. */
void cuda_fault(
	struct cuda_device *device, int condition, const char *call, const char *file, int line)
{
	pthread_mutex_lock(&device->lock);
	if (device->fault.condition == 0) {
		snprintf(device->fault_call, sizeof(device->fault_call), "%s", call);
		device->fault = (struct device_fault){
			.condition = condition,
			.call = device->fault_call,
			.file = file,
			.line = line,
		};
		atomic_store_explicit(&device->lost, condition, memory_order_release);
	}
	pthread_mutex_unlock(&device->lock);
}

/* An error stays the thread's "last error" until it is asked for, and would be taken for that of
 * the next launch. */
int cuda_check(
	struct device *device, cudaError_t error, const char *call, const char *file, int line)
{
	int condition = cuda_condition(error);

	if (condition == 0 || condition == DEVICE_E_NOT_READY)
		return condition;
	cudaGetLastError();
	if (device != NULL && device_is_lost(condition))
		cuda_fault(cuda_device(device), condition, call, file, line);
	return condition;
}

void cuda_last_fault(struct device *base, struct device_fault *ret)
{
	struct cuda_device *device = cuda_device(base);

	pthread_mutex_lock(&device->lock);
	*ret = device->fault;
	pthread_mutex_unlock(&device->lock);
}
